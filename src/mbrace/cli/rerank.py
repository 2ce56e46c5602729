"""`mbrace rerank`: candidate files in, the best hypothesis by estimated quality out."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mbrace.cli.decode import count_records
from mbrace.cli.options import QE_HELP
from mbrace.cli.runs import add_cluster, add_output, check_output, run_here, run_on_cluster
from mbrace.errors import UserError

if TYPE_CHECKING:
    from mbrace.io.candidates import Item
    from mbrace.jobs.rerank import RerankJob


def add(commands: Any) -> None:
    """The options of `mbrace rerank`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "rerank",
        help="choose by estimated quality alone, without pseudo-references",
        description="Choose the hypothesis with the highest quality that a model estimates from the source.",
    )
    parser.add_argument(
        "candidates",
        nargs="*",
        metavar="CANDIDATES.jsonl",
        help="JSON Lines (.gz, .xz) or .parquet with sources: files, patterns such as 'part-*.jsonl', URLs; - is stdin",
    )
    add_output(parser)
    flat = parser.add_argument_group("flat text input, instead of CANDIDATES.jsonl")
    flat.add_argument("--hypotheses", metavar="H.txt", help="N hypotheses per source, one per line")
    flat.add_argument("--num-candidates", type=int, metavar="N", help="hypotheses per source")
    flat.add_argument("--source", metavar="S.txt", help="one source per line")
    group = parser.add_argument_group("quality")
    group.add_argument("--qe", required=True, metavar="MODEL", help=QE_HELP)
    group.add_argument("--nbest", type=int, default=1, metavar="N", help="write the N best (default: 1)")
    group.add_argument("--threads", type=int, default=0, metavar="N", help="threads (default: all cores)")
    group.add_argument("--device", metavar="DEVICE", help="cpu | cuda | cuda:1 ... (default: a GPU if there is one)")
    group.add_argument(
        "--dtype", metavar="DTYPE", help="of the network (default: bfloat16 on a GPU, else float32; auto: the faster)"
    )
    group.add_argument("--batch-tokens", type=int, metavar="N", help="tokens in a batch of the network")
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, then choose."""
    check_output(args)
    job = job_from(args)
    if args.ray is None:
        items, total = _input(args)
        return run_here(job, items, args, total=total)
    if not args.candidates:
        raise UserError("--ray: reads CANDIDATES.jsonl or .parquet, not flat text")
    return run_on_cluster(job, args.candidates, args)


def job_from(args: argparse.Namespace) -> RerankJob:
    """The job that was asked for."""
    from mbrace.jobs.rerank import RerankJob
    from mbrace.jobs.settings import QualitySettings

    if args.nbest < 1:
        raise UserError(f"--nbest {args.nbest}: must be 1 or more")
    qe = QualitySettings(args.qe, args.device, args.dtype, args.batch_tokens)
    return RerankJob(qe, nbest=args.nbest, window=args.window, text=args.text)


def _input(args: argparse.Namespace) -> tuple[Iterable[Item], int | None]:
    """The records, and how many there are where that is cheap to know."""
    from mbrace.io.candidates import read_flat, read_items
    from mbrace.io.inputs import check_inputs, expand, rereadable

    flat = [args.hypotheses, args.num_candidates, args.source]
    if args.candidates:
        if any(value is not None for value in flat):
            raise UserError("CANDIDATES.jsonl and --hypotheses: give one kind of input")
        paths = expand(args.candidates)
        check_inputs(paths, args.output)
        return rereadable(lambda: read_items(paths), paths), count_records(paths)
    if any(value is None for value in flat):
        raise UserError(
            "no input: give CANDIDATES.jsonl, or --hypotheses H.txt with --num-candidates N and --source S.txt"
        )
    check_inputs([args.hypotheses, args.source], args.output)
    records = read_flat(
        args.hypotheses, None, num_candidates=args.num_candidates, num_references=None, source=args.source
    )
    return records, None
