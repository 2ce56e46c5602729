"""`mbrace decode`: candidate files in, MBR decisions out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mbrace.cli.options import add_prune, add_utility, prune_from, report_truncated, schedule_from, utility_from
from mbrace.errors import UserError

if TYPE_CHECKING:
    from mbrace.io.candidates import Item
    from mbrace.jobs.job import Decoder, Summary, Work


def add(commands: Any) -> None:
    """The options of `mbrace decode`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "decode",
        help="decode candidate files with minimum Bayes risk",
        description="Choose the hypothesis with the highest expected utility for each source, by a race.",
    )
    parser.add_argument(
        "candidates",
        nargs="*",
        metavar="CANDIDATES.jsonl",
        help="JSON Lines (.gz, .xz) or .parquet: files, patterns such as 'part-*.jsonl', URLs; - is stdin",
    )
    add_output(parser)
    flat = parser.add_argument_group("flat text input, instead of CANDIDATES.jsonl")
    flat.add_argument("--hypotheses", metavar="H.txt", help="N hypotheses a source, one a line")
    flat.add_argument("--references", metavar="R.txt", help="pseudo-references (default: the hypotheses)")
    flat.add_argument("--num-candidates", type=int, metavar="N", help="hypotheses a source")
    flat.add_argument("--num-references", type=int, metavar="M", help="pseudo-references a source (default: N)")
    flat.add_argument("--source", metavar="S.txt", help="one source a line")
    add_utility(parser)
    add_prune(parser)
    add_cluster(parser)
    parser.set_defaults(run=run)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Where answers go."""
    parser.add_argument(
        "-o", "--output", default="-", metavar="OUT.jsonl", help=".gz, .xz or .parquet by suffix; - is stdout"
    )
    parser.add_argument("--text", action="store_true", help="write the texts alone, one line a source")
    parser.add_argument("--window", type=int, default=64, metavar="N", help="sentences racing at a time (default: 64)")
    add_resume(parser)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """What to do with an output that is there, and with a record that fails."""
    parser.add_argument("--resume", action="store_true", help="keep the answers in OUT and go on after them")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="a bad record stops the run (default), or is set aside in OUT.errors.jsonl",
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Whether and how to run on a cluster."""
    group = parser.add_argument_group("cluster (needs mbrace[cluster]); OUT is then a folder of shards")
    group.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="run on the Ray cluster at ADDRESS (auto: the one of this machine), or start one here",
    )
    group.add_argument("--workers", type=int, metavar="N", help="workers (default: one a CPU but one, or all GPUs)")
    group.add_argument("--gpus-per-worker", type=float, metavar="G", help="GPUs of a worker (default: 0)")
    group.add_argument("--shard-size", type=int, metavar="N", help="input lines a shard (default: 1024)")


def check_output(args: argparse.Namespace) -> None:
    """Refuse options of `add_output` that make no sense."""
    if args.resume and args.force:
        raise UserError("--resume and --force: give one of them")
    if args.window is not None and args.window < 1:
        raise UserError(f"--window {args.window}: must be 1 or more")
    if args.on_error == "skip" and args.output == "-":
        raise UserError("--on-error skip: what is set aside goes to OUT.errors.jsonl; give a file with -o OUT")
    if getattr(args, "ray", None) is None:
        for option in ("workers", "gpus_per_worker", "shard_size"):
            if getattr(args, option, None) is not None:
                raise UserError(f"--{option.replace('_', '-')}: goes with --ray")


def run(args: argparse.Namespace) -> int:
    """Check every option, then decode."""
    from mbrace.cli.progress import progress
    from mbrace.io.output import Output
    from mbrace.jobs.job import run_job
    from mbrace.jobs.signals import Stop

    check_output(args)
    if args.nbest < 1:
        raise UserError(f"--nbest {args.nbest}: must be 1 or more")
    if args.ray is not None:
        if not args.candidates:
            if os.path.exists(args.ray):
                raise UserError(f"--ray {args.ray}: is read as a cluster's address; give the files before --ray")
            raise UserError("--ray: reads CANDIDATES.jsonl or .parquet, not flat text")
        prune_from(args), schedule_from(args)  # a mistake is named before a cluster is reached for
        return run_on_cluster(DecodeWork(args), args.candidates, args)
    work = DecodeWork(args)
    decoder = work.start(args.threads)
    settings = work.describe() | {"text": args.text}
    items, total = _input(args)
    with (
        Stop() as stop,
        Output(args.output, resume=args.resume, force=args.force, text=args.text, settings=settings) as output,
        progress("decoding", total) as advance,
    ):
        summary = run_job(decoder, items, output, skip=args.on_error == "skip", stop=stop, advance=advance)
    report_truncated(summary.truncated)
    print(summary_line(summary), file=sys.stderr)
    return ended(args, summary.signal)


