"""What several tests share: a utility a reader can check by hand, and real candidates."""

from __future__ import annotations

import json
import lzma
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from cli_helpers import decode, lines
from hypothesis import settings
from numpy.typing import NDArray

import mbrace
from mbrace.utility import Ask, Sentence, Utility

settings.register_profile("untimed", deadline=None)  # a loaded machine is slow, not wrong
settings.load_profile("untimed")
# Tests run in several processes: with more threads than cores, those of torch would wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

DEMO = Path(mbrace.__file__).parent / "data" / "demo.jsonl.xz"


def table_of(utility: Utility, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.floating]:
    """The scores (hypotheses, references) that a utility gives in a race."""
    scorer = utility.start([Sentence(0, None, hypotheses)])
    return scorer.score([Ask(0, np.arange(len(hypotheses)), references)])[0]


class Drawn:
    """A live sampler of what lists have."""

    def __init__(self, records: Sequence[mbrace.Record]) -> None:
        self._lists = {record.id: record for record in records}

    def start(self, records: Sequence[mbrace.Record]) -> Any:
        def some(record: mbrace.Record, part: slice) -> mbrace.Draws:
            own = self._lists[record.id]
            assert isinstance(own.pseudo_references, list)
            return mbrace.Draws(own.pseudo_references[part], None if own.logprobs is None else own.logprobs[part])

        return SimpleNamespace(
            draw=lambda wants: [some(records[w.sentence], slice(w.first, w.first + w.count)) for w in wants]
        )


def overlap(hypothesis: str, reference: str) -> float:
    """Words in common over words in either, of 24 bits: doubles add up such numbers without rounding."""
    ours, theirs = set(hypothesis.split()), set(reference.split())
    return float(np.float32(len(ours & theirs) / max(1, len(ours | theirs))))


@pytest.fixture(scope="session")
def demo_rows() -> list[dict[str, Any]]:
    """The bundled real candidates, as plain JSON objects."""
    with lzma.open(DEMO, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="session")
def small_rows(demo_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """150 real records of 12 hypotheses and 24 pseudo-references, quick to decode."""
    rows = []
    for number in range(150):
        row = demo_rows[number % len(demo_rows)]
        part = number // len(demo_rows)
        rows.append(
            {
                "id": f"s{number}" if number % 3 else number,  # both kinds of id
                "source": row["source"],
                "hypotheses": row["hypotheses"][12 * part : 12 * part + 12],
                "pseudo_references": row["pseudo_references"][24 * part : 24 * part + 24],
            }
        )
    return rows


@pytest.fixture
def candidates(tmp_path: Path, small_rows: list[dict[str, Any]]) -> Path:
    """Those records in a file."""
    path = tmp_path / "candidates.jsonl"
    path.write_bytes(lines(small_rows))
    return path


@pytest.fixture
def answers(candidates: Path, tmp_path: Path) -> bytes:
    """What an uninterrupted run writes."""
    path = tmp_path / "expected.jsonl"
    assert decode(candidates, "-o", path) == 0
    return path.read_bytes()


def records(rows: list[dict[str, Any]], count: int) -> list[mbrace.Record]:
    """The first of such rows as records."""
    fields = ("hypotheses", "pseudo_references", "id")
    return [mbrace.Record(**{name: row[name] for name in fields}) for row in rows[:count]]


@pytest.fixture
def five_rows(demo_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Real candidates, cut down: 5 sentences, 24 hypotheses, 48 pseudo-references."""
    return [
        row | {"hypotheses": row["hypotheses"][:24], "pseudo_references": row["pseudo_references"][:48]}
        for row in demo_rows[:5]
    ]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, demo_rows: list[dict[str, Any]]) -> Path:
    """`mbrace experiment` on two pairs, one with both splits, for two utilities, into one folder. Four sentences are
    enough to recommend a race here."""
    from mbrace.cli import main
    from mbrace.experiments import studies

    home = tmp_path_factory.mktemp("experiment")
    for name, rows in (("xx-en.valid", demo_rows[:4]), ("xx-en.test", demo_rows[4:7]), ("yy-en", demo_rows[7:10])):
        cut = [r | {"hypotheses": r["hypotheses"][:30], "pseudo_references": r["pseudo_references"][:80]} for r in rows]
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in cut), encoding="utf-8")
    files = [str(path) for path in sorted(home.glob("*.jsonl"))]
    options = ["-o", str(home / "out"), "--trials", "2", "--workers", "1"]
    assert main(["experiment", *files, *options, "--no-report"]) == 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(studies, "MIN_SENTENCES", 4)
        assert main(["experiment", files[2], *options, "--utility", "chrf"]) == 0
    return home


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]  # fmt: skip


def cannot_run(message: str) -> NoReturn:
    """What a test needs is missing: a reason to skip for a person, a failure where CI must have it."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def no_browser(reason: str) -> NoReturn:
    """Say why there is no browser."""
    cannot_run(f"browser tests cannot run: {reason}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, driven by Playwright."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        no_browser("playwright is not installed; pip install playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        no_browser(f"none of {', '.join(BROWSERS)} found; on Debian: apt install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield chromium
        chromium.close()
