"""How many times as fast, by the tables in bench/results, for README.md and docs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"


@dataclass(frozen=True)
class Gain:
    """Racing against our own run without pruning, in the same precision on the same machine."""

    utility: str
    machine: str
    fewer_calls: float
    unpruned: float  # seconds for 100 sentences
    racing: float

    @property
    def times(self) -> float:
        """How many times as fast racing is."""
        return self.unpruned / self.racing


def stored(name: str) -> Any:
    """A table of bench/results as it was measured."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def chrf_gain() -> Gain:
    """Whole jobs of 24 newstest sentences."""
    jobs = {job["job"]: job for job in stored("peers")["jobs"]}
    full, race = jobs["mbrace chrF++"], jobs["mbrace chrF++ pruning"]
    seconds = [100 * job["seconds"] / job["sentences"] for job in (full, race)]
    return Gain("chrF++", "one core", full["calls"] / race["calls"], *seconds)


def learned_rows() -> dict[str, dict[str, str]]:
    """The table of the learned metric on a CPU in Markdown: cells by the name of the row and by heading."""
    text = (RESULTS / "learned.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]}


def learned_gain() -> Gain:
    """The learned metric on a CPU."""
    text = (RESULTS / "learned.md").read_text(encoding="utf-8")
    sentences = int(re.findall(r"on (\d+) sentences", text)[0])
    full, race = list(learned_rows().values())[:2]
    calls = [int(row["pairs scored"].replace(",", "")) for row in (full, race)]
    seconds = [100 * float(row["decoding, s"]) / sentences for row in (full, race)]
    return Gain("learned metric (MiniLM)", "two cores", calls[0] / calls[1], *seconds)


def comet_gain() -> Gain:
    """COMET-22's size: random weights, pruning by the learned metric's values."""
    found = stored("fewer_strings")
    full, race = (found["rows"][name] for name in ("no pruning", "racing, alpha 0.99"))
    seconds = [100 * row["seconds"] / found["about"]["sentences"] for row in (full, race)]
    return Gain("COMET-22's size *", "H200", full["calls"] / race["calls"], *seconds)


def cross_gains() -> list[Gain]:
    """Cross-encoders: random weights, pruning by the learned metric's values."""
    return [
        Gain(
            f"{result['network']}'s size *",
            "H200",
            result["race"]["calls_saved"],
            100 * result["unpruned"]["seconds"] / result["sentences"],
            100 * result["race"]["seconds"] / result["sentences"],
        )
        for result in stored("cross")["results"]
    ]


def factor(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 2 else f"{ratio:.1f}x"
