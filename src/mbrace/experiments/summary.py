"""RESULTS.md, and how numbers, measures and utilities are written there, in figures and on the page.

The words of RESULTS.md are page/results.md.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mbrace.experiments.claims import TABLE_2
from mbrace.experiments.studies import CHANGES, Row, grouped
from mbrace.experiments.tables import exhausted_note, slug
from mbrace.experiments.trials import SCORE_BY

NAMES = {
    "score": "Score",
    "accuracy": "Accuracy",
    "rr": "RR",
    "strict_accuracy": "Accuracy, ties wrong",
    "strict_rr": "RR, ties in order",
    "same": "Same prediction",
    "tied": "Same or tied",
    "pseudo_references": "# pseudo-refs",
    "utility_calls": "# utility calls",
    "pairs_scored": "# pairs scored",
}
SETTINGS = {"beta=0": "β = 0", "alpha=0.99": "α = 0.99", "alpha=0.9": "α = 0.9"}
ACCURACY = "exact accuracy"
SPLITS = {"valid": "validation", "test": "test", "all": "the only file"}


def format_value(measure: str, value: float | None) -> str:
    """A number; scores have three decimals, so that rounding neither makes nor hides a difference."""
    if value is None or math.isnan(value):
        return ""
    if measure in ("utility_calls", "pairs_scored"):
        return f"{value:,.0f}"
    return f"{value:.{1 if measure == 'pseudo_references' else 3}f}"


def format_p(p: float) -> str:
    """A p-value with three decimals."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def format_paper_value(measure: str, value: float | None) -> str:
    """The paper's number as the paper shows it: scores have two decimals."""
    return f"{value:.2f}" if measure == "score" and value is not None else format_value(measure, value)


DESCRIBED = "learned, a small neural metric of mbrace's own, trained on translations that people rated"


def describe_utility(utility: str) -> str:
    """The name of a utility, with an explanation where the name alone says little."""
    if utility.split(" ")[0] != "learned":
        return utility
    model = utility.removeprefix("learned").strip()
    return f"{DESCRIBED} ({model})" if model else DESCRIBED


def short_description(utility: str) -> str:
    """The name of a utility for the title of a figure."""
    return f"{utility} (a small neural metric)" if utility.split(" ")[0] == "learned" else utility


def describe_timing(row: Row) -> str:
    """How a run time was measured."""
    return f"{row['window']} sentences at a time, pseudo-references drawn {row['draw']}"


