"""The soak itself: a few cases of it, and that it notices lines that are lost, doubled or changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import soak


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("decode", "o.jsonl.gz"),
        ("generate", "o.jsonl"),
        ("answer", "o.jsonl"),
        ("export", "o.jsonl"),
        ("judge", "ratings.db"),
    ],
)
def test_a_disturbed_command_ends_with_the_undisturbed_output(kind: str, name: str, tmp_path: Path) -> None:
    outcome = soak.Soak(tmp_path, seed=5).run_case(1, kind, name)
    assert outcome.disturbances
    assert (outcome.lost, outcome.doubled, outcome.changed) == (0, 0, 0)


@pytest.mark.parametrize(
    ("found", "counts"),
    [
        ("abc", (0, 0, 0)),
        ("ab", (1, 0, 0)),
        ("abbc", (0, 1, 0)),
        ("abx", (1, 0, 1)),
        ("acb", (0, 0, 1)),
        ("", (3, 0, 0)),
    ],
)
def test_lines_that_are_lost_doubled_or_changed_are_counted(found: str, counts: tuple[int, int, int]) -> None:
    outcome = soak.Outcome("0", "decode", "o")
    outcome.compare([letter.encode() for letter in found], [b"a", b"b", b"c"])
    assert (outcome.lost, outcome.doubled, outcome.changed) == counts


def test_the_committed_table_has_no_case_with_anything_lost_doubled_or_changed() -> None:
    table = Path(__file__).parent.parent / "bench" / "results" / "soak.tsv"
    header, *rows = [line.split("\t") for line in table.read_text().splitlines()]
    assert tuple(header) == soak.COLUMNS
    assert {row[-3:] == ["0", "0", "0"] for row in rows} == {True}
