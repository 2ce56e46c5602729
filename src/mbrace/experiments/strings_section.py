"""What the study of strings found, as a section of the report: a recommendation, a table and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mbrace.experiments.formatting import with_interval
from mbrace.experiments.points import Figure, Point
from mbrace.experiments.sections import Section
from mbrace.experiments.strings import EARLIER, MARGIN, STANDARD, WAYS, Way, summarise
from mbrace.experiments.studies import Row, grouped
from mbrace.experiments.study_files import ending, load_studies, save_study

ENDING = ending("strings")
FIELDS = ("pair", "split", "utility", "sampling")  # what rows of one file share
BY_NAME = {way.name: way for way in (*WAYS, *EARLIER)}
SHOWN = ("standard 256 + 256", "standard 128 + 128", "standard 64 + 64", "alpha 0.99", "regret 0.02", "regret 0.04",
         "forecast 0.01, regret 0.04", "forecast 0.01, regret 0.06",
         "forecast 0.0005, regret 0.04", "forecast 0.0005, regret 0.06", "forecast 0.0005, regret 0.03, small steps",
         "standard 256 + 64, cover", "regret 0.08, cover", "forecast 0.0005, regret 0.04, cover",
         "forecast 0.0005, regret 0.06, cover", "forecast 0.0005, regret 0.08, cover",
         "pool from beam 64, regret 0.04", "pool from beam 128, regret 0.04")  # fmt: skip
SHOWN_EVEN = ("regret 0.04", "forecast 0.01, regret 0.04", "forecast 0.01, regret 0.06",
              "forecast 0.0005, regret 0.04", "forecast 0.0005, regret 0.06",
              "forecast 0.0005, regret 0.03, small steps",
              "pool from beam 64, regret 0.04", "pool from beam 128, regret 0.04")  # fmt: skip
DRAWN_FROM = 32  # standard MBR with fewer strings is far below the others, which could not be told apart
FIXED, STOPPED = "standard MBR with n + n strings", "race that stops by regret"
FORECAST = "race that hypotheses join by forecast"
COVERED = "the same over draws in a covering order"
HEADINGS = ("", "drawn", "encoded", "share", "calls", "utility", "human score", "other metric")


def save_rows(rows: Sequence[Mapping[str, Any]], folder: Path, about: Mapping[str, str]) -> Path:
    """Save the rows of one candidate file where the report looks for them; `about` has the `FIELDS`."""
    return save_study("strings", {"about": dict(about), "rows": list(rows)}, folder)


def load_rows(folder: Path) -> list[Row]:
    """All rows saved in a folder, each with the `FIELDS`."""
    return [row for rows in load_studies("strings", folder, _stored_rows) for row in rows]


def _stored_rows(stored: Mapping[str, Any]) -> list[Row]:
    about = {name: stored["about"][name] for name in FIELDS}
    return [{**row, **about, "drawn": _drawn(row)} for row in stored["rows"]]


def _drawn(row: Mapping[str, Any]) -> float:
    """Hypotheses and pseudo-references drawn; rows of earlier versions say only how many of the latter."""
    found: float = row["drawn"] if "drawn" in row else BY_NAME[row["way"]].beam + row["pseudo_references"]
    return found


def summaries(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """By pair and utility, a row per way and kind of sampling, with differences from standard MBR with independent
    draws. A pair with several splits is judged by its test split."""
    found: dict[tuple[str, str], list[Row]] = {}
    for (pair, utility), own in grouped(rows, "pair", "utility").items():
        by_split = grouped(own, "split")
        split = "test" if ("test",) in by_split else min(by_split)[0]
        by_sampling = grouped(by_split[split,], "sampling")
        first = ("independent",) if ("independent",) in by_sampling else next(iter(by_sampling))
        shown = {first: summarise(by_sampling[first])}
        base = [row for row in by_sampling[first] if row["way"] == STANDARD.name]
        for sampling in [kind for kind in by_sampling if kind != first]:
            even = [row | {"way": _even(row["way"])} for row in by_sampling[sampling]]
            shown[sampling] = [row for row in summarise(base + even) if row["way"].endswith(_even(""))]
        found[pair, utility] = [
            row | {"split": split, "sampling": kind} for (kind,), summary in shown.items() for row in summary
        ]
    return found


def _even(way: str) -> str:
    """The name of a way over arithmetic draws."""
    return f"{way}, even draws"


def _way(row: Mapping[str, Any]) -> Way:
    return BY_NAME[row["way"].removesuffix(_even(""))]


def section(rows: Sequence[Row]) -> Section:
    """The section of all rows."""
    found = summaries(rows)
    lines = []
    for (pair, utility), own in found.items():
        shown = [row for row in own if row["way"] in (*SHOWN, *map(_even, SHOWN_EVEN))]
        lines += [_cells(f"{pair}, {utility}", utility, row) for row in shown]
    return Section(
        name="strings",
        title="Fewer strings",
        text=_text(found),
        headings=HEADINGS,
        rows=lines,
        figure=Figure(
            x="strings encoded per sentence",
            y="utility minus standard MBR's",
            describes="Expected utility against strings encoded per sentence: standard MBR with fewer strings loses "
            "most, races that stop by regret next to nothing, races that hypotheses join by forecast little with "
            "few strings, races that draws join need the fewest.",
            panels={f"{pair}, {utility}": _points(own) for (pair, utility), own in found.items()},
            joined=True,
        ),
        order=40,
    )


def _text(found: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> str:
    sentences = max(row["sentences"] for own in found.values() for row in own)
    return "\n".join(
        [
            "Making strings and encoding them is what MBR costs once pairs are cheap. How few are enough?",
            "",
            *(f"- **{pair}, {utility}:** {recommendation(own)}" for (pair, utility), own in found.items()),
            "",
            f"Up to {sentences:,} sentences per pair. *Drawn* are beam hypotheses and samples per sentence, *encoded* "
            "the distinct ones that a race asked about. *Utility* is the expected utility on samples held out, minus "
            "that of standard MBR with 256 + 256 strings, in standard deviations between hypotheses (95% interval "
            f"over sentences); {MARGIN} less counts as no loss. *Human score* is the change of the score against the "
            "human reference by the metric that was decoded with, *other metric* by one that was not: where that "
            "falls, the metric was gamed. *Forecast*: hypotheses enter the race when they are forecast to win. "
            "*Cover*: the draws are taken in an order in which the first few have the n-grams of all. *Pool*: samples "
            "join the race as hypotheses. *Even draws*: arithmetic sampling. *Small steps*: "
            "a schedule that grows by a half, not by doubling.",
        ]
    )


def recommendation(own: Sequence[Mapping[str, Any]]) -> str:
    """The recommendation: the fewest strings that lose nothing, and what even fewer would cost."""
    races = [row for row in own if _way(row).alpha is not None]
    equal = [row for row in races if row["utility interval"][0] >= -MARGIN]
    safe = [row for row in equal if not _lower_human_scores(row)]
    if not safe:
        return "no race with fewer strings was shown to be as good as standard MBR."
    best = min(safe, key=lambda row: row["strings"])
    said = f"{_options(best)} is as good as standard MBR with {best['share of strings']:.2f}x the strings."
    fewest = min(equal, key=lambda row: row["strings"])
    if fewest is best:
        return said
    fields = [name.removeprefix("human ").removesuffix(" interval") for name in _lower_human_scores(fewest)]
    return (
        f"{said} {_options(fewest)} needs {fewest['share of strings']:.2f}x at no lower expected utility, but scores "
        f"lower against the human reference by {' and '.join(fields)}."
    )


def _lower_human_scores(row: Mapping[str, Any]) -> list[str]:
    """The metrics by which a way is worse against the human reference: their whole interval is below 0."""
    intervals = {name: row[name] for name in row if name.startswith("human ") and name.endswith(" interval")}
    return [name for name, (_, high) in intervals.items() if high < 0]


def _options(row: Mapping[str, Any]) -> str:
    """The options of `mbrace decode` or `translate` for the way of a row."""
    way = _way(row)
    options = [f"--regret {way.regret:g}"] if way.regret else ["--alpha 0.99"]
    options += [f"--forecast {way.forecast:g}"] if way.forecast else []
    options += ["--cover"] if way.cover else []
    options += [f"--schedule {','.join(map(str, way.schedule))}"] if way.schedule else []
    options += [f"--pool --beam {way.beam}"] if way.pool else []
    even = row["way"].endswith(_even(""))
    options += ["--sampling arithmetic"] if even and not way.cover else []
    # draws in an order that covers are given ones: of a file that a live model wrote before
    return f"`{' '.join(options)}`" + (" over a file of arithmetic draws" if even and way.cover else "")


def _cells(name: str, utility: str, row: Mapping[str, Any]) -> list[str]:
    metrics = [key.removesuffix(" change") for key in row if key.startswith("human ") and key.endswith(" change")]
    same = [metric for metric in metrics if metric.lower() == f"human {utility}".lower()]
    other = [metric for metric in metrics if metric not in same]
    return [
        f"{name}, {row['way']}",
        f"{row['drawn']:.0f}",
        f"{row['strings']:.0f}",
        f"{row['share of strings']:.2f}x",
        f"{row['utility_calls']:,.0f}",
        with_interval(row["utility"], *row["utility interval"]),
        *(_change(row, metrics) for metrics in (same, other)),
    ]


def _change(row: Mapping[str, Any], metrics: Sequence[str]) -> str:
    if not metrics or row["way"] == STANDARD.name:
        return ""
    digits = 2 if abs(row[metrics[0]]) > 5 else 3
    low, high = row[f"{metrics[0]} interval"]
    return with_interval(row[f"{metrics[0]} change"], low, high, f"+.{digits}f")


def _points(own: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Of ways with independent draws, each series from few strings to many."""
    points = []
    for row in sorted(own, key=lambda row: row["strings"]):
        way = _way(row)
        if row["way"] != way.name or way.beam < (DRAWN_FROM if way.alpha is None else 64):
            continue
        if way.schedule or (way.cover and not way.forecast) or (way.alpha is None and way.beam != way.references):
            continue  # in the table
        if way.alpha is None:
            series = FIXED
        elif way.pool:
            series = f"race from beam {way.beam} that draws join"
        else:
            series = COVERED if way.cover else FORECAST if way.forecast else STOPPED
        label = f"{way.beam} + {way.references}" if way.alpha is None else f"{way.regret:g}"
        label = f"{way.forecast:g}, {label}" if way.forecast else label
        low, high = row["utility interval"]
        points.append(Point(row["strings"], row["utility"], series, label, y_low=low, y_high=high))
    first = (FIXED, STOPPED, FORECAST, COVERED)
    order = [*first, *sorted({point.series for point in points}.difference(first))]
    return sorted(points, key=lambda point: order.index(point.series))
