"""`mbrace translate` with a live model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
from model_commands import SOURCES, folder, sources, translate

import mbrace

__all__ = ["folder", "sources"]


WAYS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "paper": (["--preset", "paper"], {}),
    "fast, the default": ([], {"prune": mbrace.Confidence(0.99, regret=0.04)}),
}


@pytest.mark.parametrize("way", WAYS)
def test_translate_equals_generating_and_decoding_by_hand(
    way: str, sources: Path, folder: Path, tmp_path: Path
) -> None:
    out, (options, race) = tmp_path / "o.jsonl", WAYS[way]
    assert translate(sources, folder, out, *options) == 0
    model = mbrace.Seq2Seq(folder, tokenizer=tiny.tokenizer())
    sampling = "independent" if way == "paper" else "arithmetic"
    for row in map(json.loads, out.read_text().splitlines()):
        source = SOURCES[row["id"] - 1]
        draws = model.sample([source], 16, seed=3, ids=[row["id"]], sampling=sampling)[0].texts
        hypotheses = model.beam([source], k=4)[0].texts
        want = mbrace.decode(hypotheses, iter(draws), schedule=[4, 16], seed=3, id=row["id"], **race)
        for field in ("text", "utility", "pseudo_references", "utility_calls"):
            assert row[field] == getattr(want, field)


def test_translating_with_a_forecast_is_decoding_with_one(sources: Path, folder: Path, tmp_path: Path) -> None:
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


def test_any_window_gives_the_same_text(sources: Path, folder: Path, tmp_path: Path) -> None:
    for window in ("2", "64"):
        assert translate(sources, folder, tmp_path / f"{window}.txt", "--window", window) == 0
    texts = [(tmp_path / f"{window}.txt").read_text() for window in ("2", "64")]
    assert len(texts[0].splitlines()) == len(SOURCES)
    assert texts[0] == texts[1]


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


@pytest.mark.parametrize(
    ("bad", "window", "message"),
    [
        (b"a " * 3000, "64", "4: a source has 3001 pieces"),
        (b"\xff", "2", "4: invalid UTF-8 at byte 0"),  # line 4 is in the middle of a window
    ],
)
def test_a_bad_source_costs_only_its_own_translation(
    bad: bytes,
    window: str,
    message: str,
    sources: Path,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "o.jsonl"
    assert translate(sources, folder, whole) == 0
    rows = whole.read_bytes().splitlines(keepends=True)
    sources.write_bytes(b"\n".join([*(source.encode() for source in SOURCES[:3]), bad, SOURCES[4].encode()]) + b"\n")
    assert translate(sources, folder, out, "--window", window) == 2
    assert f"{sources}:{message}" in capsys.readouterr().err
    assert out.read_bytes() == b"".join(rows[:3])  # what was before it is kept
    assert translate(sources, folder, out, "--window", window, "--resume", "--on-error", "skip") == 0
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


def test_the_library_names_the_source_that_is_too_long() -> None:
    model = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer())
    answers = model.translate(["a b", "a " * 3000, "c"], beam=4, schedule=[4])
    assert next(answers).id == 1
    with pytest.raises(mbrace.UserError, match="sources:2: a source has 3001 pieces"):
        next(answers)
