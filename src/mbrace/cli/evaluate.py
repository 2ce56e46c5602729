"""`mbrace score`: translations against references; `mbrace compare`: are differences between systems significant?;
`mbrace experiment`: the paper's tables and figures on any candidate files."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from mbrace.cli.messages import show, shows_progress
from mbrace.cli.options import add_utility, report_cost, report_truncated, utility_from
from mbrace.cli.parser import seed
from mbrace.errors import UserError, check_whole, counted
from mbrace.utilities.named import NAMED, kind_of
from mbrace.utility import Utility, cores, truncated_texts, utility_cost

if TYPE_CHECKING:
    from mbrace.experiments.significance import Comparison

LABELS = {"chrf": "chrF", "chrf+": "chrF+", "chrf++": "chrF++", "comet": "COMET", "bleu": "BLEU"}
MOST = 1_000_000  # resamples or shuffles


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "score",
        help="score translations against references",
        description="The sentence average, as in the paper, and the corpus score if the utility has one.",
    )
    parser.add_argument(
        "hypotheses",
        metavar="HYP.txt",
        help="one translation per line (.gz, .xz, .bz2, .zst; - is stdin), or JSON Lines or Parquet with `text`",
    )
    parser.add_argument(
        "references",
        nargs="+",
        metavar="REF.txt",
        help="one reference per line, or JSON Lines or Parquet with `reference`; with several files, the best-scoring "
        "reference counts",
    )
    parser.add_argument(
        "--source",
        metavar="SRC.txt",
        help="one source per line, or JSON Lines or Parquet with `source`; for utilities that read it",
    )
    parser.add_argument("--per-line", action="store_true", help="first print the score of every sentence")
    add_utility(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from mbrace.experiments.significance import Evaluated

    utility = utility_from(args)
    (hypotheses,), references, sources = read_aligned([args.hypotheses], args.references, args.source)
    if utility.needs_source and sources is None:
        raise UserError(f"--utility {args.utility}: scores with the source; give --source SRC.txt")
    found = Evaluated.of(hypotheses, references, utility, sources)
    report_truncated(truncated_texts(utility))
    report_cost(utility_cost(utility))
    if args.per_line:
        show("\n".join(f"{score:.4f}" for score in found.scores))
    several = f", {len(references)} references" if len(references) > 1 else ""
    show(f"sentence average  {found.scores.mean():.4f}  ({counted(len(hypotheses), 'line')}{several}, {utility.name})")
    if found.corpus is not None:
        show(f"corpus            {found.corpus:.4f}")
    return 0


def read_aligned(
    outputs: Sequence[str], references: Sequence[str], source: str | None
) -> tuple[list[Sequence[str]], list[Sequence[str]], Sequence[str] | None]:
    """The texts of each output and of each file of references, and the sources (or None), paired by id, or by line."""
    from mbrace.io.candidates import check_stdin
    from mbrace.io.texts import align_texts, read_texts

    check_stdin([*outputs, *references, source or ""])
    systems = [read_texts(path, "text") for path in outputs]
    others = [read_texts(path, "reference") for path in references]
    others += [] if source is None else [read_texts(source, "source")]
    _, found = align_texts(systems, others)
    last = len(outputs) + len(references)
    return found[: len(outputs)], found[len(outputs) : last], None if source is None else found[-1]


def add_compare(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="significance tests for the outputs of two systems or more",
        description="Paired bootstrap (Koehn 2004) and paired approximate randomisation. The p-values are sacreBLEU's, "
        "except that ties count. More than two systems: the first is compared with each of the others, and p-values "
        "are corrected for the number of tests (Holm 1979).",
    )
    parser.add_argument(
        "systems",
        nargs="+",
        metavar="SYSTEM",
        help="text, one translation per line, or JSON Lines or Parquet from mbrace decode, paired by id",
    )
    parser.add_argument(
        "--reference",
        required=True,
        action="append",
        metavar="R",
        help="text, or JSON Lines or Parquet with `reference`; may be repeated: the best-scoring reference counts",
    )
    parser.add_argument(
        "--source", metavar="S", help="text, or JSON Lines or Parquet with `source`; for utilities that read it"
    )
    parser.add_argument("--resamples", type=int, default=1000, metavar="N", help="bootstrap resamples (default: 1000)")
    parser.add_argument(
        "--shuffles", type=int, default=10000, metavar="N", help="randomisation trials (default: 10000)"
    )
    parser.add_argument("--seed", type=seed, default=12345, help="random seed (default: 12345, sacreBLEU's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_utility(parser)
    parser.set_defaults(run=run_compare)


def run_compare(args: argparse.Namespace) -> int:
    from mbrace.experiments.significance import Evaluated, compare_evaluated

    utility = utility_from(args)
    for option in ("resamples", "shuffles"):
        check_whole(option, getattr(args, option), least=1, most=MOST)
    if args.seed < 0:
        raise UserError(f"--seed {args.seed}: must be 0 or more")
    if not 2 <= len(args.systems) <= len(ascii_uppercase):
        raise UserError(
            f"{counted(len(args.systems), 'system')}: give 2 to {len(ascii_uppercase)} files of translations"
        )
    systems, references, sources = read_aligned(args.systems, args.reference, args.source)
    if utility.needs_source and sources is None:
        raise UserError(f"--utility {args.utility}: scores with the source; give --source S")
    first, *others = (Evaluated.of(system, references, utility, sources) for system in systems)
    options = {"resamples": args.resamples, "shuffles": args.shuffles, "seed": args.seed}
    tests = [compare_evaluated(first, other, **options) for other in others]
    found = [_corrected([test[measure] for test in tests]) for measure in range(len(tests[0]))]
    about = {"sentences": len(systems[0]), "utility": utility.name, "systems": args.systems, **options}
    if args.json:
        rows = [{"a": args.systems[0], "b": args.systems[n], **row} for rows in found for n, row in enumerate(rows, 1)]
        show(json.dumps({**about, "references": len(references), "tests": rows}, ensure_ascii=False, indent=1))
    else:
        _print(about, found)
    return 0


def _corrected(tests: Sequence[Comparison]) -> list[dict[str, Any]]:
    """The tests of one measure as rows, with p-values corrected for their number."""
    from mbrace.experiments.significance import holm

    names = ("p_bootstrap", "p_randomisation")
    corrected = {f"{name}_holm": holm([getattr(test, name) for test in tests]) for name in names}
    rows = [
        {**asdict(test), "few_differ": test.few_differ, **{name: values[n] for name, values in corrected.items()}}
        for n, test in enumerate(tests)
    ]
    return [{("score_a" if k == "a" else "score_b" if k == "b" else k): v for k, v in row.items()} for row in rows]


def _print(about: dict[str, Any], found: Sequence[Sequence[dict[str, Any]]]) -> None:
    show(f"{counted(about['sentences'], 'sentence')}, {about['utility']}")
    several = len(about["systems"]) > 2
    for letter, path in zip(ascii_uppercase, about["systems"], strict=False):
        show(f"  {letter} = {path}")
    for rows in found:
        show(f"\n{rows[0]['measure']}")
        for letter, row in zip(ascii_uppercase[1:], rows, strict=False):
            holm = {name: f", Holm {row[f'{name}_holm']:.4f}" * several for name in ("p_bootstrap", "p_randomisation")}
            difference = f"{row['difference']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"
            show(f"  A {row['score_a']:.4f}   {letter} {row['score_b']:.4f}   A - {letter} {difference}")
            show(
                f"  paired bootstrap: A higher in {row['wins']:.1%} of {about['resamples']} resamples, "
                f"p = {row['p_bootstrap']:.4f}{holm['p_bootstrap']}"
            )
            show(
                f"  paired approximate randomisation: p = {row['p_randomisation']:.4f}{holm['p_randomisation']} "
                f"({counted(about['shuffles'], 'shuffle')})"
            )
            trusted = "; with so few, trust the randomisation" if row["few_differ"] else ""
            show(f"  {row['differ']:,} of {counted(about['sentences'], 'sentence')} differ{trusted}")


# `mbrace experiment`


def add_experiment(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "experiment",
        help="recommend settings for your candidate files, by the paper's evaluation",
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
    parser.set_defaults(run=run_experiment)


def run_experiment(args: argparse.Namespace) -> int:
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
        print_recommended(recommended)
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


def print_recommended(rows: list[dict[str, Any]]) -> None:
    """The default and the recommended race for each file: how many calls they save, and the command."""
    from mbrace.experiments.report import recommendation_cells, standard_mbr
    from mbrace.experiments.studies import MIN_SENTENCES

    for row in (row for row in rows if row["kind"] != "standard"):
        cells = recommendation_cells(row)
        if row["kind"] == "default":
            show(f"{row['file']}, {row['utility']}, {counted(row['sentences'], 'sentence')}")
        show(f"  {row['kind']:<12}{cells['saves']} fewer utility calls than {standard_mbr(row)}")
        if row["kind"] == "recommended":
            show(f"  {cells['command']}")  # in one line, so that it can be copied
            if "measured_with" in row:
                show(f"  Measured with {row['measured_with']} pseudo-references, as all judge; the command uses all.")
        elif row["sentences"] < MIN_SENTENCES:
            show(f"  Nothing is recommended from so few sentences: give at least {MIN_SENTENCES}.")
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
