"""`mbrace generate` and `mbrace translate` with a live model."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny

import mbrace
from mbrace.cli import main
from mbrace.io.candidates import read_records
from mbrace.io.output import Output
from mbrace.jobs.generate import GenerateWorker
from mbrace.jobs.run import Summary, run_worker
from mbrace.models import seq2seq

SOURCES = ["a b", "c", "d d a", "b c", "a"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model = tiny.marian()
    model.generation_config.bad_words_ids = [[tiny.PAD]]
    model.final_logits_bias.zero_()
    model.save_pretrained(path)
    tiny.tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def sources(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # transformers would take a Marian folder's tokenizer to be SentencePiece's; ours is words
    loaded: dict[str, Any] = {}

    def load(name: str, tokenizer: Any, kind: str) -> tuple[Any, Any]:
        return loaded.setdefault(name, original(name, tokenizer or tiny.tokenizer(), kind))

    original = seq2seq.load
    monkeypatch.setattr(seq2seq, "load", load)
    path = tmp_path / "sources.txt"
    path.write_text("".join(source + "\n" for source in SOURCES))
    return path


def generate(sources: Path, folder: Path, out: Path, *more: str) -> int:
    sizes = ["--beam", "4", "--sample", "6", "--seed", "3"]
    return main(["generate", str(sources), "--model", str(folder), "-o", str(out), *sizes, "--device", "cpu", *more])


def test_generate_writes_records_that_decode_reads(sources: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "references.txt").write_text("r\n" * len(SOURCES))
    out = tmp_path / "c.jsonl"
    more = ["--references", f"{tmp_path}/references.txt", "--logprobs", "--prefix", "t."]
    assert generate(sources, folder, out, *more) == 0
    records = list(read_records(str(out)))
    assert [record.source for record in records] == SOURCES
    assert [record.id for record in records] == [f"t.{n}" for n in range(1, 6)]  # the lines
    assert all(len(record.pseudo_references or []) == len(record.logprobs or []) == 6 for record in records)  # type: ignore[arg-type]
    model = mbrace.Seq2Seq(folder, tokenizer=tiny.tokenizer())
    again = model.sample(["d d a"], 6, seed=3, ids=["t.3"])[0]
    assert list(records[2].pseudo_references or []) == list(again.texts)  # type: ignore[arg-type]
    assert list(records[2].hypotheses) == list(model.beam(["d d a"], k=4)[0].texts)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_generate_after_a_crash_gives_the_same_file(sources: Path, folder: Path, tmp_path: Path, suffix: str) -> None:
    whole, cut = tmp_path / f"whole.jsonl{suffix}", tmp_path / f"cut.jsonl{suffix}"
    unpack = {"": bytes, ".gz": gzip.decompress, ".xz": lzma.decompress}[suffix]
    assert generate(sources, folder, whole) == 0
    assert generate(sources, folder, cut, "--limit", "3") == 0
    content = cut.read_bytes()
    cut.write_bytes(content[: len(content) * 4 // 5])  # inside a line
    assert generate(sources, folder, cut, "--resume") == 0
    assert cut.read_bytes() == whole.read_bytes()
    assert unpack(cut.read_bytes()) == unpack(whole.read_bytes())
    assert {path.name for path in tmp_path.iterdir() if "part" in path.name} == set()


def test_generate_refuses_to_continue_a_file_of_other_sources(
    sources: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c.jsonl"
    assert generate(sources, folder, out, "--limit", "2") == 0
    before = out.read_bytes()
    sources.write_text("a b\nd\n")
    assert generate(sources, folder, out, "--resume") == 2
    assert f"c.jsonl:2: --resume: not made of {sources}:2; give the same sources" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_generate_leaves_an_output_that_is_there_alone_unless_told(
    sources: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c.jsonl"
    assert generate(sources, folder, out) == 0
    before = out.read_bytes()
    assert generate(sources, folder, out) == 2
    assert "c.jsonl: exists; use --resume to continue it or --force to replace it" in capsys.readouterr().err
    for more, told in {
        ("--seed", "4"): "seed 3, not 4",
        ("--beam", "3"): "beam 4, not 3",
        ("--logprobs",): "logprobs False, not True",
        ("--epsilon", "0.1"): "epsilon 0.02, not 0.1",
    }.items():
        assert generate(sources, folder, out, "--resume", *more) == 2
        assert f"c.jsonl: was made with {told}" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert generate(sources, folder, out, "--force", "--seed", "4") == 0
    assert out.read_bytes() != before
    assert generate(sources, folder, out, "--resume", "--seed", "4") == 0  # the options of the last run count


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.txt", b"a thought without an end"),
        ("notes.txt", b"a thought\n"),
        ("notes.jsonl", b'["a", "list"]\n'),
        ("notes.jsonl.gz", b"not gzip at all"),
        ("notes.jsonl.gz", gzip.compress(b"a thought without an end", mtime=0)),
        ("notes.jsonl.xz", b"not xz at all"),
    ],
)
@pytest.mark.parametrize("with_options", [False, True])
def test_generate_never_destroys_a_file_that_is_not_its_own(
    sources: Path, folder: Path, tmp_path: Path, name: str, content: bytes, with_options: bool
) -> None:
    out = tmp_path / name
    if with_options:  # another program wrote over our file
        assert generate(sources, folder, out, "--limit", "1") == 0
    out.write_bytes(content)
    for more in ([], ["--resume"]):
        assert generate(sources, folder, out, *more) == 2
        assert out.read_bytes() == content


def test_generate_does_not_continue_a_file_whose_options_are_unknown(
    sources: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c.jsonl"
    out.write_bytes(b'{"id":0,"source":"a b"}\n')
    assert generate(sources, folder, out, "--resume") == 2
    assert "c.jsonl.run.json: missing" in capsys.readouterr().err
    assert out.read_bytes() == b'{"id":0,"source":"a b"}\n'


def test_only_the_suffix_tsv_means_columns() -> None:
    from mbrace.jobs.sources import source_item

    for name, source, reference in [
        ("a.tsv", "x", "y"),
        ("a.tsv.gz", "x", "y"),
        ("a.tsv/b.txt", "x\ty", None),
        ("a.tsvx", "x\ty", None),
    ]:
        item = source_item(b"x\ty\tz\n" if reference else b"x\ty\n", name, 1)
        assert isinstance(item, mbrace.Record)
        assert (item.source, item.reference) == (source, reference)


def test_a_cluster_run_is_continued_only_with_the_same_endpoint_of_a_server(sources: Path) -> None:
    from mbrace.cli.generate import job_from
    from mbrace.cli.parser import make_parser

    server = ["generate", str(sources), "-o", "o", "--server", "http://x", "--server-model", "m", "--server-kind"]
    chat, completions = (job_from(make_parser().parse_args([*server, k])).describe() for k in ("chat", "completions"))
    assert chat != completions


def test_generate_sets_a_bad_source_aside_and_names_its_line(
    sources: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "c.jsonl"
    assert generate(sources, folder, whole) == 0
    rows = whole.read_bytes().splitlines(keepends=True)
    lines = [source.encode() for source in SOURCES]
    sources.write_bytes(b"\n".join([lines[0], b"a " * 3000, lines[2], b"\xff", lines[4]]) + b"\n")
    assert generate(sources, folder, out) == 2
    assert f"{sources}:2: a source has 3001 pieces" in capsys.readouterr().err
    assert out.read_bytes() == rows[0]
    assert generate(sources, folder, out, "--resume", "--on-error", "skip") == 0
    assert out.read_bytes() == b"".join(rows[::2])
    set_aside = [json.loads(line) for line in (tmp_path / "c.jsonl.errors.jsonl").read_text().splitlines()]
    assert [(row["file"], row["line"]) for row in set_aside] == [(str(sources), 2), (str(sources), 4)]


def generate_with(make: Any, items: Any, out: Path) -> Summary:
    with Output(str(out)) as output:
        return run_worker(GenerateWorker(make, window=3), items, output)


def test_generate_writes_what_was_read_before_a_failure(tmp_path: Path) -> None:
    def items() -> Any:
        for number in range(5):
            yield mbrace.Record((), id=number, source=f"s{number}")
        raise OSError("the disk is gone")

    def make(texts: Any, ids: Any) -> Any:
        return [([text], None) for text in texts]

    out = tmp_path / "c.jsonl"
    with pytest.raises(OSError, match="the disk is gone"):
        generate_with(make, items(), out)
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [0, 1, 2, 3, 4]


def test_a_signal_lets_generate_finish_its_window_and_say_how_to_go_on(
    sources: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "c.jsonl"
    assert generate(sources, folder, whole) == 0
    beam = mbrace.Seq2Seq.beam

    def interrupted(self: Any, *args: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return beam(self, *args, **options)

    monkeypatch.setattr(mbrace.Seq2Seq, "beam", interrupted)
    assert generate(sources, folder, out, "--window", "2") == 128 + signal.SIGTERM
    assert "go on with the same command and --resume" in capsys.readouterr().err
    assert out.read_bytes() == b"".join(whole.read_bytes().splitlines(keepends=True)[:2])
    monkeypatch.setattr(mbrace.Seq2Seq, "beam", beam)
    assert generate(sources, folder, out, "--resume") == 0
    assert out.read_bytes() == whole.read_bytes()


def test_generate_reads_sources_as_it_needs_them_and_writes_what_is_done(tmp_path: Path) -> None:
    out = tmp_path / "c.jsonl"
    read: list[int] = []
    written: list[int] = []

    def items() -> Any:
        for number in range(7):
            read.append(number)
            yield mbrace.Record((), id=number, source=f"s{number}")

    def make(texts: Any, ids: Any) -> Any:
        assert read[-1] == ids[-1]
        written.append(len(out.read_bytes().splitlines()))
        return [([text], None) for text in texts]

    assert generate_with(make, items(), out).sentences == 7
    assert written == [0, 3, 6]


def test_references_of_another_length_are_refused_before_work(
    sources: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "references.txt").write_text("r\n" * 4)
    assert generate(sources, folder, tmp_path / "c.jsonl", "--references", f"{tmp_path}/references.txt") == 2
    assert "references.txt: has 4 lines but" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"sources.txt", "references.txt"}  # nothing was begun


def test_generate_writes_parquet_that_decode_reads(sources: Path, folder: Path, tmp_path: Path) -> None:
    assert generate(sources, folder, tmp_path / "c.jsonl") == 0
    assert generate(sources, folder, tmp_path / "c.parquet") == 0
    for name in ("c.jsonl", "c.parquet"):
        assert main(["decode", f"{tmp_path}/{name}", "-o", f"{tmp_path}/{name}.out"]) == 0
    assert (tmp_path / "c.parquet.out").read_bytes() == (tmp_path / "c.jsonl.out").read_bytes()


def translate(sources: Path, folder: Path, out: Path, *more: str) -> int:
    options = ["--beam", "4", "--schedule", "4,16", "--seed", "3", "--device", "cpu", "--window", "2"]
    return main(["translate", str(sources), "--model", str(folder), "-o", str(out), *options, *more])


def test_translate_equals_generating_and_decoding_by_hand(sources: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    assert translate(sources, folder, out, "--preset", "paper") == 0
    model = mbrace.Seq2Seq(folder, tokenizer=tiny.tokenizer())
    for row in map(json.loads, out.read_text().splitlines()):
        source = SOURCES[row["id"] - 1]
        draws = model.sample([source], 16, seed=3, ids=[row["id"]])[0].texts
        hypotheses = model.beam([source], k=4)[0].texts
        want = mbrace.decode(hypotheses, iter(draws), schedule=[4, 16], seed=3, id=row["id"])
        assert (row["text"], row["utility"], row["pseudo_references"]) == (
            want.text,
            want.utility,
            want.pseudo_references,
        )


def test_translate_is_fast_by_default_and_fast_is_regret_and_arithmetic_draws(
    sources: Path, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "o.jsonl"
    assert translate(sources, folder, out) == 0
    model = mbrace.Seq2Seq(folder, tokenizer=tiny.tokenizer())
    for row in map(json.loads, out.read_text().splitlines()):
        source = SOURCES[row["id"] - 1]
        draws = model.sample([source], 16, seed=3, ids=[row["id"]], sampling="arithmetic")[0].texts
        hypotheses = model.beam([source], k=4)[0].texts
        prune = mbrace.Confidence(0.99, regret=0.04)
        want = mbrace.decode(hypotheses, iter(draws), schedule=[4, 16], seed=3, id=row["id"], prune=prune)
        assert (row["text"], row["utility"], row["utility_calls"]) == (want.text, want.utility, want.utility_calls)


def test_translating_with_a_forecast_is_decoding_with_one(
    sources: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, job = tmp_path / "o.jsonl", tmp_path / "job.jsonl"
    options = ["--preset", "paper", "--beam", "48", "--forecast", "0.01"]
    assert translate(sources, folder, out, *options) == 0
    model = mbrace.Seq2Seq(folder, tokenizer=tiny.tokenizer(), device="cpu")
    kwargs: dict[str, Any] = {"beam": 48, "schedule": [4, 16], "seed": 3, "window": 2, "forecast": 0.01}
    summary = mbrace.translate_file(sources, job, model=model, text=False, **kwargs)
    assert job.read_bytes() == out.read_bytes()
    live, standard, saved = list(model.translate(SOURCES, **kwargs)), 0, 0
    for row, answer in zip(map(json.loads, out.read_text().splitlines()), live, strict=True):
        source = SOURCES[row["id"] - 1]
        draws = model.sample([source], 16, seed=3, ids=[row["id"]])[0].texts
        hypotheses = model.beam([source], k=48)[0].texts
        race: dict[str, Any] = {"schedule": [4, 16], "seed": 3, "id": row["id"]}
        want = mbrace.decode(hypotheses, iter(draws), forecast=0.01, **race)
        for found in (row["text"], row["utility"], row["strings"]), (answer.text, answer.utility, answer.strings):
            assert found == (want.text, want.utility, want.strings)
        saved += mbrace.decode(hypotheses, iter(draws), **race).strings - want.strings
        standard += len(set(hypotheses)) * 16
    assert saved > 0
    assert summary.standard_calls == standard
    for changed, message in (
        (["--pool"], "--forecast 0.01: only valid without --pool"),
        (["--forecast", "1"], "was made"),
    ):
        assert translate(sources, folder, out, *options, "--resume", *changed) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--coarse-top", "2"]])
def test_translate_shares_its_draws_between_the_coarse_utility_and_the_dear_one(
    more: list[str], sources: Path, folder: Path, tmp_path: Path
) -> None:
    options = ["--utility", "bleu", "--coarse", "chrf++", "--preset", "paper", *more]
    rows = []
    for name, draw in {"lazy": ["--draw", "lazy"], "ahead": ["--draw", "ahead", "--window", "64"]}.items():
        out = tmp_path / f"{name}.jsonl"
        assert translate(sources, folder, out, *options, *draw) == 0
        rows.append([json.loads(line) for line in out.read_text().splitlines()])
    assert rows[0] == rows[1]
    model = mbrace.Seq2Seq(folder, tokenizer=tiny.tokenizer())
    utilities: dict[str, Any] = {"utility": mbrace.BLEU(), "coarse": mbrace.ChrF(), "coarse_top": 2 if more else None}
    for row in rows[0]:
        source = SOURCES[row["id"] - 1]
        draws = model.sample([source], 16, seed=3, ids=[row["id"]])[0].texts
        hypotheses = model.beam([source], k=4)[0].texts
        want = mbrace.decode(hypotheses, iter(draws), schedule=[4, 16], seed=3, id=row["id"], **utilities)
        for field in ("text", "utility", "utility_calls", "coarse_calls", "strings", "pseudo_references"):
            assert row[field] == getattr(want, field)


def test_lazy_sampling_ahead_and_any_window_give_the_same_text(sources: Path, folder: Path, tmp_path: Path) -> None:
    for name, more in {"a": ["--draw", "ahead"], "l": ["--draw", "lazy"], "w": ["--window", "64"]}.items():
        assert translate(sources, folder, tmp_path / f"{name}.txt", *more) == 0
    texts = [(tmp_path / f"{name}.txt").read_text() for name in "alw"]
    assert len(texts[0].splitlines()) == len(SOURCES)
    assert texts[0] == texts[1] == texts[2]


def test_translate_goes_on_where_it_stopped_without_another_beam_search(
    sources: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "o.jsonl"
    assert translate(sources, folder, out) == 0
    whole = out.read_bytes()
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]))
    searched: list[str] = []
    beam = mbrace.Seq2Seq.beam

    def count(self: Any, texts: Any, *args: Any, **options: Any) -> Any:
        searched.extend(texts)
        return beam(self, texts, *args, **options)

    monkeypatch.setattr(mbrace.Seq2Seq, "beam", count)
    assert translate(sources, folder, out, "--resume") == 0
    assert out.read_bytes() == whole
    assert searched == SOURCES[4:]


def test_translating_goes_on_only_with_the_coarse_utility_it_was_begun_with(
    sources: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, coarse = tmp_path / "o.jsonl", ["--utility", "bleu", "--coarse", "chrf", "--coarse-top", "2"]
    assert translate(sources, folder, out, *coarse) == 0
    whole = out.read_bytes()
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]))
    assert translate(sources, folder, out, "--resume", *coarse[:2]) == 2
    assert "was made with coarse 'chrf', not without it and coarse-top 2, not without it" in capsys.readouterr().err
    assert translate(sources, folder, out, "--resume", *coarse) == 0
    assert out.read_bytes() == whole


def test_a_source_that_is_too_long_costs_only_its_own_translation(
    sources: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole.jsonl"
    assert translate(sources, folder, whole) == 0
    rows = whole.read_bytes().splitlines(keepends=True)
    sources.write_text("".join(source + "\n" for source in [*SOURCES[:3], "a " * 3000, SOURCES[4]]))
    out = tmp_path / "o.jsonl"
    window = ["--window", "64"]
    assert translate(sources, folder, out, *window) == 2
    assert f"{sources}:4: a source has 3001 pieces" in capsys.readouterr().err
    assert out.read_bytes() == b"".join(rows[:3])  # what was before it is kept
    assert translate(sources, folder, out, *window, "--resume", "--on-error", "skip") == 0
    assert out.read_bytes() == b"".join([*rows[:3], rows[4]])
    (set_aside,) = map(json.loads, (tmp_path / "o.jsonl.errors.jsonl").read_text().splitlines())
    assert (set_aside["file"], set_aside["line"]) == (str(sources), 4)


def test_a_line_that_cannot_be_read_costs_no_translation_but_its_own(
    sources: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "o.jsonl"
    assert translate(sources, folder, whole) == 0
    rows = whole.read_bytes().splitlines(keepends=True)
    lines = [source.encode() for source in SOURCES]
    sources.write_bytes(b"\n".join([*lines[:3], b"\xff", lines[4]]) + b"\n")
    assert translate(sources, folder, out) == 2  # line 4 is in the middle of a window
    assert f"{sources}:4: invalid UTF-8 at byte 0" in capsys.readouterr().err
    assert out.read_bytes() == b"".join(rows[:3])
    assert translate(sources, folder, out, "--resume", "--on-error", "skip") == 0
    assert out.read_bytes() == b"".join([*rows[:3], rows[4]])
    (set_aside,) = map(json.loads, (tmp_path / "o.jsonl.errors.jsonl").read_text().splitlines())
    assert (set_aside["file"], set_aside["line"]) == (str(sources), 4)


def test_sources_that_end_in_a_failure_are_translated_up_to_it() -> None:
    def sources() -> Any:
        yield from SOURCES[:3]
        raise OSError("the disk is gone")

    model = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer())
    answers = model.translate(sources(), beam=4, schedule=[4], window=2)
    assert [next(answers).id for _ in range(3)] == [1, 2, 3]
    with pytest.raises(OSError, match="the disk is gone"):
        next(answers)


def test_a_cluster_worker_sets_aside_only_the_source_at_fault(sources: Path, folder: Path, tmp_path: Path) -> None:
    from mbrace.cli.parser import make_parser
    from mbrace.cli.presets import apply_preset
    from mbrace.cli.translate import job_from

    command = ["translate", str(sources), "--model", str(folder), "--beam", "4", "--schedule", "4,16"]
    args = make_parser().parse_args([*command, "--seed", "3", "--device", "cpu", "--json"])
    apply_preset(args, "translate")
    job = job_from(args)
    texts = [*SOURCES[:3], "a " * 3000, SOURCES[4]]
    items = [job.item(f"{text}\n".encode(), "s.txt", number, "") for number, text in enumerate(texts, 1)]
    outcomes = list(job.start(1)(items, skip=True))
    assert [bad is None for _, bad in outcomes] == [True, True, True, False, True]
    assert "s.txt:4: a source has 3001 pieces" in str(outcomes[3][1].error())  # type: ignore[union-attr]
    out = tmp_path / "o.jsonl"
    assert translate(sources, folder, out) == 0
    assert [line for line, _ in outcomes if line] == [
        row for number, row in enumerate(out.read_bytes().splitlines(keepends=True), 1) if number != 4
    ]


def test_the_library_names_the_source_that_is_too_long() -> None:
    model = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer())
    answers = model.translate(["a b", "a " * 3000, "c"], beam=4, schedule=[4])
    assert next(answers).id == 1
    with pytest.raises(mbrace.UserError, match="sources:2: a source has 3001 pieces"):
        next(answers)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--beam", "0"], "--beam 0: must be 1 or more"),
        (["--schedule", "all"], "a live model has no last pseudo-reference"),
        (["--kind", "causal"], "needs --model and --prompt"),
        (["--prompt", "{source}"], "--prompt: only valid with --kind causal or --server"),
        (["--server", "http://127.0.0.1:9"], "needs --server-model"),
        (["--temperature", "0"], "temperature 0.0: must be 1e-06 or more"),
        (["--temperature", "-1"], "temperature -1.0: must be 1e-06 or more"),
        (["--epsilon", "1.5"], "epsilon 1.5: must be from 0 to 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    sources: Path, folder: Path, tmp_path: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert translate(sources, folder, tmp_path / "o.txt", *more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o.txt").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--limit", "-1"], "--limit -1: must be 1 or more"),
        (["--minutes", "-1"], "--minutes -1.0: must be more than 0"),
        (["--temperature", "0"], "error: temperature 0.0: must be 1e-06 or more"),
    ],
)
def test_generate_refuses_numbers_that_cannot_be_before_work(
    sources: Path, folder: Path, tmp_path: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(sources, folder, tmp_path / "c.jsonl", *more) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"sources.txt"}


SERVER = ["--server", "http://127.0.0.1:9", "--server-model", "m"]


@pytest.mark.parametrize("command", ["translate", "generate"])
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--source-language", "deu_Latn"], "--source-language: only valid with --model"),
        (["--target-language", "eng_Latn"], "--target-language: only valid with --model"),
        (["--source-prefix", "translate: "], "--source-prefix: only valid with --model"),
        (["--server-model", "m"], "--server-model: only valid with --server"),
        (["--server-kind", "chat"], "--server-kind: only valid with --server"),  # what is the default too
        (["--concurrency", "2"], "--concurrency: only valid with --server"),
        (["--model", "M", "--prompt", "{source}"], "--prompt: only valid with --kind causal or --server"),
        (["--kind", "causal", "--model", "M", "--prompt", "{source}", "--source-prefix", "x"], "--source-prefix: only"),
        ([*SERVER, "--model", "bundled"], "--model and --server: give one of them"),
        ([*SERVER, "--kind", "seq2seq"], "--kind: only valid with --model"),
        ([*SERVER, "--epsilon", "1.5"], "epsilon 1.5: must be between 0 and 1"),
        ([*SERVER, "--source-language", "de"], "--source-language: only valid with --model"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    sources: Path, tmp_path: Path, command: str, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(sources), "-o", f"{tmp_path}/o", *more]) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"sources.txt"}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["translate", *SERVER, "--draw", "lazy"], "--draw: only valid with --model"),
        (["translate", *SERVER, "--sampling", "arithmetic"], "--sampling: only valid with --model"),
        (["translate", *SERVER, "--length-penalty", "1"], "--length-penalty: only valid with --model"),
        (["generate", *SERVER, "--length-penalty", "1"], "--length-penalty: only valid with --model"),
        (["generate", *SERVER, "--alpha", "1"], "--alpha: is called --length-penalty now"),
        (["translate", *SERVER, "--length-alpha", "1"], "--length-alpha: is called --length-penalty now"),
        (["generate", *SERVER, "--device", "cpu"], "--device: only valid with --model"),
        (["generate", "--logprobs", "--sample", "0"], "--logprobs: only valid with pseudo-references"),
    ],
)
def test_an_option_of_one_command_that_would_do_nothing_is_refused(
    sources: Path, tmp_path: Path, command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(sources), "-o", f"{tmp_path}/o"]) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"sources.txt"}


def test_the_bundled_translator_takes_no_languages() -> None:
    for options in ({"source_language": "de"}, {"target_language": "en"}, {"prefix": "translate: "}):
        with pytest.raises(mbrace.UserError, match="bundled translator is German to English"):
            mbrace.Seq2Seq(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["translate", "generate", "train"])
def test_a_device_that_cannot_be_used_is_named_before_work(
    sources: Path, folder: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"train": ["--train", str(sources), str(sources), "--valid", str(sources), str(sources)]}
    given = files.get(command, [str(sources), "--model", str(folder)])
    assert main([command, *given, "-o", f"{tmp_path}/o", "--device", "abacus"]) == 2
    assert "device abacus: cannot be used (" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"sources.txt"}


def test_the_bundled_translator_translates_as_the_command_with_each_preset_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mbrace.cli import demo_translate

    monkeypatch.setattr(demo_translate, "SENTENCES", ("Die Katze schläft auf dem Sofa.",))
    monkeypatch.setattr(demo_translate, "BEAM", 8)
    assert main(["demo", "--translate"]) == 0
    shown = capsys.readouterr().out
    assert "The cat" in shown
    assert "sleep" in shown
    sources = tmp_path / "german.txt"
    sources.write_text("Die Katze schläft auf dem Sofa.\n")
    for preset in ("paper", "fast"):
        out = tmp_path / f"{preset}.txt"
        assert main(["translate", str(sources), "-o", str(out), "--preset", preset, "--beam", "8"]) == 0
        assert f"--preset {preset:<5} {out.read_text().strip()}" in shown


def test_without_its_packages_the_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    assert main(["demo", "--translate"]) == 0
    assert "torch not installed; pip install 'mbrace[models]'" in capsys.readouterr().out


def test_translate_neither_replaces_its_sources_nor_goes_on_with_other_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources, out = tmp_path / "s.txt", tmp_path / "o.jsonl"
    sources.write_text("Ein Hund.\n")
    assert main(["translate", str(sources), "-o", str(sources), "--force"]) == 2
    assert "is an input too" in capsys.readouterr().err
    assert sources.read_text() == "Ein Hund.\n"
    command = ["translate", str(sources), "-o", str(out), "--beam", "2", "--schedule", "2"]
    assert main(command) == 0
    assert json.loads((tmp_path / "o.jsonl.run.json").read_text())["seed"] == 0  # it stays
    (tmp_path / "o.jsonl.run.json").write_text(json.dumps({"command": "translate", "seed": 3}))
    assert main([*command, "--resume"]) == 2
    assert "o.jsonl: was made with" in capsys.readouterr().err


def test_translating_with_a_pool_of_arithmetic_draws_is_resumed_to_the_same_bytes(
    sources: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def translate(out: Path, *more: str) -> int:
        options = ["--pool", "--beam", "2", "--sampling", "arithmetic", "--regret", "0.05", "--schedule", "2,4,8"]
        command = ["translate", str(sources), "--model", str(folder), "-o", str(out), "--device", "cpu", "--json"]
        return main([*command, *options, "--window", "2", *more])

    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert translate(whole) == 0
    assert translate(cut) == 0
    content = cut.read_bytes()
    cut.write_bytes(content[: len(content) // 2])  # inside a line
    assert translate(cut, "--resume", "--sampling", "independent") == 2
    assert "was made with sampling 'arithmetic', not the default" in capsys.readouterr().err
    assert translate(cut, "--resume", "--window", "3") == 0
    assert cut.read_bytes() == content == whole.read_bytes()
