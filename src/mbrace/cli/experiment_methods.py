"""`mbrace experiment --methods`: every published way to make MBR cheaper, measured on the same candidates."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from mbrace.cli.messages import shows_progress
from mbrace.cli.options import utility_settings
from mbrace.cores import cores
from mbrace.jobs.settings import QualitySettings
from mbrace.utility import EncodingUtility, Utility

TIMED = 100


def run_methods(args: argparse.Namespace, out: Path, label_of: Callable[[argparse.Namespace, Utility], str]) -> None:
    """Measure every file, and write what was found."""
    from mbrace.experiments import experiment, methods, methods_section
    from mbrace.experiments.tables import CandidateFile
    from mbrace.io.atomic import make_folder
    from mbrace.io.inputs import expand
    from mbrace.jobs.progress import progress_bar
    from mbrace.utilities.bleu import BLEU
    from mbrace.utilities.chrf import ChrF

    report = not args.no_report and bool(list((out / "data").glob("*.npz")))
    if report:
        experiment.require_report()
    threads = args.threads or 1
    utility = utility_settings(args).load(threads)
    qe = None if args.qe is None else QualitySettings(args.qe, args.device, args.dtype, args.batch_tokens).load(threads)
    label = label_of(args, utility)
    other: dict[str, Utility] = {"BLEU": BLEU()} if label.startswith("chrF") else {"chrF++": ChrF()}
    study = methods.Study(utility, qe, args.seed)
    device, where = _device(utility, threads)
    for file in map(CandidateFile.from_path, expand(args.candidates)):
        file.check_races(args.limit)
        records = file.records(args.limit)
        methods.check_records(records)
        make_folder(out)
        ways = study.ways(records)
        judged = all(record.reference is not None for record in records)
        metrics = {label: utility, **other} if judged else {}
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
    if report:
        experiment.write(out)


def _device(utility: Utility, threads: int) -> tuple[str, str]:
    """Where a utility runs, by its full name and in a word or two."""
    from mbrace.experiments.runtimes import processor_name

    kind = getattr(getattr(getattr(utility, "encoder", None), "device", None), "type", "cpu")
    if kind == "cuda":
        name = str(sys.modules["torch"].cuda.get_device_name())
        return name, name.removeprefix("NVIDIA ")
    cores = "one core" if threads == 1 else f"{threads} cores"
    return f"{processor_name()}, {cores}", cores
