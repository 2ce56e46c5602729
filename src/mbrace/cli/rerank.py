"""`mbrace rerank`: candidate files in, the best hypothesis by estimated quality out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mbrace.cli.candidates import add_input, run_candidates
from mbrace.cli.options import QE_HELP, add_device, add_top
from mbrace.cli.runs import add_cluster, add_output, check_output

if TYPE_CHECKING:
    from mbrace.jobs.rerank import RerankJob


def add(commands: Any) -> None:
    """The options of `mbrace rerank`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "rerank",
        help="choose by estimated quality alone, without pseudo-references",
        description="Choose the hypothesis with the highest quality that a model estimates from the source.",
    )
    add_input(parser, references=False)
    add_output(parser)
    group = parser.add_argument_group("quality")
    group.add_argument("--qe", required=True, metavar="MODEL", help=QE_HELP)
    group.add_argument("--nbest", type=int, default=1, metavar="N", help="write the N best (default: 1)")
    add_top(group)
    group.add_argument("--threads", type=int, default=0, metavar="N", help="threads (default: all cores)")
    add_device(group)
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, then choose."""
    check_output(args)
    return run_candidates(job_from(args), args)


def job_from(args: argparse.Namespace) -> RerankJob:
    """The job that was asked for."""
    from mbrace.jobs.rerank import RerankJob
    from mbrace.jobs.settings import QualitySettings

    qe = QualitySettings(args.qe, args.device, args.dtype, args.batch_tokens)
    return RerankJob(qe, nbest=args.nbest, window=args.window, text=args.text, top=args.top)
