"""From the outcomes on a validation file to rows: false pruning, trade-off, alpha against beta, survivors, and the race
that is recommended.

Every function takes outcomes and returns rows (flat dictionaries) for the CSV files, the figures and the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mbrace.experiments.significance import ratio_interval, resampled_counts, sentence_interval
from mbrace.experiments.trials import ALPHAS, RACING, STANDARD, TRADEOFF, Outcomes, Setting

Row: TypeAlias = dict[str, Any]
Values: TypeAlias = Mapping[str, NDArray[np.float64]]
AnyRow = TypeVar("AnyRow", bound=Mapping[str, Any])
FIRST_SIZES = (4, 8, 16, 32, 64)
GROWTH = (1.5, 2.0, 4.0)
MIN_SENTENCES = 30
MAX_LOST = 0.02  # standard deviations between a sentence's hypotheses
MAX_SCORE_LOST = 0.01  # standard deviations between sentences
RULE = (
    "The cheapest race that loses next to nothing against standard MBR on the validation file (or the only one). "
    "By the lower ends of paired 95% intervals over sentences, it loses at most "
    f"{MAX_LOST} of expected utility, in standard deviations between a sentence's hypotheses, and at most "
    f"{MAX_SCORE_LOST} of the score, in standard deviations between sentences. "
    f"If no race does, standard MBR; with fewer than {MIN_SENTENCES} sentences, nothing."
)
CHANGES = {
    "score": "score by the decoding metric",
    "lost": "expected utility, in standard deviations between a sentence's hypotheses",
    "rr": "reciprocal rank",
}


def growing(first: int, factor: float, last: int) -> tuple[int, ...]:
    """Sizes `first`, `first` x `factor`, ..., `last`: growing(64, 1.5, 256) = (64, 96, 144, 216, 256)."""
    sizes = [float(first)]
    while math.ceil(sizes[-1] * factor) < last:
        sizes.append(math.ceil(sizes[-1] * factor))
    return (*(int(size) for size in sizes if size < last), last)


def continued(schedule: tuple[int, ...], last: int) -> tuple[int, ...]:
    """A schedule that was cut, on to `last` by the same growth."""
    return growing(schedule[0], schedule[1] / schedule[0] if len(schedule) > 1 else 2, last)


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


def alpha_over_beta(outcomes: Outcomes) -> list[Row]:
    """Each alpha compared with the betas, interpolated linearly at the same number of utility calls.

    `low` and `high`: the 95% interval of the difference when sentences are resampled. Alphas whose number of calls is
    outside the range of the betas are left out.
    """
    found = [(setting, outcomes.measures_of(setting)) for setting in TRADEOFF]
    count = len(found[0][1]["rr"])
    weights = (
        np.vstack([np.ones((1, count)), resampled_counts(count, 1000)]) / count
    )  # the first row is the sample itself
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
            row |= {"beta": float(line[0]), "difference": float(value[0] - line[0])}
            rows.append(identity(outcomes) | row | {"low": float(low), "high": float(high)})
    return rows


def recommended(outcomes: Outcomes) -> list[Row]:
    """What standard MBR, the default race and, from MIN_SENTENCES on, the recommended one save and change."""
    standard = outcomes.measures_of(STANDARD)
    races = [setting for setting in outcomes.settings if setting.rule == "alpha"]
    found = {setting: outcomes.measures_of(setting) for setting in races}
    admitted = [setting for setting in races if loses_little(found[setting], standard)]
    chosen = min(admitted, key=lambda s: float(found[s]["utility_calls"].mean()), default=STANDARD)
    kinds = {"standard": STANDARD, "default": RACING}
    if outcomes.about["sentences"] >= MIN_SENTENCES:
        kinds["recommended"] = chosen
    return [
        identity(outcomes) | {"kind": kind} | _row(outcomes, setting, outcomes.measures_of(setting), standard)
        for kind, setting in kinds.items()
    ]


def loses_little(values: Values, standard: Values) -> bool:
    """Whether a setting loses next to nothing against standard MBR; each array is (sentences, trials)."""
    margins = {"lost": (-1.0, MAX_LOST)}  # the less is lost, the better
    if "score" in values:
        margins["score"] = (1.0, MAX_SCORE_LOST * float(standard["score"].mean(axis=1).std()))
    return all(
        sentence_interval(sign * (values[name] - standard[name]))[0] >= -margin
        for name, (sign, margin) in margins.items()
    )


def _row(outcomes: Outcomes, setting: Setting, values: Values, standard: Values) -> Row:
    schedule = setting.schedule or tuple(outcomes.about["schedule"])
    used, available = schedule[-1], outcomes.about.get("available", schedule[-1])
    row: Row = {"measured_with": used} if used < available else {}  # half of them, so that R* can judge
    row["alpha"] = setting.value if setting.rule == "alpha" else None
    if setting == STANDARD:
        schedule = schedule[-1:]
    elif used < available:
        schedule = continued(schedule, available)
    row["schedule"] = " ".join(map(str, schedule))
    row |= {name: getattr(setting, name) for name in ("forecast", "cover") if getattr(setting, name)}
    row |= {"regret": setting.regret, "sentences": outcomes.about["sentences"], "file": outcomes.about["file"]}
    row |= {"utility_options": outcomes.about["options"], "r_star": outcomes.about["pseudo_references"]}
    row |= {name: float(values[name].mean()) for name in ("utility_calls", "pseudo_references")}
    of_standard, own = (each["utility_calls"].mean(axis=1) for each in (standard, values))
    row["saves"] = float(of_standard.mean() / own.mean()) if own.any() else 1.0  # 1 where there was no race at all
    row["saves_low"], row["saves_high"] = ratio_interval(of_standard, own, resamples=1000)
    for name in CHANGES:
        if name in values:
            difference = values[name] - standard[name]
            row[name] = float(difference.mean())
            row[f"{name}_low"], row[f"{name}_high"] = sentence_interval(difference)
    return row
