"""`mbrace rerank`: candidate files in, the best hypothesis by estimated quality out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mbrace.cli.options import add_settings, add_threads, given
from mbrace.cli.runs import add_cluster, add_input, add_output, add_top, check_run, run_candidates
from mbrace.settings import Network

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
    add_output(parser, window=True)
    add_top(parser)
    group = parser.add_argument_group("quality")
    group.add_argument(
        "--qe",
        required=True,
        metavar="MODEL",
        help="estimates quality from the source: the folder or hub name of CometKiwi, XCOMET, a referenceless COMET, "
        "MetricX",
    )
    group.add_argument("--nbest", type=int, default=1, metavar="N", help="write the N best (default: 1)")
    add_threads(group)
    add_settings(group, Network, without=("model",))
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, then choose."""
    check_run(args)
    return run_candidates(job_from(args), args)


def job_from(args: argparse.Namespace) -> RerankJob:
    """The job that was asked for."""
    from mbrace.jobs.rerank import RerankJob

    qe = Network(**{**given(args, Network), "model": args.qe})
    return RerankJob(qe, nbest=args.nbest, window=args.window, text=bool(args.text), top=args.top)
