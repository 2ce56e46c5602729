"""BLEURT as a utility: `BLEURT("lucadiliello/BLEURT-20")`, or any folder that `bleurt-pytorch` saved.

A pair is `[CLS] reference [SEP] hypothesis [SEP]`, one forward pass. Each string is tokenised once; the package itself
is not needed, and no code of a checkpoint runs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.errors import UserError, require, warn
from mbrace.schedule import doubling
from mbrace.utilities.cross.bleurt_network import BleurtNetwork, BleurtShape
from mbrace.utilities.cross.bleurt_tokens import read_tokens
from mbrace.utilities.neural import pretrained
from mbrace.utilities.neural.checkpoint import check_finite, check_keys, check_shapes
from mbrace.utilities.neural.device import choose_device, choose_dtype, without_cudnn_attention
from mbrace.utilities.neural.encoder import FEWEST_ROWS
from mbrace.utilities.neural.weights import read_weights
from mbrace.utilities.rebuilt import Rebuilt
from mbrace.utility import Ask, Sentence

_CHUNK = 1 << 17  # pairs sorted at a time: what bounds the memory of a call

# What `bleurt-pytorch` takes where config.json does not say; `embedding_size` may be null.
_SIZES = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}


class BLEURT(Rebuilt):
    """BLEURT's score of a hypothesis given a reference: about 0 for unrelated texts to about 1 for equal ones.

    `model` is a folder or a hub name of a checkpoint of `bleurt-pytorch` (`lucadiliello/BLEURT-20`, `-D12`, ...).
    `device` is a GPU if there is one; `dtype` is bfloat16 on a GPU and float32 elsewhere by default; `batch_tokens`
    limits a batch. A pair over the model's length is cut as BLEURT cuts it, the longer side first.
    """

    needs_source = False
    schedule = doubling(8, 256)

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        if batch_tokens is not None and batch_tokens < 1:
            raise UserError(f"batch_tokens {batch_tokens}: must be 1 or more")
        self.device = choose_device(device)
        number = choose_dtype(dtype, self.device)
        folder = pretrained.find(str(model))
        settings = pretrained.read_json(folder / "config.json", dict)
        if settings is None:
            raise UserError(f"{folder}: has no config.json; copy or download the model again")
        shape = _shape(settings, folder / "config.json")
        self._tokens = read_tokens(folder, shape.vocab_size)
        activation = _activation(settings, folder / "config.json")
        epsilon = float(settings.get("layer_norm_eps", 1e-12))
        weights = _read_weights(folder, shape)
        self._network = BleurtNetwork(shape, weights, activation, epsilon, device=self.device, dtype=number)
        self._limit = min(shape.max_position_embeddings, self._tokens.limit)
        self.batch_tokens = batch_tokens or (32768 if self.device.type == "cuda" else 2048)
        self.truncated = 0
        self._told_memory = self._told_truncation = False
        self.name = f"bleurt|{pretrained.label(model)}|encoder:{str(number).removeprefix('torch.')}"

    def start(self, sentences: Sequence[Sentence]) -> _BleurtScorer:
        """Begin the races of a window."""
        return _BleurtScorer(self, sentences)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of hypothesis i against reference i; equal pairs are scored once."""
        if len(hypotheses) != len(references):
            raise UserError(f"pairs: lists of different lengths ({len(hypotheses)}, {len(references)})")
        tokens = self.tokenise([*hypotheses, *references])
        distinct = dict.fromkeys(zip(hypotheses, references, strict=True))
        scores = self.score_tokens((tokens[h], tokens[r]) for h, r in distinct)
        found = dict(zip(distinct, scores.tolist(), strict=True))
        return np.array([found[pair] for pair in zip(hypotheses, references, strict=True)], dtype=np.float32)

    def tokenise(self, texts: Sequence[str]) -> dict[str, list[int]]:
        """Token ids of each distinct text."""
        distinct = list(dict.fromkeys(texts))
        return dict(zip(distinct, self._tokens(distinct), strict=True))

    def score_tokens(self, pairs: Iterable[tuple[list[int], list[int]]]) -> NDArray[np.float32]:
        """Scores (pairs,) of (hypothesis, reference) token ids, in length-sorted batches."""
        remaining = iter(pairs)
        chunks = iter(lambda: list(itertools.islice(remaining, _CHUNK)), [])
        return np.concatenate([np.empty(0, dtype=np.float32), *map(self._score_chunk, chunks)])

    def _score_chunk(self, pairs: list[tuple[list[int], list[int]]]) -> NDArray[np.float32]:
        rows = [self._joined(hypothesis, reference) for hypothesis, reference in pairs]
        scores = np.empty(len(rows), dtype=np.float32)
        with torch.inference_mode():
            parts, order = [], []
            for batch in self._batches([len(ids) for ids, _ in rows]):
                parts.append(self._scores([rows[index] for index in batch]))
                order += batch
            if parts:
                scores[order] = torch.cat(parts).cpu().numpy()  # one copy from the device
        return scores

    def _joined(self, hypothesis: list[int], reference: list[int]) -> tuple[list[int], int]:
        """A pair's ids, and how many of them are the first segment's."""
        room = self._limit - 3
        first, second = len(reference), len(hypothesis)
        if first + second > room:  # the longer side loses its last token until both fit; of equal ones the second
            self.truncated += 1
            first, second = _cut(first, second, room)
            if not self._told_truncation:
                self._told_truncation = True
                warn(f"a pair over BLEURT's limit of {self._limit} tokens is cut there")
        start, end = self._tokens.start, self._tokens.end
        return [start, *reference[:first], end, *hypothesis[:second], end], first + 2

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Indexes in batches of at most `batch_tokens` padded tokens, longest first. On a CPU a batch holds one length,
        so that nothing is padded and a pair's score does not depend on the batch it came in."""
        order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
        enough = 0 if self.device.type == "cpu" else self.batch_tokens // 2
        batch: list[int] = []
        for index in order:
            if batch:
                longest, size = lengths[batch[0]], len(batch)
                changes = lengths[index] != lengths[batch[-1]]
                if (size + 1) * longest > self.batch_tokens or (changes and size * longest >= enough):
                    yield batch
                    batch = []
            batch.append(index)
        if batch:
            yield batch

    def _scores(self, rows: list[tuple[list[int], int]]) -> Tensor:
        """Scores of one batch; a GPU that is out of memory gets it in halves."""
        try:
            return self._forward(rows)
        except torch.cuda.OutOfMemoryError:
            if len(rows) == 1:
                message = f"the GPU is out of memory for one pair of {len(rows[0][0])} tokens; use the CPU"
                raise UserError(message) from None
        torch.cuda.empty_cache()
        half = len(rows) // 2
        self.batch_tokens = min(self.batch_tokens, half * max(len(ids) for ids, _ in rows))
        if not self._told_memory:
            self._told_memory = True
            warn(f"the GPU is out of memory: going on with batches of {self.batch_tokens} tokens or fewer")
        return torch.cat([self._scores(rows[:half]), self._scores(rows[half:])])

    def _forward(self, rows: list[tuple[list[int], int]]) -> Tensor:
        count, longest = len(rows), max(len(ids) for ids, _ in rows)
        if self.device.type == "cpu":  # repeated rows bring a small product to the path of a large one
            fewest = FEWEST_ROWS * torch.get_num_threads()
            rows = rows * -(-fewest // (count * longest)) if count * longest < fewest else rows
        ids = torch.tensor([row + [0] * (longest - len(row)) for row, _ in rows])
        sizes = torch.tensor([[len(row), first] for row, first in rows])
        if self.device.type == "cuda":
            ids, sizes = ids.pin_memory(), sizes.pin_memory()
        ids, sizes = ids.to(self.device, non_blocking=True), sizes.to(self.device, non_blocking=True)
        positions = torch.arange(longest, device=self.device)[None]
        attended = None if all(len(row) == longest for row, _ in rows) else positions < sizes[:, :1]
        with without_cudnn_attention():
            return self._network(ids, (positions >= sizes[:, 1:]).long(), attended)[:count]


class _BleurtScorer:
    """The Scorer of one window: strings are tokenised once, the pairs of all asks share batches."""

    def __init__(self, utility: BLEURT, sentences: Sequence[Sentence]) -> None:
        self.encode_seconds = 0.0
        self._utility, self._sentences = utility, sentences
        self._tokens: dict[str, list[int]] = {}

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.float32]]:
        """One table per ask, (hypotheses, references)."""
        began = time.perf_counter()
        sides = [([self._sentences[a.sentence].hypotheses[i] for i in a.hypotheses], list(a.references)) for a in asks]
        new = (text for side in sides for texts in side for text in texts if text not in self._tokens)
        self._tokens |= self._utility.tokenise(list(new))
        self.encode_seconds += time.perf_counter() - began
        pairs = ((h, r) for hypotheses, references in sides for h in hypotheses for r in references)
        flat = self._utility.score_tokens((self._tokens[h], self._tokens[r]) for h, r in pairs)
        shapes = [(len(hypotheses), len(references)) for hypotheses, references in sides]
        tables = np.split(flat, np.cumsum([rows * columns for rows, columns in shapes])[:-1])
        return [table.reshape(shape) for table, shape in zip(tables, shapes, strict=True)]


