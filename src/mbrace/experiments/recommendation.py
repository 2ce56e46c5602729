"""Which alpha, schedule and regret to use on a file: the cheapest race that loses next to nothing, and what it saves.

The rule, on the validation file (or the only one): a setting is admitted if, by the lower end of the paired 95%
interval over sentences of its difference from standard MBR,

- its expected utility under R* is at most LOST standard deviations between hypotheses lower, and
- its score against the human reference, where there is one, is at most SCORE standard deviations between sentences
  lower.

Of the admitted settings, the one with the fewest utility calls is recommended; if there is none, standard MBR. From
fewer than LEAST sentences nothing is recommended: intervals over so few mean little.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mbrace.experiments.significance import ratio_interval, sentence_interval
from mbrace.experiments.studies import Row, identity
from mbrace.experiments.trials import STANDARD, Outcomes, Setting

LEAST = 30
LOST = 0.02
SCORE = 0.01
RULE = (
    "The cheapest race that loses next to nothing against standard MBR, chosen on the validation file (or the only "
    "one): by the lower end of the paired 95% interval over sentences, at most "
    f"{LOST} standard deviations between hypotheses of expected utility, and at most {SCORE} standard deviations "
    "between sentences of the score."
)
DEFAULT = Setting("alpha", 0.99)  # the default of `mbrace decode`

Values = Mapping[str, NDArray[np.float64]]


def rows(outcomes: Outcomes) -> list[Row]:
    """Standard MBR, the default race and, from LEAST sentences on, the recommended one: what each saves and changes."""
    standard = outcomes.measures_of(STANDARD)
    races = [setting for setting in outcomes.settings if setting.rule == "alpha"]
    found = {setting: outcomes.measures_of(setting) for setting in races}
    admitted = [setting for setting in races if admits(found[setting], standard)]
    chosen = min(admitted, key=lambda s: float(found[s]["utility_calls"].mean()), default=STANDARD)
    kinds = {"standard": STANDARD, "default": DEFAULT}
    if outcomes.about["sentences"] >= LEAST:
        kinds["recommended"] = chosen
    return [
        identity(outcomes) | {"kind": kind} | _row(outcomes, setting, outcomes.measures_of(setting), standard)
        for kind, setting in kinds.items()
    ]


def admits(values: Values, standard: Values) -> bool:
    """Whether a setting loses next to nothing against standard MBR; each array is (sentences, trials)."""
    margins = {"lost": (-1.0, LOST)}  # the less is lost, the better
    if "score" in values:
        margins["score"] = (1.0, SCORE * float(standard["score"].mean(axis=1).std()))
    return all(
        sentence_interval(sign * (values[name] - standard[name]))[0] >= -margin
        for name, (sign, margin) in margins.items()
    )


def _row(outcomes: Outcomes, setting: Setting, values: Values, standard: Values) -> Row:
    schedule = setting.schedule or tuple(outcomes.about["schedule"])
    row: Row = {"alpha": setting.value if setting.rule == "alpha" else None}
    row |= {"schedule": " ".join(map(str, schedule if setting != STANDARD else schedule[-1:]))}
    row |= {"regret": setting.regret, "sentences": outcomes.about["sentences"], "file": outcomes.about["file"]}
    row["utility_options"] = outcomes.about.get("options", "")  # outcomes from before this was stored have none
    row |= {name: float(values[name].mean()) for name in ("utility_calls", "pseudo_references")}
    of_standard, own = (each["utility_calls"].mean(axis=1) for each in (standard, values))
    row["saves"] = float(of_standard.mean() / own.mean()) if own.any() else 1.0  # 1 where there was no race at all
    row["saves_low"], row["saves_high"] = ratio_interval(of_standard, own, resamples=1000)
    for name in MEASURES:
        if name in values:
            difference = values[name] - standard[name]
            row[name] = float(difference.mean())
            row[f"{name}_low"], row[f"{name}_high"] = sentence_interval(difference)
    return row


MEASURES = {
    "score": "score",
    "lost": "expected utility, in standard deviations between hypotheses",
    "rr": "reciprocal rank",
}


def shown(row: Row) -> dict[str, str]:
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
    for name in MEASURES:
        if name in row and row["kind"] != "standard":
            sign = -1.0 if name == "lost" else 1.0  # shown as a difference, so that minus is worse everywhere
            ends = sorted(sign * row[f"{name}_{end}"] for end in ("low", "high"))
            cells[name] = f"{_signed(sign * row[name])} ({_signed(ends[0])} to {_signed(ends[1])})"
    return cells


def _signed(value: float) -> str:
    """Three decimals with a sign; a loss that rounds to zero is written as +0.000."""
    return f"{value:+.3f}".replace("-0.000", "+0.000")
