"""Strings to sentence vectors: batches of strings, sorted by length, go through a transformer.

BERT, RoBERTa and XLM-RoBERTa need no padding (packed.py): in float32 on a CPU, and in 16 bits on a GPU. On a CPU
there is no padding: a batch of another network holds strings of one length only, and every row of a matrix product has
the same bits regardless of the other rows (if there are enough rows: see `repeats_for_cpu`): the vector of a
string does not depend on its batch, window or step. On a GPU it does, and a small batch takes as long as a large one,
so other networks get padded batches there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from mbrace.errors import warn
from mbrace.neural.device import halve_on_oom, without_cudnn_attention
from mbrace.neural.packed import PackedNetwork, packed_network
from mbrace.neural.tokens import (
    TokenBatch,
    Tokens,
    WordTokenizer,
    batch_end,
    copy_to_device,
    packed_end,
    valid_unicode,
    whole_texts,
)


@dataclass(frozen=True)
class Readout:
    """From a transformer's hidden states to one vector: which layers, and how their tokens are pooled.

    `weights` mixes all layers (COMET's layer-wise attention, times gamma); without them only `layer` is read.
    """

    pool: str  # avg, max, cls or last
    weights: tuple[float, ...] | None = None
    layer: int = -1
    layer_norm: bool = False  # normalise each layer over the sentence's tokens and units before mixing

    def __call__(self, states: Sequence[Any] | dict[int, Tensor], kept: Tensor | None, lengths: Tensor) -> Tensor:
        """(strings, units) in float32 from hidden states (strings, tokens, units) of every layer.

        `kept` (strings, tokens) is False for padding tokens, and as in COMET also for a literal `<pad>` in the text,
        which attention and layer norm see and pooling does not; None if all are kept. `lengths` (strings,) counts the
        tokens that attend.
        """
        weights = self._weights
        if self.pool == "max":
            mixed: Any = sum(w * self._normed(states[layer].float(), lengths) for layer, w in weights.items())
            return (mixed if kept is None else mixed.masked_fill(~kept.unsqueeze(-1), float("-inf"))).amax(dim=1)  # type: ignore[no-any-return]
        # Averaging tokens and mixing layers are both linear: average each layer first, then mix the short vectors.
        vectors: Any = sum(w * self._pooled(states[layer], kept, lengths) for layer, w in weights.items())
        return vectors  # type: ignore[no-any-return]

    def reads(self, layers: int) -> set[int]:
        """Which of the hidden states of a network with `layers` of them are read."""
        return {layer % layers for layer in self._weights}

    @property
    def is_mean(self) -> bool:
        """Whether `mean` can be used."""
        return self.pool == "avg" and not self.layer_norm

    def mean(self, states: Sequence[Any], kept: Tensor | None, lengths: Tensor, offsets: Tensor) -> Tensor:
        """The same in one call for strings of any lengths that follow one another: states (tokens, units).

        String i has `lengths[i]` tokens, from offsets[i] on.
        """
        mixed: Any = None
        for layer, weight in self._weights.items():
            if mixed is None:
                mixed = torch.zeros_like(states[layer], dtype=torch.float32)
            mixed.add_(states[layer], alpha=weight)
        if kept is not None:
            mixed.masked_fill_(~kept[:, None], 0.0)
        numbers = torch.arange(len(mixed), dtype=offsets.dtype, device=mixed.device)
        return F.embedding_bag(numbers, mixed, offsets[:-1], mode="sum") / lengths[:, None]

    @property
    def _weights(self) -> dict[int, float]:
        """The weights of the layers that are read: sparsemax drops whole layers."""
        weights = {self.layer: 1.0} if self.weights is None else dict(enumerate(self.weights))
        return {layer: weight for layer, weight in weights.items() if weight}

    def _normed(self, state: Tensor, lengths: Tensor) -> Tensor:
        if not self.layer_norm:
            return state
        mean, deviation = _moments(state, lengths)
        return (state - mean[:, None, None]) / deviation[:, None, None]

    def _pooled(self, state: Tensor, kept: Tensor | None, lengths: Tensor) -> Tensor:
        share: Tensor | float = 1.0  # pooled tokens / attended tokens: less than 1 if the text holds <pad>
        if self.pool == "cls":
            pooled = state[:, 0].float()
        elif self.pool == "last":
            pooled = state[torch.arange(len(state), device=state.device), lengths - 1].float()
        elif kept is None:
            pooled = state.sum(dim=1, dtype=torch.float32) / lengths[:, None]
        else:
            pooled = (state * kept.unsqueeze(-1)).sum(dim=1, dtype=torch.float32) / lengths[:, None]
            share = kept.sum(dim=1, keepdim=True) / lengths[:, None]
        if not self.layer_norm:
            return pooled
        mean, deviation = _moments(state.float(), lengths)
        centred: Tensor = pooled - mean[:, None] * share
        return centred / deviation[:, None]


def _moments(state: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (strings,) over a string's tokens and units, as in COMET's masked layer norm."""
    mask = (torch.arange(state.shape[1], device=state.device)[None] < lengths[:, None]).unsqueeze(-1)
    count = lengths * state.shape[-1]
    mean = (state * mask).flatten(1).sum(1) / count
    variance = (((state - mean[:, None, None]) * mask) ** 2).flatten(1).sum(1) / count
    return mean, (variance + 1e-12).sqrt()


# Rows per thread. With fewer than about 4 a CPU computes matrix products in another way, which rounds differently.
FEWEST_ROWS = 8
_TOKENISED = {"cpu": (16384, 16384), "cuda": (2048, 4096)}  # strings tokenised at a time: at first, and then
_MOST_LENGTHS = 8  # in a batch on a GPU, beyond which they are averaged in one call, not in one call per length


class Encoder:
    """A transformer, its tokenizer and a readout: `embed` turns strings into vectors.

    `truncated` counts the strings of more than `max_length` tokens, which are cut, as COMET cuts them.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        readout: Readout,
        *,
        max_length: int,
        device: torch.device,
        dtype: torch.dtype,
        batch_tokens: int | None = None,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.pads = device.type != "cpu"  # whether a batch may hold strings of several lengths
        self.readout = readout
        self.batch_tokens = batch_tokens or _batch_tokens(device, model.config.hidden_size)
        self.truncated = 0
        self.embedded = 0  # strings sent through the transformer so far
        self.units: int = model.config.hidden_size
        self._pad: int = tokenizer.pad_token_id
        self._model = model.to(device=device, dtype=dtype).eval()
        self._tokenizer = tokenizer.backend_tokenizer
        self._max_length = max_length
        self._warned_of_truncation = self._warned_of_memory = False

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Token ids with the special tokens around them, cut to the length limit."""
        valid = valid_unicode(texts)
        if self._words is None:
            tokens, cut = whole_texts(self._tokenizer, valid, self._max_length)
        else:
            tokens, cut = self._words.tokens(valid, self._max_length)
        self.truncated += cut
        if self.truncated and not self._warned_of_truncation:
            self._warned_of_truncation = True
            message = f"text over the metric's limit of {self._max_length} tokens is cut there, as the original does"
            warn(message)
        return tokens

    @cached_property
    def _words(self) -> WordTokenizer | None:
        """How texts are tokenised word by word, if they can be."""
        return WordTokenizer.of(self._tokenizer)

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, units), float32, on the encoder's device."""
        if not texts:
            return torch.empty((0, self.units), device=self.device)
        parts, done = [], []  # vectors, and the indices of their texts
        with torch.inference_mode():
            for chunk, tokens in self._tokenised(texts):
                order = tokens.longest_first()
                strings = TokenBatch.copy(tokens, order, self.device, pad=self._pad)
                parts += [self._vectors(batch) for batch in self._batches(strings)]
                done.append(chunk[order])
            vectors = torch.cat(parts)
        rows = np.empty(len(texts), dtype=np.int32)  # of each text in `vectors`
        rows[np.concatenate(done)] = np.arange(len(texts))
        self.embedded += len(texts)
        return vectors[copy_to_device([rows], self.device)]

    @torch.inference_mode()
    def stream(self, texts: Sequence[str]) -> Iterator[tuple[list[int], list[NDArray[np.int32]], Tensor]]:
        """Batches as they are finished, longest texts first: the indices of their texts, token ids, and vectors."""
        for chunk, tokens in self._tokenised(texts):
            order, rows, begin = tokens.longest_first(), list(tokens), 0
            for batch in self._batches(TokenBatch.copy(tokens, order, self.device, pad=self._pad)):
                part = order[begin : begin + len(batch)]
                yield chunk[part].tolist(), [rows[index] for index in part], self._vectors(batch)
                begin += len(batch)
        self.embedded += len(texts)

    def _tokenised(self, texts: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], Tokens]]:
        """Chunks of texts, those with the most characters first: their indices and their tokens.

        For a GPU, a thread tokenises the next chunk, of shorter texts, while the GPU works on the current one; the
        first one is small, so that the GPU need not wait long. On a CPU a thread would only take cores away.
        """
        order = np.argsort(-np.fromiter(map(len, texts), np.int64, len(texts)), kind="stable")
        first, size = _TOKENISED["cuda" if self.pads else "cpu"]
        begins = [0, *range(first, len(order), size)]
        chunks = [order[begin:end] for begin, end in itertools.pairwise([*begins, len(order)])]

        def tokenise(chunk: NDArray[np.int64]) -> Tokens:
            return self.tokenize([texts[index] for index in chunk.tolist()])

        if not self.pads or len(chunks) == 1:
            yield from ((chunk, tokenise(chunk)) for chunk in chunks)
            return
        with ThreadPoolExecutor(1) as ahead:
            yield from zip(chunks, ahead.map(tokenise, chunks), strict=True)

    def _batches(self, strings: TokenBatch) -> Iterator[TokenBatch]:
        """Batches of at most `batch_tokens` tokens, padding included, longest first.

        Unless strings are packed, a batch ends early where the length changes: always on a CPU, on a GPU once it is
        half full.
        """
        lengths, begin = strings.host_lengths, 0
        while begin < len(lengths):
            if self._packed is not None:
                end = packed_end(lengths, begin, most=self.batch_tokens)
            else:
                end = batch_end(lengths, begin, most=self.batch_tokens, mixed=self.pads)
            yield strings[begin:end]
            begin = end

    def _vectors(self, rows: TokenBatch) -> Tensor:
        """The vectors of one batch; in halves if the GPU is out of memory."""

        def smaller(half: TokenBatch) -> None:
            # The size tried next, not half the old limit: if both halves fail, each would halve the limit again.
            tokens = half.count if self._packed is not None else len(half) * half.longest
            self.batch_tokens = min(self.batch_tokens, max(1, tokens))
            if not self._warned_of_memory:
                self._warned_of_memory = True
                warn(f"the GPU is out of memory: going on with batches of {self.batch_tokens} tokens or fewer")

        return torch.cat(halve_on_oom(self._forward, rows, f"one string of {rows.longest} tokens", smaller))

    def _forward(self, rows: TokenBatch) -> Tensor:
        """Vectors of one batch of token ids, (rows, units)."""
        count, rows = len(rows), self._enough(rows)
        if self._packed is not None:
            return self._read_packed(self._packed, rows)[:count]
        ids = rows.ids()
        kept = None if rows.even and not rows.holds_pad.any() else ids != self._pad
        return self.readout(self._padded_states(rows, ids), kept, rows.lengths)[:count]

    def _read_packed(self, network: PackedNetwork, rows: TokenBatch) -> Tensor:
        """Vectors of strings that follow one another; layers above the last one that is read are not computed."""
        tokens, layers = rows.packed(), len(network.layers) + 1
        read = self.readout.reads(layers)
        states: list[Any] = [None] * layers
        for layer, state in zip(range(max(read) + 1), network(tokens), strict=False):
            states[layer] = state if layer in read else None
        if self.pads and len(tokens.groups) > _MOST_LENGTHS and self.readout.is_mean:
            kept = tokens.ids != self._pad if rows.holds_pad.any() else None
            return self.readout.mean(states, kept, rows.lengths, tokens.offsets)
        # strings of one length are a batch in which nothing is padded
        sizes = [strings * length for strings, length in tokens.groups]
        split = [None if state is None else torch.split(state, sizes) for state in states]
        vectors, first = [], 0
        for number, (strings, length) in enumerate(tokens.groups):
            last = first + strings
            grids = [None if part is None else part[number].view(strings, length, -1) for part in split]
            ids = torch.split(tokens.ids, sizes)[number].view(strings, length)
            kept = ids != self._pad if rows.holds_pad[first:last].any() else None
            vectors.append(self.readout(grids, kept, rows.lengths[first:last]))
            first = last
        return torch.cat(vectors)

    def _enough(self, rows: TokenBatch) -> TokenBatch:
        """The batch; on a CPU several times over if it has too few tokens."""
        times = 1 if self.pads else repeats_for_cpu(rows.count)
        return rows if times == 1 else rows.repeated(times)

    def _padded_states(self, rows: TokenBatch, ids: Tensor) -> Sequence[Tensor]:
        """The hidden states (strings, tokens, units) of every layer, or of the last alone, of padded ids."""
        layers = self._model.config.num_hidden_layers + 1
        mixes = self.readout.reads(layers) != {layers - 1}
        attended = None if rows.even else rows.attended()
        with without_cudnn_attention():
            out = self._model(input_ids=ids, attention_mask=attended, output_hidden_states=mixes, return_dict=True)
        return out.hidden_states if mixes else [None] * (layers - 1) + [out.last_hidden_state]

    @cached_property
    def _packed(self) -> PackedNetwork | None:
        """The network over strings of several lengths without padding; None if they must be padded."""
        return packed_network(self._model)


def repeats_for_cpu(rows: int) -> int:
    """How many times to repeat the rows of a matrix product on a CPU so that there are enough: see `FEWEST_ROWS`."""
    return max(1, -(-FEWEST_ROWS * torch.get_num_threads() // max(1, rows)))


def _batch_tokens(device: torch.device, units: int) -> int:
    """Tokens per batch: many on a GPU with memory to spare if the network is small, so that computing a batch takes
    longer than launching it."""
    if device.type != "cuda":
        return 2048
    return 131072 if units <= 512 and torch.cuda.mem_get_info(device)[0] > 16 << 30 else 32768
