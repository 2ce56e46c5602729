"""The paper's claims, judged by rules that were written down before the results they judge (results/rules.md).

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

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mbrace.experiments import paper
from mbrace.experiments.significance import equivalence, ratio_interval, sentence_interval
from mbrace.experiments.studies import Row, alpha_over_beta, identity, label
from mbrace.experiments.trials import FAST, SCORE_BY, STANDARD, Outcomes, Setting

CHRF_MARGIN = 0.2
LOST_MARGIN = 0.05  # standard deviations between hypotheses
RACING = Setting("alpha", 0.99)


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
    kind = "chrF++" if paper.metric_of(test.about["label"]) == "chrF++" else "neural"
    wanted = paper.LEAST_SAVING[kind]
    theirs = [
        paper.table_1(test.about["name"], kind, label(setting), "utility_calls") for setting in (STANDARD, RACING)
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
