"""COMET's unified checkpoints as utilities: UniTE, XCOMET, and CometKiwi, which estimates quality.

They read `<s> mt </s></s> src </s></s> ref </s>`, hypothesis first, and score it from the first token. With source and
reference there are three inputs, (mt, src), (mt, ref) and (mt, src, ref). The first has no reference: it is scored once
per hypothesis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError, require
from mbrace.utilities.cross import spans
from mbrace.utilities.cross.batches import Batch, Rows, Stream
from mbrace.utilities.cross.scorer import CrossUtility, Timer, chunks
from mbrace.utilities.cross.tokens import Tokens, valid
from mbrace.utilities.neural import checkpoint as layout
from mbrace.utilities.neural import pretrained
from mbrace.utilities.neural.encoder import Readout, choose_device, choose_dtype
from mbrace.utilities.neural.head import activation_named, linear, moved

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SEGMENTS = ["mt", "src", "ref"]
# What the originals' constructors take where a checkpoint does not say.
KINDS: dict[str, dict[str, Any]] = {
    "unified_metric": {
        "pretrained_model": "microsoft/infoxlm-large",
        "sent_layer": "mix",
        "layer_transformation": "sparsemax",
        "word_layer": 24,
        "input_segments": SEGMENTS,
        "word_level_training": False,
        "error_labels": ["minor", "major"],
    },
    "xcomet_metric": {
        "encoder_model": "XLM-RoBERTa-XL",
        "pretrained_model": "facebook/xlm-roberta-xl",
        "sent_layer": "mix",
        "layer_transformation": "sparsemax",
        "layer_norm": False,
        "word_layer": 36,
        "hidden_sizes": [2560, 1280],
        "input_segments": SEGMENTS,
        "word_level_training": True,
        "error_labels": ["minor", "major", "critical"],
    },
}
SCORE_WEIGHTS = (0.12, 0.33, 0.33)  # XCOMET's, of the three inputs; what is left is for the error spans


class Unified(CrossUtility):
    """The score of a unified COMET checkpoint: against a reference, and the source where it reads it.

    `model` is a folder or `.ckpt` in COMET's layout, or a hub name (Unbabel/XCOMET-XL). One that reads no reference
    (Unbabel/wmt22-cometkiwi-da) only has `quality`. `device` is a GPU if there is one; `dtype` is the encoder's,
    bfloat16 on a GPU and float32 elsewhere by default; `batch_tokens` limits a batch.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        place = choose_device(device)
        number = choose_dtype(dtype, place)
        read = layout.read(model, KINDS, (*layout.PARTS, "hidden2tag.", "wordloss."))
        segments, network = _check(read), build_network(read, place, number)
        pad = network.tokenizer.pad_token_id
        stream = Stream(pad=pad, limit=network.positions, device=place, batch_tokens=batch_tokens)
        kind = "unified" if network.labels is None else "xcomet"
        name = f"{kind}|{pretrained.label(model)}|encoder:{str(number).removeprefix('torch.')}"
        self._assemble(name, segments, network, stream)

    def _assemble(self, name: str, segments: Sequence[str], network: Network, stream: Stream) -> None:
        self.name, self.network, self.stream = name, network, stream
        self.reads_sources, self.reads_references = "src" in segments, "ref" in segments
        self.needs_source = self.reads_sources and self.reads_references

    def session(self) -> UnifiedSession:
        """What a window needs."""
        return UnifiedSession(self)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each string with the special tokens around them, cut to the limit of one segment."""
        backend = self.network.tokenizer.backend_tokenizer
        backend.no_padding()
        backend.enable_truncation(self.network.positions - 2)
        encodings = backend.encode_batch(valid(texts))
        self.stream.truncated += sum(1 for encoding in encodings if encoding.overflowing)
        return [encoding.ids for encoding in encodings]


def _check(read: layout.Checkpoint) -> list[str]:
    """Settings that only unified checkpoints have; returns the input segments."""
    settings, path = read.settings, read.path
    xcomet = settings["class_identifier"] == "xcomet_metric"
    segments = SEGMENTS if xcomet else settings["input_segments"]
    if not isinstance(segments, list | tuple) or "mt" not in segments or not set(segments) <= set(SEGMENTS):
        raise UserError(f"{path}: input_segments {segments!r}: must be mt and src, ref or both")
    if not {"src", "ref"} & set(segments):
        raise UserError(f"{path}: input_segments {segments!r}: has neither src nor ref to compare with")
    labels = settings["error_labels"]
    if xcomet and labels != ["minor", "major", "critical"]:
        raise UserError(f"{path}: error_labels {labels!r}: XCOMET's are minor, major and critical")
    # The names that building a readout goes by.
    settings["layer"], settings["pool"] = settings["sent_layer"], "cls"
    words = xcomet or bool(settings["word_level_training"])
    layout.check_keys(set(read.part("hidden2tag.")), {"weight", "bias"} if words else set(), "hidden2tag.", path)
    layout.check_keys(set(read.part("wordloss.")) - {"weight"}, set(), "wordloss.", path)  # of training only
    return list(segments)


@dataclass
class Network:
    """The checkpoint's network: from joined token ids to scores, and for XCOMET the probabilities of its labels."""

    model: Any  # the transformer
    tokenizer: Any
    readout: Readout
    layers: list[tuple[Tensor, Tensor]]  # of the feed-forward head, float32
    activation: Any
    final: Any = None
    token_types: bool = False
    doubles_separator: bool = True
    word_layer: int = 0
    labels: tuple[Tensor, Tensor] | None = None  # XCOMET's classifier of tokens, float32

    @property
    def positions(self) -> int:
        """The length limit, as the original counts for every encoder."""
        return int(self.model.config.max_position_embeddings) - 2

    def __call__(self, batch: Batch, own: Tensor, labelled: int) -> tuple[Tensor, ...]:
        """Scores (rows,), and for XCOMET probabilities (rows, labelled, classes) of the first `labelled` tokens.

        `own` (rows,) counts the tokens of the hypothesis with the special tokens around it.
        """
        torch = require("torch", extra="neural")
        tokens = torch.arange(batch.ids.shape[1], device=batch.ids.device)[None]
        given: dict[str, Any] = {"attention_mask": None if batch.even else tokens < batch.lengths[:, None]}
        if self.token_types:
            given["token_type_ids"] = (tokens >= own[:, None]).long()
        last = self.readout.weights is None and self.readout.layer == self.model.config.num_hidden_layers
        all_layers = not last or self.labels is not None
        out = self.model(input_ids=batch.ids, output_hidden_states=all_layers, return_dict=True, **given)
        states = out.hidden_states if all_layers else {self.readout.layer: out.last_hidden_state}
        score = self.readout(states, None, batch.lengths)
        for index, (weight, bias) in enumerate(self.layers):
            score = linear(score if index == 0 else self.activation(score), weight) + bias
        score = score.squeeze(1) if self.final is None else self.final(score.squeeze(1))
        if self.labels is None:
            return (score,)
        words = states[self.word_layer][:, :labelled].float()
        logits = linear(words.flatten(0, 1), self.labels[0]) + self.labels[1]
        return score, logits.softmax(dim=1).view(len(words), words.shape[1], -1)


