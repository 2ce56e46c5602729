"""Table 1 and the paper's claims on a test file, next to the paper's own numbers (Cheng & Vlachos, EMNLP 2023).

Claims are judged by rules that were written down before the results they judge (results/rules.md).

- **The same score as standard MBR**: equivalence, not the lack of a significant difference. Shown if the 90% interval
  of the paired difference lies inside -margin .. margin (two one-sided t-tests at 5%).
- **The margin** is 0.2 for chrF++. For another metric it is the amount that is as large for it: 0.2 times its standard
  deviation over chrF++'s, both of standard MBR's scores over the same validation sentences. No validation scores by
  chrF++ on the same sentences: no margin, and no verdict.
- **At least N times fewer calls**: shown if the 95% interval of the ratio of totals (sentences resampled) is above N,
  not so here if it is below.
- **Accuracy indistinguishable from standard MBR's**, the claim as the abstract has it: no significant difference by
  paired randomisation.
- **`--regret 0.04`** and **`--preset fast`** (for encoders also a forecast and a covering order): the same test of the
  same score; and little utility lost: shown if the 95% interval of the expected utility under R* that it loses beyond
  standard MBR is below 0.05 standard deviations between hypotheses. The paper has no such claim.
- **Alpha beats beta at equal calls**: shown if it is better in more of the comparisons (each alpha, three measures)
  whose 95% interval leaves out zero than it is worse in.

Verdicts are of each claim alone; `correct` adds p-values corrected for the number of tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mbrace.experiments.significance import (
    Comparison,
    averages,
    equivalence,
    holm,
    p_above_zero,
    paired_tests,
    ratio_interval,
    sentence_interval,
    trial_interval,
)
from mbrace.experiments.studies import Row, alpha_over_beta, identity
from mbrace.experiments.trials import RACING, REGRET, SCORE_BY, STANDARD, Outcomes, Setting, fast, table_settings

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
RATES = ("accuracy", "rr", "strict_accuracy", "strict_rr")
TABLE = ("score", *RATES, "pseudo_references", "utility_calls", "pairs_scored")
LEVEL = 0.05
CHRF_MARGIN = 0.2
LOST_MARGIN = 0.05  # standard deviations between hypotheses


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
    """Table 1, and more: each setting of `table_settings` that was raced, and systems that do not race.

    Each number has its intervals over trials and over sentences, and the paper's number. Scores (by the metric that
    decoded, and "score by NAME"), accuracy and reciprocal rank are compared with standard MBR's on the same sentences,
    averaged over trials: p-value and 95% interval by bootstrap; of scores also the 90% interval that `margins` (by
    measure) are held against, see `claims`. `same` is the share of predictions that are standard MBR's, `tied` counts
    those as well that are as good under R*.
    """
    standard = outcomes.measures_of(STANDARD) | outcomes.other_scores_of(STANDARD)
    wanted = table_settings(outcomes.about["schedule"], outcomes.about["kind"])
    rows = []
    for setting in (each for each in wanted if each in outcomes.settings):
        values = outcomes.measures_of(setting) | outcomes.other_scores_of(setting)
        if setting != STANDARD:
            values["tied"] = (values["lost"] == standard["lost"]).astype(np.float64)
            if "choice" in values:
                values["same"] = (values["choice"] == standard["choice"]).astype(np.float64)
        others = [name for name in values if name.startswith(SCORE_BY)]
        names = [name for name in ("score", *others, *TABLE[1:], "tied", "same") if name in values]
        rows += [_table_row(outcomes, setting.label, name, values[name], standard, margins) for name in names]
    for name, scores in outcomes.baselines.items():
        for measure, found in scores.items():
            rows.append(_table_row(outcomes, name, measure, found.astype(np.float64)[:, None], standard, margins))
    return rows


def _table_row(
    outcomes: Outcomes,
    system: str,
    measure: str,
    found: NDArray[np.float64],
    standard: Mapping[str, NDArray[np.float64]],
    margins: Mapping[str, float],
) -> Row:
    row = identity(outcomes) | {"setting": system, "measure": measure}
    row |= {"value": float(found.mean()), "sentences": len(found)}
    scored, rate = measure.startswith("score"), measure in (*RATES, "same", "tied")
    least, most = -math.inf if scored else 0.0, 1.0 if rate else math.inf
    row["trials_low"], row["trials_high"] = trial_interval(found, least=least, most=most)
    row["sentences_low"], row["sentences_high"] = sentence_interval(found)
    row["paper"] = paper_table_1(outcomes.about["name"], outcomes.about["label"], system, measure)
    row |= dict.fromkeys(("difference", "difference_low", "difference_high", "p_randomisation"))
    row |= dict.fromkeys(("low_90", "high_90", "margin", "inside_margin"))
    if (scored or measure in RATES) and system != STANDARD.label:
        test = _paired(found, standard[measure])
        row |= {"difference": test.difference, "difference_low": test.low, "difference_high": test.high}
        row["p_randomisation"] = test.p_randomisation
        margin = margins.get(measure)
        same = equivalence(found, standard[measure], math.nan if margin is None else margin)
        row |= {"low_90": same.low, "high_90": same.high, "margin": margin}
        row["inside_margin"] = None if margin is None else same.inside
    return row


def _paired(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> Comparison:
    """Paired tests over sentences, averaged over trials; both arrays are (sentences, trials)."""
    return paired_tests(ours.mean(axis=1)[:, None], theirs.mean(axis=1)[:, None], averages(len(ours)))


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
    """One row per claim: what was found, `holds` (True, False, or None: neither shown), the verdict in words, and the
    p-value of the test behind it, if there is one."""
    rows = [_fewer_calls(test), _same_accuracy(test), *_same_scores(test, RACING, "at alpha = 0.99", margin_of)]
    named = {REGRET: "with --regret 0.04"} | {fast(test.about["kind"]): "with --preset fast"}
    for setting, words in named.items():
        if setting in test.settings:
            rows += [*_same_scores(test, setting, words, margin_of), _little_lost(test, setting, words)]
    return [*(identity(test) | row for row in rows), identity(valid) | _alpha_beats_beta(valid)]


def correct(rows: Sequence[Row]) -> None:
    """Add `p_holm` to all claims that were tested: p-values corrected for the number of them (Holm 1979)."""
    tested = [row for row in rows if row["p"] is not None]
    for row, corrected in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = corrected


def _claim(claim: str, found: str, holds: bool | None, reason: str, p: float | None = None) -> Row:
    word = {True: "shown", False: "not so here", None: "not shown"}[holds]
    return {"claim": claim, "found": found, "p": p, "holds": holds, "verdict": f"{word}: {reason}"}


def _side(low: float, high: float, bound: float) -> str:
    """Where the 95% interval lies: "above" or "below" the bound, or it "includes" it."""
    return "above" if low >= bound else "below" if high < bound else "includes"


def _fewer_calls(test: Outcomes) -> Row:
    standard, racing = (test.measures_of(s)["utility_calls"].mean(axis=1) for s in (STANDARD, RACING))
    low, high = ratio_interval(standard, racing)
    kind = "chrF++" if paper_metric(test.about["label"]) == "chrF++" else "neural"
    wanted = LEAST_SAVING[kind]
    theirs = [paper_table_1(test.about["name"], kind, setting.label, "utility_calls") for setting in (STANDARD, RACING)]
    compared = f"; the paper's own table: {theirs[0] / theirs[1]:.1f}x" if theirs[0] and theirs[1] else ""
    found = f"{standard.mean() / racing.mean():.2f}x fewer (95% interval {low:.2f} to {high:.2f}{compared})"
    where = _side(low, high, wanted)
    holds = {"above": True, "below": False, "includes": None}[where]
    p = p_above_zero(standard - wanted * racing)
    return _claim(
        f"at least {wanted:g}x fewer utility calls at alpha = 0.99", found, holds, f"95% interval {where} {wanted:g}", p
    )


def _same_accuracy(test: Outcomes) -> Row:
    """The paper's abstract: "statistically indistinguishable in terms of accuracy"."""
    standard, racing = (test.measures_of(setting)["accuracy"] for setting in (STANDARD, RACING))
    test_of = _paired(racing, standard)
    found = f"{test_of.difference:+.3f} (95% interval {test_of.low:+.3f} to {test_of.high:+.3f})"
    differs = test_of.p_randomisation < LEVEL
    reason = f"{'a' if differs else 'no'} significant difference (paired randomisation)"
    claim = "accuracy indistinguishable from standard MBR's at alpha = 0.99"
    return _claim(claim, found, not differs, reason, test_of.p_randomisation)


