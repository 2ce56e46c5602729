"""Settings that belong together: the paper's, and others that were found to be as good in less time."""

from __future__ import annotations

from typing import Any

# By preset and command. Only what was not chosen by the user is set. `fast` was shown to be as good as standard MBR by
# rules written down before (results/rules.md, claims.csv there). results/STRINGS.md has the study: a pool needs fewer
# strings still, but what it chooses scores lower by a metric that nothing was decoded with.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {"decode": {}, "translate": {}},
    "fast": {
        "decode": {"regret": 0.04},
        "translate": {"regret": 0.04, "sampling": "arithmetic"},
    },
}
# What presets set besides, or in place of that, by what costs most time.
#
# STRINGS: the utility reads each string with a network: a large one always (bench/fewer_strings.py), a small one on a
# CPU (bench/learned.py). These are rows of STRINGS.md that are as good with a third of the strings. With chrF++, or a
# small encoder on a GPU, a forecast takes longer than it saves.
# STEPS: a small encoder on a GPU, which makes and reads 64 draws in about the time of a few. With arithmetic sampling
# these are as good as 256 (STRINGS.md).
STRINGS, STEPS = "strings", "steps"
BY_COST: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "fast": {
        STRINGS: {
            "decode": {"forecast": 0.0005, "cover": True},
            "translate": {"regret": 0.03, "forecast": 0.0005, "schedule": "8,12,18,27,40,60,90,135,200,256"},
        },
        STEPS: {"translate": {"schedule": "64"}},
    },
}
LARGE_ENCODERS = ("comet",)
SMALL_ENCODERS = ("learned", "embedding")


def main_cost(utility: str, device: str | None) -> str | None:
    """What costs most time with a utility on a device (None: the one it would choose here); None: pairs, or unknown.

    A device that is named need not be here: workers of a cluster may have it.
    """
    if utility in SMALL_ENCODERS:
        from mbrace.neural.device import choose_device

        kind = choose_device(None).type if device is None else device.split(":")[0]
        return STRINGS if kind == "cpu" else STEPS
    return STRINGS if utility in LARGE_ENCODERS else None


def preset_settings(preset: str, command: str, cost: str | None) -> dict[str, Any]:
    """What a preset sets for a command where that costs most (see `main_cost`)."""
    return PRESETS[preset][command] | BY_COST.get(preset, {}).get(cost or "", {}).get(command, {})
