"""`mbrace experiment`: the paper's tables and figures on any candidate files."""

from __future__ import annotations

import argparse
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

from mbrace.cli.messages import shows_progress
from mbrace.cli.models import Given
from mbrace.cli.options import QE_HELP, add_utility, utility_from
from mbrace.cli.parser import seed
from mbrace.cores import cores
from mbrace.errors import UserError


def add(commands: Any) -> None:
    """The options of `mbrace experiment`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "experiment",
        help="reproduce the paper's evaluation on candidate files",
        description="Tables, figures and a report: false pruning, speed against accuracy, test table, survivors, "
        "schedules, run times. NAME.valid.jsonl is used for figures and NAME.test.jsonl for the test table; a pair "
        "with one file uses it for both. Results already in DIR, those of other utilities too, are kept and shown.",
    )
    parser.add_argument(
        "candidates", nargs="*", metavar="CANDIDATES.jsonl", help="JSON Lines, .gz or .xz; a quoted glob is expanded"
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder for all results")
    parser.add_argument("--trials", type=int, default=10, metavar="N", help="random trials (default: 10)")
    parser.add_argument("--seed", type=seed, default=0, help="random seed (default: 0)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N sentences of each file")
    parser.add_argument("--workers", type=int, metavar="N", help="processes to use (default: one per core)")
    parser.add_argument("--races", type=int, default=12, metavar="N", help="races shown in the report (default: 12)")
    parser.add_argument(
        "--report-only", nargs="*", metavar="DIR", help="run nothing: merge the data of these folders into the report"
    )
    parser.add_argument(
        "--no-report", action="store_true", help="write DIR/data only, without figures and report; merge it later"
    )
    parser.add_argument(
        "--saved-utilities",
        metavar="DIR",
        help="read tables that are complete in DIR, which `decode --save-utilities` wrote, instead of scoring",
    )
    parser.add_argument(
        "--strings",
        action="store_true",
        help="how few strings are enough: races that stop by regret or let draws in, against standard MBR with fewer "
        "strings; 256 pseudo-references race, the others of each record are held out",
    )
    methods = parser.add_argument_group("every method side by side")
    methods.add_argument(
        "--methods",
        action="store_true",
        help="every published way to make MBR cheaper on the same candidates: utility on samples held out, agreement, "
        "human scores, calls, strings, and seconds on one thread (or --threads)",
    )
    methods.add_argument("--timed", type=int, metavar="N", help="sentences to time (default: 100)")
    methods.add_argument("--qe", metavar="MODEL", help=f"adds the shortlist by a model that {QE_HELP}")
    methods.add_argument(
        "--drawn", choices=("independent", "arithmetic"), help="how the candidates were drawn (default: independent)"
    )
    timing = parser.add_argument_group("run times (Table 2)")
    timing.add_argument("--runtimes", action="store_true", help="time racing, standard MBR and beam search on a model")
    used: dict[str, Any] = {"action": Given}
    timing.add_argument("--model", default="bundled", metavar="M", help="a translation model: folder or name", **used)
    timing.add_argument("--sources", metavar="FILE", help="one source per line, or a candidate file", **used)
    timing.add_argument("--pair", metavar="NAME", help="name in the report (default: the file's)", **used)
    for name, default, what in (("--sentences", 100, "number of sources"), ("--repeats", 3, "timed runs to average")):
        timing.add_argument(name, type=int, default=default, metavar="N", help=f"{what} (default: {default})", **used)
    add_utility(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check the options, then run."""
    from mbrace.cli import experiment_studies as studies
    from mbrace.experiments import experiment
    from mbrace.io.candidates import expand
    from mbrace.jobs.progress import progress_bar

    out = Path(args.output)
    for option in ("trials", "limit", "workers", "races", "sentences", "repeats", "timed"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise UserError(f"--{option} {value}: must be 1 or more")
    _check_used(args)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; give a folder")
    recommended: list[dict[str, Any]] = []
    if args.report_only is not None:
        recommended = experiment.write(out, [Path(folder) for folder in args.report_only])
    elif args.runtimes:
        studies.run_runtimes(args, out)
    elif args.strings:
        studies.run_strings(args, out)
    elif args.methods:
        studies.run_methods(args, out)
    elif args.candidates:
        candidates = expand(args.candidates)
        utility = utility_from(args)
        recommended = experiment.run(
            candidates,
            out,
            utility,
            label=studies.label_of(args, utility),
            trials=args.trials,
            seed=args.seed,
            workers=args.workers or cores(),
            limit=args.limit,
            races=args.races,
            report=not args.no_report,
            saved_utilities=None if args.saved_utilities is None else Path(args.saved_utilities),
            progress=partial(progress_bar, shown=shows_progress()),
        )
    else:
        raise UserError("no candidate files; give CANDIDATES.jsonl..., --report-only or --runtimes")
    if recommended:
        _print_recommended(recommended)
    print(out / ("data" if args.no_report or not (out / "report.html").exists() else "report.html"))
    return 0


def _print_recommended(rows: list[dict[str, Any]]) -> None:
    """The default and the recommended race for each file: what they save and lose against standard MBR."""
    from mbrace.experiments.recommendation import shown

    print("Races against standard MBR (95% intervals over sentences; minus is worse)")
    before = None
    for row in (row for row in rows if row["kind"] != "standard"):
        cells = {name: text.replace(" to ", "..") for name, text in shown(row).items()}
        names = {"score": "score", "lost": "utility", "rr": "reciprocal rank"}
        if "lost" in cells:
            del names["rr"]
        if before != (row["file"], row["utility"]):
            before = row["file"], row["utility"]
            sentences = "1 sentence" if row["sentences"] == 1 else f"{row['sentences']:,} sentences"
            print(f"\n{row['file']}, {row['utility']}, {sentences}")
            headings = "".join(f"{name:<24}" for found, name in names.items() if found in cells)
            print(f"  {'':<12}{'fewer calls':<19}{headings}".rstrip())
        numbers = "".join(f"{cells[found]:<24}" for found in names if found in cells)
        print(f"  {row['kind']:<12}{cells['saves']:<19}{numbers}".rstrip())
        if row["kind"] == "recommended":
            print(textwrap.fill(cells["options"], 78, initial_indent="  ", subsequent_indent="    "))
    print()


def _check_used(args: argparse.Namespace) -> None:
    """Refuse options that the requested kind of run does not use."""
    given: dict[str, str] = getattr(args, "given", {})
    if args.report_only is not None and (args.candidates or args.runtimes or args.no_report):
        raise UserError("--report-only: runs nothing; give neither CANDIDATES.jsonl, --runtimes nor --no-report")
    if args.strings and (args.report_only is not None or args.runtimes or not args.candidates):
        raise UserError("--strings: give CANDIDATES.jsonl, and neither --report-only nor --runtimes")
    if args.strings and args.saved_utilities is not None:
        raise UserError("--strings: scores drawn strings as hypotheses too; leave out --saved-utilities")
    if args.methods and (args.report_only is not None or args.runtimes or args.strings or not args.candidates):
        raise UserError("--methods: give CANDIDATES.jsonl, and none of --report-only, --runtimes and --strings")
    if args.methods and args.saved_utilities is not None:
        raise UserError("--methods: scores drawn strings as hypotheses too; leave out --saved-utilities")
    for option in ("timed", "qe", "drawn"):
        if getattr(args, option) is not None and not args.methods:
            raise UserError(f"--{option}: only valid with --methods")
    if args.runtimes and args.candidates:
        raise UserError("--runtimes: generates from --sources FILE; leave out CANDIDATES.jsonl")
    if args.saved_utilities is not None:
        if args.report_only is not None or args.runtimes:
            raise UserError("--saved-utilities: only valid with CANDIDATES.jsonl")
        if args.utility == "replay":
            raise UserError("--saved-utilities: not with --utility replay, which scores nothing; give one of them")
        if not Path(args.saved_utilities).is_dir():
            raise UserError(f"--saved-utilities {args.saved_utilities}: not a folder; give one of --save-utilities")
    if given and not args.runtimes:
        raise UserError(f"{next(iter(given.values()))}: only valid with --runtimes")
