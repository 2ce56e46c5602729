"""What commands that run a job share: inputs, outputs, resuming, clusters, and the summary at the end."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mbrace.cli.messages import log, say, shows_progress
from mbrace.cli.options import cost_text, options_from, report_truncated
from mbrace.errors import ServiceError, SettingError, UserError, counted, warn
from mbrace.setting_fields import nearest, typed
from mbrace.utility import Cost

if TYPE_CHECKING:
    from mbrace.io.candidates import Item
    from mbrace.jobs.run import Job, RunOptions, Summary

ALL_THE_SAME, FEW = 0.9, 4  # the share of prompts whose draws are one text, and their number, that is worth a warning
RAY_OPTIONS = {"workers": int, "gpus_per_worker": float, "shard_size": int}


def add_input(parser: argparse.ArgumentParser, *, references: bool = True) -> None:
    """CANDIDATES.jsonl, or flat text. Without `references` there are no pseudo-references, and sources are required."""
    sources = "" if references else " with sources"
    parser.add_argument(
        "candidates",
        nargs="*",
        metavar="CANDIDATES.jsonl",
        help=f"JSON Lines (.gz, .xz, .bz2, .zst) or .parquet{sources}: files, patterns such as 'part-*.jsonl', URLs; "
        "- is stdin",
    )
    flat = parser.add_argument_group("flat text input, instead of CANDIDATES.jsonl")
    flat.add_argument("--hypotheses", metavar="H.txt", help="N hypotheses per source, one per line")
    flat.add_argument("--num-candidates", type=int, metavar="N", help="hypotheses per source")
    if references:
        flat.add_argument("--references", metavar="R.txt", help="pseudo-references (default: the hypotheses)")
        flat.add_argument("--num-references", type=int, metavar="M", help="pseudo-references per source (default: N)")
    flat.add_argument("--source", metavar="S.txt", help="one source per line")
    parser.set_defaults(
        **({} if references else {"references": None, "num_references": None}), needs_source=not references
    )


def add_output(parser: argparse.ArgumentParser, *, window: bool = False) -> None:
    """Where answers go; with `window`, also how many sentences are processed at once."""
    parser.add_argument(
        "-o",
        "--output",
        default="-",
        metavar="OUT.jsonl",
        help="output file, packed (.gz, .xz, .bz2, .zst) or .parquet by its suffix; - is stdout",
    )
    parser.add_argument(
        "--text",
        action=argparse.BooleanOptionalAction,
        help="write one text per line instead of JSON Lines (default: by the command and the name of OUT)",
    )
    if window:
        parser.add_argument(
            "--window", type=int, default=64, metavar="N", help="sentences processed at once (default: 64)"
        )
    add_resume(parser)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """What to do with an output that exists, and with a record that fails."""
    parser.add_argument("--resume", action="store_true", help="keep the answers in OUT and continue after them")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument(
        "--on-error",
        default="stop",
        metavar="{stop,skip}",
        help="a bad record stops the run (default), or is skipped and set aside in OUT.errors.jsonl",
    )


def add_save_utilities(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--save-utilities", metavar="DIR", help="save the utilities of every record in DIR, for `--utility replay`"
    )


def add_top(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--top",
        type=int,
        metavar="K",
        help="write candidate records with the K best hypotheses and all pseudo-references instead of answers",
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Whether and how to run on a cluster."""
    group = parser.add_argument_group("cluster (needs mbrace[cluster]); OUT is then a folder of shards")
    group.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="run on the Ray cluster at ADDRESS (auto: one that runs here); without ADDRESS, start one here",
    )
    group.add_argument(
        "--ray-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="workers (default: one fewer than CPUs, or by GPUs), gpus_per_worker (0), shard_size (input lines per "
        "shard: 1024, or 64 sources); may be repeated",
    )


def check_run(args: argparse.Namespace) -> None:
    """Refuse options of a run that make no sense, before anything is loaded."""
    run_options(args)
    args.ray_options = {}
    for name, text in options_from("--ray-option", args.ray_option).items():
        if name not in RAY_OPTIONS:
            raise SettingError(name, ..., f"no option of --ray{nearest(name, RAY_OPTIONS)}", group="ray")
        args.ray_options[name] = typed("ray", name, text, RAY_OPTIONS[name])
    if args.ray is None and args.ray_options:
        raise UserError("--ray-option: only valid with --ray")
    if args.ray is not None and args.output == "-":
        raise UserError("--ray: writes a folder of shards; give one with -o OUT")


def run_candidates(job: Job, args: argparse.Namespace) -> int:
    """Run a job over the input that was given, on this machine or with --ray."""
    if args.ray is None:
        items, total = read_input(job, args)
        return run_here(job, items, args, total=total)
    if not args.candidates:
        if os.path.exists(args.ray):
            raise UserError(f"--ray {args.ray}: is read as a cluster's address; give the files before --ray")
        raise UserError("--ray: reads CANDIDATES.jsonl or .parquet, not flat text")
    return run_on_cluster(job, args.candidates, args)


def read_input(job: Job, args: argparse.Namespace) -> tuple[Iterable[Item], int | None]:
    """The records, and their number where that is cheap to find out."""
    from mbrace.io.candidates import expand, read_flat
    from mbrace.io.output import check_inputs
    from mbrace.jobs.run import items_of

    sizes = {"num_candidates": args.num_candidates, "num_references": args.num_references}
    if args.candidates:
        if any(value is not None for value in (args.hypotheses, args.references, args.source, *sizes.values())):
            if args.hypotheses is None and args.num_candidates is not None and len(args.candidates) == 1:
                raise UserError(f"--num-candidates: write `--hypotheses {args.candidates[0]}` for a flat text file")
            raise UserError("CANDIDATES.jsonl and --hypotheses: give one kind of input")
        paths = expand(args.candidates)
        _refuse_flat_text(paths)
        return items_of(job, paths, args.output), _count_records(paths)
    if args.hypotheses is None or args.num_candidates is None or (args.needs_source and args.source is None):
        with_source = " and --source S.txt" if args.needs_source else ""
        if args.hypotheses is not None:
            raise UserError(f"--hypotheses {args.hypotheses}: also needs --num-candidates N{with_source}")
        raise UserError(f"no input: give CANDIDATES.jsonl, or --hypotheses H.txt with --num-candidates N{with_source}")
    if args.num_references is not None and args.references is None:
        raise UserError("--num-references: only valid with --references; the hypotheses are the others")
    files = list(filter(None, (args.hypotheses, args.references, args.source)))
    check_inputs(files, args.output)
    return read_flat(args.hypotheses, args.references, source=args.source, **sizes), None


def _refuse_flat_text(paths: list[str]) -> None:
    """Refuse lines of text where JSON Lines are expected, and say how to give them."""
    for path in paths:
        if path.endswith(".txt") and os.path.isfile(path):
            with open(path, "rb") as file:
                start = file.read(64).lstrip()
            if start and start[:1] != b"{":
                flat = f"--hypotheses {path} --num-candidates N"
                raise UserError(f"{path}: is not JSON Lines; for text with N hypotheses per source give {flat}")


def _count_records(paths: list[str]) -> int | None:
    """The number of lines of all files, for the progress bar; None without one, or where counting would be slow."""
    from mbrace.io.reading import count_lines

    shows_bar = sys.stderr is not None and sys.stderr.isatty()
    plain = all(os.path.isfile(path) and path.endswith((".jsonl", ".txt", ".tsv")) for path in paths)
    if not (shows_bar and plain and sum(map(os.path.getsize, paths)) < 1 << 28):
        return None
    return sum(map(count_lines, paths))


def run_sources(job: Job, args: argparse.Namespace) -> int:
    """Run a job over the lines of `args.sources`, on this machine or with --ray."""
    from mbrace.jobs.run import items_of

    if args.ray is not None:
        return run_on_cluster(job, [args.sources], args)
    items = items_of(job, args.sources, args.output)
    return run_here(job, items, args, total=_count_records([args.sources]))


def run_here(job: Job, items: Iterable[Item], args: argparse.Namespace, *, total: int | None = None) -> int:
    """Run a job on this machine; the exit status."""
    return report_run(run_with_output(job, items, args, total=total), args)


def run_options(args: argparse.Namespace) -> RunOptions:
    """The options of `add_resume`, checked."""
    from mbrace.jobs.run import RunOptions

    if args.on_error == "skip" and args.output == "-":
        raise UserError("--on-error skip: what is set aside goes to OUT.errors.jsonl; give a file with -o OUT")
    return RunOptions(getattr(args, "threads", 0), args.resume, args.force, args.on_error)


def run_with_output(job: Job, items: Iterable[Item], args: argparse.Namespace, *, total: int | None = None) -> Summary:
    """Run a job on this machine, into the output of `add_resume`'s options; `total` is the number of items."""
    from mbrace.cli.config import given_options
    from mbrace.jobs.run import run_job

    with _resumable(args):
        return run_job(
            job,
            items,
            args.output,
            run_options(args),
            handle_signals=True,
            progress=shows_progress(),
            total=total,
            options=None if args.output == "-" else given_options(args),
        )


@contextmanager
def _resumable(args: argparse.Namespace) -> Iterator[None]:
    """Say how to go on if a server or the network ends a run."""
    try:
        yield
    except ServiceError as error:
        if os.path.exists(args.output) and "resume" not in str(error):
            log.warning("what is done is kept; go on with the same command and --resume")
        raise


def run_on_cluster(job: Job, inputs: list[str], args: argparse.Namespace) -> int:
    """Run a job with `--ray`; the exit status."""
    from mbrace.cli.config import given_options
    from mbrace.cluster import run
    from mbrace.jobs.terminal import progress_bar

    with _resumable(args), progress_bar(args.output, shown=shows_progress()) as progress:
        summary = run(
            job,
            inputs,
            args.output,
            address=None if args.ray == "local" else args.ray,
            **args.ray_options,
            threads=args.threads,
            resume=args.resume,
            force=args.force,
            on_error=args.on_error,
            progress=progress,
            options=given_options(args),
        )
    return report_run(summary, args)


def report_run(summary: Summary, args: argparse.Namespace) -> int:
    """Say what a run did, and how to continue if a signal ended it; returns its exit status."""
    report_truncated(summary.truncated)
    say(summary_lines(summary))
    _report_stops(summary)
    if summary.signal is None:
        return 0
    how = "" if args.output == "-" else "; go on with the same command and --resume"
    done = "the current window is written" if args.ray is None else "finished shards are kept"
    log.warning(f"stopped by signal {summary.signal}; {done}{how}")
    return 128 + summary.signal


def _report_stops(summary: Summary) -> None:
    """Say why the races of answers stopped, and what finding out what the server does took."""
    kept = {name.partition("stopped_by_")[2]: count for name, count in vars(summary).items()}
    counts = {name.replace("_", " "): count for name, count in kept.items() if name}
    if not any(counts.values()):
        return
    by_count = sorted(filter(counts.get, counts), key=counts.__getitem__, reverse=True)
    say("stopped: " + ", ".join(f"{name} ({counted(counts[name], 'prompt')})" for name in by_count))
    if summary.probe_tokens:
        say(f"{counted(summary.probe_tokens, 'token')} more went to finding out what the server does")
    if counts["cost"]:
        say("answers that `cost` stopped are final: --resume keeps them, whatever its budget")
    same, ended = counts["one text"], sum(counts.values())
    if same >= max(ALL_THE_SAME * ended, FEW):
        warn(
            f"{same:,} of {counted(ended, 'prompt')} stopped with `one text`: all their draws were the same; unless "
            "they are that easy, the model samples too little or not at all: raise --temperature, see docs/servers.md"
        )


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
    if summary.most_draws:
        unmatched = f", {summary.unmatched:,} without an answer" if summary.unmatched else ""
        untold = f" ({summary.untold:,} without a count)" if summary.untold else ""
        parts.append(
            f"{counted(summary.draws, 'draw')} ({1 - summary.draws / summary.most_draws:.0%} saved){unmatched}, "
            f"{summary.tokens_in:,} prompt + {summary.tokens_out:,} answer tokens in "
            f"{counted(summary.draw_requests, 'request')}{untold}"
        )
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
    text = "; ".join(part if len(part) > 70 else part.replace(" ", "\xa0") for part in parts)  # kept in one line
    return textwrap.fill(f"mbrace: {text}", 80, subsequent_indent=" " * 8).replace("\xa0", " ")