def run_time_tables(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Table 2 for each utility and pair: a line per phase, a cell per method with our seconds and the paper's."""
    tables = []
    for (utility, pair), own in grouped(rows, "utility", "pair").items():
        seconds = {(row["method"], row["phase"]): f"{row['seconds']:.2f}" for row in own}
        lines = []
        for phase in TABLE_2["racing"]:
            cells = []
            for method, of_paper in TABLE_2.items():
                theirs = f"{of_paper[phase]:.2f}" if phase in of_paper else ""
                cells.append({"value": seconds.get((method, phase), ""), "paper": theirs})
            lines.append({"name": phase, "cells": cells})
        table = {"utility": utility, "pair": pair, "lines": lines, "methods": list(TABLE_2)}
        table |= {"described": describe_utility(utility), "way": describe_timing(own[0])}
        tables.append(table | {name: own[0][name] for name in ("sentences", "trials", "device")})
    return tables


def measure_name(measure: str, utility: str) -> str:
    """What a measure is called in tables; names of scores say whether their metric decoded."""
    if measure == "score":
        return f"Score by {utility} (decoding metric)"
    if measure.startswith(SCORE_BY):
        return f"Score by {measure.removeprefix(SCORE_BY)} (another metric)"
    return NAMES[measure]


def format_interval(row: Row, kind: str) -> str:
    """Both ends of the interval over "sentences" or "trials"; empty if there is none, as with a single trial."""
    low, high = (format_value(row["measure"], row[f"{kind}_{end}"]) for end in ("low", "high"))
    return f"{low} to {high}" if low and high else ""


def with_interval(value: float, low: float, high: float, form: str = "+.3f") -> str:
    """A number and its interval, such as `+0.012 (-0.003 to +0.027)`."""
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


def exhausted_notes(about: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which sentences do not test racing, for each file and utility."""
    return [f"`{one['file']}`, {one['label']}: {note}." for one in about if (note := exhausted_note(one, 20))]


def recommendation_cells(row: Row) -> dict[str, str]:
    """The cells of a row as words: options of `mbrace decode`, calls, saving, differences from standard MBR."""
    if row["alpha"] is None:
        options = "--prune none"
    else:
        schedule = row["schedule"].replace(" ", ",")
        options = f"--alpha {row['alpha']:g} --schedule {schedule} --regret {row['regret']:g}"
    command = ["mbrace decode", shlex.quote(row["file"]), "-o decoded.jsonl", row["utility_options"], options]
    cells = {"options": options, "command": " ".join(filter(None, command)), "calls": f"{row['utility_calls']:,.0f}"}
    cells["pseudo_references"] = f"{row['pseudo_references']:.0f}"
    cells["saves"] = f"{row['saves']:.1f}x ({row['saves_low']:.1f} to {row['saves_high']:.1f})"
    for name in CHANGES:
        if name in row and row["kind"] != "standard":
            sign = -1.0 if name == "lost" else 1.0  # shown as a difference, so that negative is worse everywhere
            ends = sorted(sign * row[f"{name}_{end}"] for end in ("low", "high"))
            cells[name] = f"{_signed(sign * row[name])} ({_signed(ends[0])} to {_signed(ends[1])})"
    return cells


def _signed(value: float) -> str:
    """Three decimals with a sign; a loss that rounds to zero is written as +0.000."""
    return f"{value:+.3f}".replace("-0.000", "+0.000")


def summary(template: Any, shown: Mapping[str, Any], rows: Mapping[str, Sequence[Row]], drawn: Sequence[str]) -> str:
    """The whole page. `shown` is what report.html shows, `drawn` the names of the files in figures/."""
    utilities: list[str] = shown["utilities"]
    explained = [(one, describe_utility(one)) for one in utilities if describe_utility(one) != one]
    text: str = template.render(
        shown,
        explained=[f"*{utility}* is {words.split(', ', 1)[1]}." for utility, words in explained],
        recommended=_recommended(shown["leads"], shown["measures"]),
        headline=_headline(rows["test_table"]),
        claims_table=_claims(rows["claims"]),
        against_table=_against(shown["against"]),
        table_1=[(_heading(one), _table_1(one)) for one in shown["tables"]],
        table_2=[(one, _table_2(one)) for one in shown["runtimes"]],
        systems=[(_heading(one), _systems(own)) for one, own in zip(shown["tables"], shown["systems"], strict=True)],
        candidates=_candidates(shown["about"]),
        pictures={
            study: [(utility, name) for utility in utilities if (name := f"{study}.{slug(utility)}.svg") in drawn]
            for study in ("tradeoff", "survivors", "false_pruning")
        },
    )
    return text.rstrip() + "\n"


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    rule = [":--", *["--:"] * (len(headings) - 1)]
    shown = [[cell.replace("|", "\\|") for cell in line] for line in lines]  # a name of a file may have a |
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, rule, *shown))


def _recommended(leads: Sequence[Mapping[str, Any]], measures: Mapping[str, str]) -> str:
    lines = []
    for lead in leads:
        cells = lead.get("recommended", lead["default"])
        line = [f"{lead['pair']}, {lead['utility']}", f"`{cells['options']}`", cells["saves"], lead["default"]["saves"]]
        lines.append([*line, *(cells.get(name, "") for name in measures)])
    return table(("", "options of `mbrace decode`", "fewer calls", "the default's", *measures.values()), lines)


def _headline(rows: Sequence[Row]) -> str:
    lines = []
    for (utility, pair), own in grouped(rows, "utility", "pair").items():
        found = {(row["setting"], row["measure"]): row for row in own}
        for setting, name in SETTINGS.items():
            cells = [found.get((setting, measure)) for measure in ("score", "accuracy", "rr", "utility_calls")]
            calls, standard = found[setting, "utility_calls"], found["beta=0", "utility_calls"]
            saving = f"{standard['value'] / calls['value']:.1f}x"
            theirs = f"{standard['paper'] / calls['paper']:.1f}x" if calls["paper"] else ""
            numbers = ["" if cell is None else format_value(cell["measure"], cell["value"]) for cell in cells]
            lines.append((f"{pair}, {utility}, {name}", *numbers, saving, theirs))
    return table(("test set, metric", "its score", "accuracy", "RR", "utility calls", "fewer", "the paper's"), lines)


def _systems(rows: Sequence[Row]) -> str:
    """Every setting and system of a test set: changes of scores as shares of their margins, and what was matched."""
    scores = list(dict.fromkeys(row["measure"] for row in rows if row["measure"].startswith("score")))
    others = [name for name in NAMES if name != "score" and any(row["measure"] == name for row in rows)]
    lines = []
    for (system,), own in grouped(rows, "setting").items():
        found = {row["measure"]: row for row in own}
        cells = [_change(found[name]) if name in found else "" for name in scores]
        cells += [format_value(name, found[name]["value"]) if name in found else "" for name in others]
        lines.append((system, *cells))
    metrics = [name.removeprefix(SCORE_BY) if name.startswith(SCORE_BY) else rows[0]["utility"] for name in scores]
    return table(("", *metrics, *(NAMES[name] for name in others)), lines)


def _change(row: Row) -> str:
    """The score of standard MBR; of others the difference from it and, where there is a margin, its share of that."""
    if row["difference"] is None:
        return format_value(row["measure"], row["value"])
    share = f" ({abs(row['difference']) / row['margin']:.0%})" if row["margin"] else ""
    return f"{row['difference']:+.3f}{share}"


def _claims(rows: Sequence[Row]) -> str:
    lines = []
    for row in sorted(rows, key=lambda row: str(row["claim"])):
        verdict = row["verdict"] if row["holds"] else f"**{row['verdict']}**"
        p = ["" if row.get(name) is None else format_p(row[name]) for name in ("p", "p_holm")]
        lines.append((row["claim"], row["utility"], row["pair"], row["found"], verdict, *p))
    return table(("claim", "utility", "pair", "found", "verdict", "p", "p, corrected"), lines)


def _against(found: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy of alpha minus that of the betas."""
    alphas = sorted({alpha for one in found for alpha in one["alphas"]})
    lines = []
    for one in found:
        line = next(line for line in one["lines"] if line["name"] == ACCURACY)
        cells = dict(zip(one["alphas"], line["cells"], strict=True))
        known = {alpha: f"{cell['value']} ({cell['interval']})" for alpha, cell in cells.items() if cell["value"]}
        lines.append((f"{one['pair']}, {one['utility']}", *(known.get(alpha, "") for alpha in alphas)))
    return table(("", *(f"α = {alpha}" for alpha in alphas)), lines)


def _heading(found: Mapping[str, Any]) -> str:
    return f"{found['pair']}, {found['utility']} ({SPLITS[found['split']]}, {found['sentences']:,} sentences)"


def _table_1(found: Mapping[str, Any]) -> str:
    lines = []
    for line in found["lines"]:
        cells = line["cells"]
        values = [f"**{cell['value']}** ({cell['sentences']})" for cell in cells]
        if line["name"] == NAMES["pseudo_references"]:  # standard MBR always uses the same number
            values[0] = cells[0]["value"]
        lines.append([line["name"], *values])
        for kind, name in (
            ("trials", "over trials"),
            ("paper", "the paper"),
            ("difference", "minus standard MBR (90% interval)"),
        ):
            if any(cell[kind] for cell in cells):  # a single trial has no interval, the paper not every number
                lines.append([f"· {name}", *(cell[kind] for cell in cells)])
    return table(("", *SETTINGS.values()), lines)


def _table_2(found: Mapping[str, Any]) -> str:
    headings = [heading for method in found["methods"] for heading in (f"{method} (s)", "paper (s)")]
    lines = [
        [line["name"], *(cell[whose] for cell in line["cells"] for whose in ("value", "paper"))]
        for line in found["lines"]
    ]
    return table(("", *headings), lines)


def _candidates(about: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        (
            f"`{one['file']}`",
            one["label"],
            str(one["sentences"]),
            f"{one['hypotheses']:g}",
            str(one["pseudo_references"]),
            f"{one['distinct']:.0%}",
            str(one["trials"]),
            f"{one['seconds']['tables']:g} s",
            f"{one['seconds']['races']:g} s",
        )
        for one in about
    ]
    headings = ("file", "utility", "sentences", "hypotheses", "R*", "distinct in R*", "trials", "tables", "races")
    return table(headings, lines)
