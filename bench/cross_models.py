"""For bench/cross.py: networks of random weights in the shapes of MetricX-24-Large and XCOMET-XL, and mbrs's loops.

The loops are written here in plain transformers and torch after mbrs 0.1.8 (mbrs/metrics/metricx.py, xcomet.py: its
batch size of 8, one sentence at a time, pairs in the order of the lists, padded to the longest of the batch), because
mbrs pins other versions of both. Its Python walk over the labels of error spans is left out, in its favour.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from mbrace.cross import mt5
from mbrace.cross.metricx import MetricX
from mbrace.cross.xcomet import XCOMET, XCOMETNetwork
from mbrace.neural.batches import BatchStream
from mbrace.neural.encoder import Readout
from mbrace.neural.head import FeedForward
from mbrace.neural.tokens import TokenBatch

BATCH = 8  # mbrs's


def load_tokenizer(path: Path) -> Any:
    """XLM-R's vocabulary, for both networks: mT5's is as large."""
    tokens = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **tokens)


class RandomWeights(Mapping[str, torch.Tensor]):
    """Weights of given shapes, made when asked for: the network keeps its own copy."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype) -> None:
        self.shapes, self.device, self.dtype = shapes, device, dtype

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self.shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, device=self.device, dtype=self.dtype)
        return torch.randn(shape, device=self.device, dtype=self.dtype) * 0.02

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class CountingStream(BatchStream):
    """Counts what goes through the network."""

    counts = np.zeros(3, dtype=np.int64)  # inputs, their tokens, and their tokens with padding

    def _outputs(self, batch: TokenBatch, forward: Any) -> Any:
        self.counts = self.counts + np.array([len(batch), batch.count, len(batch) * batch.longest])
        return super()._outputs(batch, forward)


class MetricXLarge:
    """MetricX-24-Large's shape: mT5-large, encoder and decoder."""

    name = "MetricX-24-Large"

    def __init__(self, tokenizer: Any, device: torch.device, dtype: torch.dtype, *, tiny: bool) -> None:
        sizes = (16, 4, 24, 4, 2, 2) if tiny else (1024, 64, 2816, 16, 24, 24)
        names = ("d_model", "d_kv", "d_ff", "num_heads", "num_layers", "num_decoder_layers")
        fixed: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
        self.config = transformers.MT5Config(vocab_size=250112, **dict(zip(names, sizes, strict=True)), **fixed)
        self.device, self.dtype, self.tokenizer = device, dtype, tokenizer
        weights = RandomWeights(mt5.weight_shapes(self.config), device, dtype)
        network = mt5.MT5Network(self.config, weights, device, dtype)
        self.utility = object.__new__(MetricX)
        stream = CountingStream(pad=tokenizer.pad_token_id, limit=1535, device=device)
        self.utility._assemble("metricx-24|random", "24", False, network, tokenizer, stream)

    def linear_flops(self) -> float:
        """Of one token: two for each weight of the encoder. The decoder's are a thousandth and not counted."""
        config = self.config
        inner = config.num_heads * config.d_kv
        return 2.0 * config.num_layers * config.d_model * (4 * inner + 3 * config.d_ff)

    def attention_flops(self) -> float:
        """Of one token, for each token that it attends to."""
        return 4.0 * self.config.num_layers * self.config.num_heads * self.config.d_kv

    def peer(self) -> Any:
        """transformers' own network, as mbrs runs it."""
        with self.device:
            return transformers.MT5ForConditionalGeneration(self.config).to(self.dtype).eval()

    def loop(self, model: Any, source: str, hypotheses: Sequence[str], references: Sequence[str]) -> Iterator[int]:
        """Batches of mbrs's loop over one sentence; yields how many pairs each had."""
        texts = [f"source: {source}"], [f"candidate: {h}" for h in hypotheses], [f"reference: {r}" for r in references]
        ids = [[self.tokenizer.encode(text, add_special_tokens=False) for text in side] for side in texts]
        pairs = itertools.product(ids[1], ids[2])
        while batch := list(itertools.islice(pairs, BATCH)):
            rows = [(ids[0][0] + h + r)[:1536] for h, r in batch]
            given, mask = padded(rows, self.tokenizer.pad_token_id, self.device)
            start = torch.zeros((len(rows), 1), dtype=torch.long, device=self.device)
            logits = model(input_ids=given, attention_mask=mask, decoder_input_ids=start).logits
            logits[:, 0, mt5.SCORED].clamp(0, 25)
            yield len(batch)


