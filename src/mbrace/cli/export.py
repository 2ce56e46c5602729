"""`mbrace export`: decoded answers in, training data out."""

from __future__ import annotations

import argparse
from typing import Any

from mbrace.cli.messages import say
from mbrace.cli.runs import add_resume, check_on_error, run_with_output
from mbrace.errors import UserError
from mbrace.wording import counted


def add(commands: Any) -> None:
    """The options of `mbrace export`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="write decoded answers as data for fine-tuning",
        description="Answers of `mbrace decode` or `translate` as JSON Lines for supervised fine-tuning, or as pairs "
        "of the best and the worst hypothesis for preference training.",
    )
    parser.add_argument("answers", nargs="+", metavar="ANSWERS.jsonl", help="what mbrace decode or translate wrote")
    parser.add_argument(
        "-o", "--output", default="-", metavar="OUT.jsonl", help=".gz ... .parquet by suffix; - is stdout"
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
    parser.add_argument(
        "--utilities",
        metavar="DIR",
        help="the worst is taken from the tables of `--save-utilities DIR` instead of the n-best list",
    )
    parser.add_argument(
        "--min-gap", type=float, default=0.0, metavar="X", help="smallest difference between the utilities of a pair"
    )
    parser.add_argument("--prompt", default="{source}", metavar="TEXT", help="the request, with {source} in it")
    parser.add_argument("--chat", action="store_true", help="messages with roles instead of strings")
    parser.add_argument("--system", metavar="TEXT", help="with --chat: a system message before the prompt")
    add_resume(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, then write."""
    from mbrace.io.candidates import checked_input, expand, read_items
    from mbrace.jobs.export import ExportJob

    if args.on_error == "retry":
        raise UserError("--on-error retry: an export has nothing to try again; run it with --force")
    check_on_error(args)
    if args.format == "preference" and args.output == "-":
        raise UserError("--format preference: records left out go to OUT.errors.jsonl; give a file with -o OUT")
    job = ExportJob(args.format, args.sources, args.utilities, args.prompt, args.chat, args.system, args.min_gap)
    paths = expand(args.answers)
    files = [*paths, *([] if args.sources is None else [args.sources])]
    items = checked_input(lambda: read_items(paths, job.item), files, output=args.output)
    summary = run_with_output(job, items, args)
    kept = f", {summary.kept:,} kept from before" if summary.kept else ""
    left = f"; {counted(summary.skipped, 'record')} left out, see {args.output}.errors.jsonl" if summary.skipped else ""
    say(f"mbrace: {counted(summary.sentences, 'line')} written{kept}{left}")
    return 0 if summary.signal is None else 128 + summary.signal
