"""RESULTS.md: tables that a reader can check against the paper. Written by `mbrace experiment`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mbrace.experiments import recommendation
from mbrace.experiments.formatting import (
    SETTINGS,
    SPLITS,
    describe_utility,
    exhausted_notes,
    format_interval,
    format_paper_value,
    format_value,
    measure_name,
    run_time_tables,
    with_interval,
)
from mbrace.experiments.studies import MARGIN, Row, grouped
from mbrace.experiments.tables import slug


def summary(
    about: Sequence[Mapping[str, Any]],
    rows: Mapping[str, Sequence[Row]],
    notes: str,
    drawn: Sequence[str] = (),
) -> str:
    """The whole page; `notes` is the hand-written text of notes.md, `drawn` the names of the files in figures/."""
    utilities = list(dict.fromkeys(str(one["label"]) for one in about))
    sections = [
        _recommended(rows["recommended"]),
        _exhausted(about),
        _headline(rows["test_table"]),
        _claims(rows["claims"]),
        [notes.strip()] if notes.strip() else [],
        _figures("tradeoff", utilities, drawn),
        _alpha_over_beta(rows["alpha_over_beta"]),
        _test_table(rows["test_table"]),
        _runtimes(rows["runtimes"]),
        _pictures("runtimes", utilities, drawn),
        _schedules(rows["schedules"]),
        _pictures("schedules", utilities, drawn),
        _figures("survivors", utilities, drawn),
        _figures("false_pruning", utilities, drawn),
        _candidates(about),
    ]
    lines = [
        "# Results",
        "",
        "Written by `mbrace experiment`; only the notes are written by hand. `report.html` shows everything.",
        "",
    ]
    lines += [line for utility in utilities if (line := _explained(utility))]
    for section in filter(None, sections):
        lines += [*section, ""]
    return "\n".join(lines).rstrip() + "\n"


def _explained(utility: str) -> str:
    """A sentence on a utility whose name says little."""
    description = describe_utility(utility)
    return "" if description == utility else f"*{utility}* is {description.split(', ', 1)[1]}.\n"


FIGURES = {
    "tradeoff": "Speed against accuracy",
    "survivors": "Survivors",
    "false_pruning": "False pruning",
    "schedules": "Reciprocal rank of schedules",
    "runtimes": "Run times by phase",
}
CAPTIONS = {
    "tradeoff": "Each point is an alpha or a beta; vertical lines are 95% intervals of the paired difference from "
    "standard MBR (dashed). As in the paper, x is cut: betas further right only approach standard MBR.",
    "survivors": "Hypotheses left after each time step: points are means, lines span the middle half.",
    "false_pruning": "How often one application of the rule would lose the hypothesis that wins under R*; bands are "
    "95% intervals over sentences.",
}


def _figures(study: str, utilities: Sequence[str], drawn: Sequence[str]) -> list[str]:
    """A section of the figures of a study."""
    pictures = _pictures(study, utilities, drawn)
    return [f"## {FIGURES[study]}", "", CAPTIONS[study], "", *pictures] if pictures else []


def _pictures(study: str, utilities: Sequence[str], drawn: Sequence[str]) -> list[str]:
    """The figures of a study, one for each utility."""
    names = {utility: f"{study}.{slug(utility)}.svg" for utility in utilities}
    return [f"![{FIGURES[study]}, {utility}](figures/{name})" for utility, name in names.items() if name in drawn]


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; the first column is text, the others are numbers."""
    rule = [":--", *["--:"] * (len(headings) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, rule, *lines)]


def _recommended(rows: Sequence[Row]) -> list[str]:
    text = ["## On your files", "", f"{recommendation.RULE} Differences are from standard MBR; minus is worse.", ""]
    measures = [name for name in ("score", "lost", "rr") if any(name in row for row in rows)]
    lines = []
    for row in (row for row in rows if row["kind"] != "standard"):
        cells = recommendation.shown(row)
        line = [f"{row['pair']}, {row['utility']}, {row['kind']}", f"`{cells['options']}`", cells["saves"]]
        lines.append([*line, *(cells.get(name, "") for name in measures)])
    headings = ("", "options of `mbrace decode`", "fewer calls", *(recommendation.MEASURES[name] for name in measures))
    return [*text, *table(headings, lines)]


def _headline(rows: Sequence[Row]) -> list[str]:
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
    headings = ("test set", "score", "accuracy", "RR", "utility calls", "fewer", "the paper's")
    return ["## In short", "", *table(headings, lines)]


def _claims(rows: Sequence[Row]) -> list[str]:
    lines = [
        (f"{row['claim']}", row["utility"], row["pair"], row["found"], _verdict(row))
        for row in sorted(rows, key=lambda row: row["claim"])
    ]
    text = [
        "## The paper's claims on these candidates",
        "",
        "Judged by rules that were written down before the run: `rules.md`. The utility is the one that decoded.",
        "",
    ]
    return [*text, *table(("claim", "utility", "pair", "found", "verdict"), lines)]


def _verdict(row: Row) -> str:
    return str(row["verdict"]) if row["holds"] else f"**{row['verdict']}**"