class XcometXL:
    """XCOMET-XL's shape: XLM-R-XL with three inputs per pair, of which ours runs (mt, src) once per hypothesis."""

    name = "XCOMET-XL"

    def __init__(self, tokenizer: Any, device: torch.device, dtype: torch.dtype, *, tiny: bool) -> None:
        units, layers, heads, wide = (16, 2, 2, 32) if tiny else (2560, 36, 32, 10240)
        self.config = transformers.XLMRobertaXLConfig(
            vocab_size=250880,
            hidden_size=units,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=wide,
            max_position_embeddings=514,
            pad_token_id=tokenizer.pad_token_id,
        )
        self.device, self.tokenizer = device, tokenizer
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)  # 3.5 billion weights: made where and as they are needed
        try:
            with device:
                self.model = transformers.XLMRobertaXLModel(self.config, add_pooling_layer=False).eval()
        finally:
            torch.set_default_dtype(before)
        head = [units, units, units // 2, 1]
        made = [(torch.randn(b, a) / a**0.5, torch.randn(b)) for a, b in itertools.pairwise(head)]
        self.head = [(weight.to(device), bias.to(device)) for weight, bias in made]
        self.labels = (torch.randn(4, units) / units**0.5).to(device), torch.zeros(4, device=device)
        network = XCOMETNetwork(
            model=self.model,
            tokenizer=tokenizer,
            readout=Readout("cls", tuple([1 / (layers + 1)] * (layers + 1))),
            head=FeedForward(self.head, torch.nn.Tanh()),
            word_layer=layers,
            labels=self.labels,
        )
        self.utility = object.__new__(XCOMET)
        stream = CountingStream(pad=tokenizer.pad_token_id, limit=network.positions, device=device)
        self.utility._assemble("xcomet|random", ["mt", "src", "ref"], network, stream)

    def linear_flops(self) -> float:
        """Of one token: two for each weight of the encoder."""
        units, wide = self.config.hidden_size, self.config.intermediate_size
        return 2.0 * self.config.num_hidden_layers * (4 * units * units + 2 * units * wide)

    def attention_flops(self) -> float:
        """Of one token, for each token that it attends to."""
        return 4.0 * self.config.num_hidden_layers * self.config.hidden_size

    def peer(self) -> Any:
        """The same network: ours is transformers' too."""
        return self.model

    def loop(self, model: Any, source: str, hypotheses: Sequence[str], references: Sequence[str]) -> Iterator[int]:
        """Batches of mbrs's loop over one sentence; yields how many pairs each had."""
        pairs = itertools.product(hypotheses, references)
        while batch := list(itertools.islice(pairs, BATCH)):
            sides = [self.tokenizer([one[side] for one in batch])["input_ids"] for side in (0, 1)]
            sources = self.tokenizer([source] * len(batch))["input_ids"]
            scores, probabilities = [], []
            for others in ([sources], [sides[1]], [sources, sides[1]]):
                rows = [joined(own, [other[row] for other in others]) for row, own in enumerate(sides[0])]
                given, mask = padded(rows, self.tokenizer.pad_token_id, self.device)
                states = model(input_ids=given, attention_mask=mask, output_hidden_states=True).hidden_states
                mixed = sum(state / len(states) for state in states)[:, 0].float()  # type: ignore[union-attr]
                for index, (weight, bias) in enumerate(self.head):
                    mixed = (mixed if index == 0 else mixed.tanh()) @ weight.T + bias
                scores.append(mixed)
                probabilities.append((states[-1].float() @ self.labels[0].T).softmax(2)[:, : max(map(len, sides[0]))])
            torch.stack(scores).mean(0).tolist()
            yield len(batch)


def joined(own: list[int], others: Sequence[list[int]]) -> list[int]:
    """`<s> mt </s></s> src </s></s> ref </s>` of segments that have special tokens around them."""
    for other in others:
        own = [*own, own[-1], *other[1:]]
    return own[:512]


def padded(rows: Sequence[list[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask, padded to the longest of the batch."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids.to(device), mask.to(device)
