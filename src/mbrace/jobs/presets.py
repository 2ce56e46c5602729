"""Settings that belong together: the paper's, and those that the study of strings found as good with fewer strings."""

from __future__ import annotations

from typing import Any

# By preset and command. Only what was not chosen by the user is set; results/RESULTS.md has the study.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {"decode": {}, "translate": {}},
    "fast": {
        "decode": {"regret": 0.04, "pool": True, "start": 64},
        "translate": {"regret": 0.04, "pool": True, "beam": 64, "sampling": "arithmetic"},
    },
}
