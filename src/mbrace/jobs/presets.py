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
# Utilities that read each string with a network so large that strings are what costs time (bench/fewer_strings.py), and
# what presets set for them besides, or in place of that: rows of STRINGS.md that are as good with a third of the
# strings. With chrF++, or a small encoder on a GPU, a forecast takes longer than it saves.
LARGE_ENCODERS = ("comet",)
FOR_LARGE_ENCODERS: dict[str, dict[str, dict[str, Any]]] = {
    "fast": {
        "decode": {"forecast": 0.0005, "cover": True},
        "translate": {"regret": 0.03, "forecast": 0.0005, "schedule": "8,12,18,27,40,60,90,135,200,256"},
    },
}


def preset_settings(preset: str, command: str, *, large_encoder: bool) -> dict[str, Any]:
    """What a preset sets for a command."""
    besides = FOR_LARGE_ENCODERS.get(preset, {}).get(command, {}) if large_encoder else {}
    return PRESETS[preset][command] | besides
