"""Table 1 and the paper's claims on a test file, next to the paper's own numbers (Cheng & Vlachos, EMNLP 2023).

Claims are judged by rules that were written down before the results they judge (results/rules.md).

- **The same score as standard MBR**: equivalence, not the lack of a significant difference. Shown if the 90% interval
  of the paired difference lies inside -margin .. margin (two one-sided t-tests at 5%).
- **The margin** is 0.2 for chrF++. For another metric it is the amount that is as large for it: 0.2 times its standard
  deviation over chrF++'s, both of standard MBR's scores over the same validation sentences. No validation scores by
  chrF++ on the same sentences: no margin, and no verdict.
- **At least N times fewer calls**: shown if the 95% interval of the ratio of totals (sentences resampled) is above N,
  contradicted if it is below.
- **`--preset fast`** (alpha 0.99, and a race ends at an expected regret of 0.04): the same test of the same score; and
  little utility lost: shown if the 95% interval of the expected utility under R* that it loses beyond standard MBR is
  below 0.05 standard deviations between hypotheses. The paper has no such claim.
- **Alpha beats beta at equal calls**: shown if it is better in more of the comparisons (each alpha, three measures)
  whose 95% interval leaves out zero than it is worse in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mbrace.experiments.significance import (
    Comparison,
    averages,
    equivalence,
    paired_tests,
    ratio_interval,
    sentence_interval,
    trial_interval,
)
from mbrace.experiments.studies import Row, alpha_over_beta, identity
from mbrace.experiments.trials import FAST, SCORE_BY, STANDARD, TEST, Outcomes, Setting

PAIRS = ("de-en", "en-et", "tr-en")
PAPER_SETTINGS = ("beta=0", "alpha=0.99", "alpha=0.9")

# Table 1: measure -> three settings for each of PAIRS. COMET scores are multiplied by 100.
TABLE_1: dict[str, dict[str, tuple[float, ...]]] = {
    "chrF++": {
        "score": (62.18, 62.19, 62.11, 46.47, 46.48, 46.44, 42.63, 42.63, 42.64),
        "accuracy": (0.749, 0.736, 0.648, 0.741, 0.728, 0.639, 0.761, 0.751, 0.660),
        "rr": (0.850, 0.840, 0.769, 0.843, 0.833, 0.762, 0.857, 0.850, 0.779),
        "pseudo_references": (256.0, 234.9, 185.2, 256.0, 235.3, 188.5, 256.0, 238.7, 185.7),
        "utility_calls": (65082, 9542, 5402, 63898, 9644, 5386, 65356, 8761, 5275),
    },
    "COMET": {
        "score": (78.37, 78.37, 78.41, 82.75, 82.74, 82.74, 73.70, 73.68, 73.65),
        "accuracy": (0.872, 0.844, 0.742, 0.924, 0.898, 0.830, 0.897, 0.878, 0.791),
        "rr": (0.930, 0.911, 0.838, 0.959, 0.943, 0.898, 0.944, 0.932, 0.873),
        "pseudo_references": (256.0, 200.3, 120.4, 256.0, 151.4, 82.6, 256.0, 177.8, 100.8),
        "utility_calls": (65082, 3831, 2533, 63898, 2813, 2250, 65356, 3244, 2394),
    },
}

# Table 2: seconds for 100 de-en sentences, COMET, one Quadro RTX 8000, one sentence at a time.
TABLE_2 = {
    "racing": {
        "generate H": 36.56,
        "generate R": 59.92,
        "embed": 100.50,
        "utilities": 12.96,
        "pruning": 0.63,
        "total": 210.57,
    },
    "standard": {"generate H": 36.56, "generate R": 59.92, "embed": 108.33, "utilities": 193.01, "total": 397.82},
    "beam": {"generate H": 26.79, "total": 26.79},
}

LEAST_SAVING = {"chrF++": 7.0, "neural": 15.0}  # "a factor of at least 7 for chrF++ and 15 for COMET"
BOUNDS = {"accuracy": (0.0, 1.0), "rr": (0.0, 1.0), "score": (-math.inf, math.inf)}  # others are counts
TABLE = ("score", "accuracy", "rr", "pseudo_references", "utility_calls", "pairs_scored")
CHRF_MARGIN = 0.2
LOST_MARGIN = 0.05  # standard deviations between hypotheses
RACING = Setting("alpha", 0.99)


def paper_metric(utility: str) -> str:
    """The paper's metric that is closest to a utility: chrF++ for lexical ones, COMET for neural ones."""
    return "chrF++" if utility.lower().startswith("chrf") else "COMET"


