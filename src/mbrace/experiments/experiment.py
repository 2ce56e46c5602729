"""The whole experiment: candidate files in; data, pictures and one report out.

DIR/tables/    utilities, packed, one folder for each candidate file and utility: made once, can be deleted
DIR/data/      outcomes of every race (.npz), races to watch (.json.gz), run times (.json); the rest is made of these
DIR/*.csv, results.json, figures/, report.html, RESULTS.md
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mbrace.errors import UserError, require
from mbrace.experiments import studies
from mbrace.experiments.races import watch_races
from mbrace.experiments.studies import Row
from mbrace.experiments.tables import Part, Table, slug, tables
from mbrace.experiments.trials import SIZES, TEST, TRADEOFF, Outcomes, Setting, run_trials
from mbrace.io.settings import refuse_other_settings
from mbrace.utility import Utility

# progress("tables of de-en", total) is a context that yields a function to call with the number done
Progress: TypeAlias = Callable[[str, int], Any]


def run(
    paths: Sequence[str],
    out: Path,
    utility: Utility,
    *,
    label: str,
    trials: int = 10,
    seed: int = 0,
    workers: int = 1,
    limit: int | None = None,
    races: int = 12,
    report: bool = True,
    progress: Progress,
) -> None:
    """Everything for one utility, added to what `out` holds of others. Finished parts are not computed again.

    `report=False` leaves it at DIR/data, which needs NumPy alone.
    """
    if report:
        require_report()
    parts = [Part.of(path) for path in paths]
    names = [(part.name, part.split) for part in parts]
    for part in parts:
        if names.count((part.name, part.split)) > 1:
            raise UserError(
                f"{part.path}: two files are {part.name} ({part.split}); name them NAME.valid and NAME.test"
            )
        part.check_races(limit)
    targets = [out / "data" / f"{part.name}.{part.split}.{slug(label)}.npz" for part in parts]
    for target in targets:
        _refuse_other_utility(target, utility.name)
    for part, target in zip(parts, targets, strict=True):
        alone = sum(other.name == part.name for other in parts) == 1
        whole = alone or part.split != "test"
        settings = (*TRADEOFF, *studies.schedule_settings(utility.schedule[-1])) if whole else TEST
        key = _key(part, utility.name, settings, trials, seed, limit)
        if target.exists() and Outcomes.load(target).about.get("key") == key:
            continue
        started = time.perf_counter()
        records = part.records(limit)
        with contextlib.ExitStack() as open_tables:
            with progress(f"tables of {part.name} {part.split}", len(records)) as advance:
                stored = open_tables.enter_context(tables(part, records, utility, out / "tables", advance=advance))
            built = time.perf_counter()
            with progress(f"races of {part.name} {part.split}", len(stored)) as raced:
                outcomes = run_trials(
                    stored,
                    name=utility.name,
                    schedule=utility.schedule,
                    settings=settings,
                    sizes=SIZES if whole else (),
                    trials=trials,
                    seed=seed,
                    workers=workers,
                    advance=raced,
                )
            finished = time.perf_counter()
            outcomes.about = _about(part, utility, label, stored, trials, seed) | {
                "key": key,
                "seconds": {"tables": round(built - started, 2), "races": round(finished - built, 2)},
                "workers": workers,
            }
            if whole:
                watched = watch_races(stored, records, utility, seed=seed, count=races)
                header = {"pair": part.name, "split": part.split, "utility": label, "scale": outcomes.about["scale"]}
                _write_gzip(target.with_suffix(".races.json.gz"), header | {"sentences": watched})
        outcomes.save(target)
    if report:
        write(out)


def require_report() -> None:
    """What `write` needs, looked for before hours of work rather than after them."""
    for module in ("matplotlib", "altair", "vl_convert", "jinja2"):
        require(module, extra="experiments")


def _refuse_other_utility(target: Path, utility: str) -> None:
    """Outcomes are replaced by newer ones of the same utility, never by those of another model or precision."""
    if target.exists():
        remedy = "give another folder, or delete it"
        refuse_other_settings(Outcomes.load(target).about, {"utility": utility}, file=target, remedy=remedy)


def _key(part: Part, utility: str, settings: Iterable[Setting], trials: int, seed: int, limit: int | None) -> str:
    """Two runs with the same key have the same outcomes."""
    what = repr((part.digest, utility, tuple(settings), trials, seed, limit))
    return hashlib.blake2b(what.encode(), digest_size=8).hexdigest()


def _about(part: Part, utility: Utility, label: str, stored: Sequence[Table], trials: int, seed: int) -> dict[str, Any]:
    human = [table.human for table in stored]
    references = all(np.isfinite(values).all() for values in human)
    # scores between 0 and 1 are shown times 100, as the paper shows COMET's
    small = references and max(float(np.abs(values).max()) for values in human) <= 2
    distinct = [len(table.columns) / len(table.draws) for table in stored]
    return {
        "name": part.name,
        "split": part.split,
        "file": Path(part.path).name,
        "digest": part.digest,
        "utility": utility.name,
        "label": label,
        "schedule": list(utility.schedule),
        "sentences": len(stored),
        "hypotheses": round(float(np.mean([len(table.hypotheses) for table in stored])), 1),
        "pseudo_references": min(len(table.draws) for table in stored),
        "distinct": round(float(np.mean(distinct)), 3),
        "references": references,
        "scale": 100 if small else 1,
        "trials": trials,
        "seed": seed,
    }


def gather(out: Path, others: Sequence[Path] = ()) -> list[Outcomes]:
    """The outcomes under `out`, after copying in the data of other results."""
    for other in others:
        if other.resolve() == out.resolve():
            continue
        if not (other / "data").is_dir():
            raise UserError(f"{other}: no data/ in it; give a folder that `mbrace experiment -o` wrote")
        for path in (other / "data").glob("*.npz"):
            _refuse_other_utility(out / "data" / path.name, Outcomes.load(path).about["utility"])
        (out / "data").mkdir(parents=True, exist_ok=True)
        for path in sorted((other / "data").iterdir()):
            if path.suffix in (".npz", ".gz", ".json"):
                shutil.copyfile(path, out / "data" / path.name)
    found = [Outcomes.load(path) for path in sorted((out / "data").glob("*.npz"))]
    if not found:
        raise UserError(f"{out}: no outcomes; run `mbrace experiment CANDIDATES.jsonl... -o {out}` first")
    order = {"chrF++": 0}
    return sorted(found, key=lambda o: (order.get(o.about["label"], 1), o.about["label"], o.about["name"]))


def rows_of(found: Sequence[Outcomes], timings: Sequence[Row] = ()) -> dict[str, list[Row]]:
    """All rows of all studies. A pair with one file only uses it for figures and test table alike."""
    groups: dict[tuple[str, str], list[Outcomes]] = {}
    for outcomes in found:
        groups.setdefault((outcomes.about["label"], outcomes.about["name"]), []).append(outcomes)
    studied = ("test_table", "claims", "false_pruning", "tradeoff", "alpha_over_beta", "survivors")
    rows: dict[str, list[Row]] = {name: [] for name in studied}
    by_utility: dict[str, list[Outcomes]] = {}
    for group in groups.values():
        valid = next((o for o in group if o.about["split"] != "test"), group[0])
        test = next((o for o in group if o.about["split"] == "test"), group[0])
        by_utility.setdefault(valid.about["label"], []).append(valid)
        rows["test_table"] += studies.test_table(test)
        rows["claims"] += studies.claims(valid, test)
        rows["false_pruning"] += studies.false_pruning(valid)
        rows["tradeoff"] += studies.tradeoff(valid)
        rows["alpha_over_beta"] += studies.alpha_over_beta(valid)
        rows["survivors"] += studies.survivors(valid)
    rows["schedules"] = [row for group in by_utility.values() for row in studies.schedules(group)]
    rows["runtimes"] = list(timings)
    return rows


def write(out: Path, others: Sequence[Path] = ()) -> None:
    """CSV, JSON, figures, RESULTS.md and report.html from the data under `out` (and `others`)."""
    require_report()
    from mbrace.experiments import figures, report
    from mbrace.experiments.summary import summary

    found = gather(out, others)
    timings = [row for path in sorted((out / "data").glob("*.runtimes.json")) for row in json.loads(path.read_text())]
    rows = rows_of(found, timings)
    for name, lines in rows.items():
        if lines:
            _write_csv(out / f"{name}.csv", lines)
    about = [outcomes.about for outcomes in found]
    (out / "results.json").write_text(json.dumps(_finite({"about": about, **rows}), indent=1) + "\n")
    figures.draw(rows, out / "figures")
    notes = out / "notes.md"
    (out / "RESULTS.md").write_text(summary(about, rows, notes.read_text() if notes.exists() else ""))
    watched = [json.loads(gzip.decompress(p.read_bytes())) for p in sorted((out / "data").glob("*.races.json.gz"))]
    report.write(out / "report.html", about, _finite(rows), _finite(watched))


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _short(value) for name, value in row.items()} for row in rows)


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _write_gzip(path: Path, value: Mapping[str, Any]) -> None:
    packed = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(packed, mtime=0))


def _finite(value: Any) -> Any:
    """JSON has no NaN: null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
