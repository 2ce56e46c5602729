"""What axe-core finds on a page in a browser."""

from __future__ import annotations

from typing import Any

from conftest import no_browser

WIDTHS = {"desktop": 1280, "phone": 390}


def findings_of(page: Any) -> list[str]:
    """What axe-core finds, each with the first element it is about."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        no_browser("axe-core is not installed; pip install axe-playwright-python")
    found = Axe().run(page).response
    assert len(found["passes"]) > 15  # it ran, and on a page with something on it
    return [
        f"{finding['impact']}: {finding['help']}: {finding['nodes'][0]['html'][:200]}"
        for finding in found["violations"]
    ]
