"""Decoders that use transformers' own forward pass, for any architecture, over rows as in marian.py.

All rows of a source are equal until the first id is chosen. So the first pass (the decoder's prefix after an encoder,
or the whole prompt of a decoder-only model) runs once per source, and the caches are copied to its rows afterwards.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mbrace.errors import require
from mbrace.models.search import DecoderState, Memory


class TransformersState(DecoderState):
    """Rows between steps. `select` only notes the rows; the caches are changed when the next ids are fed."""

    def __init__(self, decoder: Any, memory: Memory, width: int) -> None:
        self._decoder, self._memory, self._width = decoder, memory, width
        self._rows: Tensor | None = torch.arange(len(memory), device=memory.mask.device).repeat_interleave(width)
        self._cache: Any = None
        self._time = 0

    def step(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        if self._time == 0:
            logits, self._cache = self._decoder.first(self._memory)
            logits = logits.repeat_interleave(self._width, 0)
        else:
            if self._rows is not None:
                self._cache = _select(self._cache, self._rows)
                self._memory = self._decoder.memory_of_rows(self._memory, self._rows)
                self._rows = None
            logits, self._cache = self._decoder.next(ids[:, None], self._memory, self._cache, self._time)
        self._time += 1
        return logits, self._decoder.bias

    def select(self, rows: Tensor, offsets: Tensor, *, sources: Tensor | None = None) -> None:
        self._rows = rows if self._rows is None else self._rows[rows]


def _select(cache: Any, rows: Tensor) -> Any:
    if isinstance(cache, tuple):  # transformers 4: a tuple of tensors per layer
        return tuple(tuple(x.index_select(0, rows) for x in layer) for layer in cache)
    cache.reorder_cache(rows)
    return cache


class _TransformersDecoder:
    """The model, and a bias against ids that are never an output."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.bias = forbidden(model)

    def start(self, memory: Memory, width: int, most: int | None = None) -> TransformersState:
        """The state of `width` rows per source of `memory`, before the first step."""
        return TransformersState(self, memory, width)


class Seq2SeqDecoder(_TransformersDecoder):
    """Any AutoModelForSeq2SeqLM. `prefix` starts every output: the start symbol, and a language code where needed."""

    def __init__(self, model: Any, prefix: Sequence[int]) -> None:
        super().__init__(model)
        self._prefix = list(prefix)
        self._output = require("transformers.modeling_outputs", extra="models").BaseModelOutput

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        """Run the encoder over padded source ids (sources, width)."""
        out = self.model.get_encoder()(input_ids=source, attention_mask=mask.long())
        return Memory([out.last_hidden_state], mask, dim=1)

    def first(self, memory: Memory) -> tuple[Tensor, Any]:
        """Logits (sources, vocabulary) after the prefix, and the cache."""
        return self._run(torch.tensor([self._prefix], device=memory.mask.device).expand(len(memory), -1), memory, None)

    def next(self, ids: Tensor, memory: Memory, cache: Any, time: int) -> tuple[Tensor, Any]:
        """Logits (rows, vocabulary) after one more id per row."""
        return self._run(ids, memory, cache)

    def memory_of_rows(self, memory: Memory, rows: Tensor) -> Memory:
        """The memory of each row."""
        return memory.select(rows)

    def _run(self, ids: Tensor, memory: Memory, cache: Any) -> tuple[Tensor, Any]:
        out = self.model(
            encoder_outputs=self._output(last_hidden_state=memory.tensors[0]),
            attention_mask=memory.mask.long(),
            decoder_input_ids=ids,
            past_key_values=cache,
            use_cache=True,
        )
        return out.logits[:, -1], out.past_key_values


class CausalDecoder(_TransformersDecoder):
    """Any AutoModelForCausalLM. A source is its prompt, read once; every output starts from its keys and values."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        transformers = require("transformers", extra="models")
        self._caches = transformers.DynamicCache if int(transformers.__version__.split(".")[0]) >= 5 else None
        self._positions = "position_ids" in inspect.signature(model.forward).parameters

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        """Read prompts, padded on the left."""
        cache = self._caches() if self._caches else None
        logits, cache = self._run(source, mask, cache)
        if isinstance(cache, tuple):
            tensors = [x for layer in cache for x in layer[:2]]
        elif hasattr(cache, "layers"):
            tensors = [x for layer in cache.layers for x in (layer.keys, layer.values)]
        else:
            tensors = [x for pair in zip(cache.key_cache, cache.value_cache, strict=True) for x in pair]
        return Memory(tensors, mask, dim=2, left=True, last=logits)

    def first(self, memory: Memory) -> tuple[Tensor, Any]:
        """Logits (sources, vocabulary) after the prompts, which `encode` has read, and the cache."""
        layers = list(zip(memory.tensors[::2], memory.tensors[1::2], strict=True))
        assert memory.last is not None
        if self._caches is None:
            return memory.last, tuple(layers)
        cache = self._caches()
        for number, (keys, values) in enumerate(layers):
            cache.update(keys, values, number)
        return memory.last, cache

    def next(self, ids: Tensor, memory: Memory, cache: Any, time: int) -> tuple[Tensor, Any]:
        """Logits (rows, vocabulary) after one more id per row."""
        grown = torch.cat([memory.mask, memory.mask.new_ones((len(ids), time))], dim=1)
        return self._run(ids, grown, cache)

    def memory_of_rows(self, memory: Memory, rows: Tensor) -> Memory:
        """The mask of each row only: keys and values are in the cache."""
        return Memory([], memory.mask[rows], dim=2, left=True)

    def _run(self, ids: Tensor, mask: Tensor, cache: Any) -> tuple[Tensor, Any]:
        options: dict[str, Any] = {}
        if self._positions:
            options["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = self.model(input_ids=ids, attention_mask=mask.long(), past_key_values=cache, use_cache=True, **options)
        return out.logits[:, -1], out.past_key_values


def forbidden(model: Any) -> Tensor | None:
    """A bias (vocabulary,) of -inf for the ids that the model's generation settings exclude; None if there are none."""
    settings = getattr(model, "generation_config", None)
    single = [words[0] for words in getattr(settings, "bad_words_ids", None) or [] if len(words) == 1]
    single += list(getattr(settings, "suppress_tokens", None) or [])
    if not single:
        return None
    size = model.get_output_embeddings().weight.shape[0]
    bias = torch.zeros(size, device=model.device)
    bias[torch.tensor(single, device=model.device)] = -torch.inf
    return bias
