"""`mbrace translate`: text in, MBR-decoded text out, with pseudo-references drawn while the race is open."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from mbrace.cli.decode import add_cluster, add_output, check_output, ended, run_on_cluster, summary_line
from mbrace.cli.models import Given, add_model, add_sampling, check_model, model_from, server_from
from mbrace.cli.options import add_prune, add_utility, prune_from, report_truncated, schedule_from, utility_from
from mbrace.errors import UserError


def add(commands: Any) -> None:
    """The options of `mbrace translate`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "translate",
        help="translate text with a model and minimum Bayes risk",
        description="Beam search makes the hypotheses, sampling the pseudo-references, a race chooses. "
        "OUT.jsonl (.gz) gets the same fields as `mbrace decode` writes; any other OUT, and stdout, the texts alone.",
    )
    parser.add_argument("sources", nargs="?", default="-", metavar="SOURCES.txt", help="one a line; .gz; - is stdin")
    add_output(parser)
    parser.add_argument("--json", action="store_true", help="write JSON Lines whatever the name of OUT")
    parser.add_argument(
        "--sampling",
        action=Given,
        choices=["ahead", "lazy"],
        help="draw all pseudo-references at once (default on a GPU), or while the race is open (on a CPU)",
    )
    add_utility(parser)
    add_model(parser)
    add_sampling(parser)
    add_prune(parser)
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, load the model, then decode as `mbrace decode` does."""
    from mbrace.cli.progress import progress
    from mbrace.io.inputs import check_inputs
    from mbrace.io.output import Output
    from mbrace.jobs.generate import source_items
    from mbrace.jobs.job import Decoder, run_job
    from mbrace.jobs.live import TranslateWork
    from mbrace.jobs.signals import Stop

    check_output(args)
    prune, schedule = prune_from(args), schedule_from(args)
    for option in ("nbest", "beam"):
        if getattr(args, option) < 1:
            raise UserError(f"--{option} {getattr(args, option)}: must be 1 or more")
    if schedule == "all":
        raise UserError("--schedule all: a live model has no last pseudo-reference; give the sizes")
    check_model(args)
    text = args.text or not (args.json or ".jsonl" in args.output or args.output.endswith(".parquet"))
    work = TranslateWork(args, text)
    if args.ray is not None:
        everything = argparse.Namespace(**{**vars(args), "text": text})
        return run_on_cluster(work, [args.sources], everything)
    utility = utility_from(args)
    check_inputs([args.sources], args.output)
    settings = work.describe() | {"text": text}
    maker, sampler = candidates_from(args, schedule or utility.schedule)
    with (
        Stop() as stop,
        Output(args.output, resume=args.resume, force=args.force, text=text, settings=settings) as output,
        progress("translating", None) as advance,
    ):
        worker = Decoder(utility, prune, schedule, args.seed, args.nbest, args.window, sampler, text=text)
        items = maker.items(source_items(args.sources, first=1, columns=False))
        summary = run_job(worker, items, output, skip=args.on_error == "skip", stop=stop, advance=advance)
    report_truncated(summary.truncated)
    print(
        f"{summary_line(summary)}; hypotheses {maker.seconds:.2f} s, {sampler.drawn:,} pseudo-references drawn",
        file=sys.stderr,
    )
    return ended(args, summary.signal)


def candidates_from(args: argparse.Namespace, sizes: Any) -> tuple[Any, Any]:
    """Where hypotheses and pseudo-references come from."""
    from mbrace.models.hypotheses import Hypothesiser, ServerHypothesiser

    if args.server is not None:
        server = server_from(args)
        return ServerHypothesiser(server, count=args.beam, together=args.window), server
    model = model_from(args)
    sampler = model.sampler(
        epsilon=args.epsilon or None,
        temperature=args.temperature,
        seed=args.seed,
        ahead=model.ahead(args.sampling, max(sizes)),
    )
    return Hypothesiser(model, beam=args.beam, alpha=args.length_alpha, together=args.window), sampler
