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
