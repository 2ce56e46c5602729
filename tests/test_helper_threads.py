"""Threads beside a utility that has none of its own: as many as were asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import lines
from numpy.typing import NDArray

import mbrace
from mbrace import utility
from mbrace.prune import Confidence, Standings, WindowStandings


class Watched:
    """A pruning function that notes on how many threads a window is decided."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def __call__(self, standings: Standings) -> NDArray[np.bool_]:
        return Confidence()(standings)

    def decide_window(self, window: WindowStandings) -> Sequence[NDArray[np.float64]]:
        self.threads.add(window.threads)
        return Confidence().decide_window(window)

    def __repr__(self) -> str:
        return "Watched()"


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(utility, "cores", lambda: 16)
    yield
    utility.limit_helpers(None)


@pytest.mark.parametrize(("asked", "used"), [(1, 1), (3, 3), (0, 16), (64, 16)])
def test_a_function_leaves_threads_to_those_who_choose(asked: int, used: int, tmp_path: Path) -> None:
    source, prune = tmp_path / "in.jsonl", Watched()
    source.write_bytes(lines([{"hypotheses": ["a b", "a c", "b d"]}]))
    (tmp_path / "own.py").write_text("def same(hypothesis, reference):\n    return float(hypothesis == reference)\n")
    mbrace.decode_file(source, tmp_path / "out.jsonl", utility=f"{tmp_path}/own.py:same", prune=prune, threads=asked)
    assert prune.threads == {used}


def test_a_network_s_threads_are_those_of_its_helpers() -> None:
    torch = pytest.importorskip("torch")
    from mbrace.neural.device import limit_threads

    before = torch.get_num_threads()
    try:
        limit_threads(2)
        assert (torch.get_num_threads(), utility.helper_threads()) == (2, 2)
    finally:
        torch.set_num_threads(before)
