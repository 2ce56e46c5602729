"""Models so small that everything they can say is enumerable, with tokenizers made on the spot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

LETTERS = ["a", "b", "c", "d"]
EOS, PAD = 0, 5  # ids: </s> 0, the letters 1 to 4, <pad> 5
SHAPE: dict[str, Any] = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2}
HEADS: dict[str, Any] = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
FEET: dict[str, Any] = {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64}


def tokenizer(words: list[str] | None = None, *, extra: list[str] | None = None, end: bool = True) -> Any:
    """Words to ids from 1 on; </s> is 0 (appended with `end`), <pad> comes after the words, `extra` after it."""
    names = ["</s>", *(words or LETTERS), "<pad>", *(extra or [])]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if end:
        made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="<pad>")


def marian(*, seed: int = 0, sharpness: float = 3.0, heads: int = 2, units: int = 16) -> Any:
    """A Marian model over four letters with random weights, its distributions far from flat."""
    torch.manual_seed(seed)
    config = transformers.MarianConfig(
        vocab_size=6,
        decoder_vocab_size=6,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        scale_embedding=True,
        activation_function="swish",
        dropout=0.0,
        **(SHAPE | {"d_model": units}),
        **HEADS,
        **FEET,
    )
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.35)
        model.model.shared.weight.mul_(sharpness / 3)
        model.final_logits_bias[0, PAD] = -torch.inf  # padding is no output, for us and for transformers
    model.generation_config.bad_words_ids = None
    model.generation_config.forced_eos_token_id = None
    return model


def sharpen(kind: Any, config: Any, *, seed: int = 0, std: float = 0.2) -> Any:
    """A model of random weights far from flat distributions, and only the letters and </s> as outputs."""
    torch.manual_seed(seed)
    model = kind(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=std if "embed" in name or "shared" in name or "wte" in name else 0.3)
    size = model.get_output_embeddings().weight.shape[0]
    model.generation_config.suppress_tokens = list(range(PAD, size))
    model.generation_config.forced_eos_token_id = None
    return model.eval()


def llama() -> Any:
    """A decoder-only model over four letters."""
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, eos_token_id=EOS, bos_token_id=None, pad_token_id=PAD,
    )  # fmt: skip
    return sharpen(transformers.LlamaForCausalLM, config, seed=4)


def distribution(
    following: Callable[[tuple[int, ...]], Any], longest: int, keep: Callable[[Any], Any] | None = None
) -> dict[tuple[int, ...], tuple[float, float]]:
    """Every output of at most `longest` ids with its probability under the truncation, and its full log-probability.

    `following(ids)` gives the logits after some ids; `keep(probabilities)` zeroes those that must not be drawn.
    """
    out: dict[tuple[int, ...], tuple[float, float]] = {}

    def walk(ids: tuple[int, ...], p: float, logp: float) -> None:
        if ids and (ids[-1] == EOS or len(ids) == longest):
            out[ids] = (p, logp)
            return
        full = torch.softmax(following(ids).double(), dim=-1)
        allowed = full if keep is None else keep(full.clone())
        allowed = allowed / allowed.sum()
        for number in range(len(full)):
            if float(full[number]) > 1e-12:
                walk((*ids, number), p * float(allowed[number]), logp + math.log(float(full[number])))

    walk((), 1.0, 0.0)
    return out


def text_of(ids: tuple[int, ...]) -> str:
    """How the tokenizer reads ids."""
    return " ".join(LETTERS[number - 1] for number in itertools.takewhile(lambda n: n != EOS, ids) if 1 <= number <= 4)


def chi_square_fits(counts: dict[str, int], expected: dict[str, float], draws: int) -> bool:
    """Pearson's test at four standard deviations (Wilson & Hilferty); cells expecting under 5 are pooled."""
    assert set(counts) <= set(expected), "drawn, but impossible"
    cells = [(counts.get(name, 0), p * draws) for name, p in expected.items()]
    large = [cell for cell in cells if cell[1] >= 5]
    small = [cell for cell in cells if cell[1] < 5]
    large.append((sum(c for c, _ in small), max(1e-9, sum(e for _, e in small))))
    statistic = sum((count - mean) ** 2 / mean for count, mean in large if mean > 1e-6)
    freedom = len([1 for _, mean in large if mean > 1e-6]) - 1
    return statistic < freedom * (1 - 2 / (9 * freedom) + 4 * math.sqrt(2 / (9 * freedom))) ** 3
