"""What the study of methods found: a table with intervals, a figure, and what its rule recommends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace.experiments.formatting import with_interval
from mbrace.experiments.methods import ARITHMETIC, BY_NAME, GROUP, STANDARD, WAYS, is_arithmetic, way_of
from mbrace.experiments.methods_rule import FEWEST, LOST, recommendation, short
from mbrace.experiments.points import Figure, Point
from mbrace.experiments.sections import Section
from mbrace.experiments.significance import student
from mbrace.experiments.strings import MARGIN, RACED
from mbrace.experiments.studies import grouped
from mbrace.experiments.study_files import load_studies, save_study
from mbrace.experiments.tables import slug
from mbrace.wording import counted

RESAMPLES = 2000
COUNTS = ("utility_calls", "pairs_scored", "other_calls", "strings", "drawn")
HEADINGS = ("", "utility lost", "agrees with R*", "human score", "other metric", "calls", "strings", "ms per sentence")


def save(
    rows: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]], folder: Path, about: Mapping[str, Any]
) -> Path:
    """Save what was measured on one candidate file where the report looks for it.

    The chosen texts are not saved, only how many of those that were timed differ from those that were judged: the
    numbers of a GPU vary a little from run to run.
    """
    chosen = {(row["way"], row["id"]): row["text"] for row in rows}
    ids = list(dict.fromkeys(row["id"] for row in rows))
    kept, position = [], dict.fromkeys(BY_NAME, 0)
    for timed in times:
        begin = position[timed["way"]]
        position[timed["way"]] = begin + timed["sentences"]
        own = ids[begin : begin + timed["sentences"]]
        differ = sum(chosen[timed["way"], one] != text for one, text in zip(own, timed["texts"], strict=True))
        kept.append({name: value for name, value in timed.items() if name != "texts"} | {"differ": differ})
    judged = [{name: value for name, value in row.items() if name != "text"} for row in rows]
    stored = {"about": dict(about), "rows": judged, "times": kept}
    return save_study("methods", stored, folder, slug(about["device"])[:24].strip("-"))


def load(folder: Path) -> list[dict[str, Any]]:
    """What was saved in a folder: of each file `about`, `rows` and `times`; `joined`."""
    return joined(load_studies("methods", folder, _checked))


def _checked(stored: dict[str, Any]) -> dict[str, Any]:
    """What was stored, if it can be summarised."""
    summarise(stored)
    return stored


def joined(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each table with independent draws, and after its ways those of a table of the same sentences, utility and device
    with arithmetic draws, under names that say so. Tables without such a partner are unchanged."""
    tables = {_sentences_key(stored): dict(stored) for stored in found if not _is_arithmetic(stored)}
    without_partner = []
    for stored in filter(_is_arithmetic, found):
        partner = tables.get(_sentences_key(stored))
        if partner is None:
            without_partner.append(stored)
            continue
        for part in ("rows", "times"):
            partner[part] = [*partner[part], *({**row, "way": row["way"] + ARITHMETIC} for row in stored[part])]
    return [*tables.values(), *without_partner]


def _is_arithmetic(stored: Mapping[str, Any]) -> bool:
    return bool(stored["about"]["sampling"] == "arithmetic")


