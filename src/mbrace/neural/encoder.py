"""Strings to sentence vectors: batches of strings, sorted by length, go through a transformer.

On a CPU nothing is padded, and every row of a matrix product has the same bits whatever the other rows are (if there
are enough rows: see `repeats_for_cpu`), so the vector of a string does not depend on its batch, window or step. A batch
holds strings of one token length only, or, for a BERT in float32, of any: there the tokens of all strings are the rows
of one matrix product (see `PlainBert.packed`), which matters where a race asks for few strings at a time. On a GPU a
row does depend on the number of rows, and a small batch takes as long as a large one, so there a batch may hold strings
of several lengths: for a BERT in 16 bits not padded either, where our kernels can be used (packed.py), else padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.errors import UserError, warn
from mbrace.neural.bert import PlainBert, without_modules
from mbrace.neural.device import without_cudnn_attention
from mbrace.neural.packed import usable
from mbrace.neural.pinned import copy_to_device
from mbrace.neural.readout import Readout
from mbrace.neural.tokens import (
    TokenBatch,
    Tokens,
    batch_end,
    even_share,
    packed_end,
    pair_mask,
    valid_unicode,
    whole_texts,
)
from mbrace.neural.words import WordTokenizer

# Rows per thread. With fewer than about 4 a CPU computes matrix products in another way, which rounds differently.
FEWEST_ROWS = 8
_FIRST_TOKENISED, _TOKENISED = 2048, 16384  # strings tokenised at a time: in the first chunk for a GPU, and at most
_PACKED_TOKENISED = 4096  # at most, where strings are packed: larger chunks would not save padding, as there is none


class Encoder:
    """A transformer, its tokenizer and a readout: `embed` turns strings into vectors.

    `truncated` counts the strings of more than `max_length` tokens, which are cut, as COMET cuts them.
    """

    may_pack = True  # strings of several lengths in one batch, without padding

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
        self._pair_masks: bool | None = None  # unknown until the first padded batch

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
        first chunks are small, so that the GPU need not wait long. On a CPU a thread would only take cores away from
        the network.
        """
        order = np.argsort(-np.fromiter(map(len, texts), np.int64, len(texts)), kind="stable")
        size, begin, chunks = _FIRST_TOKENISED if self.pads else _TOKENISED, 0, []
        most = _PACKED_TOKENISED if self._fuses else _TOKENISED
        while begin < len(order):
            chunks.append(order[begin : begin + size])
            begin, size = begin + size, min(2 * size, most)

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
        half full. Where strings are packed on a GPU, batches are about equal: a small one would keep it less busy.
        """
        lengths, changes = strings.host_lengths, strings.changes
        begin = 0
        while begin < len(lengths):
            if self._fuses:
                end = packed_end(lengths, begin, most=even_share(lengths[begin:], self.batch_tokens))
            elif self._packs:
                end = packed_end(lengths, begin, most=self.batch_tokens)
            else:
                half_full = self.batch_tokens // 2 if self.pads else 0
                end = batch_end(lengths, changes, begin, most=self.batch_tokens, half_full=half_full)
            yield strings[begin:end]
            begin = end

    def _vectors(self, rows: TokenBatch) -> Tensor:
        """The vectors of one batch; in halves if the GPU is out of memory."""
        try:
            return self._forward(rows)
        except torch.cuda.OutOfMemoryError:
            if len(rows) == 1:
                message = f"the GPU is out of memory for one string of {rows.longest} tokens; use the CPU"
                raise UserError(message) from None
        torch.cuda.empty_cache()
        half = len(rows) // 2
        # The size tried next, not half the old limit: if both halves fail, each would halve the limit again.
        tried_next = rows[:half].count if self._fuses else half * rows.longest
        self.batch_tokens = min(self.batch_tokens, max(1, tried_next))
        if not self._warned_of_memory:
            self._warned_of_memory = True
            warn(f"the GPU is out of memory: going on with batches of {self.batch_tokens} tokens or fewer")
        return torch.cat([self._vectors(rows[:half]), self._vectors(rows[half:])])

    def _forward(self, rows: TokenBatch) -> Tensor:
        """Vectors of one batch of token ids, (rows, units)."""
        if self._fuses:
            assert self._without_modules is not None
            network, tokens = self._without_modules, rows.packed()
            return self.readout.packed(network.fused(tokens), len(network.layers) + 1, tokens, pad=self._pad)
        if self._packs:
            return self._forward_packed(rows)
        ids, lengths = self._enough_rows(rows)
        states = self._states(ids, None if rows.even else rows.attended())
        kept = None if rows.even and not rows.holds_pad.any() else ids != self._pad
        return self.readout(states, kept, lengths)[: len(rows)]

    def _forward_packed(self, rows: TokenBatch) -> Tensor:
        """The same for strings of several lengths, none of them padded."""
        assert self._without_modules is not None
        ids, groups, mixes = rows.joined_ids(), rows.groups, self._mixes
        times = repeats_for_cpu(len(ids))
        states = self._without_modules.packed(ids.repeat(times), groups * times, only_last=not mixes)
        sizes = [strings * length for strings, length in groups]
        by_group = zip(*(torch.split(state[: len(ids)], sizes) for state in states), strict=True)
        each = zip(groups, by_group, torch.split(ids, sizes), strict=True)
        vectors, first = [], 0
        for (strings, length), of_layers, own in each:
            last = first + strings
            found = [state.view(strings, length, -1) for state in of_layers]
            kept = own.view(strings, length) != self._pad if rows.holds_pad[first:last].any() else None
            vectors.append(self.readout(found if mixes else {-1: found[-1]}, kept, rows.lengths[first:last]))
            first = last
        return torch.cat(vectors)

    def _enough_rows(self, rows: TokenBatch) -> tuple[Tensor, Tensor]:
        """Token ids (rows, longest) and lengths (rows,) of one batch; on a CPU, repeated if there are too few."""
        ids, lengths = rows.ids(), rows.lengths
        if not self.pads and (times := repeats_for_cpu(ids.numel())) > 1:
            ids, lengths = ids.repeat(times, 1), lengths.repeat(times)
        return ids, lengths

    def _states(self, ids: Tensor, attended: Tensor | None) -> Sequence[Tensor] | dict[int, Tensor]:
        """The hidden states that the readout reads, by layer."""
        mixes = self._mixes
        if attended is not None and self._takes_pair_masks():
            attended = pair_mask(attended)
        with without_cudnn_attention():
            if self._without_modules is not None and (attended is None or attended.ndim == 4):
                found = self._without_modules(ids, attended, only_last=not mixes)
                return found if mixes else {-1: found[-1]}
            out = self._model(input_ids=ids, attention_mask=attended, output_hidden_states=mixes, return_dict=True)
        return out.hidden_states if mixes else {-1: out.last_hidden_state}

    @property
    def _mixes(self) -> bool:
        """Whether the readout reads other layers than the last."""
        return self.readout.weights is not None or self.readout.layer != -1

    @property
    def _packs(self) -> bool:
        """Whether a batch holds strings of several lengths without padding, on a CPU."""
        return self.may_pack and not self.pads and self._without_modules is not None

    @cached_property
    def _fuses(self) -> bool:
        """The same on a GPU, where attention and pooling are kernels of our own."""
        network = self._without_modules if self.may_pack and self.pads and self.readout.reads_packed else None
        return network is not None and usable(self.device, self.dtype, network.heads, self.units // network.heads)

    @cached_property
    def _without_modules(self) -> PlainBert | None:
        """The network without its modules, where that can be: for a GPU, which would wait for them, or to pack."""
        wanted = self.pads or (self.may_pack and self.dtype == torch.float32)
        return without_modules(self._model) if wanted else None

    def _takes_pair_masks(self) -> bool:
        """Whether the network accepts a mask (rows, 1, tokens, tokens), found out by a trial.

        With a mask (rows, tokens), transformers checks whether it hides anything, for which the host waits for the GPU.
        """
        if self._pair_masks is None:
            self._pair_masks = takes_pair_masks(self._model, self._pad)
        return self._pair_masks


def repeats_for_cpu(rows: int) -> int:
    """How many times to repeat the rows of a matrix product on a CPU so that there are enough: see `FEWEST_ROWS`."""
    return max(1, -(-FEWEST_ROWS * torch.get_num_threads() // max(1, rows)))


def _batch_tokens(device: torch.device, units: int) -> int:
    """Tokens per batch: many on a GPU with memory to spare if the network is small, so that computing a batch takes
    longer than launching it."""
    if device.type != "cuda":
        return 2048
    return 131072 if units <= 512 and torch.cuda.mem_get_info(device)[0] > 16 << 30 else 32768


def takes_pair_masks(model: Any, pad: int) -> bool:
    """Whether a network gives the same states for a mask (rows, 1, tokens, tokens) as for one (rows, tokens)."""
    device = next(model.parameters()).device
    attended = torch.arange(16, device=device) < torch.tensor([[16], [11]], device=device)
    rows = min(model.config.vocab_size, 1000)
    ids = (torch.arange(32, device=device).view(2, 16) * 37 % rows).masked_fill(~attended, pad)
    try:
        with torch.inference_mode(), without_cudnn_attention():
            pair = model(input_ids=ids, attention_mask=pair_mask(attended), return_dict=True).last_hidden_state
            usual = model(input_ids=ids, attention_mask=attended, return_dict=True).last_hidden_state
    except Exception:  # another kind of network or version of transformers: the usual mask always works
        return False
    return torch.equal(pair[attended], usual[attended])
