"""RESULTS.md: tables that a reader can check against the paper. Written by `mbrace experiment`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mbrace.experiments import paper, recommendation
from mbrace.experiments.sections import Section
from mbrace.experiments.showing import (
    SETTINGS,
    SPLITS,
    described,
    exhausted,
    interval,
    measure_name,
    shown,
    shown_paper,
    way_of,
)
from mbrace.experiments.studies import MARGIN, Row
from mbrace.experiments.tables import slug


def summary(
    about: Sequence[Mapping[str, Any]],
    rows: Mapping[str, Sequence[Row]],
    notes: str,
    added: Sequence[Section] = (),
    drawn: Sequence[str] = (),
) -> str:
    """The whole page; `notes` is the hand-written text of notes.md, `added` are the sections of other studies.

    `drawn`: names of the files in figures/, those of a study without its panels for one pair.
    """
    utilities = list(dict.fromkeys(str(one["label"]) for one in about))
    sections: list[Callable[[], list[str]]] = [
        lambda: _recommended(rows["recommended"]),
        lambda: _exhausted(about),
        lambda: _headline(rows["test_table"]),
        lambda: _claims(rows["claims"]),
        lambda: [notes.strip()] if notes.strip() else [],
        lambda: _figures("tradeoff", utilities, drawn),
        lambda: _alpha_over_beta(rows["alpha_over_beta"]),
        lambda: _test_table(rows["test_table"]),
        lambda: _runtimes(rows["runtimes"]),
        lambda: _pictures("runtimes", utilities, drawn),
        lambda: _schedules(rows["schedules"]),
        lambda: _pictures("schedules", utilities, drawn),
        lambda: _figures("survivors", utilities, drawn),
        lambda: _figures("false_pruning", utilities, drawn),
        *(lambda section=section: _added(section) for section in added),
        lambda: _candidates(about),
    ]
    lines = [
        "# Results",
        "",
        "Written by `mbrace experiment`; only the notes are written by hand. `report.html` shows everything.",
        "",
    ]
    lines += [line for utility in utilities if (line := _explained(utility))]
    for section in sections:
        text = section()
        if text:
            lines += [*text, ""]
    return "\n".join(lines).rstrip() + "\n"


def _explained(utility: str) -> str:
    """A sentence on a utility whose name says little."""
    return "" if described(utility) == utility else f"*{utility}* is {described(utility).split(', ', 1)[1]}.\n"


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
    names = {utility: f"{study}.{slug(utility)}.png" for utility in utilities}
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
    for utility, pair in dict.fromkeys((row["utility"], row["pair"]) for row in rows):
        own = {(r["setting"], r["measure"]): r for r in rows if (r["utility"], r["pair"]) == (utility, pair)}
        for setting, name in SETTINGS.items():
            cells = [own.get((setting, measure)) for measure in ("score", "accuracy", "rr", "utility_calls")]
            calls, standard = own[setting, "utility_calls"], own["beta=0", "utility_calls"]
            saving = f"{standard['value'] / calls['value']:.1f}x"
            theirs = f"{standard['paper'] / calls['paper']:.1f}x" if calls["paper"] else ""
            numbers = ["" if cell is None else shown(cell["measure"], cell["value"]) for cell in cells]
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
    for utility, pair in dict.fromkeys((row["utility"], row["pair"]) for row in rows):
        own = {
            row["alpha"]: f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
            for row in rows
            if (row["utility"], row["pair"], row["measure"]) == (utility, pair, "accuracy")
        }
        lines.append((f"{pair}, {utility}", *(own.get(alpha, "") for alpha in alphas)))
    return [*text, *table(("", *(f"α = {alpha:g}" for alpha in alphas)), lines)]


def _test_table(rows: Sequence[Row]) -> list[str]:
    text = [
        "## Table 1: the test set",
        "",
        "Our number with its 95% interval over sentences; below it the interval over trials, and the paper's number",
        "for the same cell (COMET's for a neural utility: a different metric, so only the pattern can be compared).",
    ]
    for utility in dict.fromkeys(row["utility"] for row in rows):
        for pair in dict.fromkeys(row["pair"] for row in rows if row["utility"] == utility):
            own = [row for row in rows if row["utility"] == utility and row["pair"] == pair]
            count = f"{own[0]['sentences']:,} sentences"
            text += ["", f"### {pair}, {utility} ({SPLITS[own[0]['split']]}, {count})", ""]
            lines = []
            for measure in dict.fromkeys(row["measure"] for row in own):
                cells = {row["setting"]: row for row in own if row["measure"] == measure}
                lines.append([measure_name(measure, utility), *(_interval(cells[s], "sentences") for s in SETTINGS)])
                over_trials = [interval(cells[s], "trials") for s in SETTINGS]
                if any(over_trials):  # a single trial has no interval
                    lines.append(["· over trials", *over_trials])
                if any(cells[s]["paper"] is not None for s in SETTINGS):
                    lines.append(["· the paper", *(shown_paper(measure, cells[s]["paper"]) for s in SETTINGS)])
                if measure.startswith("score"):
                    lines.append(["· minus standard MBR (90% interval)", *(_difference(cells[s]) for s in SETTINGS)])
            text += table(("", *SETTINGS.values()), lines)
    return text


def _difference(row: Row) -> str:
    """The difference from standard MBR with its 90% interval, and whether that is inside the margin."""
    if row["difference"] is None:
        return ""
    text = f"{row['difference']:+.3f} ({row['low_90']:+.3f} to {row['high_90']:+.3f})"
    if row["margin"] is None:
        return text
    return f"{text}, {'inside' if row['inside_margin'] else 'not inside'} ±{row['margin']:.3g}"


def _interval(row: Row, kind: str) -> str:
    if row["setting"] == "beta=0" and row["measure"] == "pseudo_references":
        return shown(row["measure"], row["value"])
    return f"**{shown(row['measure'], row['value'])}** ({interval(row, kind)})"


def _runtimes(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    text = ["## Table 2: run times", ""]
    methods, theirs = list(paper.TABLE_2), paper.TABLE_2_WITH_TOTALS
    for pair, utility in dict.fromkeys((row["pair"], row["utility"]) for row in rows):
        own = [row for row in rows if (row["pair"], row["utility"]) == (pair, utility)]
        text += [
            f"{pair}, {utility}: {own[0]['sentences']} sentences, mean of {own[0]['trials']} trials, "
            f"{own[0]['device']}, {way_of(own[0])}. "
            "The paper: 100 de-en sentences, COMET, one Quadro RTX 8000, one sentence at a time.",
            "",
        ]
        lines = []
        for phase in paper.TABLE_2_WITH_TOTALS["racing"]:
            line = [phase]
            for method in methods:
                ours = next((row["seconds"] for row in own if (row["method"], row["phase"]) == (method, phase)), None)
                line += ["" if value is None else f"{value:.2f}" for value in (ours, theirs[method].get(phase))]
            lines.append(line)
        headings = [cell for method in methods for cell in (f"{method} (s)", "paper (s)")]
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
    for utility, alpha in dict.fromkeys((row["utility"], row["alpha"]) for row in rows):
        own = [row for row in rows if (row["utility"], row["alpha"]) == (utility, alpha)]
        for row in own:
            if row["own"] or row["recommended"]:
                kind = "recommended" if row["recommended"] else "the paper's"
                kind = "the paper's, recommended" if row["own"] and row["recommended"] else kind
                name = f"{utility}, α = {alpha:g}, {kind}"
                numbers = [shown("utility_calls", row["utility_calls"]), f"{row['accuracy']:.3f}", f"{row['rr']:.3f}"]
                difference = f"{row['rr_difference']:+.4f} ({row['rr_low']:+.4f} to {row['rr_high']:+.4f})"
                lines.append((name, row["schedule"].replace(" ", ", "), *numbers, difference, f"{row['steps']:.1f}"))
    headings = ("", "schedule", "calls", "accuracy", "RR", "RR minus the paper's", "steps")
    return [*text, *table(headings, lines)]


def _added(section: Section) -> list[str]:
    lines = [f"## {section.title}", "", section.text.strip(), ""]
    if section.rows:
        lines += [*table(section.headings, section.rows), ""]
    if section.figure:
        lines.append(f"![{section.figure.describes}](figures/{section.name}.png)")
    elif section.picture:
        lines.append(f"![{section.picture_describes}]({section.picture})")
    return lines


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
    lines = [f"- {line}" for line in exhausted(about)]
    return ["**Not every accuracy below is a finding.**", "", *lines] if lines else []
