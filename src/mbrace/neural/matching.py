"""BERTScore's greedy matching, for all pairs of a sentence in a few large matrix products.

All cosines between the tokens of some hypotheses and of all references are one product. Strings of similar length are
next to each other in it, so that the largest cosine of each token, over each string of the other side, is a maximum
over one axis of a view. On a CPU only equal lengths are similar, and sums are added up token by token, so that a pair's
score has the same bits whatever else is scored with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.neural.device import halve_on_oom
from mbrace.neural.encoder import Encoder, Readout
from mbrace.neural.head import linear, to_device
from mbrace.neural.scorer import GrowingRows
from mbrace.neural.tokens import TokenBatch, Tokens


class TokenEncoder(Encoder):
    """A transformer and its tokenizer; `stream` gives the normalised vectors of all tokens of a batch, row by row.

    Texts are stripped first, and get a space in front where `leading_space` says so, both as bert-score does it.
    """

    def __init__(self, model: Any, tokenizer: Any, *, leading_space: bool = False, **options: Any) -> None:
        super().__init__(model, tokenizer, Readout("cls"), **options)  # of the last layer: tokens are not pooled
        self._leading = " " if leading_space else ""

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Token ids with the special tokens around them, cut to the length limit."""
        stripped = (text.strip() for text in texts)
        return super().tokenize([self._leading + text if text else text for text in stripped])

    def _forward(self, rows: TokenBatch) -> Tensor:
        """Vectors of the tokens of one batch, (tokens of all rows, units), in the encoder's dtype."""
        tokens, rows = rows.count, self._enough(rows)
        if self._packed is not None:
            *_, states = self._packed(rows.packed())
        else:
            states = self._padded_states(rows, rows.ids())[-1][rows.attended()]
        vectors: Tensor = states[:tokens].float()
        norms: Tensor = vectors.norm(dim=-1, keepdim=True)
        return (vectors / norms).to(self.dtype)


