"""What commands that run a job share: where answers go, resuming, clusters, and the summary at the end."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mbrace.cli.messages import log, say, shows_progress
from mbrace.cli.options import check_threads, cost_text, report_truncated
from mbrace.errors import UserError
from mbrace.utility import Cost
from mbrace.wording import counted

if TYPE_CHECKING:
    from mbrace.io.candidates import Item
    from mbrace.jobs.run import Job, Summary


def add_output(parser: argparse.ArgumentParser) -> None:
    """Where answers go."""
    parser.add_argument(
        "-o",
        "--output",
        default="-",
        metavar="OUT.jsonl",
        help=".gz, .xz, .bz2, .zst or .parquet by suffix; - is stdout",
    )
    parser.add_argument("--text", action="store_true", help="write only the texts, one line per source")
    parser.add_argument("--window", type=int, default=64, metavar="N", help="sentences processed at once (default: 64)")
    add_resume(parser)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """What to do with an output that exists, and with a record that fails."""
    parser.add_argument("--resume", action="store_true", help="keep the answers in OUT and continue after them")
    parser.add_argument(
        "--retry-errors", action="store_true", help="with --resume: try the records in OUT.errors.jsonl again"
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="a bad record stops the run (default), or is set aside in OUT.errors.jsonl",
    )


def add_save_utilities(parser: argparse.ArgumentParser) -> None:
    """Whether to save what was scored."""
    parser.add_argument(
        "--save-utilities", metavar="DIR", help="save the utilities of every record in DIR, for `--utility replay`"
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Whether and how to run on a cluster."""
    group = parser.add_argument_group("cluster (needs mbrace[cluster]); OUT is then a folder of shards")
    group.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="run on the Ray cluster at ADDRESS (auto: the one that runs here), or by default start one here",
    )
    group.add_argument("--workers", type=int, metavar="N", help="workers (default: one fewer than CPUs, or by GPUs)")
    group.add_argument("--gpus-per-worker", type=float, metavar="G", help="GPUs per worker (default: 0)")
    group.add_argument(
        "--shard-size", type=int, metavar="N", help="input lines per shard (default: 1024, or 64 sources)"
    )


def check_output(args: argparse.Namespace) -> None:
    """Refuse options of `add_output` and `add_cluster` that make no sense."""
    if args.retry_errors and args.ray is not None:
        raise UserError("--retry-errors: not with --ray; give the records set aside as an input of their own")
    if args.window is not None and args.window < 1:
        raise UserError(f"--window {args.window}: must be 1 or more")
    check_threads(args.threads)
    if getattr(args, "text", False) and args.nbest > 1:
        raise UserError(f"--nbest {args.nbest}: plain text has one line per source; leave out --text for JSON Lines")
    check_on_error(args)
    if args.ray is None:
        for option in ("workers", "gpus_per_worker", "shard_size"):
            if getattr(args, option) is not None:
                raise UserError(f"--{option.replace('_', '-')}: only valid with --ray")
    elif args.output == "-":
        raise UserError("--ray: writes a folder of shards; give one with -o OUT")


def check_on_error(args: argparse.Namespace) -> None:
    """Refuse to set records aside where there is no file for them."""
    if args.on_error == "skip" and args.output == "-":
        raise UserError("--on-error skip: what is set aside goes to OUT.errors.jsonl; give a file with -o OUT")


def run_here(
    job: Job,
    items: Iterable[Item],
    args: argparse.Namespace,
    *,
    total: int | None = None,
    minutes: float | None = None,
) -> int:
    """Run a job on this machine; the exit status."""
    options = {"threads": args.threads, "retry_errors": args.retry_errors, "minutes": minutes, "total": total}
    return _ended(run_with_output(job, items, args, **options), args)


def run_with_output(job: Job, items: Iterable[Item], args: argparse.Namespace, **options: Any) -> Summary:
    """Run a job on this machine, into the output of `add_resume`'s options; `options` are others of `run_job`."""
    from mbrace.cli.config import given_options
    from mbrace.jobs.run import run_job

    return run_job(
        job,
        items,
        args.output,
        resume=args.resume,
        force=args.force,
        on_error=args.on_error,
        handle_signals=True,
        progress=shows_progress(),
        options=None if args.output == "-" else given_options(args.arguments, args.parser),
        **options,
    )


