"""COMET-22's shape with random weights, and the loops it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from speed_only import Table, decided_by
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from mbrace.neural.encoder import Encoder
from mbrace.neural.head import Estimator
from mbrace.neural.scorer import NeuralUtility, RaceScorer
from mbrace.utility import Sentence


class SpeedOnlyComet(NeuralUtility):
    """Runs mbrace's encoder and head in full, but returns the scores of the tables."""

    name, needs_source = "speed only", True

    def __init__(self, encoder: Encoder, head: Estimator, tables: Mapping[Any, Table]) -> None:
        self.encoder, self.head, self._tables = encoder, head, tables

    def start(self, sentences: Sequence[Sentence]) -> RaceScorer:
        """The usual scorer, whose scores are replaced by those of the tables."""
        scorer: RaceScorer = decided_by(self._tables, super().start(sentences), sentences)
        return scorer


def estimate(head: Estimator, src: torch.Tensor, mt: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """comet/models/regression/regression_metric.py `estimate`, unchanged."""
    diff_ref, diff_src = torch.abs(mt - ref), torch.abs(mt - src)
    prod_ref, prod_src = mt * ref, mt * src
    hidden = torch.cat((mt, ref, prod_ref, diff_ref, prod_src, diff_src), dim=1)
    for position, (weight, bias) in enumerate(head.layers):
        hidden = torch.nn.functional.linear(hidden, weight, bias)
        if position < len(head.layers) - 1:
            hidden = torch.tanh(hidden)
    return hidden.view(-1)


def in_batches(
    head: Estimator,
    h: torch.Tensor,
    r: torch.Tensor,
    s: torch.Tensor,
    at_a_time: int,
    dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """All pairs through `estimate`: comet/cli/mbr.py gives it one hypothesis at a time, larger batches do better."""
    if dtype is not None:
        layers = [(weight.to(dtype), bias.to(dtype)) for weight, bias in head.layers]
        head, (h, r, s) = Estimator(layers, head.units, head.activation), (x.to(dtype) for x in (h, r, s))
    scores = []
    for part in h.split(at_a_time):
        mt, ref = part.repeat_interleave(len(r), 0), r.repeat(len(part), 1)
        scores.append(estimate(head, s.expand(len(mt), -1), mt, ref))
    return [torch.cat(scores)]


def make_tokenizer(texts: Sequence[str]) -> Any:
    """A unigram tokenizer trained here on the candidates, with XLM-R's special tokens: realistic token counts."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=2000, special_tokens=specials, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(texts[:: max(1, len(texts) // 5000)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def make_config(tiny: bool) -> Any:
    """XLM-R-large's shape, or a rehearsal's."""
    shape = {"vocab_size": 250002, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    if tiny:
        shape = {"vocab_size": 3000, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = 4 if tiny else 16
    return transformers.XLMRobertaConfig(
        **shape, num_attention_heads=heads, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
    )
