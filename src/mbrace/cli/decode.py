"""`mbrace decode`, `mbrace rerank`: candidate files in, decisions out; `mbrace export`: decisions as training data."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mbrace.cli.messages import say
from mbrace.cli.options import add_race, add_settings, add_threads, add_utility, given, race_settings, utility_settings
from mbrace.cli.runs import (
    add_cluster,
    add_input,
    add_output,
    add_resume,
    add_save_utilities,
    add_top,
    check_run,
    read_input,
    run_candidates,
    run_options,
    run_with_output,
)
from mbrace.errors import UserError, counted
from mbrace.settings import Network

if TYPE_CHECKING:
    from mbrace.jobs.decode import DecodeJob


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "decode",
        help="decode candidate files with minimum Bayes risk",
        description="For each source, choose the hypothesis with the highest expected utility; "
        "unlikely ones are pruned early.",
    )
    add_input(parser)
    add_output(parser)
    add_save_utilities(parser)
    add_top(parser)
    parser.add_argument("--explain", metavar="ID", help="print the race of the record with this id, and write nothing")
    add_utility(parser)
    add_race(parser)
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    check_run(args)
    job = job_from(args)
    if args.explain is not None:
        from mbrace.cli.explain import run_explain

        return run_explain(job, read_input(job, args)[0], args)
    return run_candidates(job, args)


def job_from(args: argparse.Namespace) -> DecodeJob:
    from mbrace.jobs.decode import DecodeJob

    race, _ = race_settings(args, "decode")
    return DecodeJob(utility_settings(args), race, bool(args.text), args.save_utilities, args.top)


def add_rerank(commands: Any) -> None:
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
        help="model that estimates quality from the source: folder or hub name of CometKiwi, XCOMET, a referenceless "
        "COMET or MetricX",
    )
    group.add_argument("--nbest", type=int, default=1, metavar="N", help="write the N best (default: 1)")
    add_threads(group)
    add_settings(group, Network, without=("model",))
    add_cluster(parser)
    parser.set_defaults(run=run_rerank)


def run_rerank(args: argparse.Namespace) -> int:
    from mbrace.jobs.decode import RerankJob

    check_run(args)
    qe = Network(**{**given(args, Network), "model": args.qe})
    job = RerankJob(qe, nbest=args.nbest, window=args.window, text=bool(args.text), top=args.top)
    return run_candidates(job, args)


def add_export(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="write decoded answers as data for fine-tuning",
        description="Answers of `mbrace decode` or `translate` as JSON Lines for supervised fine-tuning, or as pairs "
        "of the best and the worst hypothesis for preference training.",
    )
    parser.add_argument(
        "answers", nargs="+", metavar="ANSWERS.jsonl", help="output of mbrace decode, translate or answer"
    )
    parser.add_argument(
        "-o",
        "--output",
        default="-",
        metavar="OUT.jsonl",
        help="output file, packed or .parquet by its suffix; - is stdout",
    )
    parser.add_argument(
        "--format",
        choices=("sft", "preference"),
        default="sft",
        help="sft (default): prompt and completion; preference: prompt, chosen (the answer) and rejected (the worst)",
    )
    parser.add_argument(
        "--sources", metavar="FILE", help="the candidate file, or one source per line, if answers have no `source`"
    )
    parser.add_argument("--prompt", default="{source}", metavar="TEXT", help="the request, with {source} in it")
    parser.add_argument("--chat", action="store_true", help="messages with roles instead of strings")
    add_resume(parser)
    parser.set_defaults(run=run_export)


def run_export(args: argparse.Namespace) -> int:
    from mbrace.jobs.export import ExportJob
    from mbrace.jobs.run import items_of

    run_options(args)
    if args.format == "preference" and args.output == "-":
        raise UserError("--format preference: records left out go to OUT.errors.jsonl; give a file with -o OUT")
    job = ExportJob(args.format, args.sources, args.prompt, args.chat)
    summary = run_with_output(job, items_of(job, args.answers, args.output, others=job.files), args)
    kept = f", {summary.kept:,} kept from before" if summary.kept else ""
    left = f"; {counted(summary.skipped, 'record')} left out, see {args.output}.errors.jsonl" if summary.skipped else ""
    say(f"mbrace: {counted(summary.sentences, 'line')} written{kept}{left}")
    return 0 if summary.signal is None else 128 + summary.signal
