"""MBR as a decoding method of transformers: ids equal to a brute-force choice, in every way it can be called."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from sacrebleu.metrics import CHRF
from transformers import dynamic_module_utils

import mbrace
from mbrace.errors import UserError
from mbrace.models import mbr_generate as module

ROOT = Path(__file__).parent.parent
FOLDER: dict[str, Any] = {"custom_generate": str(ROOT), "trust_remote_code": True}
SAMPLING: dict[str, Any] = {"do_sample": True, "epsilon_cutoff": 0.02, "top_k": 0, "top_p": 1.0, "temperature": 1.0}


class Case:
    """A model, its tokenizer and two inputs of different lengths."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.model = tiny_models.marian() if kind == "encoder-decoder" else tiny_models.llama()
        self.tokenizer = tiny_models.tokenizer(end=kind == "encoder-decoder")
        self.tokenizer.padding_side = "right" if kind == "encoder-decoder" else "left"
        self.inputs = dict(self.tokenizer(["a b c", "d d"], return_tensors="pt", padding=True))
        self.inputs.pop("token_type_ids", None)
        self.prompt = 1 if kind == "encoder-decoder" else self.inputs["input_ids"].shape[1]

    def generate(self, **options: Any) -> torch.Tensor:
        return self.model.generate(**{**self.inputs, "max_new_tokens": 6, **options})  # type: ignore[no-any-return]

    def beams(self, count: int, **options: Any) -> torch.Tensor:
        return self.generate(num_beams=count, num_return_sequences=count, do_sample=False, **options)

    def mbr(self, seed: int = 3, **options: Any) -> Any:
        torch.manual_seed(seed)
        return mbrace.mbr_generate(
            self.model, **{**self.inputs, "max_new_tokens": 6, "tokenizer": self.tokenizer, **options}
        )

    def texts(self, sequences: torch.Tensor) -> list[str]:
        return self.tokenizer.batch_decode(sequences[:, self.prompt :], skip_special_tokens=True)


@pytest.fixture(params=["encoder-decoder", "decoder-only"])
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    return Case(request.param)


def expected(hypotheses: list[str], references: list[str]) -> np.ndarray:
    """The mean chrF++ of each hypothesis, by sacreBLEU."""
    metric = CHRF(word_order=2)
    return np.array([np.mean([metric.sentence_score(h, [r]).score for r in references]) for h in hypotheses])


def same(ours: torch.Tensor, theirs: list[torch.Tensor], pad: int = 5) -> None:
    """Sequences are equal, apart from the padding, and no longer than they need to be."""
    assert len(ours) == len(theirs)
    assert bool((ours[:, -1] != pad).any())
    for mine, other in zip(ours.tolist(), [row.tolist() for row in theirs], strict=True):
        longest = max(len(mine), len(other))
        assert mine + [pad] * (longest - len(mine)) == other + [pad] * (longest - len(other))


def test_the_ids_are_those_of_the_best_beam_hypothesis_by_brute_force(case: Case) -> None:
    torch.manual_seed(3)
    beams = case.beams(8)
    drawn = case.generate(**SAMPLING, num_return_sequences=64)
    best = []
    for number in range(2):
        mine = beams[8 * number : 8 * number + 8]
        samples = case.texts(drawn.split(64)[number])
        best.append(mine[int(expected(case.texts(mine), samples).argmax())])
    same(case.mbr(num_beams=8, num_references=64, prune=None), best)


def test_with_sampling_the_samples_are_the_hypotheses(case: Case) -> None:
    torch.manual_seed(4)
    drawn = case.generate(**SAMPLING, num_return_sequences=32)
    texts = [case.texts(part) for part in drawn.split(32)]
    best = [part[int(expected(own, own).argmax())] for part, own in zip(drawn.split(32), texts, strict=True)]
    same(case.mbr(4, do_sample=True, num_references=32, prune=None), best)


def test_a_forecast_lets_beam_hypotheses_in(case: Case) -> None:
    options: dict[str, Any] = {"num_beams": 64, "num_references": 32, "return_dict_in_generate": True}
    calls = [int(case.mbr(forecast=forecast, **options)["utility_calls"].sum()) for forecast in (0.0, 0.5)]
    assert calls[1] < calls[0]
    with pytest.raises(UserError, match="forecast -1: must be 0 or more, and finite"):
        case.mbr(forecast=-1, **options)


