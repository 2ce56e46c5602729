"""`mbrace experiment --runtimes`, `--strings` and `--methods`: the studies that are not the paper's main evaluation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mbrace.cli.messages import shows_progress
from mbrace.cli.options import utility_from, utility_settings
from mbrace.cores import cores
from mbrace.errors import UserError
from mbrace.jobs.settings import QualitySettings
from mbrace.records import Record
from mbrace.utilities.named import NAMED
from mbrace.utility import EncodingUtility, Utility

if TYPE_CHECKING:
    from mbrace.experiments.tables import CandidateFile

LABELS = {"chrf": "chrF", "chrf+": "chrF+", "chrf++": "chrF++", "comet": "COMET", "bleu": "BLEU"}
TIMED = 100  # sentences of a file whose decoding is timed by default


def label_of(args: argparse.Namespace, utility: Utility) -> str:
    """The name of the results: the utility with its options, and its model if one was given."""
    if args.utility == "replay":
        return utility.name.split("|")[0]  # that of the utility that scored
    name = " ".join([LABELS.get(args.utility, args.utility), *sorted(args.utility_option)])
    if args.metric_model is None or args.utility not in NAMED or not NAMED[args.utility].neural:
        return name
    return f"{name} {utility.name.split('|')[1].removeprefix(f'{args.utility}-')}"  # signatures are kind|model|...


def run_runtimes(args: argparse.Namespace, out: Path) -> None:
    """Time racing, standard MBR and beam search, and write the seconds by phase."""
    from mbrace.experiments import experiment, runtimes
    from mbrace.io.atomic import make_folder

    if args.sources is None:
        raise UserError("--runtimes: give --sources FILE")
    updates_report = _updates_report(args, out)
    sources, pair = runtimes.read_sources(args.sources, args.sentences)
    make_folder(out)
    model, utility = runtimes.load_model(args.model, args.device), utility_from(args)
    rows = runtimes.run_times(
        model,
        utility,
        sources,
        pair=args.pair or pair,
        label=label_of(args, utility),
        trials=args.repeats,
        seed=args.seed,
    )
    runtimes.save(rows, out / "data")
    for row in rows:
        print(f"{row['method']:<10} {row['phase']:<12} {row['seconds']:10.3f} s")
    if updates_report:
        experiment.write(out)


def run_strings(args: argparse.Namespace, out: Path) -> None:
    """Measure how few strings are enough in every file, and write what was found."""
    from mbrace.experiments import experiment, strings, strings_section
    from mbrace.io.atomic import make_folder
    from mbrace.jobs.progress import progress_bar

    updates_report = _updates_report(args, out)
    utility = utility_from(args)
    label = label_of(args, utility)
    for file, records in _candidates(args):
        make_folder(out)
        metrics = _metrics(label, utility, records)
        with progress_bar(f"strings of {file.name} {file.split}", len(records), shown=shows_progress()) as advance:
            rows = strings.run_strings(records, utility, metrics, seed=args.seed, advance=advance)
        about = {"pair": file.name, "split": file.split, "utility": label, "sampling": "independent"}
        strings_section.save_rows(rows, out / "data", about)
    found = strings_section.summaries(strings_section.load_rows(out / "data"))
    for (pair, name), own in found.items():
        print(f"{pair}, {name}: {strings_section.recommendation(own)}")
    if updates_report:
        experiment.write(out)


def run_methods(args: argparse.Namespace, out: Path) -> None:
    """Measure every published way to make MBR cheaper on every file, and write what was found."""
    from mbrace.experiments import experiment, methods, methods_section
    from mbrace.io.atomic import make_folder
    from mbrace.jobs.progress import progress_bar

    updates_report = _updates_report(args, out)
    threads = args.threads or 1
    utility = utility_settings(args).load(threads)
    qe = None if args.qe is None else QualitySettings(args.qe, args.device, args.dtype, args.batch_tokens).load(threads)
    label = label_of(args, utility)
    study = methods.Study(utility, qe, args.seed)
    device, where = _device(utility, threads)
    for file, records in _candidates(args):
        methods.check_records(records)
        make_folder(out)
        ways = study.ways(records)
        metrics = _metrics(label, utility, records)
        with progress_bar(f"choices on {file.name} {file.split}", len(records), shown=shows_progress()) as advance:
            processes = args.workers or cores()
            rows = methods.quality_rows(study, records, metrics, ways, workers=processes, advance=advance)
        methods.check_spread(rows, file.path)
        timed = records[: args.timed or TIMED]
        with progress_bar(f"seconds on {file.name} {file.split}", len(timed), shown=shows_progress()) as advance:
            gpu = where not in ("one core", f"{threads} cores")
            times = list(methods.timed_rows(study, timed, ways, full_warm_up=gpu, advance=advance))
        about = {"pair": file.name, "split": file.split, "utility": label}
        about |= {"signature": utility.name, "digest": file.digest, "sampling": args.drawn or "independent"}
        about |= {} if qe is None else {"qe": qe.name}
        embeds = isinstance(utility, EncodingUtility)
        methods_section.save(rows, times, out / "data", about | {"device": device, "where": where, "embeds": embeds})
    found = methods_section.load(out / "data")
    summaries = [methods_section.summarise(stored) for stored in found]
    experiment.write_csv(out / "methods.csv", [row for rows in summaries for row in rows])
    for rows in summaries:
        print("\n".join([*methods_section.terminal(rows), ""]))
    if updates_report:
        experiment.write(out)


def _updates_report(args: argparse.Namespace, out: Path) -> bool:
    """Whether `out` has a report that a study becomes a part of; what a report needs must then be installed."""
    from mbrace.experiments import experiment

    has_report = not args.no_report and any((out / "data").glob("*.npz"))
    if has_report:
        experiment.require_report()
    return has_report


def _candidates(args: argparse.Namespace) -> Iterator[tuple[CandidateFile, list[Record]]]:
    """Each candidate file with its records."""
    from mbrace.experiments.tables import CandidateFile
    from mbrace.io.candidates import expand

    for file in map(CandidateFile.from_path, expand(args.candidates)):
        file.check_races(args.limit)
        yield file, file.records(args.limit)


def _metrics(label: str, utility: Utility, records: list[Record]) -> dict[str, Utility]:
    """What judges the answers to records with human references: the utility, and a metric that nothing was decoded
    with."""
    from mbrace.metrics.bleu import BLEU
    from mbrace.metrics.chrf import ChrF

    if any(record.reference is None for record in records):
        return {}
    other: dict[str, Utility] = {"BLEU": BLEU()} if label.startswith("chrF") else {"chrF++": ChrF()}
    return {label: utility, **other}


def _device(utility: Utility, threads: int) -> tuple[str, str]:
    """Where a utility runs, by its full name and in a word or two."""
    from mbrace.experiments.runtimes import processor_name

    kind = getattr(getattr(getattr(utility, "encoder", None), "device", None), "type", "cpu")
    if kind == "cuda":
        name = str(sys.modules["torch"].cuda.get_device_name())
        return name, name.removeprefix("NVIDIA ")
    cores = "one core" if threads == 1 else f"{threads} cores"
    return f"{processor_name()}, {cores}", cores
