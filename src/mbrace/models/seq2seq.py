"""Translation models: beam search for hypotheses, reproducible sampling for pseudo-references."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mbrace.errors import UserError, require
from mbrace.models import search
from mbrace.models.codec import Codec, MarianCodec, TokenizerCodec, VocabularyCodec
from mbrace.models.marian import MarianDecoder, Memory
from mbrace.models.streams import sentence_key
from mbrace.models.vocabulary import Vocabulary
from mbrace.records import Record
from mbrace.sampler import Draws, Want


@dataclass(frozen=True)
class Beams:
    """The texts of a beam, best first (repeated where different ids read the same), and log p / length ** alpha."""

    texts: Sequence[str]
    scores: Sequence[float]


class Seq2Seq:
    """A translation model of transformers, by name or folder, or an object; without one the bundled translator.

    `dtype` is bfloat16 on a GPU and float32 on a CPU unless given. `rows` is the most sequences decoded at a time.
    In float32 a draw is the same sample whatever it is batched with; lower precision keeps its random numbers, but
    rounding may depend on the batch.
    """

    def __init__(
        self, model: Any = "bundled", *, tokenizer: Any = None, device: str | None = None, dtype: Any = None,
        rows: int | None = None,
    ) -> None:  # fmt: skip
        name = "cuda" if torch.cuda.is_available() else "cpu"
        device = device or (name if isinstance(model, str | Path) else str(model.device))
        codec: Codec | None = None
        if model == "bundled":
            from mbrace.models.bundle import load_bundled

            model, vocabulary = load_bundled()
            codec = VocabularyCodec(vocabulary)
        elif isinstance(model, str | Path):
            model, tokenizer = _load(str(model), tokenizer)
        self._setup(model.to(device).eval(), codec or _codec(tokenizer), dtype, rows)

    @classmethod
    def of(cls, model: Any, vocabulary: Vocabulary, *, dtype: Any = None, rows: int | None = None) -> Seq2Seq:
        """A MarianMTModel of our own and its vocabulary, where they are now."""
        self = cls.__new__(cls)
        self._setup(model, VocabularyCodec(vocabulary), dtype, rows)
        return self

    def _setup(self, model: Any, codec: Codec, dtype: Any, rows: int | None) -> None:
        self.device = model.device
        cuda = self.device.type == "cuda"
        self.dtype = (
            getattr(torch, dtype) if isinstance(dtype, str) else dtype or (torch.bfloat16 if cuda else torch.float32)
        )
        self.rows = rows or (8192 if cuda else 512)
        self.codec = codec
        if model.config.model_type != "marian":
            raise UserError(f"model type {model.config.model_type!r} is not supported yet; give a Marian model")
        with torch.inference_mode():
            self.decoder = MarianDecoder(model, self.dtype)
        self._pad, self._start = int(model.config.pad_token_id), int(model.config.decoder_start_token_id)
        self._eos, self._longest = int(model.config.eos_token_id), int(model.config.max_position_embeddings)
        self.encoder_runs = 0  # sources encoded so far

    @torch.inference_mode()
    def beam(
        self, sources: Sequence[str], k: int = 256, *, alpha: float = 1.0, max_length: int | None = None
    ) -> list[Beams]:
        """The k best translations of each source by beam search of width k, scored log p / length ** alpha."""
        out: list[Beams | None] = [None] * len(sources)
        rows = self.codec.encode(sources)
        for part in self._parts(rows, [k] * len(rows)):
            memory, limits = self._encode([rows[i] for i in part]), self._limits([rows[i] for i in part], max_length)
            found = search.beam(self.decoder, memory, limits, k=k, start=self._start, eos=self._eos, alpha=alpha)
            scores = found.scores.view(-1, k).tolist()
            texts = self._texts(found.ids)
            for place, i in enumerate(part):
                real = [n for n, score in enumerate(scores[place]) if score > float("-inf")]
                out[i] = Beams([texts[place * k + n] for n in real], [scores[place][n] for n in real])
        return [beams for beams in out if beams is not None]

    def sample(
        self, sources: Sequence[str], n: int, *, epsilon: float | None = 0.02, temperature: float = 1.0, seed: int = 0,
        first: int = 0, ids: Sequence[str | int] | None = None, top_p: float | None = None, top_k: int | None = None,
        min_p: float | None = None, max_length: int | None = None,
    ) -> list[Draws]:  # fmt: skip
        """Draws number first .. first + n - 1 of each source, with their log-probabilities under the full model.

        A draw depends on (seed, id of the sentence, number of the draw) alone; ids are 0, 1, ... unless given.
        `epsilon=None` samples from the model itself (ancestral sampling).
        """
        truncation = search.Truncation(epsilon, temperature, top_k, top_p, min_p)
        drawer = Drawing(
            self,
            list(sources),
            list(ids) if ids is not None else list(range(len(sources))),
            truncation,
            seed,
            max_length,
        )
        return drawer.draw([Want(i, first, n) for i in range(len(sources))])

    def sampler(
        self, *, epsilon: float | None = 0.02, temperature: float = 1.0, seed: int = 0, ahead: int = 0,
        top_p: float | None = None, top_k: int | None = None, min_p: float | None = None, max_length: int | None = None,
    ) -> ModelSampler:  # fmt: skip
        """A live source of pseudo-references for `decode_corpus`: drawn step by step while a race is open, or, with
        `ahead`, that many at once for every sentence before its first step."""
        return ModelSampler(self, search.Truncation(epsilon, temperature, top_k, top_p, min_p), seed, ahead, max_length)

    # what a batch needs

    def _encode(self, rows: Sequence[Sequence[int]]) -> Memory:
        self.encoder_runs += len(rows)
        width = -(-max(map(len, rows)) // 8) * 8
        padded = torch.full((len(rows), width), self._pad)
        for place, row in enumerate(rows):
            padded[place, : len(row)] = torch.tensor(row)
        return self.decoder.encode(padded.to(self.device))

    def _limits(self, rows: Sequence[Sequence[int]], max_length: int | None) -> Tensor:
        """The most ids of an output: by the length of its own source, never of the batch."""
        own = [min(max_length or 2 * len(row) + 32, self._longest) for row in rows]
        return torch.tensor(own, device=self.device)

    def _parts(self, rows: Sequence[Sequence[int]], counts: Sequence[int]) -> Iterator[list[int]]:
        """Positions of sources for one batch each: of like length, at most self.rows sequences together."""
        for row in rows:
            if len(row) > self._longest:
                raise UserError(
                    f"a source has {len(row)} pieces; the model takes {self._longest}: split it into sentences"
                )
        part: list[int] = []
        widest = 0
        for i in sorted(range(len(rows)), key=lambda i: (-len(rows[i]), i)):
            if part and (len(part) + 1) * max(widest, counts[i]) > self.rows:
                yield part
                part, widest = [], 0
            part.append(i)
            widest = max(widest, counts[i])
        if part:
            yield part

    def _texts(self, ids: Tensor) -> list[str]:
        """Text of each row; rows that repeat are read once."""
        rows = ids.cpu().numpy()
        keys = [row.tobytes() for row in rows]
        where = {key: number for number, key in enumerate(keys)}
        distinct = dict(
            zip(where, self.codec.decode([rows[number].tolist() for number in where.values()]), strict=True)
        )
        return [distinct[key] for key in keys]


class Drawing:
    """Draws for some sources, each encoded once, at its first draw."""

    def __init__(
        self, model: Seq2Seq, sources: list[str], ids: list[str | int], truncation: search.Truncation, seed: int,
        max_length: int | None,
    ) -> None:  # fmt: skip
        self._model, self._truncation, self._max_length = model, truncation, max_length
        self._rows = model.codec.encode(sources)
        self._keys = [sentence_key(seed, name) for name in ids]
        self._memories: dict[int, Memory] = {}

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        """The draws of each want; sentences of like length are decoded together."""
        out: list[Draws] = [Draws([], [])] * len(wants)
        model = self._model
        rows = [self._rows[want.sentence] for want in wants]
        pieces = _split(wants, model.rows)
        parts: dict[int, list[tuple[int, list[str], list[float]]]] = {i: [] for i in range(len(wants))}
        with torch.inference_mode():
            for part in model._parts([rows[i] for i, _ in pieces], [want.count for _, want in pieces]):
                chosen = [pieces[p] for p in part]
                texts, scores = self._draw([want for _, want in chosen])
                for (i, want), text, score in zip(chosen, texts, scores, strict=True):
                    parts[i].append((want.first, text, score))
        for i, found in parts.items():
            found.sort(key=lambda piece: piece[0])
            out[i] = Draws([t for _, text, _ in found for t in text], [s for _, _, score in found for s in score])
        return out

    def _draw(self, wants: Sequence[Want]) -> tuple[list[list[str]], list[list[float]]]:
        model, device = self._model, self._model.device
        missing = list(dict.fromkeys(want.sentence for want in wants if want.sentence not in self._memories))
        if missing:
            memory = model._encode([self._rows[i] for i in missing])
            for place, i in enumerate(missing):
                self._memories[i] = memory.select(torch.tensor([place], device=device))
        memory = Memory.join([self._memories[want.sentence] for want in wants])
        numbers = [[self._keys[want.sentence], want.first, want.count] for want in wants]
        keys, first, counts = torch.tensor(numbers, device=device).unbind(1)
        limits = model._limits([self._rows[want.sentence] for want in wants], self._max_length)
        found = search.sample(
            model.decoder, memory, keys, first, counts, limits, start=model._start, eos=model._eos,
            truncation=self._truncation,
        )  # fmt: skip
        width = int(counts.max())
        texts, scores = model._texts(found.ids), found.scores.tolist()
        spans = [(place * width, place * width + want.count) for place, want in enumerate(wants)]
        return [texts[a:b] for a, b in spans], [scores[a:b] for a, b in spans]


def _split(wants: Sequence[Want], rows: int) -> list[tuple[int, Want]]:
    """Wants of at most `rows` draws, each with the position of the want it is part of."""
    pieces = []
    for i, want in enumerate(wants):
        for first in range(want.first, want.first + want.count, rows):
            pieces.append((i, Want(want.sentence, first, min(rows, want.first + want.count - first))))
    return pieces


class ModelSampler:
    """A sampler (see mbrace.sampler) that draws pseudo-references from a live model."""

    def __init__(
        self, model: Seq2Seq, truncation: search.Truncation, seed: int, ahead: int, max_length: int | None
    ) -> None:
        self._model, self._truncation, self._seed, self._ahead, self._max_length = (
            model,
            truncation,
            seed,
            ahead,
            max_length,
        )
        self.drawn = 0  # pseudo-references drawn so far

    def start(self, records: Sequence[Record]) -> _Drawer:
        sources = []
        for record in records:
            if record.source is None:
                raise UserError(f"record {record.id!r}: source: missing; the model draws pseudo-references from it")
            sources.append(record.source)
        drawing = Drawing(
            self._model, sources, [record.id for record in records], self._truncation, self._seed, self._max_length
        )
        return _Drawer(self, drawing, len(records), self._ahead)


class _Drawer:
    """Serves one window: from what was drawn ahead while it lasts, then from the model."""

    def __init__(self, sampler: ModelSampler, drawing: Drawing, sentences: int, ahead: int) -> None:
        self._sampler, self._drawing, self._ahead = sampler, drawing, ahead
        self._stock: list[Draws] = self._draw([Want(i, 0, ahead) for i in range(sentences)]) if ahead else []

    def _draw(self, wants: Sequence[Want]) -> list[Draws]:
        self._sampler.drawn += sum(want.count for want in wants)
        return self._drawing.draw(wants)

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        ends = [want.first + want.count for want in wants]
        later = [
            Want(want.sentence, max(want.first, self._ahead), end - max(want.first, self._ahead))
            for want, end in zip(wants, ends, strict=True) if end > self._ahead
        ]  # fmt: skip
        fresh = iter(self._draw(later) if later else [])
        return [
            self._join(want, next(fresh) if end > self._ahead else None) for want, end in zip(wants, ends, strict=True)
        ]

    def _join(self, want: Want, fresh: Draws | None) -> Draws:
        texts, logprobs = list(fresh.texts if fresh else []), list((fresh.logprobs if fresh else None) or [])
        if want.first < self._ahead:
            stock, part = self._stock[want.sentence], slice(want.first, min(want.first + want.count, self._ahead))
            texts, logprobs = [*stock.texts[part], *texts], [*(stock.logprobs or [])[part], *logprobs]
        return Draws(texts, logprobs)


def _load(name: str, tokenizer: Any) -> tuple[Any, Any]:
    transformers = require("transformers", extra="models")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*sacremoses.*")
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(name)
            tokenizer = tokenizer or transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(f"model {name!r} cannot be loaded: {str(error).splitlines()[0]}") from error
    return model, tokenizer


def _codec(tokenizer: Any) -> Codec:
    if tokenizer is None:
        raise UserError("a model object needs its tokenizer: Seq2Seq(model, tokenizer=...)")
    return MarianCodec(tokenizer) if hasattr(tokenizer, "spm_source") else TokenizerCodec(tokenizer)