def run_on_cluster(job: Job, inputs: list[str], args: argparse.Namespace) -> int:
    """Run a job with `--ray`; the exit status."""
    from mbrace.cli.config import given_options
    from mbrace.cluster import run
    from mbrace.jobs.progress import share_progress_bar

    with share_progress_bar(args.output, shown=shows_progress()) as progress:
        summary = run(
            job,
            inputs,
            args.output,
            address=None if args.ray == "local" else args.ray,
            workers=args.workers,
            gpus_per_worker=args.gpus_per_worker or 0,
            threads=args.threads,
            shard_size=args.shard_size,
            resume=args.resume,
            force=args.force,
            on_error=args.on_error,
            progress=progress,
            options=given_options(args.arguments, args.parser),
        )
    return _ended(summary, args)


def _ended(summary: Summary, args: argparse.Namespace) -> int:
    """Say what a run did, and how to continue if a signal ended it; returns its exit status."""
    report_truncated(summary.truncated)
    say(summary_lines(summary))
    if summary.signal is None:
        return 0
    how = "" if args.output == "-" else "; go on with the same command and --resume"
    done = "the current window is written" if args.ray is None else "finished shards are kept"
    log.warning(f"stopped by signal {summary.signal}; {done}{how}")
    return 128 + summary.signal


def summary_lines(summary: Summary) -> str:
    """What a run did, for stderr, in lines of at most 80 characters."""
    phases = summary.phases
    parts = [f"{counted(summary.sentences, 'sentence')} in {summary.seconds:.2f} s"]
    if summary.kept:
        parts.append(f"{summary.kept:,} kept from before")
    if summary.skipped:
        parts.append(f"{summary.skipped:,} set aside")
    if summary.standard_calls:
        saved = 1 - summary.utility_calls / summary.standard_calls
        share = f"{saved:.1%} saved" if saved >= 0 else f"{-saved:.1%} more than standard MBR"
        calls = f"{counted(summary.utility_calls, 'utility call')} ({share})"
        parts.append(f"{calls}, {counted(summary.pairs_scored, 'pair')} scored")
    if summary.quality_calls:
        parts.append(f"quality of {counted(summary.quality_calls, 'hypothesis', 'hypotheses')} estimated")
    if summary.requests or summary.kept_answers:
        cost = Cost(summary.requests, summary.kept_answers, summary.prompt_tokens, summary.completion_tokens)
        parts.append(cost_text(cost))
    if summary.cut or summary.blank:
        blank = f", {summary.blank:,} blank" if summary.blank else ""
        parts.append(f"left out: {counted(summary.cut, 'output')} cut at --max-tokens{blank}")
    timed = [("draw", phases.draw), ("encode", phases.encode), ("score", phases.score), ("prune", phases.prune)]
    timed += [(name, spent) for name in ("quality", "forecast") if (spent := getattr(phases, name))]
    if any(seconds for _, seconds in timed):
        parts.append(", ".join(f"{name} {seconds:.2f} s" for name, seconds in timed))
    if summary.hypothesis_seconds:
        drawn = f"{counted(summary.drawn, 'pseudo-reference')} drawn"
        parts.append(f"hypotheses {summary.hypothesis_seconds:.2f} s, {drawn}")
    return _packed(parts, 80)


def _packed(parts: list[str], width: int) -> str:
    """The parts of a message, as many per line as fit; only a part that is too long for a line is broken, at commas."""
    lines, indent = ["mbrace:"], " " * 7
    for part in parts:
        fits_alone = len(indent) + len(f" {part};") <= width
        for piece in [f"{part};"] if fits_alone else re.split(r"(?<=,) ", f"{part};"):
            if len(lines[-1]) + 1 + len(piece) > width:
                lines.append(indent)
            lines[-1] += f" {piece}"
    return "\n".join(lines).removesuffix(";")
