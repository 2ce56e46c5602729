"""MBR as a decoding method of transformers: ids equal to a brute-force choice, in every way it can be called."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
import transformers
from sacrebleu.metrics import CHRF
from transformers import dynamic_module_utils

import mbrace
from mbrace.errors import UserError
from mbrace.models import mbr_generate as module

ROOT = Path(__file__).parent.parent
FOLDER: dict[str, Any] = {"custom_generate": str(ROOT), "trust_remote_code": True}
SAMPLING: dict[str, Any] = {"do_sample": True, "epsilon_cutoff": 0.02, "top_k": 0, "top_p": 1.0, "temperature": 1.0}
LENGTH: dict[str, Any] = {"max_new_tokens": 6}


def llama() -> Any:
    """A decoder-only model over four letters with random weights; padding is no output."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=6, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, pad_token_id=5,
        eos_token_id=0, bos_token_id=None, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.35)
    model.generation_config.suppress_tokens = [5]
    return model


class Case:
    """A model, its tokenizer and two inputs of different lengths."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.model = tiny_models.marian() if kind == "encoder-decoder" else llama()
        self.tokenizer = tiny_models.tokenizer(end=kind == "encoder-decoder")
        self.tokenizer.padding_side = "right" if kind == "encoder-decoder" else "left"
        self.inputs = dict(self.tokenizer(["a b c", "d d"], return_tensors="pt", padding=True))
        self.inputs.pop("token_type_ids", None)
        self.prompt = 1 if kind == "encoder-decoder" else self.inputs["input_ids"].shape[1]

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
    """Sequences are equal, apart from the padding."""
    assert len(ours) == len(theirs)
    for mine, other in zip(ours.tolist(), [row.tolist() for row in theirs], strict=True):
        longest = max(len(mine), len(other))
        assert mine + [pad] * (longest - len(mine)) == other + [pad] * (longest - len(other))


def test_the_ids_are_those_of_the_best_beam_hypothesis_by_brute_force(case: Case) -> None:
    torch.manual_seed(3)
    search: dict[str, Any] = {"num_beams": 8, "num_return_sequences": 8, "do_sample": False}
    beams = case.model.generate(**case.inputs, **LENGTH, **search)
    drawn = case.model.generate(**case.inputs, **LENGTH, **SAMPLING, num_return_sequences=64)
    best = []
    for number in range(2):
        mine = beams[8 * number : 8 * number + 8]
        samples = case.texts(drawn.split(64)[number])
        best.append(mine[int(expected(case.texts(mine), samples).argmax())])
    torch.manual_seed(3)
    options: dict[str, Any] = {"num_beams": 8, "num_references": 64, "prune": None, **LENGTH}
    same(mbrace.mbr_generate(case.model, **case.inputs, tokenizer=case.tokenizer, **options), best)


def test_a_forecast_lets_beam_hypotheses_in(case: Case) -> None:
    options: dict[str, Any] = {"num_beams": 64, "num_references": 32, "return_dict_in_generate": True, **LENGTH}
    calls = []
    for forecast in (0.0, 0.5):
        torch.manual_seed(3)
        found = mbrace.mbr_generate(case.model, **case.inputs, tokenizer=case.tokenizer, forecast=forecast, **options)
        calls.append(sum(map(int, found["utility_calls"])))
    assert calls[1] < calls[0]
    with pytest.raises(UserError, match="forecast -1: must be 0 or more, and finite"):
        mbrace.mbr_generate(case.model, **case.inputs, tokenizer=case.tokenizer, forecast=-1, **options)


def test_with_sampling_the_samples_are_the_hypotheses(case: Case) -> None:
    torch.manual_seed(4)
    drawn = case.model.generate(**case.inputs, **LENGTH, **SAMPLING, num_return_sequences=32)
    texts = [case.texts(part) for part in drawn.split(32)]
    best = [part[int(expected(own, own).argmax())] for part, own in zip(drawn.split(32), texts, strict=True)]
    torch.manual_seed(4)
    options: dict[str, Any] = {"do_sample": True, "num_references": 32, "prune": None, **LENGTH}
    same(mbrace.mbr_generate(case.model, **case.inputs, tokenizer=case.tokenizer, **options), best)


def test_the_folder_the_function_and_the_decoding_method_give_the_same_ids(case: Case) -> None:
    options: dict[str, Any] = {"num_beams": 4, "num_references": 32, **LENGTH}
    found = []
    method = partial(mbrace.mbr_generate, tokenizer=case.tokenizer)
    for generate in (
        partial(case.model.generate, **FOLDER, tokenizer=case.tokenizer),
        partial(mbrace.mbr_generate, case.model, tokenizer=case.tokenizer),
        partial(case.model.generate, custom_generate=method),
    ):
        torch.manual_seed(5)
        found.append(generate(**case.inputs, **options))
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
    options: dict[str, Any] = {"num_beams": 6, "num_references": 32, "num_return_sequences": 3, "prune": None}
    torch.manual_seed(6)
    one = mbrace.mbr_generate(
        case.model, **case.inputs, tokenizer=case.tokenizer, **{**options, "num_return_sequences": 1}, **LENGTH
    )
    torch.manual_seed(6)
    out = mbrace.mbr_generate(
        case.model, **case.inputs, tokenizer=case.tokenizer, return_dict_in_generate=True, **options, **LENGTH
    )
    assert out.sequences.shape[0] == 6
    same(one, [out.sequences[0], out.sequences[3]])
    for first in (0, 3):
        worth = out.expected_utilities[first : first + 3].tolist()
        assert worth == sorted(worth, reverse=True)
    assert out.utility_calls.tolist() == [len(set(case.texts(rows))) * 32 for rows in beams_of(case, 6)]


def beams_of(case: Case, count: int) -> tuple[torch.Tensor, ...]:
    found = case.model.generate(**case.inputs, num_beams=count, num_return_sequences=count, do_sample=False, **LENGTH)
    return found.split(count)


def test_nothing_is_drawn_for_a_race_that_is_over(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    sample = module.GenerateCall.sample

    def counted(self: Any, numbers: Any, count: int) -> Any:
        drawn.append(len(numbers) * count)
        return sample(self, numbers, count)

    monkeypatch.setattr(module.GenerateCall, "sample", counted)
    options: dict[str, Any] = {"num_beams": 4, "num_references": 64, **LENGTH}
    torch.manual_seed(7)
    mbrace.mbr_generate(case.model, **case.inputs, tokenizer=case.tokenizer, prune=mbrace.Confidence(0.6), **options)
    assert sum(drawn) < 2 * 64
    few, drawn[:] = sum(drawn), []
    mbrace.mbr_generate(case.model, **case.inputs, tokenizer=case.tokenizer, prune=None, **options)
    assert sum(drawn) == 2 * 64 > few


def test_small_batches_of_rows_change_no_beam_and_keep_the_order(case: Case) -> None:
    options: dict[str, Any] = {"num_beams": 4, "num_references": 16, "prune": None, **LENGTH}

    def by_length(hypothesis: str, reference: str) -> float:
        return float(len(hypothesis)) + hypothesis.count("a") / 10  # needs no reference: samples do not matter

    found = [
        mbrace.mbr_generate(
            case.model, **case.inputs, tokenizer=case.tokenizer, utility=by_length, rows=rows, **options
        )
        for rows in (1, 256)
    ]
    assert torch.equal(found[0], found[1])


def test_a_utility_gets_the_sources(case: Case) -> None:
    seen = set()

    class Seeing:
        name, schedule, needs_source = "seeing", (16,), True
        pairs = mbrace.ChrF().pairs

        def start(self, sentences: Any) -> Any:
            seen.update(sentence.source for sentence in sentences)
            return mbrace.ChrF().start(sentences)

    options: dict[str, Any] = {"num_beams": 4, "num_references": 16, **LENGTH}
    for sources in (None, ["eins", "zwei"]):
        mbrace.mbr_generate(
            case.model, **case.inputs, tokenizer=case.tokenizer, utility=Seeing(), sources=sources, **options
        )
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
        mbrace.mbr_generate(case.model, **{**case.inputs, "tokenizer": case.tokenizer, **options})


def test_the_end_stays_where_padding_is_the_same_id() -> None:
    case = Case("decoder-only")
    case.model.generation_config.pad_token_id = 0
    case.model.generation_config.suppress_tokens = None
    out = mbrace.mbr_generate(
        case.model, **case.inputs, tokenizer=case.tokenizer, num_beams=4, num_references=16, max_new_tokens=12
    )
    plain = case.model.generate(**case.inputs, num_beams=4, num_return_sequences=4, do_sample=False, max_new_tokens=12)
    rows = {tuple(row) for row in plain.tolist()}
    for row in out.tolist():
        assert any(tuple(row) == other[: len(row)] for other in rows)
        assert 0 in row[3:] or len(row) == 3 + 12


def test_requirements_name_this_package() -> None:
    assert (ROOT / "custom_generate" / "requirements.txt").read_text() == f"mbrace>={mbrace.__version__}\n"