def build_network(read: layout.Checkpoint, device: torch.device, dtype: torch.dtype) -> Network:
    """The checkpoint's network on a device, its weights checked against its settings."""
    transformer, tokenizer = layout.build_transformer(read)
    settings, path, units = read.settings, read.path, transformer.config.hidden_size
    states = transformer.config.num_hidden_layers + 1
    final, word_layer, labels = settings["final_activation"], 0, None
    if settings["class_identifier"] == "xcomet_metric":
        word_layer, state = settings["word_layer"], read.part("hidden2tag.")
        if not isinstance(word_layer, int) or not 0 <= word_layer < states:
            raise UserError(f"{path}: word_layer {word_layer}: give a number from 0 to {states - 1}")
        classes = 1 + len(settings["error_labels"])
        layout.check_shapes(state, {"weight": (classes, units), "bias": (classes,)}, "hidden2tag.", path)
        layout.check_finite(state, "hidden2tag.", path)
        labels = state["weight"].to(device), state["bias"].to(device)
    return Network(
        model=transformer.to(device=device, dtype=dtype).eval(),
        tokenizer=tokenizer,
        readout=layout.build_readout(read, states),
        layers=_feed_forward(read, units, device),
        activation=activation_named(settings["activations"], path),
        final=None if final is None else activation_named(final, path),
        # RemBERT has token types too, but the original does not give it any.
        token_types=settings["encoder_model"] == "BERT",
        doubles_separator=settings["encoder_model"] not in ("BERT", "RemBERT"),
        word_layer=word_layer,
        labels=labels,
    )


