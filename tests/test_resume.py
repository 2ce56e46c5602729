"""Any sequence of crashes and resumes yields the bytes of a run that nothing disturbed."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import overlap
from hypothesis import example, given, settings
from hypothesis import strategies as st

import mbrace
import mbrace.io.atomic
import mbrace.io.compression
import mbrace.io.output
from mbrace.io.candidates import SeenIds, read_items
from mbrace.io.output import Output
from mbrace.jobs.decode import DecodeJob
from mbrace.jobs.run import run_worker
from mbrace.settings import Race


class Killed(BaseException):
    """The process ends here: nothing after it happens."""


class Disk:
    """`write_all` that takes so many more bytes, of whatever files, and then the process is gone."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __call__(self, descriptor: int, data: bytes) -> None:
        taken = data[: max(0, self.room)]
        os.write(descriptor, taken)
        self.room -= len(data)
        if self.room < 0:
            raise Killed


def picky(hypothesis: str, reference: str) -> float:
    if hypothesis == "poison":
        raise RuntimeError("refused")
    return overlap(hypothesis, reference)


def corpus(folder: Path, kinds: list[str]) -> Path:
    """One line for each kind: a good record, one whose utility raises, or no record at all."""
    path = folder / "in.jsonl"
    with path.open("w") as file:
        for number, kind in enumerate(kinds):
            row: Any = {"hypotheses": [f"a {number}", "b c", "a b"], "pseudo_references": ["a b c", "a", "b d"]}
            if number % 2:
                row["id"] = f"id {number}"
            if kind == "raises":
                row["hypotheses"][0] = "poison"
            file.write("{no json\n" if kind == "torn" else json.dumps(row) + "\n")
    return path


def run(source: Path, out: Path, *, text: bool, window: int, resume: bool) -> None:
    with Output(str(out), resume=resume, text=text, settings={"seed": 0}) as output:
        worker = DecodeJob(
            mbrace.Pairwise(picky), Race(prune=mbrace.Bottom(0.3), schedule=[1, 2, 3], window=window), text
        ).start(0)
        run_worker(worker, read_items([str(source)]), output, skip=True)


