"""Marian without transformers: networks, folders and products are those of transformers and torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
import torch.nn.functional as F  # noqa: E402, N812

from mbrace.errors import UserError  # noqa: E402
from mbrace.models import marian  # noqa: E402
from mbrace.models.marian import ROWS, Weights  # noqa: E402
from mbrace.models.marian_network import (  # noqa: E402
    MarianNetwork,
    encode,
    forward,
    is_marian,
    read_network,
    sinusoids,
)
from mbrace.models.tokenizers import Vocabulary  # noqa: E402

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
