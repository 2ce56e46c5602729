"""Files: atomic writes, settings on resume, compressed files, what Windows does differently."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard

import mbrace
from mbrace.errors import UserError
from mbrace.io import atomic
from mbrace.io.atomic import replace_file, replacing
from mbrace.io.candidates import Bad, read_items
from mbrace.io.compression import check_packing
from mbrace.io.resume import refuse_other_settings


@pytest.mark.parametrize("shared", [False, True])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(shared: bool, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_file(path, b"old", shared=shared)

    def fail() -> None:
        with replacing(path, shared=shared) as temporary:
            Path(temporary).write_bytes(b"half of the n")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert (os.listdir(tmp_path), path.read_bytes()) == (["state.json"], b"old")
    replace_file(path, b"new", shared=shared)
    assert (os.listdir(tmp_path), path.read_bytes()) == (["state.json"], b"new")


def test_processes_that_share_a_file_write_to_temporary_files_of_their_own(tmp_path: Path) -> None:
    with replacing(tmp_path / "table", shared=True) as ours:
        Path(ours).write_bytes(b"ours")
        program = "import sys, pathlib; from mbrace.io.atomic import replace_file as write\n"
        program += "write(pathlib.Path(sys.argv[1]), b'theirs', shared=True)"
        subprocess.run([sys.executable, "-c", program, tmp_path / "table"], check=True)
        assert (tmp_path / "table").read_bytes() == b"theirs"
    assert (os.listdir(tmp_path), (tmp_path / "table").read_bytes()) == (["table"], b"ours")


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ({"seed": 3, "sizes": [1, 2], "text": "x"}, None),
        ({"seed": 3, "sizes": [1, 2], "text": "x", "off": None, "ignored": 1}, None),
        ({"seed": 3, "sizes": [1, 2], "text": "x", "left_out": 1}, "out: was made with left-out 1, not without it; "),
        ({"seed": 4, "sizes": [1, 2], "text": "x"}, "out: was made with seed 4, not 3; start over"),
        (
            {"seed": 3, "sizes": [1], "text": "y"},
            r"out: was made with sizes \[1\], not \[1, 2\] and other data \(text\); ",
        ),
        ([3], "out: not written by mbrace; start over"),
    ],
)
def test_other_settings_are_refused_by_name(before: object, message: str | None) -> None:
    now = {"seed": 3, "sizes": (1, 2), "text": "x"}
    with contextlib.nullcontext() if message is None else pytest.raises(UserError, match=message):
        refuse_other_settings(before, now, file="out", remedy="start over", data=["text"], ignored=["ignored"])


@pytest.mark.parametrize("packing", ["gz", "xz", "bz2", "zst"])
def test_packed_files_are_written_read_by_the_packer_itself_and_refused_when_cut(packing: str, tmp_path: Path) -> None:
    rows = [{"id": n, "hypotheses": [f"a {n}", "b"], "pseudo_references": ["a", "b c"]} for n in range(150)]
    plain, packed = tmp_path / "in.jsonl", tmp_path / f"in.jsonl.{packing}"
    plain.write_text("".join(json.dumps(row) + "\n" for row in rows))
    unpack = {"gz": gzip.decompress, "xz": lzma.decompress, "bz2": bz2.decompress, "zst": unpack_zstandard}[packing]
    pack = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": zstandard.compress}[packing]
    half = len(plain.read_bytes()) // 2
    packed.write_bytes(pack(plain.read_bytes()[:half]) + pack(plain.read_bytes()[half:]))  # two members, cut anywhere
    out, expected = tmp_path / f"out.jsonl.{packing}", tmp_path / "out.jsonl"
    mbrace.decode_file(plain, expected)
    mbrace.decode_file(packed, out)
    assert unpack(out.read_bytes()) == expected.read_bytes()
    assert [
        item.id for item in read_items([str(out)]) if isinstance(item, Bad)
    ]  # answers, not candidates, but all read
    packed.write_bytes(packed.read_bytes()[:-7])
    with pytest.raises(mbrace.UserError, match="damaged or cut off"):
        list(read_items([str(packed)]))
    packed.write_bytes(packed.read_bytes()[:20] + bytes(200))
    with pytest.raises(mbrace.UserError, match="damaged or cut off"):
        list(read_items([str(packed)]))


def unpack_zstandard(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()


def test_zstandard_without_its_package_says_which_extra_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "in.jsonl.zst").write_bytes(b"")
    with pytest.raises(mbrace.UserError, match=r"mbrace\[zstd\]"):
        check_packing("o.jsonl.zst", (".zst", ".gz"))
    with pytest.raises(mbrace.UserError, match=r"mbrace\[zstd\]"):
        list(read_items([str(tmp_path / "in.jsonl.zst")]))


def test_bytes_are_read_at_a_position_with_and_without_pread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bytes").write_bytes(bytes(range(100)))
    descriptor = os.open(tmp_path / "bytes", os.O_RDONLY | atomic.OPEN)
    os.lseek(descriptor, 7, os.SEEK_SET)
    for _ in range(2):
        found = [atomic.read_at(descriptor, length, offset) for length, offset in ((5, 90), (50, 98), (5, 200))]
        assert found == [bytes(range(90, 95)), bytes([98, 99]), b""]
        monkeypatch.delattr(os, "pread", raising=False)  # as on Windows
    assert os.read(descriptor, 1) == b"\x07"  # where it was
    os.close(descriptor)


def test_windows_locks_a_byte_that_no_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[int, int] = {}

    def locking(descriptor: int, mode: int, count: int) -> None:
        """The locks of Windows, of one process: by file and byte."""
        byte = os.lseek(descriptor, 0, os.SEEK_CUR)
        assert (mode, count) == (2, 1)
        if held.setdefault(os.fstat(descriptor).st_ino, byte) != byte or byte < 1 << 40:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(atomic, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2), raising=False)
    monkeypatch.setattr(atomic.sys, "platform", "win32")
    with open(tmp_path / "out.jsonl", "wb+") as file:
        file.write(b"line\n")
        file.flush()
        atomic.lock_exclusively(file.fileno())
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 5
    assert len(held) == 1
    with monkeypatch.context() as windows:
        windows.setattr(atomic.os, "name", "nt")
        os.close(atomic.open_folder(str(tmp_path)))
    assert (tmp_path / ".lock").exists()


@pytest.mark.parametrize(
    "row",
    [
        '{"key":"0a","answer":{}}',
        '{"key":"0a","answer":{"id":1,"source":"s","first":"x","choices":[]}}',
        '{"key":"0a","answer":{"id":1,"source":"s","first":0,"choices":5}}',
        '{"key":"0a","answer":' + "[" * 5000,
        '{"id":2,"hypotheses":["a"]}',
    ],
)
def test_a_line_that_is_not_saved_draws_is_named_in_a_file_of_them(row: str, tmp_path: Path) -> None:
    path = tmp_path / "draws.jsonl"
    drawn = {"text": "a", "is_cut": False, "logprob": None}
    saved = {"key": "00ff", "answer": {"id": 1, "source": "s", "first": 0, "choices": [drawn]}}
    line = json.dumps(saved, separators=(",", ":"))
    path.write_text(f'{line}\n{{"key":"0a","ans\n')
    assert [item.id for item in read_items([str(path)])] == [1]  # a line that was cut off
    path.write_text(f"{line}\n{row}\n")
    with pytest.raises(mbrace.RecordError, match=r"draws.jsonl:2: not saved draws"):
        list(read_items([str(path)]))


def test_a_record_whose_first_field_is_called_key_is_a_record(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"key":"x","hypotheses":["a","b"],"id":5}\n')
    assert [item.id for item in read_items([str(tmp_path / "in.jsonl")])] == [5]
