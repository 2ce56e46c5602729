"""`mbrace generate`: candidate files from a model."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from mbrace.cli.decode import add_cluster, add_resume, check_output, ended, run_on_cluster, summary_line
from mbrace.cli.models import add_model, add_sampling, check_model, maker_from
from mbrace.errors import UserError, require

if TYPE_CHECKING:
    from mbrace.jobs.generate import Candidates


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command's options."""
    parser = commands.add_parser("generate", help="write hypotheses and sampled pseudo-references of a model")
    parser.add_argument(
        "sources", help="one source a line, or a .tsv with references in its second column; .gz, .bz2, .xz"
    )
    parser.add_argument("--references", metavar="FILE", help="one reference a line, copied into the records")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="JSON Lines; .gz, .xz or .parquet by suffix; - is stdout. Its options are kept in OUT.run.json",
    )
    parser.add_argument("--window", type=int, metavar="N", help="sources at a time (default: 32; on a CPU 4)")
    add_resume(parser)
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads on a CPU (default: all cores)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N sources")
    parser.add_argument("--prefix", default="", help="put before the line number in ids")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop after so long; what is done is kept")
    parser.add_argument("--logprobs", action="store_true", help="write the pseudo-references' log-probabilities")
    parser.add_argument("--sample", type=int, default=1024, metavar="N", help="pseudo-references (1024; 0: none)")
    parser.add_argument("--seed", type=int, default=0)
    add_model(parser)
    add_sampling(parser, length="--alpha")
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, load the model, then generate."""
    import itertools

    from mbrace.cli.progress import progress
    from mbrace.jobs.generate import generate, source_items
    from mbrace.jobs.live import GenerateWork
    from mbrace.jobs.signals import Stop

    options = candidates_from(args)
    check_output(args)
    check_model(args)
    if args.threads < 0:
        raise UserError(f"--threads {args.threads}: must be 0 (all cores) or more")
    for option in ("limit", "minutes"):
        if (value := getattr(args, option)) is not None and not value >= 0:
            raise UserError(f"--{option} {value}: must be 0 or more")
    if args.ray is not None:
        return _on_cluster(args)
    total = _check_sources(args)
    if args.threads and args.server is None:
        require("torch", extra="models").set_num_threads(args.threads)
    make = maker_from(args, options)
    sources = itertools.islice(source_items(args.sources, args.references, prefix=args.prefix), args.limit)
    with Stop() as stop, progress("generating", total) as advance:
        summary = generate(
            make,
            sources,
            args.output,
            options,
            settings=GenerateWork(args).describe(),
            together=window_from(args),
            minutes=args.minutes,
            resume=args.resume,
            force=args.force,
            skip=args.on_error == "skip",
            stop=stop,
            advance=advance,
        )
    print(summary_line(summary), file=sys.stderr)
    return ended(args, summary.signal)


def window_from(args: argparse.Namespace) -> int:
    """How many sources at a time: few on a CPU, where each takes long and what is done is to be written."""
    if args.window is not None:
        return int(args.window)
    if args.server is not None:
        return 32
    on_gpu = (args.device or "cuda") != "cpu" and require("torch", extra="models").cuda.is_available()
    return 32 if on_gpu else 4


def _check_sources(args: argparse.Namespace) -> int | None:
    """A missing file is an error before the model is loaded. How many sources there are, for the progress bar."""
    from mbrace.io.inputs import check_inputs
    from mbrace.io.reading import count_lines

    check_inputs(filter(None, (args.sources, args.references)), args.output)
    if not sys.stderr.isatty() or args.sources == "-":
        return args.limit  # type: ignore[no-any-return]
    count = count_lines(args.sources)
    return count if args.limit is None else min(count, args.limit)


def candidates_from(args: argparse.Namespace) -> Candidates:
    """How many candidates of what kind were asked for."""
    from mbrace.jobs.generate import Candidates

    if args.beam < 0 or args.sample < 0 or args.beam + args.sample == 0:
        raise UserError(f"--beam {args.beam} --sample {args.sample}: give how many, of one at least")
    if args.logprobs and not args.sample:
        raise UserError("--logprobs: goes with pseudo-references; give --sample 1 or more")
    return Candidates(
        beam=args.beam,
        sample=args.sample,
        epsilon=args.epsilon or None,
        temperature=args.temperature,
        seed=args.seed,
        alpha=args.length_alpha,
        logprobs=args.logprobs,
    )


def _on_cluster(args: argparse.Namespace) -> int:
    """As on one machine, but the shards are what is kept."""
    from mbrace.jobs.live import GenerateWork

    for option in ("references", "limit", "minutes"):
        if getattr(args, option) is not None:
            raise UserError(f"--{option}: not with --ray; give a .tsv with references, or the sources that are wanted")
    everything = argparse.Namespace(**{**vars(args), "threads": args.threads or 1, "text": False})
    return run_on_cluster(GenerateWork(args), [args.sources], everything)
