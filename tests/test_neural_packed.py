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

from mbrace.neural.batches import CHUNK
from mbrace.neural.comet import Comet
from mbrace.neural.encoder import Encoder, Readout
from mbrace.neural.packed import attend_by_length, attend_in_one_call, packed_network
from mbrace.neural.tokens import TokenBatch, Tokens

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
    tokens = Tokens(ids, np.array(lengths))
    return TokenBatch.copy(tokens, np.arange(len(lengths)), torch.device(device), pad=PAD)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("Bert", {}), ("Bert", {"hidden_act": "relu"}), ("Roberta", {}), ("XLMRoberta", {}), ("Camembert", {})],
)
@torch.inference_mode()
def test_hidden_states_are_those_of_the_modules(kind: str, options: dict[str, Any], device: str) -> None:
    """Also of a string that holds the padding token."""
    model = network(kind, **options).to(device, torch.float32 if device == "cpu" else torch.float16)
    rows = batch([21, 21, 20, 9, 9, 9, 8], device)
    assert rows.holds_pad.any()
    ours = packed_network(model)
    assert ours is not None
    tokens, tolerance = rows.packed(), 1e-5 if device == "cpu" else 0.05
    found = [torch.split(state, rows.host_lengths.tolist()) for state in ours(tokens)]
    for number, ids in enumerate(torch.split(tokens.ids, rows.host_lengths.tolist())):
        theirs = model(input_ids=ids[None], attention_mask=torch.ones_like(ids[None]), output_hidden_states=True)
        for layer, state in enumerate(theirs.hidden_states):
            torch.testing.assert_close(found[layer][number], state[0], atol=tolerance, rtol=10 * tolerance)


def test_other_networks_keep_their_modules() -> None:
    assert packed_network(network("RemBert")) is None
    assert packed_network(network("Bert").to(torch.bfloat16)) is None  # on a CPU


@NEEDS_GPU
@pytest.mark.parametrize("lengths", [[16, 9, 9, 3, 1], [150, 128, 70, 64, 5, 1], [1]])
def test_attention_in_one_call_is_that_of_each_length(lengths: list[int]) -> None:
    tokens = batch(lengths, "cuda").packed()
    qkv = torch.randn(sum(lengths), 3, 4, 32, device="cuda", dtype=torch.bfloat16)
    torch.testing.assert_close(attend_in_one_call(qkv, tokens), attend_by_length(qkv, tokens), atol=2e-2, rtol=2e-2)


def texts() -> list[str]:
    generator = random.Random(3)
    words = ["some", "Text", "[PAD]", "<pad>", "number", "ö", "x"]
    return [" ".join(generator.choices(words, k=generator.randint(0, 9))) for _ in range(24)]


READOUTS = [
    None,
    Readout("cls"),
    Readout("max", layer=1),
    Readout("avg", (0.5, 0.0, 0.25, 0.0)),
    Readout("last", layer=1),
]


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("kind", ["minilm-sparsemax", "xlmr-sparsemax", "bert-softmax-norm"])
def test_packed_strings_have_the_vectors_of_padded_ones(
    kind: str, readout: Readout | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For small and large batches, and chunks that are tokenised ahead; both as on a GPU, with mixed lengths."""
    made = tiny.make(tmp_path, kind)

    def encoder(batch_tokens: int) -> Encoder:
        found = Comet(made, device="cpu", batch_tokens=batch_tokens).encoder
        found.stream.pads, found.readout = True, readout or found.readout
        return found

    monkeypatch.setitem(CHUNK, "cuda", (8, 16))
    with monkeypatch.context() as patch:
        patch.setattr("mbrace.neural.encoder.packed_network", lambda model: None)
        padded = encoder(100)
        assert not padded.stream.packed
        expected = padded.embed(texts())
    assert len({tuple(row) for row in expected.round(decimals=4).tolist()}) > 18
    for batch_tokens in (60, 10_000):
        ours = encoder(batch_tokens)
        assert ours.stream.packed
        torch.testing.assert_close(ours.embed(texts()), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@torch.inference_mode()
def test_means_in_one_call_are_those_of_each_length(device: str) -> None:
    rows = batch([9, 9, 4, 3], device)
    states = [torch.randn(25, 8, device=device) for _ in range(4)]
    readout, tokens = Readout("avg", (0.5, 0.0, 0.25, 0.0)), rows.packed()
    found = readout._means(states, tokens.ids != PAD, tokens, rows.lengths)
    kept = [state.masked_fill((tokens.ids == PAD)[:, None], 0.0) for state in states]
    strings = torch.split(0.5 * kept[0] + 0.25 * kept[2], [9, 9, 4, 3])
    torch.testing.assert_close(found, torch.stack([string.mean(dim=0) for string in strings]))


def test_layers_above_the_last_one_that_is_read_are_not_computed(tmp_path: Path) -> None:
    encoder = Comet(tiny.make(tmp_path, "minilm-sparsemax"), device="cpu").encoder
    encoder.readout = Readout("avg", (0.5, 0.5, 0.0, 0.0))
    assert encoder._packed is not None
    computed = []
    attend = encoder._packed._attend
    encoder._packed._attend = lambda *given: computed.append(1) or attend(*given)  # type: ignore[func-returns-value]
    encoder.embed(["one"])
    assert len(computed) == 1
