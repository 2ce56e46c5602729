"""Threads beside a utility that has none of its own: as many as were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from cli_helpers import lines

import mbrace
from mbrace import race, utility


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(utility, "cores", lambda: 16)
    yield
    utility.limit_helpers(None)


@pytest.mark.parametrize(("asked", "used"), [(1, 1), (3, 3), (0, 16), (64, 16)])
def test_a_function_leaves_threads_to_pruning(asked: int, used: int, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines([{"hypotheses": ["a b", "a c", "b d"]}]))
    (tmp_path / "own.py").write_text("def same(hypothesis, reference):\n    return float(hypothesis == reference)\n")
    with mock.patch.object(race, "decide_window", side_effect=race.decide_window) as decided:
        mbrace.decode_file(source, tmp_path / "out.jsonl", utility=f"{tmp_path}/own.py:same", threads=asked)
    assert {call.kwargs["threads"] for call in decided.call_args_list} == {used}


def test_a_network_s_threads_are_those_of_its_helpers() -> None:
    torch = pytest.importorskip("torch")
    from mbrace.neural.device import limit_threads

    before = torch.get_num_threads()
    try:
        limit_threads(2)
        assert (torch.get_num_threads(), utility.helper_threads()) == (2, 2)
    finally:
        torch.set_num_threads(before)
