"""Refuses a release whose version is not the same everywhere: python .github/check_release.py v0.2.0"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACES = {
    "pyproject.toml": r'^version = "(.+)"$',
    "src/mbrace/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "custom_generate/requirements.txt": r"^mbrace>=(.+)$",
    "CHANGELOG.md": r"^## \[(\d.*?)\]",
}


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """What does not fit the tag; nothing if all does."""
    found = []
    for name, pattern in PLACES.items():
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        version = None if match is None else match[1]
        if f"v{version}" != tag:
            found.append(f"{name}: version {version}, but the tag is {tag}")
    return found


if __name__ == "__main__":
    told = problems(sys.argv[1])
    print("\n".join(told) or f"{sys.argv[1]}: the same version everywhere")
    sys.exit(1 if told else 0)
