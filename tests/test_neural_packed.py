"""Strings without padding: a network over packed tokens against transformers' modules, and an encoder that uses it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import transformers

from mbrace.neural import encoder as encoder_module
from mbrace.neural import packed
from mbrace.neural.comet import Comet
from mbrace.neural.encoder import Encoder, Readout
from mbrace.neural.packed import attend_by_length, attend_in_one_call, packed_network
from mbrace.neural.tokens import TokenBatch, Tokens, copy_to_device

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
pytestmark = pytest.mark.filterwarnings("ignore:text over the metric's limit")
PAD = 1  # of the tiny networks
SHAPE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}


def network(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=90, max_position_embeddings=60, pad_token_id=PAD, **SHAPE, **options
    )
    return getattr(transformers, f"{kind}Model")(config).eval()


def batch(lengths: list[int], device: str = "cpu") -> TokenBatch:
    """Strings of random ids, of which some are the padding id."""
    ids = np.random.default_rng(len(lengths)).integers(0, 6, sum(lengths)).astype(np.int32)
    return TokenBatch.copy(Tokens(ids, np.array(lengths)), np.arange(len(lengths)), torch.device(device), pad=PAD)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("Bert", {}), ("Bert", {"hidden_act": "relu"}), ("Roberta", {}), ("XLMRoberta", {}), ("Camembert", {})],
)
@torch.inference_mode()
def test_hidden_states_are_those_of_the_modules(kind: str, options: dict[str, Any]) -> None:
    """Bit by bit, where there are enough rows: also of a string that holds the padding token."""
    model = network(kind, **options)
    rows = batch([21, 21, 20, 9, 9, 9, 8])
    assert rows.holds_pad.any()
    ours = packed_network(model)
    assert ours is not None
    tokens = rows.packed()
    found = [torch.split(state, rows.host_lengths.tolist()) for state in ours(tokens)]
    for number, ids in enumerate(torch.split(tokens.ids, rows.host_lengths.tolist())):
        theirs = model(input_ids=ids[None], attention_mask=torch.ones_like(ids[None]), output_hidden_states=True)
        for layer, state in enumerate(theirs.hidden_states):
            torch.testing.assert_close(found[layer][number], state[0], atol=1e-5, rtol=1e-4)


def test_networks_that_differ_in_any_way_keep_their_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packed_network(network("RemBert")) is None
    assert packed_network(network("Bert").to(torch.bfloat16)) is None  # on a CPU
    attention = {"wrong": lambda qkv, tokens: attend_by_length(qkv.flip(1), tokens), "failing": None}
    for attend in attention.values():
        monkeypatch.setattr(packed, "attention_for", lambda *_, attend=attend: attend)
        assert packed_network(network("Bert")) is None


@torch.inference_mode()
def test_compiled_layers_give_the_same_states_or_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = packed_network(network("Bert"))
    assert ours is not None
    tokens = batch([9, 4, 4]).packed()
    expected = list(ours(tokens))
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    ours.compile()
    for found, state in zip(ours(tokens), expected, strict=True):
        torch.testing.assert_close(found, state, atol=1e-6, rtol=1e-5)
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: None)  # calling it fails
    ours.compile()
    assert all(map(torch.equal, ours(tokens), expected))


@NEEDS_GPU
@pytest.mark.parametrize("lengths", [[16, 9, 9, 3, 1], [150, 128, 70, 64, 5, 1], [1]])
def test_attention_in_one_call_is_that_of_each_length(lengths: list[int]) -> None:
    tokens = batch(lengths, "cuda").packed()
    qkv = torch.randn(sum(lengths), 3, 4, 32, device="cuda", dtype=torch.bfloat16)
    torch.testing.assert_close(attend_in_one_call(qkv, tokens), attend_by_length(qkv, tokens), atol=2e-2, rtol=2e-2)


@NEEDS_GPU
def test_copies_to_a_gpu_arrive_whole() -> None:
    arrays = [np.random.default_rng(0).integers(0, 2**31, size) for size in (1, 70_000, 0, 2_000_000, *range(5, 60))]
    found = [copy_to_device([array[:3].astype(np.int32), array[3:]], torch.device("cuda")) for array in arrays]
    assert all(np.array_equal(there.cpu().numpy(), array) for there, array in zip(found, arrays, strict=True))


def texts() -> list[str]:
    generator = random.Random(3)
    words = ["some", "Text", "[PAD]", "<pad>", "number", "ö", "x"]
    return [" ".join(generator.choices(words, k=generator.randint(0, 9))) for _ in range(24)]


def as_on_a_gpu(folder: Path, kind: str, readout: Readout | None = None) -> Encoder:
    """A tiny encoder that takes a GPU's way on a CPU."""
    encoder = Comet(tiny.make(folder, kind), device="cpu").encoder
    encoder.pads, encoder.readout = True, readout or encoder.readout
    return encoder


@pytest.mark.parametrize(
    "readout",
    [None, Readout("cls"), Readout("max", layer=1), Readout("avg", (0.5, 0.0, 0.25, 0.0)), Readout("last", layer=1)],
)
@pytest.mark.parametrize("kind", ["minilm-sparsemax", "xlmr-sparsemax", "bert-softmax-norm"])
def test_packed_strings_have_the_vectors_of_padded_ones(
    kind: str, readout: Readout | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For small and large batches, means taken per length or in one call, and chunks that are tokenised ahead."""
    padded = as_on_a_gpu(tmp_path, kind, readout)
    with monkeypatch.context() as patch:
        patch.setattr(encoder_module, "packed_network", lambda model: None)
        expected = padded.embed(texts())
    assert len({tuple(row) for row in expected.round(decimals=4).tolist()}) > 18
    monkeypatch.setitem(encoder_module._TOKENISED, "cuda", (8, 16))
    for most_lengths, batch_tokens in ((0, 60), (100, 10_000), (0, 10_000)):
        monkeypatch.setattr(encoder_module, "_MOST_LENGTHS", most_lengths)
        encoder = as_on_a_gpu(tmp_path, kind, readout)
        encoder.batch_tokens = batch_tokens
        torch.testing.assert_close(encoder.embed(texts()), expected, atol=2e-5, rtol=1e-4)
        assert encoder._packed is not None


def test_layers_above_the_last_one_that_is_read_are_not_computed(tmp_path: Path) -> None:
    encoder = as_on_a_gpu(tmp_path, "minilm-sparsemax", Readout("avg", (0.5, 0.5, 0.0, 0.0)))
    assert encoder._packed is not None
    computed = []
    finish = encoder._packed._finish
    encoder._packed._finish = lambda *given: computed.append(1) or finish(*given)
    encoder.embed(["one"])
    assert len(computed) == 1


@pytest.mark.parametrize("pads", [False, True])
def test_without_memory_for_a_packed_batch_it_is_halved(
    pads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = as_on_a_gpu(tmp_path, "minilm-sparsemax")
    encoder.pads = pads
    expected, forward = encoder.embed(texts()), encoder._forward

    def small_only(rows: TokenBatch) -> torch.Tensor:
        if len(rows) > 6:
            raise torch.cuda.OutOfMemoryError("no room")
        return forward(rows)

    monkeypatch.setattr(encoder, "_forward", small_only)
    with pytest.warns(UserWarning, match="out of memory") as caught:
        found = encoder.embed(texts())
    assert len(caught) == 1
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    lengths = sorted(map(len, encoder.tokenize(texts())), reverse=True)
    assert encoder.batch_tokens == sum(lengths[12:18])  # 24 strings, 12, then 6, which fit, twice