@dataclass(frozen=True)
class DecodeWork:
    """What `mbrace decode` was asked to do; the utility is made where the work is done."""

    args: argparse.Namespace

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        race = ("prune", "alpha", "bootstraps", "beta", "schedule", "seed", "nbest", "no_shuffle")
        names = ("utility", "metric_model", "dtype", *race)
        return {"command": "decode", **{name: getattr(self.args, name) for name in names}}

    def start(self, threads: int) -> Decoder:
        """The utility, the pruning function and the rest."""
        from mbrace.jobs.job import Decoder

        args = argparse.Namespace(**{**vars(self.args), "threads": self.args.threads or threads})
        return Decoder(
            utility_from(args),
            prune_from(args),
            schedule_from(args),
            seed=args.seed,
            nbest=args.nbest,
            window=args.window,
            shuffle=not args.no_shuffle,
            text=args.text,
        )

    def item(self, row: bytes, file: str, number: int, prefix: str) -> Item:
        """A record of JSON."""
        from mbrace.io.candidates import item_from

        return item_from(row, file, number, prefix=prefix)


def run_on_cluster(work: Work, inputs: list[str], args: argparse.Namespace) -> int:
    """Run with `--ray`: options are checked here, before a cluster is reached for."""
    from mbrace.cli.progress import share_progress
    from mbrace.cluster import run as run_cluster

    with share_progress(args.output) as progress:
        summary = run_cluster(
            work,
            inputs,
            args.output,
            address=None if args.ray == "local" else args.ray,
            workers=args.workers,
            gpus_per_worker=args.gpus_per_worker or 0,
            threads=args.threads,
            shard_size=1024 if args.shard_size is None else args.shard_size,
            resume=args.resume,
            force=args.force,
            skip=args.on_error == "skip",
            text=args.text,
            progress=progress,
        )
    report_truncated(summary.truncated)
    print(summary_line(summary), file=sys.stderr)
    return ended(args, summary.signal)


def ended(args: argparse.Namespace, signal: int | None) -> int:
    """The exit status of a run; one that a signal ended says how to go on."""
    if signal is None:
        return 0
    how = "" if args.output == "-" else "; go on with the same command and --resume"
    done = "finished shards are kept" if getattr(args, "ray", None) is not None else "the window at work is written"
    print(f"mbrace: stopped by signal {signal}; {done}{how}", file=sys.stderr)
    return 128 + signal


def _input(args: argparse.Namespace) -> tuple[Iterator[Item], int | None]:
    """The records, and how many there are where that is cheap to know."""
    from mbrace.io.candidates import read_flat, read_items
    from mbrace.io.inputs import check_inputs, expand

    flat = [args.hypotheses, args.references, args.num_candidates, args.num_references, args.source]
    if args.candidates:
        if any(value is not None for value in flat):
            raise UserError("CANDIDATES.jsonl and --hypotheses: give one kind of input")
        paths = expand(args.candidates)
        check_inputs(paths, args.output)
        return read_items(paths), _count(paths)
    if args.hypotheses is None or args.num_candidates is None:
        raise UserError("no input: give CANDIDATES.jsonl, or --hypotheses H.txt with --num-candidates N")
    check_inputs(filter(None, (args.hypotheses, args.references, args.source)), args.output)
    records = read_flat(
        args.hypotheses,
        args.references,
        num_candidates=args.num_candidates,
        num_references=args.num_references,
        source=args.source,
    )
    return records, None


def _count(paths: list[str]) -> int | None:
    """Lines of all files for the progress bar, if there is one and counting is quick."""
    from mbrace.io.reading import open_input

    plain = all(os.path.isfile(path) and path.endswith(".jsonl") for path in paths)
    if not (sys.stderr.isatty() and plain and sum(map(os.path.getsize, paths)) < 1 << 28):
        return None
    total = 0
    for path in paths:
        with open_input(path) as file:
            total += sum(1 for _ in file)
    return total


def summary_line(summary: Summary) -> str:
    """What a run did, for stderr."""
    phases = summary.phases
    parts = [f"{summary.sentences} sentences in {summary.seconds:.2f} s"]
    if summary.kept:
        parts.append(f"{summary.kept} kept from before")
    if summary.skipped:
        parts.append(f"{summary.skipped} set aside")
    if summary.standard_calls:
        saved = 1 - summary.utility_calls / summary.standard_calls
        parts.append(
            f"{summary.utility_calls:,} utility calls ({saved:.1%} saved), {summary.pairs_scored:,} pairs scored"
        )
    timed = [("draw", phases.draw), ("encode", phases.encode), ("score", phases.score), ("prune", phases.prune)]
    if any(seconds for _, seconds in timed):
        parts.append(", ".join(f"{name} {seconds:.2f} s" for name, seconds in timed))
    return "mbrace: " + "; ".join(parts)