def _same_scores(test: Outcomes, setting: Setting, words: str, margin_of: Mapping[str, float]) -> list[Row]:
    standard, ours = _scores(test, STANDARD), _scores(test, setting)
    rows = []
    for measure, scores in ours.items():
        metric, margin = metric_of(test, measure), margin_of.get(measure)
        role = "decoding metric" if measure == "score" else "another metric"
        claim = f"the same score as standard MBR {words}, by {metric} ({role})"
        if margin is None:
            verdict = "not tested: no margin; run chrF++ on the same validation sentences"
            rows.append({"claim": claim, "found": "no margin", "p": None, "holds": None, "verdict": verdict})
            continue
        same = equivalence(scores, standard[measure], margin)
        share = f"{abs(same.difference) / margin:.0%} of the margin"
        found = f"{same.difference:+.3f} (90% interval {same.low:+.3f} to {same.high:+.3f}), {share}"
        holds = True if same.inside else False if same.outside else None
        where = {True: "inside", False: "outside", None: "not inside"}[holds]
        rows.append(_claim(claim, found, holds, f"90% interval {where} ±{margin:.3g} {metric}", same.p))
    return rows


def _little_lost(test: Outcomes, setting: Setting, words: str) -> Row:
    lost = (test.measures_of(setting)["lost"] - test.measures_of(STANDARD)["lost"]).mean(axis=1)
    low, high = sentence_interval(lost)
    interval = f"(95% interval {low:+.4f} to {high:+.4f})"
    found = f"{lost.mean():+.4f} standard deviations between a sentence's hypotheses {interval}"
    where = _side(low, high, LOST_MARGIN)
    holds = {"below": True, "above": False, "includes": None}[where]
    p = p_above_zero(LOST_MARGIN - lost)
    return _claim(f"little expected utility lost {words}", found, holds, f"95% interval {where} {LOST_MARGIN}", p)


def _alpha_beats_beta(valid: Outcomes) -> Row:
    comparisons = alpha_over_beta(valid)
    clear = [row["difference"] for row in comparisons if row["low"] > 0 or row["high"] < 0]
    better, worse = sum(difference > 0 for difference in clear), sum(difference < 0 for difference in clear)
    gap = float(np.mean([row["difference"] for row in comparisons if row["measure"] == "accuracy"] or [np.nan]))
    counts = f"better in {better}, worse in {worse} of {len(comparisons)} comparisons by 95% intervals"
    holds = None if better == worse else better > worse
    return _claim("alpha beats beta at equal utility calls", f"mean difference in accuracy {gap:+.3f}", holds, counts)
