"""`mbrace generate`: candidate files from a model."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from typing import TYPE_CHECKING, Any

from mbrace.cli.models import add_model, add_sampling, check_model, model_settings, sampling_settings
from mbrace.cli.parser import seed
from mbrace.cli.runs import add_cluster, add_resume, check_output, run_here, run_on_cluster
from mbrace.errors import UserError

if TYPE_CHECKING:
    from mbrace.jobs.generate import GenerateJob


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command's options."""
    parser = commands.add_parser("generate", help="write hypotheses and sampled pseudo-references of a model")
    parser.add_argument(
        "sources", help="one source per line, or a .tsv with references in its second column; .gz, .xz, .bz2, .zst"
    )
    parser.add_argument("--references", metavar="FILE", help="one reference per line, copied into the records")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="JSON Lines; .gz, .xz, .bz2, .zst or .parquet by suffix; - is stdout",
    )
    parser.add_argument("--window", type=int, metavar="N", help="sources at a time (default: 32; on a CPU 4)")
    add_resume(parser)
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads on a CPU (default: all cores)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N sources")
    parser.add_argument("--prefix", default="", help="text before the line number in ids")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop after M minutes; what is done by then is kept")
    parser.add_argument("--logprobs", action="store_true", help="write the pseudo-references' log-probabilities")
    parser.add_argument(
        "--sample", type=int, default=1024, metavar="N", help="pseudo-references per source (1024; 0: none)"
    )
    parser.add_argument("--seed", type=seed, default=0, help="random seed (default: 0)")
    add_model(parser)
    add_sampling(parser, once="--alpha")
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, then generate."""
    from mbrace.io.candidates import checked_input
    from mbrace.jobs.sources import source_items

    job = job_from(args)
    if args.limit is not None and args.limit < 1:
        raise UserError(f"--limit {args.limit}: must be 1 or more")
    if args.minutes is not None and not 0 < args.minutes < math.inf:
        raise UserError(f"--minutes {args.minutes}: must be more than 0")
    if args.ray is not None:
        for option in ("references", "limit", "minutes"):
            if getattr(args, option) is not None:
                remedy = "give a .tsv with references, or the sources that are wanted"
                raise UserError(f"--{option}: not with --ray; {remedy}")
        return run_on_cluster(job, [args.sources], args)
    paths = [path for path in (args.sources, args.references) if path is not None]
    items = checked_input(
        lambda: itertools.islice(source_items(*paths, make_item=job.item), args.limit), paths, output=args.output
    )
    return run_here(job, items, args, total=_count_sources(args), minutes=args.minutes)


def job_from(args: argparse.Namespace) -> GenerateJob:
    """The job that was asked for."""
    from mbrace.jobs.generate import GenerateJob

    args.beam = 256 if args.beam is None else args.beam
    if args.beam < 0 or args.sample < 0 or args.beam + args.sample == 0:
        raise UserError(f"--beam {args.beam} --sample {args.sample}: give how many, of one at least")
    if args.logprobs and not args.sample:
        raise UserError("--logprobs: only valid with pseudo-references; give --sample 1 or more")
    check_output(args)
    check_model(args)
    return GenerateJob(
        model_settings(args),
        sampling_settings(args),
        sample=args.sample,
        seed=args.seed,
        logprobs=args.logprobs,
        prefix=args.prefix,
        window=args.window,
    )


def _count_sources(args: argparse.Namespace) -> int | None:
    """How many sources there are, for the progress bar."""
    from mbrace.io.reading import count_lines

    if not sys.stderr.isatty() or args.sources == "-":
        return args.limit  # type: ignore[no-any-return]
    count = count_lines(args.sources)
    return count if args.limit is None else min(count, args.limit)