def paper_table_1(pair: str, utility: str, setting: str, measure: str) -> float | None:
    """The paper's number for this cell, or None if it has none."""
    values = TABLE_1[paper_metric(utility)].get(measure)
    if pair not in PAIRS or values is None or setting not in PAPER_SETTINGS:
        return None
    return values[3 * PAIRS.index(pair) + PAPER_SETTINGS.index(setting)]


def table_rows(outcomes: Outcomes, margins: Mapping[str, float]) -> list[Row]:
    """Table 1: standard MBR, alpha 0.99, alpha 0.9, and stopping by regret; intervals over trials and over sentences;
    the paper's number.

    Scores, by the metric that decoded and by others ("score by NAME"), are compared with standard MBR's on the same
    sentences, averaged over trials: p-value, 95% interval by bootstrap, and the 90% interval that `margins` (by
    measure) are held against; see `claims`.
    """
    rows = []
    standard = outcomes.measures_of(STANDARD) | outcomes.other_scores_of(STANDARD)
    for setting in (each for each in TEST if each in outcomes.settings):
        values = outcomes.measures_of(setting) | outcomes.other_scores_of(setting)
        names = ("score", *(name for name in values if name.startswith(SCORE_BY)), *TABLE[1:])
        for measure in (name for name in names if name in values):
            found = values[measure]
            row = identity(outcomes) | {"setting": label(setting), "measure": measure, "value": float(found.mean())}
            row["sentences"] = len(found)
            scored = measure.startswith("score")
            least, most = BOUNDS["score"] if scored else BOUNDS.get(measure, (0.0, math.inf))
            row["trials_low"], row["trials_high"] = trial_interval(found, least=least, most=most)
            row["sentences_low"], row["sentences_high"] = sentence_interval(found)
            row["paper"] = paper_table_1(outcomes.about["name"], outcomes.about["label"], label(setting), measure)
            row |= dict.fromkeys(("difference", "difference_low", "difference_high", "p_randomisation"))
            row |= dict.fromkeys(("low_90", "high_90", "margin", "inside_margin"))
            if scored and setting != STANDARD:
                test = _paired(found, standard[measure])
                row |= {"difference": test.difference, "difference_low": test.low, "difference_high": test.high}
                row["p_randomisation"] = test.p_randomisation
                margin = margins.get(measure)
                same = equivalence(found, standard[measure], math.nan if margin is None else margin)
                row |= {"low_90": same.low, "high_90": same.high, "margin": margin}
                row["inside_margin"] = None if margin is None else same.inside
            rows.append(row)
    return rows


