"""What several tests share: a utility a reader can check by hand, and real candidates."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

import mbrace

DEMO = Path(mbrace.__file__).parent / "data" / "demo.jsonl.xz"


def overlap(hypothesis: str, reference: str) -> float:
    """Words in common over words in either: a utility that fits in a line."""
    ours, theirs = set(hypothesis.split()), set(reference.split())
    return len(ours & theirs) / max(1, len(ours | theirs))


@pytest.fixture(scope="session")
def demo_rows() -> list[dict[str, Any]]:
    """The bundled real candidates, as plain JSON objects."""
    with lzma.open(DEMO, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
