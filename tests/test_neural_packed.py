"""Strings without padding by GPU kernels: on a GPU, or on a CPU in Triton's interpreter (`make fused`)."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mbrace.neural import encoder as encoder_module
from mbrace.neural import packed
from mbrace.neural.comet import Comet
from mbrace.neural.encoder import Encoder
from mbrace.neural.pinned import copy_to_device
from mbrace.neural.readout import Readout
from mbrace.neural.tokens import TokenBatch, Tokens

sys.path.insert(0, str(Path(__file__).parent / "oracle"))
import tiny

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or Triton and TRITON_INTERPRET=1 (make fused)", allow_module_level=True)
pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore:text over the metric's limit")
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")

# The interpreter computes bfloat16 in ways of its own; float16 shares its code path.
HALF = torch.float16 if INTERPRETED else torch.bfloat16
TOLERANCE = 2e-2 if INTERPRETED else 8e-2  # of a network's states
PAD = 0
LENGTHS = {
    "short": [16, 9, 9, 3, 1],
    "middle": [64, 33, 32, 31, 17, 1, 1],
    "long": [150, 128, 70, 64, 5, 1],
    "one": [1],
}


def batch(lengths: list[int]) -> TokenBatch:
    """Strings of random ids, of which some are the padding id."""
    ids = np.random.default_rng(len(lengths)).integers(0, 6, sum(lengths)).astype(np.int32)
    return TokenBatch.copy(Tokens(ids, np.array(lengths)), np.arange(len(lengths)), DEVICE, pad=PAD)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (HALF, 2e-2)])
@pytest.mark.parametrize("size", [32, 24, 8])
@pytest.mark.parametrize("name", LENGTHS)
def test_attention_within_strings_is_that_of_each_string_alone(
    name: str, size: int, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(size)
    lengths, heads = LENGTHS[name], 2
    tokens = batch(lengths).packed()
    qkv = torch.randn(sum(lengths), 3, heads, size, device=DEVICE).to(dtype)
    found = packed.attend_within(qkv, tokens.offsets, tokens.longest)
    assert found.dtype == dtype
    for part, own in zip(torch.split(qkv, lengths), torch.split(found, lengths), strict=True):
        q, k, v = (each.transpose(0, 1)[None] for each in part.unbind(1))
        expected = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1)
        torch.testing.assert_close(own, expected, atol=tolerance, rtol=tolerance)


def test_copies_through_memory_that_is_used_again_arrive_whole() -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.integers(0, 2**31, size) for size in (1, 70_000, 0, 2_000_000, *range(5, 60), 1_500_000)]
    found = [
        copy_to_device([array[:3].astype(np.int32), array[3:]], DEVICE) for array in arrays
    ]  # on a GPU, without waiting
    for there, array in zip(found, arrays, strict=True):
        assert there.dtype == torch.int64
        assert np.array_equal(there.cpu().numpy(), array)


def padded(states: Tensor, rows: TokenBatch) -> Tensor:
    """States (strings, longest, units), padded with numbers that must not be read."""
    grid = states.new_full((len(rows), rows.longest, states.shape[1]), 99.0)
    grid[rows.attended()] = states
    return grid


@pytest.mark.parametrize("readout", [
    Readout("avg"), Readout("avg", layer=1), Readout("avg", (0.5, 0.0, -2.0)), Readout("avg", (0.5, 0.25, 0.0)),
    Readout("cls"), Readout("last", (0.5, 0.25, 0.75)),
])  # fmt: skip
@pytest.mark.parametrize("units", [24, 384])
@pytest.mark.parametrize("name", LENGTHS)
def test_packed_states_are_read_as_padded_ones(name: str, units: int, readout: Readout) -> None:
    torch.manual_seed(units)
    rows = batch(LENGTHS[name])
    assert rows.holds_pad.any() or len(rows) == 1
    tokens = rows.packed()
    layers = [torch.randn(rows.count, units, device=DEVICE).to(HALF) for _ in range(3)]
    kept = (rows.ids() != PAD) & rows.attended()
    expected = readout([padded(states, rows) for states in layers], kept, rows.lengths)
    found = readout.packed(iter(layers), 3, tokens, pad=PAD)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_layers_above_the_last_one_that_is_read_are_not_computed() -> None:
    rows, computed = batch([3, 2]), []

    def states() -> Any:
        for layer in range(4):
            computed.append(layer)
            yield torch.ones(rows.count, 8, device=DEVICE, dtype=HALF)

    Readout("avg", (0.5, 0.5, 0.0, 0.0)).packed(states(), 4, rows.packed(), pad=PAD)
    assert computed == [0, 1]


def test_readouts_of_whole_grids_are_not_for_packed_states() -> None:
    assert not Readout("max").reads_packed
    assert not Readout("avg", (0.5, 0.5), layer_norm=True).reads_packed


def test_the_trial_passes_here_and_finds_wrong_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packed.trial(DEVICE, HALF, 2, 24)
    right = packed.attend_within
    monkeypatch.setattr(packed, "attend_within", lambda qkv, *others: right(qkv.flip(1), *others))
    assert not packed.trial(DEVICE, HALF, 2, 24)


def texts() -> list[str]:
    generator = random.Random(3)
    words = ["some", "Text", "[PAD]", "number", "ö", "x"]
    return [" ".join(generator.choices(words, k=generator.randint(0, 9))) for _ in range(24)]


def tiny_encoder(folder: Path, kind: str, readout: Readout | None = None) -> Encoder:
    """A tiny BERT in 16 bits that takes a GPU's way, even on a CPU."""
    encoder = Comet(tiny.make(folder, kind), device=DEVICE.type, dtype=str(HALF).removeprefix("torch.")).encoder
    encoder.pads, encoder.readout = True, readout or encoder.readout
    return encoder


