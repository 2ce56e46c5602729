"""Strings to one vector per token, each of length 1: what BERTScore matches. Each distinct string is encoded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.neural.bank import GrowingRows
from mbrace.neural.encoder import Encoder
from mbrace.neural.pairs import to_device
from mbrace.neural.readout import Readout
from mbrace.neural.tokens import TokenBatch, Tokens


class TokenEncoder(Encoder):
    """A transformer and its tokenizer; `stream` gives the normalised vectors of all tokens of a batch, row by row.

    Texts are stripped first, and get a space in front where `leading_space` says so, both as bert-score does it.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_length: int,
        device: torch.device,
        dtype: torch.dtype,
        batch_tokens: int | None = None,
        leading_space: bool = False,
    ) -> None:
        super().__init__(
            model,
            tokenizer,
            Readout("cls"),  # of the last layer: tokens are not pooled
            max_length=max_length,
            device=device,
            dtype=dtype,
            batch_tokens=batch_tokens,
        )
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