def _alpha_over_beta(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    text = [
        "## Alpha against beta at equal utility calls",
        "",
        "Exact accuracy on the validation set, minus that of the betas, interpolated at the same number of calls",
        "(95% interval over sentences). Score and reciprocal rank are in `alpha_over_beta.csv`.",
        "",
    ]
    alphas = sorted({row["alpha"] for row in rows})
    lines = []
    for (utility, pair), own in grouped(rows, "utility", "pair").items():
        cells = {
            row["alpha"]: with_interval(row["difference"], row["low"], row["high"])
            for row in own
            if row["measure"] == "accuracy"
        }
        lines.append((f"{pair}, {utility}", *(cells.get(alpha, "") for alpha in alphas)))
    return [*text, *table(("", *(f"α = {alpha:g}" for alpha in alphas)), lines)]


def _test_table(rows: Sequence[Row]) -> list[str]:
    text = [
        "## Table 1: the test set",
        "",
        "Our number with its 95% interval over sentences; below it the interval over trials, and the paper's number",
        "for the same cell (COMET's for a neural utility: a different metric, so only the pattern can be compared).",
    ]
    for (utility, pair), own in grouped(rows, "utility", "pair").items():
        count = f"{own[0]['sentences']:,} sentences"
        text += ["", f"### {pair}, {utility} ({SPLITS[own[0]['split']]}, {count})", ""]
        lines = []
        for (measure,), measured in grouped(own, "measure").items():
            by_setting = {row["setting"]: row for row in measured}
            cells = [by_setting[setting] for setting in SETTINGS]
            lines.append([measure_name(measure, utility), *map(_value_over_sentences, cells)])
            over_trials = [format_interval(cell, "trials") for cell in cells]
            if any(over_trials):  # a single trial has no interval
                lines.append(["· over trials", *over_trials])
            if any(cell["paper"] is not None for cell in cells):
                lines.append(["· the paper", *(format_paper_value(measure, cell["paper"]) for cell in cells)])
            if measure.startswith("score"):
                lines.append(["· minus standard MBR (90% interval)", *map(_difference, cells)])
        text += table(("", *SETTINGS.values()), lines)
    return text


def _difference(row: Row) -> str:
    """The difference from standard MBR with its 90% interval, and whether that is inside the margin."""
    if row["difference"] is None:
        return ""
    text = with_interval(row["difference"], row["low_90"], row["high_90"])
    if row["margin"] is None:
        return text
    return f"{text}, {'inside' if row['inside_margin'] else 'not inside'} ±{row['margin']:.3g}"


def _value_over_sentences(row: Row) -> str:
    """The value with its interval over sentences; standard MBR always uses the same number of pseudo-references."""
    value = format_value(row["measure"], row["value"])
    if row["setting"] == "beta=0" and row["measure"] == "pseudo_references":
        return value
    return f"**{value}** ({format_interval(row, 'sentences')})"


def _runtimes(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    text = ["## Table 2: run times", ""]
    for found in run_time_tables(rows):
        text += [
            f"{found['pair']}, {found['utility']}: {found['sentences']} sentences, mean of {found['trials']} trials, "
            f"{found['device']}, {found['way']}. "
            "The paper: 100 de-en sentences, COMET, one Quadro RTX 8000, one sentence at a time.",
            "",
        ]
        headings = [heading for method in found["methods"] for heading in (f"{method} (s)", "paper (s)")]
        lines = [
            [line["name"], *(cell[whose] for cell in line["cells"] for whose in ("value", "paper"))]
            for line in found["lines"]
        ]
        text += [*table(("", *headings), lines), ""]
    return text[:-1]


def _schedules(rows: Sequence[Row]) -> list[str]:
    text = [
        "## The schedule",
        "",
        f"Of all first sizes and growth factors whose reciprocal rank is at most {MARGIN} below that of the utility's",
        "own schedule (lower end of the paired 95% interval over sentences), the one with the fewest utility calls:",
        "",
    ]
    lines = []
    for row in rows:
        kinds = [kind for kind, column in (("the paper's", "own"), ("recommended", "recommended")) if row[column]]
        if kinds:
            name = f"{row['utility']}, α = {row['alpha']:g}, {', '.join(kinds)}"
            numbers = [format_value(measure, row[measure]) for measure in ("utility_calls", "accuracy", "rr")]
            difference = with_interval(row["rr_difference"], row["rr_low"], row["rr_high"], "+.4f")
            lines.append((name, row["schedule"].replace(" ", ", "), *numbers, difference, f"{row['steps']:.1f}"))
    headings = ("", "schedule", "calls", "accuracy", "RR", "RR minus the paper's", "steps")
    return [*text, *table(headings, lines)]


def _candidates(about: Sequence[Mapping[str, Any]]) -> list[str]:
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
    return ["## Candidates and time", "", *table(headings, lines)]


def _exhausted(about: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"- {line}" for line in exhausted_notes(about)]
    return ["**Not every accuracy below is a finding.**", "", *lines] if lines else []
