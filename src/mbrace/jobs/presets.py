"""Settings that belong together: the paper's, and others that the study of strings found as good with fewer strings."""

from __future__ import annotations

from typing import Any

# By preset and command. Only what was not chosen by the user is set. `fast` was shown to be as good as standard MBR by
# a rule written down before (results/rules.md, claims.csv there). results/STRINGS.md has the study: a pool needs fewer
# strings still, but what it chooses scores lower by a metric that nothing was decoded with.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {"decode": {}, "translate": {}},
    "fast": {
        "decode": {"regret": 0.04},
        "translate": {"regret": 0.04, "sampling": "arithmetic"},
    },
}
# What presets set besides, or in place of that, where a network reads the strings or pairs (`runs_network`): a forecast
# is for those, and costs more than it saves with chrF++. Such as {"fast": {"decode": {"forecast": 0.0005}}}; none yet.
NEURAL: dict[str, dict[str, dict[str, Any]]] = {}


def preset_settings(preset: str, command: str, *, neural: bool) -> dict[str, Any]:
    """What a preset sets for a command; `neural`: where a network reads the strings or pairs."""
    return PRESETS[preset][command] | (NEURAL.get(preset, {}).get(command, {}) if neural else {})
