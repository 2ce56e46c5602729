"""Beam search that gives up paths far behind the best, against a naive transcription and plain beam search."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models as tiny
import torch

import mbrace
from mbrace.errors import UserError
from mbrace.models import marian
from mbrace.models.beam_search import GRACE
from mbrace.models.hypotheses import SamplingSettings

SOURCES = ["a b c", "d d a b", "c"]


def naive(
    model: Any, source: str, *, k: int, max_behind: float, longest: int, alpha: float
) -> tuple[list[tuple[float, str]], int]:
    """Scores and texts, best first, and how often the decoder was run for a path."""
    encoded, runs = torch.tensor([tiny.tokenizer()(source)["input_ids"]]), 0

    def logprobs(ids: tuple[int, ...]) -> list[float]:
        start = torch.tensor([[model.config.decoder_start_token_id, *ids]])
        with torch.no_grad():
            logits = model(input_ids=encoded, decoder_input_ids=start).logits[0, -1]
        return torch.log_softmax(logits.float(), -1).tolist()

    paths: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[tuple[float, tuple[int, ...]]] = []
    for time in range(longest):
        penalty = (time + 1) ** alpha
        runs += len(paths)
        longer = [
            (score + logprob, (*ids, number))
            for score, ids in paths
            for number, logprob in enumerate(logprobs(ids))
            if logprob > -math.inf
        ]
        best = sorted(longer, reverse=True)[: 2 * k]
        ending = [ids[-1] == tiny.EOS or time + 1 == longest for _, ids in best]
        done += [(best[i][0] / penalty, best[i][1]) for i in range(min(k, len(best))) if ending[i]]
        done = sorted(done, reverse=True)[:k]
        paths = [path for path, ended in zip(best, ending, strict=True) if not ended][:k]
        worst = done[-1][0] if len(done) == k else -math.inf
        if not paths or (worst > -math.inf and worst >= paths[0][0] / penalty):
            break  # as in plain beam search
        if done and paths[0][0] < done[0][0] * penalty - GRACE - max_behind:
            break
        least = paths[0][0] - max_behind
        paths = [path for path in paths if path[0] >= least and path[0] > worst * penalty - GRACE]
    return [(score, tiny.text_of(ids)) for score, ids in done], runs


@pytest.mark.parametrize("k", [4, 12, 20])
@pytest.mark.parametrize("max_behind", [0.0, 0.4, 1.5, 4.0])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_paths_are_given_up_as_in_a_naive_transcription(
    k: int, max_behind: float, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.marian(seed=k)
    translator = mbrace.Seq2Seq(model, tokenizer=tiny.tokenizer(), dtype="float32")
    rows, step = [], marian.MarianState.step
    monkeypatch.setattr(marian.MarianState, "step", lambda self, ids: (rows.append(len(ids)), step(self, ids))[1])
    found = translator.beam(SOURCES, k=k, alpha=alpha, max_length=9, max_behind=max_behind)
    expected = [naive(model, s, k=k, max_behind=max_behind, longest=9, alpha=alpha) for s in SOURCES]
    for outputs, (best, _) in zip(found, expected, strict=True):
        assert list(outputs.texts) == [text for _, text in best]
        assert outputs.scores == pytest.approx([score for score, _ in best], abs=1e-4)
    assert sum(rows) == sum(runs for _, runs in expected)  # what is given up is not run


def test_the_best_output_of_plain_beam_search_is_kept_and_rows_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    # on a CPU: on a GPU a step is recorded for all rows, of which those that are not in use take little time
    translator = mbrace.Seq2Seq("bundled", device="cpu")
    sources = ["Der Hund schläft im Garten.", "Wir haben gestern lange darüber gesprochen."]
    rows, step = [0], marian.MarianState.step

    def counted(state: Any, ids: torch.Tensor) -> Any:
        rows[-1] += len(ids)
        return step(state, ids)

    monkeypatch.setattr(marian.MarianState, "step", counted)
    plain = translator.beam(sources, k=16)
    rows.append(0)
    near = translator.beam(sources, k=16, max_behind=2.0)
    assert [outputs.texts[0] for outputs in near] == [outputs.texts[0] for outputs in plain]
    assert rows[1] < 0.8 * rows[0]


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(1), Fraction(1, 2), 1])
def test_numbers_of_other_kinds_are_numbers(value: Any) -> None:
    translator = mbrace.Seq2Seq(tiny.marian(seed=2), tokenizer=tiny.tokenizer(), dtype="float32")
    assert translator.beam(SOURCES, 8, max_behind=value) == translator.beam(SOURCES, 8, max_behind=float(value))
    assert json.dumps(SamplingSettings(8, max_behind=value).describe())
    assert json.dumps(SamplingSettings(8, states=np.int64(3), recombine=np.int64(2)).describe())  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"rows": 8}, {"rows": 64}])
def test_outputs_do_not_depend_on_the_batch(options: dict[str, int]) -> None:
    model, tokenizer = tiny.marian(seed=3), tiny.tokenizer()
    alone = mbrace.Seq2Seq(model, tokenizer=tokenizer, dtype="float32")
    together = mbrace.Seq2Seq(model, tokenizer=tokenizer, dtype="float32", **options)
    for source, outputs in zip(SOURCES, together.beam(SOURCES, k=8, max_behind=1.0), strict=True):
        assert outputs.texts == alone.beam([source], k=8, max_behind=1.0)[0].texts


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "4", True, 10**400])
def test_a_number_that_cannot_be_is_refused(value: Any) -> None:
    translator = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer())
    with pytest.raises(UserError, match="max_behind"):
        translator.beam(SOURCES, max_behind=value)
    with pytest.raises(UserError, match="max_behind"):
        SamplingSettings(8, max_behind=value)


def test_it_needs_a_beam_and_is_part_of_what_candidates_depend_on() -> None:
    with pytest.raises(UserError, match=r"max_behind 4\.0: only valid with a beam of 1 or more"):
        SamplingSettings(0, max_behind=4.0)
    assert SamplingSettings(8, max_behind=4.0).describe()["max_behind"] == 4.0
    assert "max_behind" not in SamplingSettings(8).describe()  # as in runs of earlier versions


def test_translate_takes_it(tmp_path: Path) -> None:
    translator = mbrace.Seq2Seq(tiny.marian(seed=2), tokenizer=tiny.tokenizer(), dtype="float32")
    answers = list(translator.translate(SOURCES, beam=8, max_behind=0.5, schedule=(4, 8)))
    sources, output = tmp_path / "sources.txt", tmp_path / "out.jsonl"
    sources.write_text("\n".join(SOURCES) + "\n", encoding="utf-8")
    mbrace.translate_file(sources, output, model=translator, beam=8, max_behind=0.5, schedule=(4, 8), text=True, seed=0)
    assert output.read_text(encoding="utf-8").splitlines() == [answer.text for answer in answers]
