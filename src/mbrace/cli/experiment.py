"""`mbrace experiment`: the paper's tables and figures on any candidate files."""

from __future__ import annotations

import argparse
import shlex
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

from mbrace.cli.messages import show, shows_progress
from mbrace.cli.options import add_utility, utility_from
from mbrace.cli.parser import seed
from mbrace.errors import UserError, counted
from mbrace.utilities.named import NAMED, kind_of
from mbrace.utility import Utility, cores

LABELS = {"chrf": "chrF", "chrf+": "chrF+", "chrf++": "chrF++", "comet": "COMET", "bleu": "BLEU"}


def add(commands: Any) -> None:
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
    parser.add_argument(
        "--report-only", nargs="*", metavar="DIR", help="run nothing: merge the data of these folders into the report"
    )
    parser.add_argument(
        "--no-report", action="store_true", help="write DIR/data only, without figures and report; merge it later"
    )
    timing = parser.add_argument_group("run times (Table 2)")
    timing.add_argument("--runtimes", action="store_true", help="time racing, standard MBR and beam search on a model")
    timing.add_argument("--model", metavar="M", help="a translation model: folder or name (default: bundled)")
    timing.add_argument("--sources", metavar="FILE", help="one source per line, or a candidate file")
    timing.add_argument("--pair", metavar="NAME", help="name in the report (default: the file's)")
    timing.add_argument("--sentences", type=int, metavar="N", help="number of sources (default: 100)")
    timing.add_argument("--repeats", type=int, metavar="N", help="timed runs to average (default: 3)")
    add_utility(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from mbrace.experiments import experiment
    from mbrace.io.candidates import expand
    from mbrace.jobs.terminal import progress_bar

    out = Path(args.output)
    for option in ("trials", "limit", "workers", "sentences", "repeats"):
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
        _run_runtimes(args, out)
    elif args.candidates:
        candidates = expand(args.candidates)
        utility = utility_from(args)
        recommended = experiment.run(
            candidates,
            out,
            utility,
            label=_label_of(args, utility),
            kind=kind_of(args.utility),
            utility_options=_utility_options(args),
            trials=args.trials,
            seed=args.seed,
            workers=args.workers or cores(),
            limit=args.limit,
            report=not args.no_report,
            progress=partial(progress_bar, shown=shows_progress()),
        )
    else:
        raise UserError("no candidate files; give CANDIDATES.jsonl..., --report-only or --runtimes")
    if recommended:
        _print_recommended(recommended)
    show(out / ("data" if args.no_report or not (out / "report.html").exists() else "report.html"))
    return 0


def _label_of(args: argparse.Namespace, utility: Utility) -> str:
    """The name of the results: the utility with its options, and its model if one was given."""
    if args.utility == "replay":
        return utility.name.split("|")[0]  # that of the utility that scored
    name = " ".join([LABELS.get(args.utility, args.utility), *sorted(args.utility_option)])
    if args.metric_model is None or args.utility not in NAMED or not NAMED[args.utility].neural:
        return name
    return f"{name} {utility.name.split('|')[1].removeprefix(f'{args.utility}-')}"  # signatures are kind|model|...


def _utility_options(args: argparse.Namespace) -> str:
    """The options of `mbrace decode` that choose the same utility."""
    words = [] if args.utility == "chrf++" else ["--utility", args.utility]
    words += [] if args.metric_model is None else ["--metric-model", args.metric_model]
    words += [word for option in args.utility_option for word in ("--utility-option", option)]
    return shlex.join(words)


def _run_runtimes(args: argparse.Namespace, out: Path) -> None:
    """Time racing, standard MBR and beam search, and write the seconds by phase."""
    from mbrace.experiments import experiment, runtimes
    from mbrace.io.atomic import make_folder

    if args.sources is None:
        raise UserError("--runtimes: give --sources FILE")
    has_report = not args.no_report and any((out / "data").glob("*.npz"))
    if has_report:
        experiment.require_report()
    sources, pair = runtimes.read_sources(args.sources, args.sentences or 100)
    make_folder(out)
    model, utility = runtimes.load_model(args.model or "bundled", args.device), utility_from(args)
    rows = runtimes.run_times(
        model,
        utility,
        sources,
        pair=args.pair or pair,
        label=_label_of(args, utility),
        trials=args.repeats or 3,
        seed=args.seed,
    )
    runtimes.save(rows, out / "data")
    for row in rows:
        show(f"{row['method']:<10} {row['phase']:<12} {row['seconds']:10.3f} s")
    if has_report:
        experiment.write(out)


def _print_recommended(rows: list[dict[str, Any]]) -> None:
    """The default and the recommended race for each file: how many calls they save, and the command."""
    from mbrace.experiments.studies import LEAST
    from mbrace.experiments.summary import recommendation_cells

    for row in (row for row in rows if row["kind"] != "standard"):
        cells = recommendation_cells(row)
        if row["kind"] == "default":
            show(f"{row['file']}, {row['utility']}, {counted(row['sentences'], 'sentence')}")
        show(f"  {row['kind']:<12}{cells['saves']} fewer utility calls than standard MBR")
        if row["kind"] == "recommended":
            show(textwrap.fill(cells["command"], 78, initial_indent="  ", subsequent_indent="    "))
        elif row["sentences"] < LEAST:
            show(f"  Nothing is recommended from so few sentences: give at least {LEAST}.")
    show()


def _check_used(args: argparse.Namespace) -> None:
    """Refuse options that the requested kind of run does not use."""
    if args.report_only is not None and (args.candidates or args.runtimes or args.no_report):
        raise UserError("--report-only: runs nothing; give neither CANDIDATES.jsonl, --runtimes nor --no-report")
    if args.runtimes and args.candidates:
        raise UserError("--runtimes: generates from --sources FILE; leave out CANDIDATES.jsonl")
    for option in ("model", "sources", "pair", "sentences", "repeats"):
        if getattr(args, option) is not None and not args.runtimes:
            raise UserError(f"--{option}: only valid with --runtimes")