def test_the_folder_the_function_and_the_decoding_method_give_the_same_ids(case: Case) -> None:
    found = []
    method = partial(mbrace.mbr_generate, tokenizer=case.tokenizer)
    for generate in (
        partial(case.model.generate, **FOLDER, tokenizer=case.tokenizer),
        partial(mbrace.mbr_generate, case.model, tokenizer=case.tokenizer),
        partial(case.model.generate, custom_generate=method),
    ):
        torch.manual_seed(5)
        found.append(generate(**case.inputs, num_beams=4, num_references=32, max_new_tokens=6))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    given = case.inputs["input_ids"]
    if case.kind == "decoder-only":
        assert torch.equal(found[0][:, : given.shape[1]], given)
    else:
        assert found[0][:, 0].tolist() == [tiny_models.PAD] * 2  # what Marian starts from


def test_transformers_asks_before_it_runs_the_folder(case: Case) -> None:
    with pytest.raises(ValueError, match="trust_remote_code"):
        case.model.generate(**case.inputs, custom_generate=str(ROOT), trust_remote_code=False, tokenizer=case.tokenizer)


def test_the_best_few_come_with_what_they_are_worth(case: Case) -> None:
    options: dict[str, Any] = {"num_beams": 6, "num_references": 32, "prune": None}
    one = case.mbr(**options)
    out = case.mbr(return_dict_in_generate=True, num_return_sequences=3, **options)
    assert out.sequences.shape[0] == 6
    same(one, [out.sequences[0], out.sequences[3]])
    for first in (0, 3):
        worth = out.expected_utilities[first : first + 3].tolist()
        assert worth == sorted(worth, reverse=True)
    assert out.utility_calls.tolist() == [len(set(case.texts(rows))) * 32 for rows in case.beams(6).split(6)]


def test_nothing_is_drawn_for_a_race_that_is_over(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    sample = module.GenerateCall.sample

    def counted(self: Any, numbers: Any, count: int) -> Any:
        drawn.append(len(numbers) * count)
        return sample(self, numbers, count)

    monkeypatch.setattr(module.GenerateCall, "sample", counted)
    case.mbr(num_beams=4, num_references=64, prune=mbrace.Confidence(0.6))
    few, drawn[:] = sum(drawn), []
    case.mbr(num_beams=4, num_references=64, prune=None)
    assert sum(drawn) == 2 * 64 > few


def test_small_batches_of_rows_change_no_beam_and_keep_the_order(case: Case) -> None:
    def by_length(hypothesis: str, reference: str) -> float:
        return float(len(hypothesis)) + hypothesis.count("a") / 10  # needs no reference: samples do not matter

    options: dict[str, Any] = {"num_beams": 4, "num_references": 16, "prune": None, "utility": by_length}
    assert torch.equal(case.mbr(rows=1, **options), case.mbr(rows=256, **options))


def test_a_utility_gets_the_sources(case: Case) -> None:
    seen = set()

    class Seeing:
        name, schedule, needs_source = "seeing", (16,), True
        pairs = mbrace.ChrF().pairs

        def start(self, sentences: Any) -> Any:
            seen.update(sentence.source for sentence in sentences)
            return mbrace.ChrF().start(sentences)

    for sources in (None, ["eins", "zwei"]):
        case.mbr(num_beams=4, num_references=16, utility=Seeing(), sources=sources)
    assert seen == {"a b c", "d d", "eins", "zwei"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": None}, "tokenizer: missing"),
        ({"streamer": object()}, "streamer: not supported with MBR"),
        ({"num_references": 0}, "num_references 0: must be 1 or more"),
        ({"num_beams": 0}, "num_beams 0: must be 1 or more"),
        ({"rows": 0}, "rows 0: must be 1 or more"),
        ({"epsilon_cutoff": 2.0}, "epsilon_cutoff 2.0: must be between 0 and 1"),
        ({"sources": ["one"]}, "sources: 1 for 2 inputs"),
        ({"utility": "gone"}, "gone"),
        ({"input_ids": None, "attention_mask": None}, "inputs: missing"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_generated(
    options: dict[str, Any], message: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(case.model), "generate", None)
    with pytest.raises(UserError, match=message):
        case.mbr(**options)


def test_the_end_stays_where_padding_is_the_same_id() -> None:
    case = Case("decoder-only")
    case.model.generation_config.pad_token_id = 0
    out = case.mbr(num_beams=4, num_references=16, max_new_tokens=12)
    rows = {tuple(row) for row in case.beams(4, max_new_tokens=12).tolist()}
    for row in out.tolist():
        assert any(tuple(row) == other[: len(row)] for other in rows)
        assert 0 in row[3:] or len(row) == 3 + 12
    assert len(out[0]) == 3 + 12 or bool((out[:, -2] != 0).any())  # nothing follows the last end


def test_requirements_name_this_package() -> None:
    assert (ROOT / "custom_generate" / "requirements.txt").read_text() == f"mbrace>={mbrace.__version__}\n"