class TokenBank:
    """The token vectors of a window's strings, end to end, and each token's weight in its string (they sum to 1)."""

    def __init__(self, encoder: TokenEncoder, weigh: Callable[[NDArray[np.int32]], NDArray[np.float32]]) -> None:
        self._encoder, self._weigh = encoder, weigh
        self._numbers: dict[str, int] = {}
        self._starts = np.empty(0, dtype=np.int64)
        self.lengths = np.empty(0, dtype=np.int64)  # (strings,): tokens, special ones included
        self.device, self.units = encoder.device, encoder.units
        self._vectors, self._weights = GrowingRows(), GrowingRows()  # a row per token

    def add(self, texts: Iterable[str]) -> None:
        """Encode the strings not known yet, in one stream."""
        new = [text for text in dict.fromkeys(texts) if text not in self._numbers]
        if not new:
            return
        parts, weights, order, lengths = [], [], [], []
        for indices, rows, vectors in self._encoder.stream(new):
            parts.append(vectors)
            weights += [self._weigh(row) for row in rows]
            lengths += [len(row) for row in rows]
            order += indices
        self._weights.add(torch.from_numpy(np.concatenate(weights)).to(self.device))
        begin = self._vectors.add(*parts)
        numbers = range(len(self._numbers), len(self._numbers) + len(new))
        self._numbers.update(zip((new[index] for index in order), numbers, strict=True))
        self._starts = np.concatenate([self._starts, begin + np.cumsum([0, *lengths[:-1]])])
        self.lengths = np.concatenate([self.lengths, np.array(lengths)])

    def numbers(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """The numbers of these strings in the bank."""
        return np.array([self._numbers[text] for text in texts], dtype=np.int64)

    def padded(self, numbers: NDArray[np.int64], length: int) -> tuple[Tensor, Tensor]:
        """Vectors (strings, length, units) in float32 and weights (strings, length).

        A shorter string is padded with its own first token at weight 0, which does not change the largest cosine over
        its tokens, so nothing needs to be masked.
        """
        columns = np.arange(length)[None]
        real = columns < self.lengths[numbers][:, None]
        rows = to_device(self._starts[numbers][:, None] + np.where(real, columns, 0), self.device)
        weights = self._weights[rows] * torch.from_numpy(real).to(rows.device)
        return self._vectors[rows].float(), weights


# Cosines held at a time: a CPU is fastest with what fits its cache, a GPU with large products.
COSINES = {"cpu": 1 << 20, "cuda": 1 << 28}
_BUCKET = {"cpu": 1, "cuda": 8}  # lengths are similar if they round up to the same multiple of this


def match_all(bank: TokenBank, hypotheses: NDArray[np.int64], references: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Precision and recall, each (hypotheses, references), of strings of the bank by number."""
    columns = [(where, *bank.padded(references[where], length)) for where, length in _alike(bank, references)]
    shapes = [(len(vectors), vectors.shape[1]) for _, vectors, _ in columns]
    flat = torch.cat([vectors.flatten(0, 1) for _, vectors, _ in columns])  # (tokens of all references, units)
    order = np.concatenate([where for where, _, _ in columns])
    precision = flat.new_empty((len(hypotheses), len(references)))
    matched = flat.new_empty((len(hypotheses), len(flat)))  # the largest cosine of each token of each reference
    for rows, length in _alike(bank, hypotheses):
        vectors, weights = bank.padded(hypotheses[rows], length)
        most = max(1, COSINES["cpu" if flat.device.type == "cpu" else "cuda"] // (length * len(flat)))
        found = [_best(some, flat, shapes) for some in torch.tensor_split(vectors, -(-len(rows) // most))]
        where = torch.from_numpy(rows).to(flat.device)
        precision[where] = _weighted(torch.cat([part for part, _ in found]).transpose(1, 2), weights[:, None])
        matched[where] = torch.cat([part for _, part in found])
    parts = torch.split(matched, [strings * tokens for strings, tokens in shapes], dim=1)
    recalls = [
        _weighted(part.view(len(part), *shape), shares[None])
        for part, shape, (_, _, shares) in zip(parts, shapes, columns, strict=True)
    ]
    back = torch.from_numpy(np.argsort(order)).to(flat.device)
    return precision[:, back], torch.cat(recalls, dim=1)[:, back]


def match_aligned(
    bank: TokenBank, hypotheses: NDArray[np.int64], references: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """Precision and recall, each (pairs,), of hypothesis i and reference i; pairs of similar lengths share a
    product."""
    device = bank.device
    precision = torch.empty(len(hypotheses), device=device)
    recall = torch.empty_like(precision)
    for some, height in _alike(bank, hypotheses):
        for inner, width in _alike(bank, references[some]):
            rows = some[inner]
            held = height * width + (height + width) * bank.units  # numbers in memory per pair
            most = max(1, COSINES["cpu" if device.type == "cpu" else "cuda"] // held)
            for chunk in np.array_split(rows, -(-len(rows) // most)):
                vectors, weights = bank.padded(hypotheses[chunk], height)
                others, shares = bank.padded(references[chunk], width)
                cosines = torch.bmm(vectors, others.transpose(1, 2))
                at = torch.from_numpy(chunk).to(device)
                precision[at] = _weighted(cosines.amax(dim=2), weights)
                recall[at] = _weighted(cosines.amax(dim=1), shares)
    return precision, recall


def _alike(bank: TokenBank, numbers: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Indices of strings of similar length, and the length they are padded to."""
    bucket = _BUCKET["cpu" if bank.device.type == "cpu" else "cuda"]
    lengths = -(-bank.lengths[numbers] // bucket) * bucket
    for length in np.unique(lengths):
        yield np.flatnonzero(lengths == length), int(length)


def _best(vectors: Tensor, others: Tensor, shapes: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """The largest cosines of each token: (hypotheses, length, references) over the tokens of each reference, and
    (hypotheses, tokens of all references) over those of each hypothesis. In halves if the GPU is out of memory."""

    def best(part: Tensor) -> tuple[Tensor, Tensor]:
        count, length, _ = part.shape
        cosines = linear(part.flatten(0, 1), others)
        parts = torch.split(cosines, [strings * tokens for strings, tokens in shapes], dim=1)
        over = [each.view(len(each), *shape).amax(dim=2) for each, shape in zip(parts, shapes, strict=True)]
        return torch.cat(over, dim=1).view(count, length, -1), cosines.view(count, length, -1).amax(dim=1)

    found = halve_on_oom(best, vectors, "one hypothesis of BERTScore", lambda half: None)
    return torch.cat([each[0] for each in found]), torch.cat([each[1] for each in found])


def _weighted(best: Tensor, weights: Tensor) -> Tensor:
    """The sum of `best` times `weights` over the last axis."""
    if best.device.type != "cpu":
        return (best * weights).sum(dim=-1)
    # torch's sum adds in an order that depends on the shape. Token by token, each entry always has the same bits.
    total = best[..., 0] * weights[..., 0]
    for token in range(1, best.shape[-1]):
        total += best[..., token] * weights[..., token]
    return total
