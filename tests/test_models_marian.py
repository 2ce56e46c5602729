"""Marian without transformers: networks, folders and products are those of transformers and torch; its cache."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stand_in_kernels
import torch
import torch.nn.functional as F  # noqa: N812
import transformers

from mbrace.errors import UserError
from mbrace.models import marian
from mbrace.models.kv_cache import Attend, CopiedCache, IndexedCache, attend_on_cpu, cache_for
from mbrace.models.marian import ROWS, Weights
from mbrace.models.marian_network import MarianNetwork, encode, forward, is_marian, read_network, sinusoids
from mbrace.models.tokenizers import Vocabulary

SHAPE: dict[str, Any] = {"vocab_size": 40, "d_model": 16, "max_position_embeddings": 32, "init_std": 0.5}
SHAPE |= {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
SHAPE |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "pad_token_id": 29, "decoder_start_token_id": 29}


@pytest.mark.parametrize(
    "settings",
    [
        {"activation_function": "swish", "scale_embedding": True},
        {"activation_function": "gelu", "max_position_embeddings": 50},
        {"activation_function": "relu", "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 30},
    ],
)
def test_a_network_in_a_folder_is_read_as_transformers_reads_it(tmp_path: Path, settings: dict[str, Any]) -> None:
    torch.manual_seed(3)
    theirs = transformers.MarianMTModel(transformers.MarianConfig(**SHAPE | settings, bos_token_id=None)).eval()
    theirs.final_logits_bias.normal_()
    theirs.generation_config.bad_words_ids = [[29]]
    theirs.save_pretrained(tmp_path)
    ours = read_network(tmp_path)
    assert ours.generation_config.bad_words_ids == [[29]]
    assert torch.equal(ours.final_logits_bias, theirs.final_logits_bias)
    source, target = torch.randint(1, 29, (3, 7)), torch.randint(1, 29, (3, 5))
    source[1, 4:] = 29
    for mine, other in zip(encode(ours, source, pad=29), encode(theirs, source, pad=29), strict=True):
        assert torch.equal(mine, other)
    assert torch.equal(forward(ours, source, target, pad=29), forward(theirs, source, target, pad=29))


def test_position_embeddings_are_transformers_to_the_last_bit() -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding as Positions

    for length, width in ((512, 320), (1024, 512), (64, 16)):
        assert torch.equal(sinusoids(length, width), torch.as_tensor(Positions(length, width).create_weight()))


def test_a_network_that_is_saved_is_read_by_transformers_and_by_us(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = MarianNetwork.random(SHAPE, {"bad_words_ids": [[29]]})
    network.save(tmp_path)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    ours = read_network(tmp_path)
    assert theirs.generation_config.bad_words_ids == ours.generation_config.bad_words_ids == [[29]]
    for name, weight in network.state_dict().items():
        assert torch.equal(weight, ours.state_dict()[name])
        assert torch.equal(weight, theirs.state_dict()[name])
    assert ours.lm_head.weight is ours.model.encoder.embed_tokens.weight is ours.model.decoder.embed_tokens.weight


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    MarianNetwork.random(SHAPE, {}).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name, value, message in (
        ("decoder_layers", 3, r"missing weights \(model.decoder.layers.2"),
        ("d_model", 18, r"has shape \(.*16\), not .*; its settings do not fit"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | {name: value}))
        with pytest.raises(UserError, match=message):
            read_network(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match=r"model\.safetensors: cannot be read as weights"):
        read_network(tmp_path)


def test_a_folder_is_ours_to_read_only_with_all_of_its_files(tmp_path: Path) -> None:
    MarianNetwork.random(SHAPE, {}).save(tmp_path)
    assert not is_marian(tmp_path)
    Vocabulary.train(["a b c d"] * 9, 300).save(tmp_path)
    assert is_marian(tmp_path)
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps(settings | {"forced_bos_token_id": 3}))
    assert not is_marian(tmp_path)  # outputs that begin with a language are transformers'


def test_the_bundled_translator_needs_no_transformers() -> None:
    program = (
        "import sys, mbrace\n"
        "answers = list(mbrace.Seq2Seq(device='cpu').translate(['Guten Morgen.'], beam=4, schedule=[4]))\n"
        "heavy = ('transformers', 'torch._dynamo', 'huggingface_hub', 'scipy')\n"
        "loaded = [name for name in heavy if name in sys.modules]\n"
        "print(answers[0].text, loaded)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "Good morning. []\n"


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor of AMD's."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("oneDNN is not there")
    monkeypatch.setattr(marian, "prefers_onednn", lambda: True)


@pytest.mark.usefixtures("amd")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (2, 8), (ROWS, 40), (ROWS + 1, 40), (3, 5, 40), (0, 8), (4, 0, 8)])
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_torchs(dtype: Any, shape: tuple[int, ...], biased: bool) -> None:
    weight, x = torch.randn(70, shape[-1]).to(dtype), torch.randn(shape).to(dtype)
    bias = torch.randn(70).to(dtype) if biased else None
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    found = Weights(weight, bias).product(x)
    assert (found.dtype, found.shape) == (dtype, wanted.shape)
    assert found.is_contiguous()
    torch.testing.assert_close(found, wanted.to(dtype))


@pytest.mark.usefixtures("amd")
def test_a_row_has_the_same_bits_in_any_batch() -> None:
    weights, x = Weights(torch.randn(320, 320), torch.randn(320)), torch.randn(200, 320)
    whole = weights.product(x)
    for begin, end in ((0, 1), (5, 7), (100, 117), (0, 199)):
        assert torch.equal(weights.product(x[begin:end]), whole[begin:end])


@pytest.mark.usefixtures("amd")
def test_rows_in_16_bits_are_multiplied_as_torch_does() -> None:
    weights, x = Weights(torch.randn(9, 6), torch.randn(9)), torch.randn(5, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = F.linear(x.bfloat16(), weights.weight, weights.bias)
        assert torch.equal(weights.product(x.bfloat16()), wanted)


# keys and values of earlier time steps

CPU = torch.device("cpu")
# sizes of a head: what the kernel reads 64 numbers at a time, 16, one, or all three
HEADS = [(2, 6), (1, 16), (3, 64), (2, 128), (2, 87)]


@pytest.mark.parametrize("by", [stand_in_kernels.attend, attend_on_cpu])
@pytest.mark.parametrize("shape", HEADS)
def test_rows_keep_their_past_when_they_are_selected_repeated_and_dropped(by: Attend, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(shape[1])
    copied, indexed = CopiedCache(torch.float32, 2), IndexedCache(torch.float32, 2, by, shape, CPU)
    rows = 3
    for time in range(72):
        indexed.make_room(time, rows)
        for layer in range(2):
            new = torch.randn(rows, 3, *shape, generator=generator)
            torch.testing.assert_close(indexed.attend(layer, new), copied.attend(layer, new), atol=1e-5, rtol=1e-5)
        copied.advance(), indexed.advance()
        if time % 3 != 2:
            wanted = 12 if time == 0 else int(torch.randint(2, 70, (), generator=generator))
            chosen = torch.randint(0, rows, (wanted,), generator=generator)
            copied.select(chosen), indexed.select(chosen)
            rows = wanted


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_cpu_the_past_of_a_network_of_16_bits_has_32(dtype: torch.dtype, shared: bool) -> None:
    past = cache_for(CPU, dtype, 1, (2, 6), shared=shared)
    exact = CopiedCache(torch.float64, 1)
    for time in range(20):
        new = torch.randn(4, 3, 2, 6).to(dtype)
        past.make_room(time, 4)
        found, expected = past.attend(0, new), exact.attend(0, new.double())
        assert found.dtype == dtype
        assert torch.equal(found, expected.float().to(dtype)) or torch.allclose(found.double(), expected, rtol=2**-8)
        past.advance(), exact.advance()
        past.select(torch.tensor([1, 0, 2, 2])), exact.select(torch.tensor([1, 0, 2, 2]))


def test_the_past_is_copied_only_where_no_kernel_can_read_it_or_no_rows_share_it() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert isinstance(cache_for(CPU, dtype, 1, (2, 6), shared=True), IndexedCache)
        assert isinstance(cache_for(CPU, dtype, 1, (2, 6), shared=False), CopiedCache)
    assert isinstance(cache_for(CPU, torch.float64, 1, (2, 6), shared=True), CopiedCache)