def killed_run(source: Path, out: Path, room: int, *, text: bool, window: int) -> None:
    """A run that is killed once it has written `room` bytes, of whatever files."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(room)
        patch.setattr(mbrace.io.output, "write_all", disk)
        patch.setattr(mbrace.io.atomic, "write_all", disk)
        with contextlib.suppress(Killed):
            run(source, out, text=text, window=window, resume=True)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@settings(max_examples=120, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["good", "good", "good", "raises", "torn"]), max_size=24),
    kills=st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 9)), max_size=6),
    suffix=st.sampled_from([".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.bz2", ".jsonl.zst", ".txt"]),
    members=st.integers(1, 7),
)
@example(kinds=["good", "raises", "good"], kills=[(150, 1), (0, 1), (149, 3)], suffix=".jsonl", members=2)
@example(kinds=["torn"] * 3, kills=[(10, 1)], suffix=".txt", members=2)
@example(kinds=["raises", "good", "good"], kills=[(120, 1)], suffix=".txt", members=1)
def test_any_sequence_of_crashes_and_resumes_yields_the_undisturbed_bytes(
    kinds: list[str], kills: list[tuple[int, int]], suffix: str, members: int
) -> None:
    text = suffix == ".txt"
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(mbrace.io.compression, "LINES_PER_MEMBER", members)
        patch.setattr(os, "fsync", lambda descriptor: None)
        folder = Path(name)
        source = corpus(folder, kinds)
        (folder / "whole").mkdir()
        (folder / "torn").mkdir()
        run(source, folder / "whole" / f"out{suffix}", text=text, window=5, resume=False)
        out = folder / "torn" / f"out{suffix}"
        for room, window in kills:
            with patch.context() as disk:
                disk.setattr(mbrace.io.output, "write_all", Disk(room))
                try:
                    run(source, out, text=text, window=window, resume=True)
                except Killed:
                    pass
        run(source, out, text=text, window=3, resume=True)
        assert files(folder / "torn") == files(folder / "whole")


@settings(max_examples=150, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["good", "good", "raises", "torn"]), min_size=1, max_size=24),
    rooms=st.lists(st.integers(0, 4000), min_size=1, max_size=3),
    window=st.integers(1, 9),
    changed=st.integers(0, 23),
    suffix=st.sampled_from([".jsonl", ".jsonl.gz"]),
)
@example(kinds=["good"] * 8, rooms=[1400], window=3, changed=2, suffix=".jsonl")
def test_however_a_run_is_killed_a_changed_record_that_it_answered_is_noticed(
    kinds: list[str], rooms: list[int], window: int, changed: int, suffix: str
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        source, out = corpus(Path(name), kinds), Path(name, f"out{suffix}")
        for room in rooms:
            killed_run(source, out, room, text=False, window=window)
        part = Path(f"{out}.part")  # where the lines of a packed file are while it is written
        data = part.read_bytes() if part.exists() else out.read_bytes() if out.exists() else b""
        if suffix == ".jsonl.gz" and not part.exists():
            data = gzip.decompress(data)
        answered = [json.loads(line)["id"] for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
        rows = source.read_bytes().splitlines(keepends=True)
        place = changed % len(rows)
        rows[place] = rows[place].replace(b'"b c"', b'"c b"')
        source.write_bytes(b"".join(rows))
        is_answered = kinds[place] == "good" and (f"id {place}" if place % 2 else place + 1) in answered
        refused = pytest.raises(mbrace.UserError, match="with the same ids but another content")
        with refused if is_answered else contextlib.nullcontext():
            run(source, out, text=False, window=window, resume=True)


def test_an_answer_that_was_written_is_not_computed_again(tmp_path: Path) -> None:
    source = corpus(tmp_path, ["good"] * 10)
    asked: list[str] = []

    def counting(hypothesis: str, reference: str) -> float:
        asked.append(hypothesis)
        return overlap(hypothesis, reference)

    def decode(resume: bool) -> None:
        with Output(str(tmp_path / "out"), resume=resume) as output:
            run_worker(
                DecodeJob(mbrace.Pairwise(counting), Race(prune=None, window=1)).start(0),
                read_items([str(source)]),
                output,
            )

    decode(False)
    whole = (tmp_path / "out").read_bytes()
    (tmp_path / "out").write_bytes(b"".join(whole.splitlines(keepends=True)[:7]) + b'{"id": 8, "te')
    asked.clear()
    decode(True)
    assert (tmp_path / "out").read_bytes() == whole
    assert {hypothesis for hypothesis in asked if hypothesis[2:].isdigit()} == {"a 7", "a 8", "a 9"}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.integers(-3, 40), st.integers(-(2**63), 2**64 - 1), st.text(max_size=2))))
def test_seen_refuses_exactly_the_ids_that_were_there_before(ids: list[str | int]) -> None:
    seen, before = SeenIds(), set[tuple[type, str | int]]()
    for identity in ids:
        assert seen.add(identity) == ((type(identity), identity) not in before)
        before.add((type(identity), identity))


def test_seen_remembers_a_hundred_thousand_strings_in_a_few_megabytes() -> None:
    seen = SeenIds()
    assert all(seen.add(f"segment-{number}") for number in range(100_000))
    assert not any(seen.add(f"segment-{number}") for number in range(0, 100_000, 7))
    assert seen.bytes <= 8 * 2**19


@pytest.mark.parametrize(
    ("name", "content"), [("notes.txt", b"no line feed"), ("a.gz", b"not gzip"), ("a.xz", b""), ("b.jsonl", b'{"i')]
)
def test_resume_cuts_only_what_could_be_ours(tmp_path: Path, name: str, content: bytes) -> None:
    out = tmp_path / name
    out.write_bytes(content)
    ours = name in ("a.xz", "b.jsonl")  # empty, or torn inside the first field
    with contextlib.nullcontext() if ours else pytest.raises(mbrace.UserError, match="not an answer of mbrace"):
        run(corpus(tmp_path, ["good"]), out, text=False, window=2, resume=True)
    assert (out.read_bytes() != content) == ours
