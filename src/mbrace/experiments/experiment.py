"""The whole experiment: candidate files in; data, pictures and one report out.

DIR/tables/    compressed utilities, one folder per candidate file and utility; a cache, can be deleted
DIR/data/      outcomes of every race (.npz), recorded races (.json.gz), run times (.json): the source of all below
DIR/*.csv, figures/, report.html, RESULTS.md
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

from mbrace.errors import UserError, require, spreadsheet_cell, warn
from mbrace.experiments import figures, studies
from mbrace.experiments.claims import claims, correct, margins, table_rows
from mbrace.experiments.races import load_races, record_sentence, save_races, spread_evenly
from mbrace.experiments.report import write as write_report
from mbrace.experiments.studies import Row
from mbrace.experiments.tables import (
    CandidateFile,
    about_outcomes,
    exhausted_note,
    facts,
    pseudo_references_of,
    slug,
    tables,
)
from mbrace.experiments.trials import REGRET_SETTINGS, SIZES, TRADEOFF, Outcomes, Setting, run_trials, table_settings
from mbrace.io.atomic import make_folder
from mbrace.io.resume import refuse_other_settings
from mbrace.metrics.bleu import BLEU
from mbrace.metrics.chrf import ChrF
from mbrace.utilities.named import Kind
from mbrace.utility import Utility

# Metrics that score every decision against the human reference, whatever decoded it: a metric that decoded is gamed.
# chrF2 is what the authors' scripts compute: sacreBLEU's chrF as it is by default, without words.
OTHER_METRICS: dict[str, Utility] = {"chrF++": ChrF(), "chrF2": ChrF(word_order=0), "BLEU": BLEU()}
# progress("tables of de-en", total) is a context manager; it yields a function that takes the number just finished
Progress: TypeAlias = Callable[[str, int], Any]


def run(
    paths: Sequence[str],
    out: Path,
    utility: Utility,
    *,
    label: str,
    kind: Kind = "string",
    utility_options: str = "",
    trials: int = 10,
    seed: int = 0,
    workers: int = 1,
    limit: int | None = None,
    report: bool = True,
    progress: Progress = lambda title, total: nullcontext(lambda count: None),
) -> list[Row]:
    """Run everything for one utility and add it to the results in `out`. Finished files are not computed again.

    Returns the rows of recommended races (see `studies.recommended`) of all results in `out`, or of this run's files
    with `report=False`, which writes DIR/data only and needs nothing but NumPy.
    `kind` is the utility's, which decides what `--preset fast` is; `utility_options` are those of `mbrace decode` that
    choose the utility, for the command that is recommended.
    """
    if report:
        require_report()
    files = [CandidateFile.from_path(path) for path in paths]
    names = [(file.name, file.split) for file in files]
    for file in files:
        if names.count((file.name, file.split)) > 1:
            both = f"{file.name} ({file.split})"
            raise UserError(f"{file.path}: two files are {both}; name them NAME.valid and NAME.test")
        file.check_races(limit)
    make_folder(out)
    targets = [out / "data" / f"{file.name}.{file.split}.{slug(label)}.npz" for file in files]
    earlier = {target: Outcomes.load(target) for target in targets if target.exists()}
    for target, outcomes in earlier.items():
        _refuse_other_utility(target, outcomes, utility.name)
    for file, target in zip(files, targets, strict=True):
        for_figures = file.split != "test" or sum(other.name == file.name for other in files) == 1
        records = file.records(limit)
        longest = max(len(pseudo_references_of(record)) for record in records)
        schedule = schedule_for(utility.schedule, longest)
        settings = settings_for(schedule, kind, for_figures=for_figures)
        metrics = {name: metric for name, metric in OTHER_METRICS.items() if metric.name != utility.name}
        key = _key(file.digest, utility.name, schedule, settings, trials, seed, limit, list(metrics))
        if target in earlier and earlier[target].about["key"] == key:
            continue
        started = time.perf_counter()
        if any(record.reference is None for record in records):
            metrics = {}
        with progress(f"tables of {file.name} {file.split}", len(records)) as advance:
            stored = tables(file, records, utility, out / "tables", others=metrics, advance=advance)
        built = time.perf_counter()
        with progress(f"races of {file.name} {file.split}", len(stored)) as advance:
            outcomes = run_trials(
                stored,
                name=utility.name,
                schedule=schedule,
                settings=settings,
                scored=table_settings(schedule, kind),
                sizes=SIZES if for_figures else (),
                trials=trials,
                seed=seed,
                workers=workers,
                advance=advance,
            )
        seconds = {"tables": round(built - started, 2), "races": round(time.perf_counter() - built, 2)}
        words = {"utility": utility.name, "label": label, "options": utility_options}
        sentences = [facts(table) for table in stored]
        outcomes.about = about_outcomes(file, sentences, **words, schedule=schedule, trials=trials, seed=seed)
        outcomes.about |= {"key": key, "kind": kind, "seconds": seconds, "workers": workers}
        outcomes.about["available"] = min(longest, utility.schedule[-1])  # what `mbrace decode` uses
        if note := exhausted_note(outcomes.about, 5):
            warn(f"{file.path}: {note}")
        if for_figures:
            chosen = spread_evenly(len(stored))
            races = [record_sentence(stored[n], records[n], utility.name, schedule, seed) for n in chosen]
            save_races(target, outcomes.about, races)
        outcomes.save(target)
    return write(out) if report else rows_of([Outcomes.load(target) for target in targets])["recommended"]


def schedule_for(schedule: Sequence[int], longest: int) -> tuple[int, ...]:
    """The utility's schedule, or a shorter one where no record has more pseudo-references than it uses.

    Where R is all of R*, standard MBR scores 100% by construction. So R is at most half of the longest R* then.
    """
    if longest > schedule[-1] or longest < 4:
        return tuple(schedule)
    return (*(size for size in schedule if size < longest // 2), longest // 2)


def settings_for(schedule: Sequence[int], kind: Kind, *, for_figures: bool) -> tuple[Setting, ...]:
    """The settings raced on a file: those of the test table, for the figures also those of all studies."""
    own = table_settings(schedule, kind)
    studied = (*TRADEOFF, *studies.schedule_settings(schedule[-1]), *REGRET_SETTINGS) if for_figures else ()
    return tuple(dict.fromkeys((*studied, *own)))


def require_report() -> None:
    """Check that everything `write` needs is installed, before hours of computing rather than after."""
    for module in ("matplotlib", "jinja2", "markdown_it"):
        require(module, extra="experiments")


def _refuse_other_utility(target: Path, outcomes: Outcomes, utility: str) -> None:
    """Outcomes may be replaced by newer ones of the same utility, never by those of another model or precision."""
    remedy = "give another folder, or delete it"
    before = {name: value for name, value in outcomes.about.items() if name == "utility"}
    refuse_other_settings(before, {"utility": utility}, file=target, remedy=remedy)


def _key(*inputs: object) -> str:
    """Outcomes with the same key were computed from the same inputs."""
    return hashlib.blake2b(repr(inputs).encode(), digest_size=8).hexdigest()


def gather(out: Path, others: Sequence[Path] = ()) -> list[Outcomes]:
    """The outcomes under `out`, after copying the data of other results into it."""
    found = {path.name: Outcomes.load(path) for path in (out / "data").glob("*.npz")}
    for other in others:
        if other.resolve() == out.resolve():
            continue
        if not (other / "data").is_dir():
            raise UserError(f"{other}: no data/ in it; give a folder that `mbrace experiment` wrote")
        theirs = {path.name: Outcomes.load(path) for path in (other / "data").glob("*.npz")}
        for name in theirs.keys() & found.keys():
            _refuse_other_utility(out / "data" / name, found[name], theirs[name].about["utility"])
        found |= theirs
        (out / "data").mkdir(parents=True, exist_ok=True)
        for path in sorted((other / "data").iterdir()):
            if path.suffix in (".npz", ".gz", ".json"):
                shutil.copyfile(path, out / "data" / path.name)
    if not found:
        timed = list((out / "data").glob("*.runtimes.json"))
        only = " of races, only of --runtimes, which go into the report of the races" if timed else ""
        raise UserError(f"{out}: no outcomes{only}; run `mbrace experiment CANDIDATES.jsonl... -o {out}` first")
    by_file = [found[name] for name in sorted(found)]
    return sorted(by_file, key=lambda o: (o.about["label"] != "chrF++", o.about["label"], o.about["name"]))


def rows_of(found: Sequence[Outcomes], timings: Sequence[Row] = ()) -> dict[str, list[Row]]:
    """The rows of all studies. A pair with only one file uses it for both the figures and the test table."""
    groups: dict[tuple[str, str], list[Outcomes]] = {}
    for outcomes in found:
        groups.setdefault((outcomes.about["label"], outcomes.about["name"]), []).append(outcomes)
    studied = ("recommended", "test_table", "claims", "false_pruning", "tradeoff", "alpha_over_beta", "survivors")
    rows: dict[str, list[Row]] = {name: [] for name in studied}
    for group in groups.values():
        valid = _valid(group)
        test = next((o for o in group if o.about["split"] == "test"), group[0])
        rows["recommended"] += studies.recommended(valid)
        chrf = groups.get(("chrF++", valid.about["name"]))  # what the margins of other metrics are measured by
        margin_of = margins(valid, _valid(chrf) if chrf else None)
        rows["test_table"] += table_rows(test, margin_of)
        rows["claims"] += claims(valid, test, margin_of)
        rows["false_pruning"] += studies.false_pruning(valid)
        rows["tradeoff"] += studies.tradeoff(valid)
        rows["alpha_over_beta"] += studies.alpha_over_beta(valid)
        rows["survivors"] += studies.survivors(valid)
    correct(rows["claims"])
    rows["runtimes"] = list(timings)
    return rows


def _valid(group: Sequence[Outcomes]) -> Outcomes:
    """The outcomes on the validation file of a pair, or on its only file."""
    return next((outcomes for outcomes in group if outcomes.about["split"] != "test"), group[0])


def write(out: Path, others: Sequence[Path] = ()) -> list[Row]:
    """Write CSV, figures, RESULTS.md and report.html from the data under `out` (and `others`); see `gather`.

    Returns the rows of recommended races.
    """
    require_report()
    make_folder(out)
    found = gather(out, others)
    timings = [row for path in sorted((out / "data").glob("*.runtimes.json")) for row in json.loads(path.read_text())]
    rows = rows_of(found, timings)
    for name, lines in rows.items():
        if lines:
            write_csv(out / f"{name}.csv", lines)
    notes = (out / "notes.md").read_text(encoding="utf-8") if (out / "notes.md").exists() else ""
    drawn = figures.draw(rows, out / "figures")
    write_report(out, [outcomes.about for outcomes in found], rows, load_races(out / "data"), notes, drawn)
    return rows["recommended"]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else spreadsheet_cell(value)
