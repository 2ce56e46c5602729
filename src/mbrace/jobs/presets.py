"""Settings that belong together: the paper's, and others that the study of strings found as good with fewer strings."""

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
# Utilities that read each string with a network, so that strings are what costs time: a large one always
# (bench/fewer_strings.py), a small one on a CPU (bench/learned.py). What presets set for them besides, or in place of
# that, are rows of STRINGS.md that are as good with a third of the strings. With chrF++, or a small encoder on a GPU, a
# forecast takes longer than it saves.
LARGE_ENCODERS = ("comet",)
SMALL_ENCODERS = ("learned", "embedding")
WHERE_STRINGS_COST: dict[str, dict[str, dict[str, Any]]] = {
    "fast": {
        "decode": {"forecast": 0.0005, "cover": True},
        "translate": {"regret": 0.03, "forecast": 0.0005, "schedule": "8,12,18,27,40,60,90,135,200,256"},
    },
}


def strings_cost(utility: str, device: str | None) -> bool:
    """Whether a utility spends most of its time on reading strings, on a device (None: the one it would choose here).

    A device that is named need not be here: workers of a cluster may have it.
    """
    if utility in SMALL_ENCODERS:
        from mbrace.utilities.neural.device import choose_device

        return (device or choose_device(None).type) == "cpu"
    return utility in LARGE_ENCODERS


def preset_settings(preset: str, command: str, *, strings_cost: bool) -> dict[str, Any]:
    """What a preset sets for a command."""
    besides = WHERE_STRINGS_COST.get(preset, {}).get(command, {}) if strings_cost else {}
    return PRESETS[preset][command] | besides
