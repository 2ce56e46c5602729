"""From outcomes to rows: false pruning, trade-off, alpha against beta, test table and survivors.

Every function takes outcomes and returns rows (flat dictionaries) for the CSV files, the figures and the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mbrace.experiments import paper
from mbrace.experiments.significance import (
    Comparison,
    averages,
    equivalence,
    paired_tests,
    sentence_interval,
    trial_interval,
)
from mbrace.experiments.trials import ALPHAS, SCORE_BY, STANDARD, TEST, TRADEOFF, Outcomes, Setting

Row: TypeAlias = dict[str, Any]
AnyRow = TypeVar("AnyRow", bound=Mapping[str, Any])
FIRST_SIZES = (4, 8, 16, 32, 64)
GROWTH = (1.5, 2.0, 4.0)
BOUNDS = {"accuracy": (0.0, 1.0), "rr": (0.0, 1.0), "score": (-math.inf, math.inf)}  # others are counts
TABLE = ("score", "accuracy", "rr", "pseudo_references", "utility_calls", "pairs_scored")


def growing(first: int, factor: float, last: int) -> tuple[int, ...]:
    """Sizes `first`, `first` x `factor`, ..., `last`: growing(64, 1.5, 256) = (64, 96, 144, 216, 256)."""
    sizes = [float(first)]
    while math.ceil(sizes[-1] * factor) < last:
        sizes.append(math.ceil(sizes[-1] * factor))
    return (*(int(size) for size in sizes if size < last), last)


def schedule_settings(last: int) -> list[Setting]:
    """The schedules that may be recommended: every first size and growth factor, for two alphas."""
    return [
        Setting("alpha", alpha, growing(first, factor, last))
        for alpha in (0.99, 0.9)
        for first in FIRST_SIZES
        for factor in GROWTH
        if first < last
    ]


def identity(outcomes: Outcomes) -> Row:
    """The columns that every row starts with."""
    about = outcomes.about
    return {"pair": about["name"], "utility": about["label"], "split": about["split"]}


def grouped(rows: Iterable[AnyRow], *columns: str) -> dict[tuple[Any, ...], list[AnyRow]]:
    """The rows by their values in `columns`; groups are in the order of their first rows."""
    groups: dict[tuple[Any, ...], list[AnyRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def false_pruning(outcomes: Outcomes) -> list[Row]:
    """How often one application of Confidence prunes the winner under R* (Figure 1)."""
    rows = []
    for size, by_alpha in zip(outcomes.sizes, outcomes.pruned, strict=True):
        if size > outcomes.about["pseudo_references"]:
            continue
        for alpha, lost in zip(ALPHAS, by_alpha, strict=True):
            low, high = sentence_interval(lost.astype(np.float64))
            row = {"alpha": alpha, "pseudo_references": size, "rate": float(lost.mean()), "low": low, "high": high}
            rows.append(identity(outcomes) | row)
    return rows


def tradeoff(outcomes: Outcomes) -> list[Row]:
    """Score, accuracy and reciprocal rank against utility calls for every alpha and beta (Figure 2).

    Each with its 95% interval over sentences, and that of its paired difference from standard MBR.
    """
    rows = []
    standard = outcomes.measures_of(STANDARD)
    for setting in TRADEOFF:
        values = outcomes.measures_of(setting)
        row = identity(outcomes) | {"rule": setting.rule, "value": setting.value}
        row |= {name: float(found.mean()) for name, found in values.items()}
        for name in (name for name in ("score", "accuracy", "rr") if name in values):
            row[f"{name}_low"], row[f"{name}_high"] = sentence_interval(values[name])
            low, high = sentence_interval(values[name] - standard[name])
            row[f"{name}_minus_standard_low"], row[f"{name}_minus_standard_high"] = low, high
        rows.append(row)
    return rows


def survivors(outcomes: Outcomes) -> list[Row]:
    """Number of hypotheses left after each time step: mean and quartiles (appendix)."""
    rows = []
    sizes = outcomes.about["schedule"]
    for alpha, left in zip(ALPHAS, outcomes.survivors.astype(np.float64), strict=True):
        for step, size in enumerate(sizes):
            values = left[:, :, step].ravel()
            q25, median, q75 = np.percentile(values, [25, 50, 75])
            row = {"alpha": alpha, "step": step + 1, "pseudo_references": size, "mean": float(values.mean())}
            row |= {"q25": float(q25), "median": float(median), "q75": float(q75)}
            rows.append(identity(outcomes) | row)
    return rows


def test_table(outcomes: Outcomes, margins: Mapping[str, float]) -> list[Row]:
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
            row["paper"] = paper.table_1(outcomes.about["name"], outcomes.about["label"], label(setting), measure)
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


def alpha_over_beta(outcomes: Outcomes) -> list[Row]:
    """Each alpha compared with the betas, interpolated linearly at the same number of utility calls.

    `low` and `high`: the 95% interval of the difference when sentences are resampled. Alphas whose number of calls is
    outside the range of the betas are left out.
    """
    found = [(setting, outcomes.measures_of(setting)) for setting in TRADEOFF]
    count = len(found[0][1]["rr"])
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=1000)
    weights = np.vstack([np.ones((1, count)), draws]) / count  # the first row is the sample itself
    rows = []
    for measure in (name for name in ("score", "accuracy", "rr") if name in found[0][1]):
        lines = {  # each (resamples + 1,): calls and measure
            setting: (weights @ values["utility_calls"].mean(axis=1), weights @ values[measure].mean(axis=1))
            for setting, values in found
        }
        betas = sorted((s for s in lines if s.rule == "beta"), key=lambda s: float(lines[s][0][0]))
        calls, heights = (np.stack([lines[beta][part] for beta in betas], axis=1) for part in (0, 1))
        for setting in (s for s in lines if s.rule == "alpha"):
            at, value = lines[setting]
            if not calls[0, 0] <= at[0] <= calls[0, -1]:
                continue
            line = np.array([np.interp(*given) for given in zip(at, calls, heights, strict=True)])
            low, high = np.percentile((value - line)[1:], [2.5, 97.5])
            row = {"alpha": setting.value, "measure": measure, "utility_calls": float(at[0]), "value": float(value[0])}
            row |= {"beta": float(line[0]), "difference": float(value[0] - line[0]), "low": float(low)}
            row["high"] = float(high)
            rows.append(identity(outcomes) | row)
    return rows