def usable_anywhere(*_: object) -> bool:
    return True


@pytest.mark.parametrize(
    "readout", [None, Readout("cls"), Readout("last", layer=1), Readout("avg", (0.5, 0.0, 0.25, 0.0))]
)
@pytest.mark.parametrize("batch_tokens", [60, 10_000])
def test_an_encoder_gives_packed_strings_the_vectors_of_padded_ones(
    readout: Readout | None, batch_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "usable", lambda *_: False)
    expected = tiny_encoder(tmp_path / "padded", "minilm-sparsemax", readout).embed(texts())
    monkeypatch.setattr(encoder_module, "usable", usable_anywhere)
    monkeypatch.setattr(encoder_module, "_FIRST_TOKENISED", 16)
    encoder = tiny_encoder(tmp_path / "packed", "minilm-sparsemax", readout)
    encoder.batch_tokens = batch_tokens
    found = encoder.embed(texts())
    assert encoder._fuses
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=2e-2)
    assert len({tuple(row) for row in found.tolist()}) > 18  # strings differ by more than the tolerance allows
    assert (expected[:, None] - expected[None]).abs().amax(-1).median() > 0.1


@pytest.mark.parametrize("kind", ["bert-softmax-norm", "xlmr-sparsemax"])
def test_other_readouts_and_networks_are_padded(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "usable", usable_anywhere)
    encoder = tiny_encoder(tmp_path, kind)
    encoder.embed(texts())
    assert not encoder._fuses


def test_kernels_that_do_not_work_leave_strings_padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no C compiler")

    expected = tiny_encoder(tmp_path / "a", "minilm-sparsemax").embed(texts())
    packed.usable.cache_clear()
    monkeypatch.setattr(packed, "launch", fails)
    monkeypatch.setattr(packed, "supports_triton", lambda _: True)
    encoder = tiny_encoder(tmp_path / "b", "minilm-sparsemax")
    found = encoder.embed(texts())
    packed.usable.cache_clear()
    assert not encoder._fuses
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=2e-2)


def test_without_memory_for_a_packed_batch_it_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "usable", usable_anywhere)
    encoder = tiny_encoder(tmp_path, "minilm-sparsemax")
    expected, forward = encoder.embed(texts()), encoder._forward

    def small_only(rows: TokenBatch) -> Tensor:
        if len(rows) > 6:
            raise torch.cuda.OutOfMemoryError("no room")
        return forward(rows)

    monkeypatch.setattr(encoder, "_forward", small_only)
    with pytest.warns(UserWarning, match="out of memory"):
        found = encoder.embed(texts())
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=2e-2)
    lengths = sorted(map(len, encoder.tokenize(texts())), reverse=True)
    assert encoder.batch_tokens == sum(lengths[12:18])  # 24 strings, 12, then 6, which fit, twice
