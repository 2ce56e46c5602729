"""Strings to sentence vectors: batches of strings sorted by length, through a transformer.

On a CPU a batch holds strings of one token length only. Nothing is padded, and every row of a matrix product is the
same bits whatever the other rows are (if there are enough rows: see `FEWEST_ROWS`), so the vector of a string does not
depend on its batch, window or step. On a GPU rows do depend on each other's number, and a small batch costs as much as
a large one; so there a batch may hold strings of several lengths, padded.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mbrace.errors import UserError
from mbrace.utilities.neural.device import without_cudnn_attention

FEWEST_ROWS = 8  # per thread: for fewer than about 4 rows a CPU computes matrix products otherwise, with other rounding
_TOKENISED = 8192  # strings tokenised at a time


@dataclass(frozen=True)
class Readout:
    """From a transformer's hidden states to one vector: which layers, and how their tokens are pooled.

    `weights` mixes all layers (COMET's layer-wise attention, times gamma); without them only `layer` is read.
    """

    pool: str  # avg, max, cls or last
    weights: tuple[float, ...] | None = None
    layer: int = -1
    layer_norm: bool = False  # normalise each layer over the sentence's tokens and units before mixing

    def __call__(self, states: Sequence[Tensor] | dict[int, Tensor], kept: Tensor | None, lengths: Tensor) -> Tensor:
        """(strings, units) in float32 from hidden states (strings, tokens, units) of every layer.

        `kept` (strings, tokens) is False for padding tokens, and as in COMET also for a literal `<pad>` in the text,
        which attention and layer norm see and pooling does not; None if all are kept. `lengths` (strings,) counts the
        tokens that attend.
        """
        weights = {self.layer: 1.0} if self.weights is None else dict(enumerate(self.weights))
        if self.pool == "max":
            mixed = sum(w * self._normed(states[layer].float(), lengths) for layer, w in weights.items() if w)
            if kept is not None:
                mixed = mixed.masked_fill(~kept.unsqueeze(-1), float("-inf"))  # type: ignore[union-attr]
            return mixed.amax(dim=1)  # type: ignore[union-attr]
        # Averaging tokens and mixing layers are both linear: average each layer first, then mix the short vectors.
        vectors = None
        for layer, weight in weights.items():
            if weight == 0.0:  # sparsemax drops whole layers
                continue
            pooled = self._pooled(states[layer], kept, lengths)
            vectors = weight * pooled if vectors is None else vectors + weight * pooled
        assert vectors is not None
        return vectors

    def _normed(self, state: Tensor, lengths: Tensor) -> Tensor:
        if not self.layer_norm:
            return state
        mean, deviation = _moments(state, lengths)
        return (state - mean[:, None, None]) / deviation[:, None, None]

    def _pooled(self, state: Tensor, kept: Tensor | None, lengths: Tensor) -> Tensor:
        share: Tensor | float = 1.0  # of the tokens that attend, those that are pooled: less if the text holds <pad>
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
        if batch_tokens is not None and batch_tokens < 1:
            raise UserError(f"batch_tokens {batch_tokens}: must be 1 or more")
        self.device = device
        self.dtype = dtype
        self.readout = readout
        self.batch_tokens = batch_tokens or (32768 if device.type == "cuda" else 2048)
        self.truncated = 0
        self.embedded = 0  # strings sent through the transformer so far
        self.units: int = model.config.hidden_size
        self._pad: int = tokenizer.pad_token_id
        self._model = model.to(device=device, dtype=dtype).eval()
        self._tokenizer = tokenizer.backend_tokenizer
        self._max_length = max_length
        self._warned_of_truncation = self._warned_of_memory = False

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with the special tokens around them, cut to the length limit."""
        self._tokenizer.no_padding()  # each time: the caller's tokenizer object may be used elsewhere too
        self._tokenizer.enable_truncation(self._max_length)
        # Tokenizers take valid Unicode only; a lone surrogate, allowed elsewhere, becomes a question mark.
        valid = [text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text for text in texts]
        encodings = self._tokenizer.encode_batch(valid)
        self.truncated += sum(1 for encoding in encodings if encoding.overflowing)
        if self.truncated and not self._warned_of_truncation:
            self._warned_of_truncation = True
            message = f"text over the metric's limit of {self._max_length} tokens is cut there, as the original does"
            warnings.warn(message, stacklevel=2)
        return [encoding.ids for encoding in encodings]

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, units), float32, on the encoder's device."""
        if not texts:
            return torch.empty((0, self.units), device=self.device)
        parts, done = [], []  # vectors, and the indices of their texts
        for indices, _, vectors in self.stream(texts):
            parts.append(vectors)
            done += indices
        rows = torch.empty(len(texts), dtype=torch.long)  # of each text in `parts`
        rows[done] = torch.arange(len(texts))
        return torch.cat(parts)[rows.to(self.device)]

    def stream(self, texts: Sequence[str]) -> Iterator[tuple[list[int], list[list[int]], Tensor]]:
        """Batches as they are done, longest texts first: indices of their texts, token ids, and vectors."""
        # Sorted by characters first, so that the GPU works on long strings while a thread tokenises shorter ones.
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        chunks = [order[begin : begin + _TOKENISED] for begin in range(0, len(order), _TOKENISED)]
        with ThreadPoolExecutor(1) as ahead:
            to_come = ahead.map(lambda chunk: self.tokenize([texts[index] for index in chunk]), chunks)
            for chunk, tokens in zip(chunks, to_come, strict=True):
                for batch in self._batches([len(ids) for ids in tokens]):
                    rows = [tokens[index] for index in batch]
                    with torch.inference_mode():
                        vectors = self._vectors(rows)
                    yield [chunk[index] for index in batch], rows, vectors
        self.embedded += len(texts)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Indices of strings in batches of at most `batch_tokens` padded tokens, longest first.

        A batch ends early where the length changes: always on a CPU, on a GPU once it is half full.
        """
        order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
        half_full = 0 if self.device.type == "cpu" else self.batch_tokens // 2
        batch: list[int] = []
        for index in order:
            if batch:
                longest, tokens = lengths[batch[0]], lengths[batch[0]] * len(batch)
                changes = lengths[index] != lengths[batch[-1]]
                if tokens + longest > self.batch_tokens or (changes and tokens >= half_full):
                    yield batch
                    batch = []
            batch.append(index)
        if batch:
            yield batch

    def _vectors(self, rows: list[list[int]]) -> Tensor:
        """The vectors of one batch; in halves if the GPU is out of memory."""
        try:
            return self._forward(rows)
        except torch.cuda.OutOfMemoryError:
            if len(rows) == 1:
                message = f"the GPU is out of memory for one string of {len(rows[0])} tokens; use the CPU"
                raise UserError(message) from None
        torch.cuda.empty_cache()
        half = len(rows) // 2
        # The size tried next, not half the old limit: both halves may fail, and each would halve the limit again.
        self.batch_tokens = min(self.batch_tokens, half * max(map(len, rows)))
        if not self._warned_of_memory:
            self._warned_of_memory = True
            warnings.warn(f"the GPU is out of memory: going on with batches of {self.batch_tokens} tokens or fewer")
        return torch.cat([self._vectors(rows[:half]), self._vectors(rows[half:])])

    def _forward(self, rows: list[list[int]]) -> Tensor:
        """Vectors of one batch of token ids, (rows, units)."""
        count, longest = len(rows), max(map(len, rows))
        if self.device.type == "cpu":  # see FEWEST_ROWS: rows are repeated if there are too few
            fewest = FEWEST_ROWS * torch.get_num_threads()
            rows = rows * -(-fewest // (count * longest)) if count * longest < fewest else rows
        even = all(len(row) == longest for row in rows)
        ids = torch.tensor([row + [self._pad] * (longest - len(row)) for row in rows])
        lengths = torch.tensor([len(row) for row in rows])
        if self.device.type == "cuda":
            ids, lengths = ids.pin_memory(), lengths.pin_memory()
        ids, lengths = ids.to(self.device, non_blocking=True), lengths.to(self.device, non_blocking=True)
        attention = None if even else torch.arange(longest, device=self.device)[None] < lengths[:, None]
        mixes = self.readout.weights is not None or self.readout.layer != -1
        with without_cudnn_attention():
            out = self._model(input_ids=ids, attention_mask=attention, output_hidden_states=mixes, return_dict=True)
        states = out.hidden_states if mixes else {-1: out.last_hidden_state}
        kept = None if even and not any(self._pad in row for row in rows) else ids != self._pad
        return self.readout(states, kept, lengths)[:count]