def _cut(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths that fit: the longer loses first, and of two equal ones the second."""
    over = first + second - room
    difference = abs(first - second)
    longer = min(over, difference)
    first, second = (first - longer, second) if first > second else (first, second - longer)
    left = over - longer
    return first - left // 2, second - (left - left // 2)


def _shape(settings: dict[str, Any], file: Path) -> BleurtShape:
    """The sizes in config.json, checked."""
    kind = settings.get("model_type")
    if kind != "bleurt":
        message = f"{file}: model_type {kind!r} cannot be served as BLEURT; give a checkpoint of bleurt-pytorch"
        raise UserError(message)
    sizes = {name: settings.get(name, default) for name, default in _SIZES.items()}
    sizes["embedding_size"] = settings.get("embedding_size")
    for name, value in sizes.items():
        may_be_null = name == "embedding_size"
        if not (may_be_null and value is None) and not (isinstance(value, int) and value > 0):
            raise UserError(f"{file}: {name} {value!r}: must be a number above 0")
    if sizes["hidden_size"] % sizes["num_attention_heads"]:
        heads, width = sizes["num_attention_heads"], sizes["hidden_size"]
        raise UserError(f"{file}: num_attention_heads {heads}: must divide hidden_size {width}")
    return BleurtShape(**sizes)


def _activation(settings: dict[str, Any], file: Path) -> Any:
    """The activation by transformers' name for it."""
    pretrained.quiet()
    known = require("transformers.activations", extra="neural").ACT2FN
    name = settings.get("hidden_act", "gelu")
    if not isinstance(name, str) or name not in known:
        raise UserError(f"{file}: hidden_act {name!r}: transformers has no activation of that name")
    return known[name]


def _read_weights(folder: Path, shape: BleurtShape) -> dict[str, Tensor]:
    """The weights in a folder by name, none missing, none misshapen, none left over."""
    path, state = read_weights(folder)
    # Position numbers are no weights; older files carry them.
    state = {name: value for name, value in state.items() if name != "bleurt.embeddings.position_ids"}
    wanted = shape.weights()
    check_keys(set(state), set(wanted), "", path)
    check_shapes(state, wanted, "", path)
    check_finite(state, "", path)
    return {name: value.float() for name, value in state.items()}