def _paired(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> Comparison:
    """Paired tests over sentences, averaged over trials; both arrays are (sentences, trials)."""
    return paired_tests(ours.mean(axis=1)[:, None], theirs.mean(axis=1)[:, None], averages(len(ours)))


def label(setting: Setting) -> str:
    """`alpha=0.99`, `beta=0`, `alpha=0.99, regret=0.04`."""
    return f"{setting.rule}={setting.value:g}" + (f", regret={setting.regret:g}" if setting.regret else "")


def margins(valid: Outcomes, lexical: Outcomes | None) -> dict[str, float]:
    """The margin of each score of `valid`, by measure: "score" and "score by NAME".

    `lexical`: chrF++'s outcomes on the same validation sentences, or None.
    """
    scores = _scores(valid, STANDARD)
    yardstick: NDArray[np.float64] | None = None
    if lexical is not None and lexical.about.get("digest") == valid.about.get("digest"):
        yardstick = _scores(lexical, STANDARD).get("score")
    found = {}
    for measure, values in scores.items():
        if metric_of(valid, measure) == "chrF++":
            found[measure] = CHRF_MARGIN
        elif yardstick is not None and _spread(yardstick) > 0:
            found[measure] = CHRF_MARGIN * _spread(values) / _spread(yardstick)
    return found


def metric_of(outcomes: Outcomes, measure: str) -> str:
    """The metric of "score" (the one that decoded) or "score by NAME"."""
    return measure.removeprefix(SCORE_BY) if measure.startswith(SCORE_BY) else str(outcomes.about["label"])


def _scores(outcomes: Outcomes, setting: Setting) -> dict[str, NDArray[np.float64]]:
    own = outcomes.measures_of(setting)
    return ({"score": own["score"]} if "score" in own else {}) | outcomes.other_scores_of(setting)


def _spread(values: NDArray[np.float64]) -> float:
    return float(values.mean(axis=1).std(ddof=1)) if len(values) > 1 else 0.0


def claims(valid: Outcomes, test: Outcomes, margin_of: Mapping[str, float]) -> list[Row]:
    """One row per claim: what was found, `holds` (True, False, or None: neither shown), and the verdict in words."""
    rows = [_fewer_calls(test), *_same_scores(test, RACING, "at alpha = 0.99", margin_of)]
    if FAST in test.settings:
        rows += [*_same_scores(test, FAST, "with --preset fast (regret 0.04)", margin_of), _little_lost(test)]
    return [*(identity(test) | row for row in rows), identity(valid) | _alpha_beats_beta(valid)]


def _same_scores(test: Outcomes, setting: Setting, words: str, margin_of: Mapping[str, float]) -> list[Row]:
    standard, ours = _scores(test, STANDARD), _scores(test, setting)
    return [
        _same_score(metric_of(test, measure), measure, words, ours[measure], standard[measure], margin_of.get(measure))
        for measure in ours
    ]


def _same_score(
    metric: str,
    measure: str,
    words: str,
    ours: NDArray[np.float64],
    standard: NDArray[np.float64],
    margin: float | None,
) -> Row:
    role = "which decoded" if measure == "score" else "not decoded with"
    row: Row = {"claim": f"the same score as standard MBR {words}, by {metric} ({role})"}
    if margin is None:
        remedy = "run chrF++ on the same validation sentences"
        return row | {"found": "no margin", "holds": None, "verdict": f"not tested: no margin; {remedy}"}
    test = equivalence(ours, standard, margin)
    row["found"] = f"{test.difference:+.3f} (90% interval {test.low:+.3f} to {test.high:+.3f})"
    holds = True if test.inside else False if test.outside else None
    where = {True: "inside", False: "outside", None: "not inside"}[holds]
    return row | _verdict(holds, f"90% interval {where} ±{margin:.3g} {metric}")


def _verdict(holds: bool | None, reason: str) -> Row:
    word = {True: "shown", False: "contradicted", None: "not shown"}[holds]
    return {"holds": holds, "verdict": f"{word}: {reason}"}


def _little_lost(test: Outcomes) -> Row:
    lost = test.measures_of(FAST)["lost"] - test.measures_of(STANDARD)["lost"]
    low, high = sentence_interval(lost)
    row: Row = {"claim": "little expected utility lost with --preset fast (regret 0.04)"}
    row["found"] = f"{lost.mean():+.4f} standard deviations (95% interval {low:+.4f} to {high:+.4f})"
    holds = True if high < LOST_MARGIN else False if low > LOST_MARGIN else None
    where = {True: "below", False: "above", None: "includes"}[holds]
    return row | _verdict(holds, f"95% interval {where} {LOST_MARGIN}")


def _fewer_calls(test: Outcomes) -> Row:
    standard, racing = (test.measures_of(s)["utility_calls"].mean(axis=1) for s in (STANDARD, RACING))
    saving = float(standard.mean() / racing.mean())
    low, high = ratio_interval(standard, racing)
    kind = "chrF++" if paper_metric(test.about["label"]) == "chrF++" else "neural"
    wanted = LEAST_SAVING[kind]
    theirs = [
        paper_table_1(test.about["name"], kind, label(setting), "utility_calls") for setting in (STANDARD, RACING)
    ]
    compared = f"; the paper's own table: {theirs[0] / theirs[1]:.1f}x" if theirs[0] and theirs[1] else ""
    row: Row = {"claim": f"at least {wanted:g}x fewer utility calls at alpha = 0.99"}
    row["found"] = f"{saving:.2f}x fewer (95% interval {low:.2f} to {high:.2f}{compared})"
    holds = True if low >= wanted else False if high < wanted else None
    where = {True: "above", False: "below", None: "includes"}[holds]
    return row | _verdict(holds, f"95% interval {where} {wanted:g}")


def _alpha_beats_beta(valid: Outcomes) -> Row:
    comparisons = alpha_over_beta(valid)
    clear = [row["difference"] for row in comparisons if row["low"] > 0 or row["high"] < 0]
    better, worse = sum(difference > 0 for difference in clear), sum(difference < 0 for difference in clear)
    gap = float(np.mean([row["difference"] for row in comparisons if row["measure"] == "accuracy"] or [np.nan]))
    row: Row = {"claim": "alpha beats beta at equal utility calls"}
    row["found"] = f"mean difference in accuracy {gap:+.3f}"
    counts = f"better in {better}, worse in {worse} of {len(comparisons)} comparisons by 95% intervals"
    return row | _verdict(None if better == worse else better > worse, counts)