def _sentences_key(stored: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two tables must share to be compared sentence by sentence, the order of sentences included."""
    about = [stored["about"][name] for name in ("pair", "split", "utility", "device")]
    return (*about, *dict.fromkeys(row["id"] for row in stored["rows"]))


def summarise(stored: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per way with 95% intervals: by bootstrap over sentences, for seconds by Student's t over groups of
    sentences. `utility lost` is the expected utility on held-out samples minus that of standard MBR (with independent
    draws, if there are any), in standard deviations between hypotheses; a human score comes with its change from
    standard MBR's."""
    by_way = grouped(stored["rows"], "way")
    base = by_way[STANDARD.name,]
    picks = np.random.default_rng(0).integers(0, len(base), (RESAMPLES, len(base)))
    spread = _column(base, "spread")
    if not spread.any():
        raise ValueError("no record has hypotheses of different utilities")
    picks = picks[spread[picks].any(axis=1)]
    spreads = spread[picks].mean(axis=1)
    found = []
    for (way,), own in by_way.items():
        sampling = "arithmetic" if way.endswith(ARITHMETIC) else stored["about"]["sampling"]
        summary: dict[str, Any] = {**stored["about"], "sampling": sampling, "way": way, "sentences": len(own)}
        lost = _column(own, "worth") - _column(base, "worth")
        summary |= _interval(LOST, float(lost.mean() / spread.mean()), lost[picks].mean(axis=1) / spreads)
        worth = _column(own, "worth")
        summary |= _interval("expected utility", float(worth.mean()), worth[picks].mean(axis=1))
        humans = [name for name in own[0] if name.startswith("human ")]
        for field in ("agrees", *COUNTS, *humans):
            values = _column(own, field)
            summary |= _interval(field, float(values.mean()), values[picks].mean(axis=1))
        for field in humans:
            changed = _column(own, field) - _column(base, field)
            summary |= _interval(f"{field} change", float(changed.mean()), changed[picks].mean(axis=1))
        found.append(summary | _seconds([row for row in stored["times"] if row["way"] == way]))
    return found


def _seconds(times: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Seconds per sentence, over groups of sentences."""
    sizes, seconds = _column(times, "sentences"), _column(times, "seconds")
    mean, groups = float(seconds.sum() / sizes.sum()), seconds / sizes
    half = student(0.975, len(groups) - 1) * float(groups.std(ddof=1)) / len(groups) ** 0.5 if len(groups) > 1 else 0.0
    ends = {"seconds low": max(0.0, mean - half), "seconds high": mean + half}
    differ = sum(row["differ"] for row in times)
    return {"seconds": mean, **ends, "timed": int(sizes.sum()), "timed choices that differ": differ}


def section(found: Sequence[Mapping[str, Any]]) -> Section:
    """The section of all that was saved."""
    tables = {_title(stored["about"]): summarise(stored) for stored in found}
    lines = [_cells(title, row) for title, rows in tables.items() for row in rows]
    return Section(
        name="methods",
        title="Every way to make MBR cheaper, side by side",
        text=_text(tables),
        headings=HEADINGS,
        rows=lines,
        figure=Figure(
            x="milliseconds per sentence (log scale)",
            y="utility minus standard MBR's",
            describes="Expected utility lost against the time per sentence of every method, in a panel per pair and "
            "utility; standard MBR is at 0.",
            panels=_panels(tables),
            log_x=True,
        ),
        order=45,
    )


def _title(about: Mapping[str, Any]) -> str:
    even = "" if about["sampling"] == "independent" else f", {about['sampling']} draws"
    return f"{about['pair']}, {about['utility']}{even}, {about['where']}"


def _text(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    first = next(iter(tables.values()))[0]
    devices = dict.fromkeys(rows[0]["device"] for rows in tables.values())
    advice = [f"- **{title}**: {'; '.join(recommendation(rows))}." for title, rows in tables.items()]
    every = [row for rows in tables.values() for row in rows]
    models = dict.fromkeys(str(row["qe"]) for row in every if row.get("qe"))
    further = []
    if any(map(is_arithmetic, every)):
        further.append(
            "*Arithmetic draws*: samples that cover the model's distribution evenly (`--sampling arithmetic`). Where "
            "both kinds were measured, all are compared with standard MBR on independent draws; a choice is judged on "
            "held-out samples of its own kind, so differences between the kinds hold the chance of both sets. Each "
            "kind was timed in a run of its own: its time is to be compared with standard MBR's of the same kind."
        )
    if models:
        further.append(f"The quality shortlist is by {', '.join(models)}.")
    return "\n".join(
        [
            "All published ways to make MBR cheaper on the same candidates, each by the decoder's own loop.",
            "",
            *advice,
            "",
            f"The rule, fixed before the run: of the ways whose utility is shown to be less than {MARGIN} below "
            "standard MBR's (the lower end of its interval) and whose score against the human reference did not fall "
            "(by either metric, the whole interval below 0), the one that costs least. What costs is time for the "
            "utility of the table; calls for a cross-encoder or a judge, and only methods that need no embeddings; "
            "and strings drawn where generating is dear.",
            "",
            f"{first['sentences']:,} sentences per table (with fewer than {FEWEST}, nothing is recommended), {RACED} "
            "samples to choose with, the others held out. "
            "*Utility lost*: expected utility on the samples held out minus standard MBR's, in standard deviations "
            "between hypotheses. *Agrees with R\\**: the choice is at least as good as the best hypothesis under all "
            "samples. *Human score* and *other metric*: change of the score against the human reference by the metric "
            "that was decoded with and by one that was not. *Calls* are of the utility (those of a coarse utility or "
            "of quality estimation are in `methods.csv`), *strings* those encoded. In brackets 95% intervals: over "
            f"sentences, for time over groups of up to {GROUP} sentences. Time is measured by decoding for real, "
            f"one thread, on: {'; '.join(devices)}.",
            *further,
        ]
    )


def _cells(title: str, row: Mapping[str, Any]) -> list[str]:
    own, other = _humans(row)
    changes = [
        _between(row, f"{name} change", "+", 2 if abs(row[name]) > 5 else 3) if name else "" for name in (own, other)
    ]
    return [
        f"{title}: {row['way']}",
        _between(row, LOST, "+", 3),
        _between(row, "agrees", "", 2),
        *changes,
        _between(row, "utility_calls", ",", 0),
        _between(row, "strings", ",", 0),
        _between(row, "seconds", "", 1 if row["seconds"] >= 0.01 else 2, 1000),
    ]


def _humans(row: Mapping[str, Any]) -> tuple[str, str]:
    """The human scores by the metric decoded with, and by the other; empty where there is none."""
    names = [name.removesuffix(" change") for name in row if name.startswith("human ") and name.endswith(" change")]
    own = f"human {row['utility']}"
    return own if own in names else "", next((name for name in names if name != own), "")


def _between(row: Mapping[str, Any], field: str, sign: str, digits: int, factor: float = 1.0) -> str:
    value, low, high = (row[name] * factor for name in (field, f"{field} low", f"{field} high"))
    form = f"{sign}.{digits}f"
    return f"{value:{form}}" if low == high else with_interval(value, low, high, form)


def terminal(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table for a terminal: only the utility has its interval, to fit into 80 columns."""
    lines = [f"{_title(rows[0])}: {counted(rows[0]['sentences'], 'sentence')}, {rows[0]['device']}"]
    lines.append(f"  {'':<32}{'utility lost':<24}{'R*':>5}{'calls':>8}{'ms':>9}")
    added = False
    for row in rows:
        if row["way"].endswith(ARITHMETIC) and not added:
            added = True
            lines.append("  with arithmetic draws, against standard MBR with independent ones:")
        low, high = row[f"{LOST} low"], row[f"{LOST} high"]
        lost = f"{row[LOST]:+.3f}" + (f" ({low:+.3f}..{high:+.3f})" if row["sentences"] > 1 else "")
        calls, spent = f"{row['utility_calls']:,.0f}", short(1000 * row["seconds"])
        lines.append(f"  {row['way'].removesuffix(ARITHMETIC):<32}{lost:<24}{row['agrees']:>5.2f}{calls:>8}{spent:>9}")
    return lines + [f"  {said}" for said in recommendation(rows)]


def _panels(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Point]]:
    """A panel per table, and a second one for arithmetic draws, which would hide the first."""
    panels = {}
    for title, rows in tables.items():
        for kind, added in (("", False), (ARITHMETIC, True)):
            shown = [row for row in rows if row["way"].endswith(ARITHMETIC) == added]
            if shown:
                panels[title + kind] = _points(shown)
    return panels


def _points(rows: Sequence[Mapping[str, Any]]) -> list[Point]:
    points = []
    for row in rows:
        way = way_of(row)
        ends = {"y_low": row[f"{LOST} low"], "y_high": row[f"{LOST} high"]}
        points.append(Point(1000 * row["seconds"], row[LOST], way.family, way.label, **ends))
    families = list(dict.fromkeys(way.family for way in WAYS))
    return sorted(points, key=lambda point: families.index(point.series))


def _column(rows: Sequence[Mapping[str, Any]], field: str) -> NDArray[np.float64]:
    return np.array([row[field] for row in rows], dtype=np.float64)


def _interval(field: str, value: float, resampled: NDArray[np.float64]) -> dict[str, float]:
    low, high = np.quantile(resampled, (0.025, 0.975))
    return {field: value, f"{field} low": float(low), f"{field} high": float(high)}