def _feed_forward(read: layout.Checkpoint, units: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """The estimator's layers on a vector of `units`, their keys and shapes checked against the settings."""
    state, sizes = read.part("estimator."), [units, *read.settings["hidden_sizes"], 1]
    names = [f"ff.{3 * index}" for index in range(len(sizes) - 1)]  # linear, activation, dropout, linear, ...
    wanted = {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}
    layout.check_keys(set(state), wanted, "estimator.", read.path)
    for name, width, size in zip(names, sizes[:-1], sizes[1:], strict=True):
        shapes = {f"{name}.weight": (size, width), f"{name}.bias": (size,)}
        layout.check_shapes(state, shapes, "estimator.", read.path)
    layout.check_finite(state, "estimator.", read.path)
    return [(state[f"{name}.weight"].to(device), state[f"{name}.bias"].to(device)) for name in names]


class UnifiedSession:
    """The strings of a window, and its hypotheses' scores with their sources."""

    def __init__(self, utility: Unified) -> None:
        self.utility, self.network = utility, utility.network
        self.tokens = Tokens(self._tokenize)
        tokenizer = self.network.tokenizer
        self._first = self.tokens.fixed([tokenizer.cls_token_id])
        self._between = self.tokens.fixed([tokenizer.sep_token_id] * (2 if self.network.doubles_separator else 1))
        self._last = self.tokens.fixed([tokenizer.sep_token_id])
        self._labelled: dict[str, int] = {}  # tokens of a string that the labels of its spans are read from
        self._source_slots: dict[tuple[int, int], int] = {}  # (hypothesis, source): where its score is
        self._source_scores = np.empty(0, dtype=np.float32)
        self._source_labels = spans.Labels.empty()
        self._single = Timer()

    @property
    def single_seconds(self) -> float:
        """Spent so far on (mt, src)."""
        return self._single.seconds

    def number(self, texts: Iterable[str], role: str) -> NDArray[np.int64]:
        """The numbers of strings, the same in every role: a segment is tokenised alike anywhere."""
        return self.tokens.number(texts)

    def scores(
        self, hypotheses: NDArray[np.int64], references: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of distinct pairs."""
        found = np.empty(len(hypotheses), dtype=np.float32)
        size = 1 << 16  # pairs at a time: their label probabilities are held meanwhile
        for begin in range(0, len(hypotheses), size):
            part = slice(begin, begin + size)
            found[part] = self._scores(hypotheses[part], references[part], sources[part])
        return found

    def _scores(
        self, hypotheses: NDArray[np.int64], references: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        if not self.utility.reads_sources:
            return self._run(hypotheses, [references])[0]
        slots = self._with_sources(hypotheses, sources)
        by_reference = self._run(hypotheses, [references])
        by_both = self._run(hypotheses, [sources, references])
        inputs = [self._source_scores[slots], by_reference[0], by_both[0]]
        if self.network.labels is None:
            return np.mean(inputs, axis=0, dtype=np.float32)  # type: ignore[no-any-return]
        weighted = zip(inputs, SCORE_WEIGHTS, strict=True)
        score = sum(np.minimum(each, 1) * np.float32(weight) for each, weight in weighted)
        labels = spans.mixed([self._source_labels.take(slots), by_reference[1], by_both[1]])
        return np.asarray(score + spans.scores(labels) * np.float32(0.22), dtype=np.float32)

    def qualities(self, hypotheses: NDArray[np.int64], sources: NDArray[np.int64]) -> NDArray[np.float32]:
        """Scores (hypotheses,) with their sources alone."""
        slots = self._with_sources(hypotheses, sources)
        score = self._source_scores[slots]
        if self.network.labels is None:
            return score
        found = np.minimum(score, 1) * np.float32(sum(SCORE_WEIGHTS))
        return np.asarray(found + spans.scores(self._source_labels.take(slots)) * np.float32(0.22), dtype=np.float32)

    def _with_sources(self, hypotheses: NDArray[np.int64], sources: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the scores of (mt, src) are; those not known yet are run first."""
        with self._single:
            keys = list(zip(hypotheses.tolist(), sources.tolist(), strict=True))
            new = [key for key in dict.fromkeys(keys) if key not in self._source_slots]
            if new:
                columns = np.array(new, dtype=np.int64)
                scores, labels = self._run(columns[:, 0], [columns[:, 1]])
                first = len(self._source_scores)
                self._source_slots.update(zip(new, range(first, first + len(new)), strict=True))
                self._source_scores = np.concatenate([self._source_scores, scores])
                self._source_labels = self._source_labels.followed_by(labels)
            return np.array([self._source_slots[key] for key in keys], dtype=np.int64)

    def _run(
        self, hypotheses: NDArray[np.int64], others: Sequence[NDArray[np.int64]]
    ) -> tuple[NDArray[np.float32], spans.Labels]:
        """Scores (rows,) of the hypothesis joined with the other segments, and the probabilities of its labels."""
        parts: list[NDArray[np.int64] | int] = [self._first, hypotheses]
        for other in others:
            parts += [self._between, other]
        torch = require("torch", extra="neural")
        positions, scores, labels, counts = [], [], [], []
        stream = self.utility.stream
        for rows, outputs in stream.run(self.tokens, chunks([*parts, self._last]), self._forward):
            positions.append(rows.positions)
            scores.append(outputs[0])
            if self.network.labels is not None:
                count = np.minimum(self._label_counts(rows), self.tokens.lengths[rows.pieces].sum(axis=1))
                counts.append(count)
                labels.append(spans.flat(outputs[1], count))
        order = np.argsort(np.concatenate(positions))
        found = torch.cat(scores).float().cpu().numpy()[order]
        if not labels:
            return found, spans.Labels.empty()
        return found, spans.Labels.of(torch.cat(labels).cpu().numpy(), np.concatenate(counts)).take(order)

    def _forward(self, batch: Batch) -> tuple[Tensor, ...]:
        own = moved(self.tokens.lengths[batch.rows.pieces[:, 1]] + 2, batch.ids.device)
        labelled = 0 if self.network.labels is None else int(self._label_counts(batch.rows).max())
        return self.network(batch, own, labelled)

    def _label_counts(self, rows: Rows) -> NDArray[np.int64]:
        """How many tokens of each row the spans are read from: as many as the hypothesis had before `<pad>` was taken
        out of it, special tokens included, as the original counts them."""
        own = rows.pieces[:, 1]
        numbers, index = np.unique(own, return_inverse=True)
        extra = np.array([self._labelled.get(self.tokens.text(number), 0) for number in numbers.tolist()])
        return self.tokens.lengths[own] + 2 + extra[index.ravel()]  # type: ignore[no-any-return]

    def _tokenize(self, entries: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Each string without special tokens around it, and without a literal `<pad>` in it, as the original joins."""
        pad, joined = self.network.tokenizer.pad_token_id, []
        for (_, text), ids in zip(entries, self.utility.tokenize([text for _, text in entries]), strict=True):
            kept = [one for one in ids if one != pad]
            if len(kept) < len(ids):
                self._labelled[text] = len(ids) - len(kept)
            joined.append(kept[1:-1])
        return joined
