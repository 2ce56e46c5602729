"""OUT.run.json: an output is continued only with its own options and input, and replaced only by something new."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path

import pytest
from cli_helpers import COMMAND, Row, decode, feed_and_wait, lines, start

from mbrace.answers import prompt_of
from mbrace.io.resume import InputDigest
from mbrace.jobs.export import Answer
from mbrace.records import Record

NAMES = ["out.jsonl", "out.txt", "out.jsonl.gz", "out.parquet"]


def run(source: Path, out: Path, *options: str) -> int:
    return decode(source, "-o", out, *(["--text"] if out.suffix == ".txt" else []), *options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("out*")}


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_output_is_not_continued_with_other_options_or_other_content(
    name: str, tmp_path: Path, small_rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / name
    source.write_bytes(lines(small_rows[:10]))
    assert run(source, out) == 0
    before = contents(tmp_path)
    assert run(source, out, "--resume", "--seed", "7") == 2
    assert f"{out}: was made with seed 0, not 7" in capsys.readouterr().err
    for position in (0, 5, 9):  # the same ids, one hypothesis or one pseudo-reference changed
        field = "hypotheses" if position else "pseudo_references"
        changed = {**small_rows[position], field: ["Another text.", *small_rows[position][field][1:]]}
        source.write_bytes(lines([*small_rows[:position], changed, *small_rows[position + 1 : 10]]))
        for _ in range(2):  # being refused must not make it acceptable
            assert run(source, out, "--resume") == 2
            assert "with the same ids but another content" in capsys.readouterr().err
    assert contents(tmp_path) == before
    source.write_bytes(lines(small_rows[:10]))
    assert run(source, out, "--resume") == 0
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("name", "content"), [("out.txt", b"my diary\n"), ("out.txt", b"no line feed")])
def test_a_text_of_somebody_else_is_not_taken_for_an_output(
    name: str, content: bytes, tmp_path: Path, candidates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert run(candidates, tmp_path / name, "--resume") == 2
    assert f"{name}.run.json: missing, so" in capsys.readouterr().err
    assert contents(tmp_path) == {name: content}


def test_the_settings_of_an_interrupted_run_of_an_earlier_version_are_enough(tmp_path: Path, candidates: Path) -> None:
    out, beside = tmp_path / "out.jsonl", tmp_path / "out.jsonl.run.json"
    assert run(candidates, out) == 0
    whole = contents(tmp_path)
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:40]))
    settings = json.loads(beside.read_text())
    early = {name: value for name, value in settings.items() if value and name != "input_digests"}
    beside.write_text(json.dumps({**early, "seed": 0}))
    assert run(candidates, out, "--resume") == 0
    assert contents(tmp_path) == whole


def test_a_run_by_a_rule_that_has_changed_since_is_not_continued(
    tmp_path: Path, candidates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, beside = tmp_path / "out.jsonl", tmp_path / "out.jsonl.run.json"
    assert run(candidates, out, "--prune", "bottom", "--beta", "0.5") == 0
    early = json.loads(beside.read_text())
    assert early.pop("rounding") == "floor(n (1 - beta))"
    beside.write_text(json.dumps(early))
    assert run(candidates, out, "--prune", "bottom", "--beta", "0.5", "--resume") == 2
    assert "was made with no rounding, not 'floor(n (1 - beta))'" in capsys.readouterr().err


def test_a_digest_notices_a_change_where_it_remembers_so_many_records() -> None:
    records = [Record([f"a {n}", "b"], ["c"], id=n) for n in range(11)]
    whole = InputDigest()
    whole.expect(records)
    assert len(whole.describe()) == 11  # as long as no answer is written
    assert all(map(whole.add, records))
    assert sorted(map(int, whole.describe())) == [1, 2, 4, 8, 11]
    changed = [*records[:4], Record(["x"], ["c"], id=4), *records[5:]]
    again = InputDigest(whole.describe())
    assert [again.add(record) for record in changed] == [True] * 7 + [False] + [True] * 2 + [False]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        [prompt_of([{"role": "system", "content": turn}, {"role": "user", "content": "?"}], 1) for turn in "ab"],
        [Answer(["one", "two"], id=1, source="s", utilities=[0.5, worst]) for worst in (0.1, 0.2)],
    ],
)
def test_a_digest_notices_a_change_of_what_only_some_jobs_read(before: Record, now: Record) -> None:
    digest = InputDigest()
    digest.add(before)
    assert InputDigest(digest.describe()).add(before)
    assert not InputDigest(digest.describe()).add(now)


@pytest.mark.parametrize("name", NAMES)
def test_force_keeps_the_older_output_until_there_is_something_new(
    name: str, tmp_path: Path, small_rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    source, out, other = tmp_path / "in.jsonl", tmp_path / name, tmp_path / "other.jsonl"
    source.write_bytes(lines(small_rows[:100]) + b"broken\n")
    assert run(source, out, "--on-error", "skip") == 0
    before = contents(tmp_path)
    assert name + ".errors.jsonl" in before
    other.write_bytes(b"broken too\n" + lines(small_rows[:100]))
    assert run(other, out, "--force", "--seed", "1") == 2  # stops before the first window
    assert contents(tmp_path) == before
    assert run(source, out, "--resume") == 0  # and goes on as if nothing had been
    assert contents(tmp_path) == before
    other.write_bytes(lines(small_rows[:3]))
    assert run(other, out, "--force", "--seed", "1") == 0
    assert set(contents(tmp_path)) == {name, name + ".run.json"}
    (tmp_path / f"new-{name}").unlink(missing_ok=True)
    assert run(other, tmp_path / f"new-{name}", "--seed", "1") == 0
    assert out.read_bytes() == (tmp_path / f"new-{name}").read_bytes()


def test_force_that_is_killed_before_the_first_window_leaves_the_older_output(
    tmp_path: Path, candidates: Path, small_rows: list[Row]
) -> None:
    out = tmp_path / "out.jsonl"
    assert run(candidates, out) == 0
    before = out.read_bytes()
    killed = start("-", "-o", out, "--force", "--window", "64")
    feed_and_wait(killed, lines(small_rows[:3]), tmp_path / "out.jsonl.mbrace-tmp", 0)
    killed.kill()
    killed.communicate()
    assert out.read_bytes() == before
    assert run(candidates, out, "--force") == 0
    assert not list(tmp_path.glob("*.mbrace-tmp"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [[], ["--force"], ["--resume"]])
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_written_through_also_one_that_leads_to_nothing_yet(
    name: str, options: list[str], exists: bool, tmp_path: Path, small_rows: list[Row]
) -> None:
    source, out, target = tmp_path / "in.jsonl", tmp_path / name, tmp_path / "elsewhere" / f"real{Path(name).suffix}"
    source.write_bytes(lines(small_rows[:5]))
    target.parent.mkdir()
    out.symlink_to(target)
    if exists:
        assert run(source, tmp_path / f"whole-{name}") == 0
        target.write_bytes((tmp_path / f"whole-{name}").read_bytes())
        (tmp_path / f"{name}.run.json").write_bytes((tmp_path / f"whole-{name}.run.json").read_bytes())
    assert run(source, out, *options) == (2 if exists and not options else 0)
    assert out.is_symlink()
    assert run(source, tmp_path / f"whole-{name}", "--force") == 0
    assert target.read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_errors_of_an_earlier_run_whose_output_is_gone_are_deleted_only_with_force(
    tmp_path: Path, small_rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    source, out, errors = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "out.jsonl.errors.jsonl"
    source.write_bytes(lines(small_rows[:5]))
    errors.write_bytes(b"{}\n")
    assert run(source, out) == 2
    assert f"{errors}: exists; use --resume" in capsys.readouterr().err
    assert contents(tmp_path) == {errors.name: b"{}\n"}
    assert run(source, out, "--force") == 0
    assert set(contents(tmp_path)) == {"out.jsonl", "out.jsonl.run.json"}


def test_force_leaves_files_alone_that_are_not_ours(tmp_path: Path, small_rows: list[Row]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines([*small_rows[:5], "no record"]))
    theirs = {f"out.jsonl{suffix}": b"mine" for suffix in (".tmp", ".part", ".run.json.tmp", ".errors.jsonl.tmp")}
    for name, data in theirs.items():
        (tmp_path / name).write_bytes(data)
    for _ in range(2):
        assert run(tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--force", "--on-error", "skip") == 0
    assert {name: data for name, data in contents(tmp_path).items() if name in theirs} == theirs


@pytest.mark.parametrize("suffix", [".mbrace-tmp", ".run.json", ".run.json.mbrace-tmp", ".errors.jsonl", ".part"])
@pytest.mark.parametrize("out", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize("exists", [True, False])
def test_no_link_is_followed_where_a_file_of_a_run_goes(
    suffix: str, out: str, exists: bool, tmp_path: Path, small_rows: list[Row]
) -> None:
    """In a folder that others can write, a link there would make us write to what they cannot."""
    theirs = tmp_path / "theirs" / "out"
    theirs.parent.mkdir()
    if exists:
        theirs.write_bytes(b"theirs\n")
    (tmp_path / "in.jsonl").write_bytes(lines([*small_rows[:5], "no record"]))
    (tmp_path / f"{out}{suffix}").symlink_to(theirs)
    for options in ([], ["--force"], ["--resume"]):
        run(tmp_path / "in.jsonl", tmp_path / out, "--on-error", "skip", *options)
    assert contents(theirs.parent) == ({"out": b"theirs\n"} if exists else {})
    assert not (tmp_path / out).is_symlink()


@pytest.mark.parametrize(
    ("room", "force", "message", "kept"),
    [
        (900, False, "no answer was written: free disk space and run again", 0),
        (1500, False, "answers written before are kept: free disk space and continue with --resume", 1),
        (900, True, "the older file is kept as it was: free disk space and run again", 150),
    ],
)
def test_a_disk_that_is_full_in_the_first_window_is_told_as_it_is(
    room: int, force: bool, message: str, kept: int, tmp_path: Path, candidates: Path
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    if force:
        assert run(candidates, out) == 0
    source.write_bytes(lines([{"hypotheses": ["a" * 1000], "pseudo_references": ["b"]}] * 5))  # lines of 1,100 bytes
    done = subprocess.run(
        [*COMMAND, "decode", source, "-o", out, *(["--force"] if force else [])],
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
        text=True,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert (out.read_bytes().count(b"\n") if out.exists() else 0) == kept
    assert set(contents(tmp_path)) == ({"out.jsonl", "out.jsonl.run.json"} if kept else set())
    if kept == 1:
        assert run(source, out, "--resume") == 0
        assert out.read_bytes().count(b"\n") == 5


def test_a_finished_parquet_file_that_was_cut_is_refused_with_what_to_do(
    tmp_path: Path, candidates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.parquet"
    assert run(candidates, out) == 0
    out.write_bytes(out.read_bytes()[:-100])
    assert run(candidates, out, "--resume") == 2
    assert "not a Parquet file that can be read" in (error := capsys.readouterr().err)
    assert "use --force to start over" in error


def test_an_output_that_exists_is_refused_before_anything_is_loaded(
    tmp_path: Path, candidates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: object, threads: int) -> object:
        raise AssertionError("loaded")

    monkeypatch.setattr("mbrace.jobs.decode.DecodeJob.start", load)
    (tmp_path / "out.jsonl").write_text("")
    (tmp_path / "out.parquet.part").write_text("")
    for name in ("out.jsonl", "out.parquet"):
        assert run(candidates, tmp_path / name) == 2


@pytest.mark.parametrize(
    ("closed", "arguments", "status", "says"),
    [
        (">&-", "decode IN -o OUT", 0, "150 sentences"),
        ("2>&-", "decode IN -o OUT", 0, ""),
        ("<&- >&- 2>&-", "decode IN -o OUT", 0, ""),
        (">&-", "decode IN", 2, "mbrace: error: standard output: is closed; give an output file\n"),
        ("<&-", "decode - -o OUT", 2, "mbrace: error: standard input: is closed; give a file\n"),
        (">&-", "decode IN --explain 0", 2, "mbrace: error: a file or standard output: not writable; "),
        ("2>&-", "decode missing -o OUT", 2, ""),
        ("2>/dev/full", "decode IN -o OUT", 0, ""),
        ("2>/dev/full", "decode missing -o OUT", 2, ""),
    ],
)
def test_closed_standard_streams_lose_nothing_and_show_no_traceback(
    closed: str, arguments: str, status: int, says: str, tmp_path: Path, candidates: Path, answers: bytes
) -> None:
    out = tmp_path / "out.jsonl"
    words = [{"IN": str(candidates), "OUT": str(out)}.get(word, word) for word in arguments.split()]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *words], capture_output=True, text=True)
    assert done.returncode == status
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert (out.read_bytes() if out.exists() else b"") == (b"" if status else answers)
