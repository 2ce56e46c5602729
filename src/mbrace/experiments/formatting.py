"""How numbers, measures and utilities are written in RESULTS.md, in figures and on the page, and what terms mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mbrace.experiments import paper
from mbrace.experiments.studies import Row, grouped
from mbrace.experiments.tables import exhausted_note
from mbrace.experiments.trials import SCORE_BY

NAMES = {
    "score": "Score",
    "accuracy": "Accuracy",
    "rr": "RR",
    "pseudo_references": "# pseudo-refs",
    "utility_calls": "# utility calls",
    "pairs_scored": "# pairs scored",
}
SETTINGS = {"beta=0": "β = 0", "alpha=0.99": "α = 0.99", "alpha=0.9": "α = 0.9"}
SPLITS = {"valid": "validation", "test": "test", "all": "the only file"}


def format_value(measure: str, value: float | None) -> str:
    """A number; scores have three decimals, so that rounding neither makes nor hides a difference."""
    if value is None or math.isnan(value):
        return ""
    if measure in ("utility_calls", "pairs_scored"):
        return f"{value:,.0f}"
    return f"{value:.{1 if measure == 'pseudo_references' else 3}f}"


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
    """How a run time was measured; rows of earlier versions do not say how pseudo-references were drawn."""
    drawn = row.get("draw", "step by step")
    return f"{row['window']} sentences at a time, pseudo-references drawn {drawn}"


def run_time_tables(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Table 2 for each utility and pair: a line per phase, a cell per method with our seconds and the paper's."""
    tables = []
    for (utility, pair), own in grouped(rows, "utility", "pair").items():
        seconds = {(row["method"], row["phase"]): f"{row['seconds']:.2f}" for row in own}
        lines = []
        for phase in paper.TABLE_2_WITH_TOTALS["racing"]:
            cells = []
            for method, of_paper in paper.TABLE_2_WITH_TOTALS.items():
                theirs = f"{of_paper[phase]:.2f}" if phase in of_paper else ""
                cells.append({"value": seconds.get((method, phase), ""), "paper": theirs})
            lines.append({"name": phase, "cells": cells})
        table = {"utility": utility, "pair": pair, "lines": lines, "methods": list(paper.TABLE_2)}
        table |= {"described": describe_utility(utility), "way": describe_timing(own[0])}
        tables.append(table | {name: own[0][name] for name in ("sentences", "trials", "device")})
    return tables


def measure_name(measure: str, utility: str) -> str:
    """What a measure is called in tables; names of scores say whether their metric decoded."""
    if measure == "score":
        return f"Score by {utility}, which decoded"
    if measure.startswith(SCORE_BY):
        return f"Score by {measure.removeprefix(SCORE_BY)}, not decoded with"
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


TERMS = {
    "mbr": (
        "MBR decoding",
        "Minimum Bayes risk decoding: of the hypotheses, choose the one that is most like the model's own samples "
        "(pseudo-references), as a utility measures it. Standard MBR scores every hypothesis against every sample.",
    ),
    "utility": (
        "expected utility",
        "The mean utility of a hypothesis against the pseudo-references; MBR decoding looks for the highest.",
    ),
    "calls": (
        "utility calls",
        "How many pairs of a hypothesis and a pseudo-reference are scored for a sentence, counted as the paper does "
        "(repeated ones included).",
    ),
    "alpha": (
        "alpha (α)",
        "Confidence pruning: a hypothesis leaves the race when it would beat or equal the leader in at most a share of "
        "1 - alpha of bootstrap resamples. The nearer to 1, the more careful.",
    ),
    "beta": (
        "beta (β)",
        "The simpler rule it is compared with: after each time step, the worst share beta of the hypotheses leaves. "
        "Beta = 0 is standard MBR.",
    ),
    "schedule": ("schedule", "How many pseudo-references have been used at the end of each time step of a race."),
    "regret": (
        "regret",
        "A race may also stop when the leader's expected loss against any survivor is below this many standard "
        "deviations between hypotheses; 0: never.",
    ),
    "win": ("win rate", "In how many bootstrap resamples a hypothesis is at least as good as the leader."),
    "rstar": (
        "R*",
        "All pseudo-references of a sentence in the candidate file (1,024 in the paper). A race draws its R from them; "
        "the best hypothesis under R* counts as the right answer.",
    ),
    "accuracy": (
        "exact accuracy",
        "How often the answer is the best hypothesis under R*. Standard MBR uses fewer pseudo-references than R* has, "
        "so it is not always right either.",
    ),
    "rr": ("RR (reciprocal rank)", "1 divided by the rank of the answer under R*: 1 for the best, 1/2 for the second."),
    "score": (
        "score",
        "The quality of the answers against the human references: by the metric that decoded, and by metrics that did "
        "not, which are the ones to trust.",
    ),
}


def terms(utilities: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Each term and its explanation, by the name that the page refers to it by."""
    found = dict(TERMS)
    if any(utility.split(" ")[0] == "learned" for utility in utilities):
        found["learned"] = ("learned", DESCRIBED.removeprefix("learned, ").capitalize() + ".")
    return found
