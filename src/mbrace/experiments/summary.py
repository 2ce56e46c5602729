"""RESULTS.md: tables that a reader can check against the paper. Its words are page/results.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mbrace.experiments.charts import MEASURES
from mbrace.experiments.formatting import NAMES, SETTINGS, SPLITS, describe_utility, format_value
from mbrace.experiments.studies import Row, grouped
from mbrace.experiments.tables import slug


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
        candidates=_candidates(shown["about"]),
        pictures={
            study: [(utility, name) for utility in utilities if (name := f"{study}.{slug(utility)}.svg") in drawn]
            for study in ("tradeoff", "survivors", "false_pruning", "runtimes")
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
        for kind in (kind for kind in ("default", "recommended") if kind in lead):
            cells = lead[kind]
            line = [f"{lead['pair']}, {lead['utility']}, {kind}", f"`{cells['options']}`", cells["saves"]]
            lines.append([*line, *(cells.get(name, "") for name in measures)])
    return table(("", "options of `mbrace decode`", "fewer calls", *measures.values()), lines)


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
    return table(("test set", "score", "accuracy", "RR", "utility calls", "fewer", "the paper's"), lines)


def _claims(rows: Sequence[Row]) -> str:
    lines = []
    for row in sorted(rows, key=lambda row: str(row["claim"])):
        verdict = row["verdict"] if row["holds"] else f"**{row['verdict']}**"
        lines.append((row["claim"], row["utility"], row["pair"], row["found"], verdict))
    return table(("claim", "utility", "pair", "found", "verdict"), lines)


def _against(found: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy of alpha minus that of the betas."""
    alphas = sorted({alpha for one in found for alpha in one["alphas"]})
    lines = []
    for one in found:
        line = next(line for line in one["lines"] if line["name"] == MEASURES["accuracy"])
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
