"""COMET's unified checkpoints as utilities: UniTE, XCOMET, and CometKiwi, which estimates quality.

They read `<s> mt </s></s> src </s></s> ref </s>`, hypothesis first, and score it from the first token. With source and
reference there are three inputs, (mt, src), (mt, ref) and (mt, src, ref). The first has no reference: it is scored once
per hypothesis.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.cross.scorer import CrossUtility, Pieces, WindowScorer
from mbrace.errors import UserError
from mbrace.neural import checkpoint as layout
from mbrace.neural import pretrained
from mbrace.neural.batches import BatchStream
from mbrace.neural.device import dtype_name, place
from mbrace.neural.encoder import Readout
from mbrace.neural.head import FeedForward, linear, to_device
from mbrace.neural.pretrained import check_weights
from mbrace.neural.tokens import TokenBatch, Tokens, tokenised
from mbrace.settings import NetworkOptions
from mbrace.utility import Sentence

if TYPE_CHECKING:
    from typing_extensions import Unpack

SEGMENTS = ["mt", "src", "ref"]
# The defaults of the originals' constructors for what a checkpoint does not state.
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


def check_settings(read: layout.Checkpoint) -> list[str]:
    """Check the settings that only unified checkpoints have; returns the input segments."""
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
    # The names under which `build_readout` looks for them.
    settings["layer"], settings["pool"] = settings["sent_layer"], "cls"
    words = xcomet or bool(settings["word_level_training"])
    if not words:
        check_weights(read.part("hidden2tag."), {}, "hidden2tag.", path)
    loss = {key: value for key, value in read.part("wordloss.").items() if key != "weight"}  # used in training only
    check_weights(loss, {}, "wordloss.", path)
    return list(segments)


@dataclass
class XCOMETNetwork:
    """The checkpoint's network: from joined token ids to scores, and for XCOMET the probabilities of its labels."""

    model: Any  # the transformer
    tokenizer: Any
    readout: Readout
    head: FeedForward  # float32
    token_types: bool = False
    doubles_separator: bool = True
    word_layer: int = 0
    labels: tuple[Tensor, Tensor] | None = None  # XCOMET's classifier of tokens, float32

    @property
    def positions(self) -> int:
        """The length limit, as the original computes it for every encoder."""
        return int(self.model.config.max_position_embeddings) - 2

    def __call__(self, batch: TokenBatch, own: Tensor, labelled: int) -> tuple[Tensor, ...]:
        """Scores (rows,), and for XCOMET probabilities (rows, labelled, classes) of the first `labelled` tokens.

        `own` (rows,) is the number of tokens of the hypothesis, including the special tokens around it.
        """
        ids, layers = batch.ids(), self.model.config.num_hidden_layers + 1
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": batch.mask()}
        if self.token_types:
            given["token_type_ids"] = (torch.arange(ids.shape[1], device=ids.device)[None] >= own[:, None]).long()
        all_layers = self.labels is not None or self.readout.reads(layers) != {layers - 1}
        out = self.model(output_hidden_states=all_layers, return_dict=True, **given)
        states = out.hidden_states if all_layers else [None] * (layers - 1) + [out.last_hidden_state]
        score = self.head(self.readout.by_length(states, batch))
        if self.labels is None:
            return (score,)
        words = states[self.word_layer][:, :labelled].float()
        logits = linear(words.flatten(0, 1), self.labels[0]) + self.labels[1]
        return score, logits.softmax(dim=1).view(len(words), words.shape[1], -1)


def build_network(read: layout.Checkpoint, device: torch.device, dtype: torch.dtype) -> XCOMETNetwork:
    """The checkpoint's network on a device, its weights checked against its settings."""
    transformer, tokenizer = layout.build_transformer(read)
    settings, path, units = read.settings, read.path, transformer.config.hidden_size
    states = transformer.config.num_hidden_layers + 1
    word_layer, labels = 0, None
    if settings["class_identifier"] == "xcomet_metric":
        word_layer, state = settings["word_layer"], read.part("hidden2tag.")
        if not isinstance(word_layer, int) or not 0 <= word_layer < states:
            raise UserError(f"{path}: word_layer {word_layer}: give a number from 0 to {states - 1}")
        classes = 1 + len(settings["error_labels"])
        check_weights(state, {"weight": (classes, units), "bias": (classes,)}, "hidden2tag.", path)
        labels = state["weight"].to(device), state["bias"].to(device)
    return XCOMETNetwork(
        model=transformer.to(device=device, dtype=dtype).eval(),
        tokenizer=tokenizer,
        readout=layout.build_readout(read, states),
        head=FeedForward(*layout.build_feed_forward(read, [units], device)),
        # RemBERT has token types too, but the original does not set them.
        token_types=settings["encoder_model"] == "BERT",
        doubles_separator=settings["encoder_model"] not in ("BERT", "RemBERT"),
        word_layer=word_layer,
        labels=labels,
    )


PENALTIES = np.array([0, 1, 5, 10])  # for a span, by the label it begins with: none, minor, major, critical
WORST = 25
INPUT_WEIGHTS = (0.1667, 0.3333, 0.5)  # of (mt, src), (mt, ref) and (mt, src, ref) in the mixed probabilities


def mixed_labels(inputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The weighted average of the probabilities (tokens, classes) of a pair's three inputs, without tokens that an
    input lacks."""
    count = min(map(len, inputs))
    mixed = sum(each[:count] * np.float32(share) for each, share in zip(inputs, INPUT_WEIGHTS, strict=True))
    return np.asarray(mixed, dtype=np.float32)


def span_score(probabilities: NDArray[np.float32]) -> float:
    """From 0 to 1: the best score minus the penalties of the spans, by the probabilities (tokens, classes) of labels.

    A span is a run of tokens whose likeliest label is an error, and its penalty is that of the label it begins with. A
    run that reaches the last token is dropped: the original ends a span only when a token without error follows.
    """
    likeliest = probabilities.argmax(axis=1)
    last_without = int(np.flatnonzero(likeliest == 0)[-1]) if (likeliest == 0).any() else 0
    begins = likeliest[:last_without][np.append(0, likeliest)[:last_without] == 0]
    return (WORST - min(int(PENALTIES[begins].sum()), WORST)) / WORST


SCORE_WEIGHTS = (0.12, 0.33, 0.33)  # XCOMET's, of the three inputs
SPANS_WEIGHT = 0.22  # XCOMET's, of the error spans


class XCOMET(CrossUtility):
    """The score of a unified COMET checkpoint: against a reference, and the source where it reads it.

    `model` is a folder or `.ckpt` in COMET's layout, or a hub name (Unbabel/XCOMET-XL). One that reads no reference
    (Unbabel/wmt22-cometkiwi-da) can only estimate `quality`. Other parameters are those of `settings.Network`.
    """

    def __init__(self, model: str | Path = "Unbabel/XCOMET-XL", **options: Unpack[NetworkOptions]) -> None:
        device, dtype, batch_tokens = place(options)
        read = layout.read(model, KINDS, (*layout.PARTS, "hidden2tag.", "wordloss."))
        segments, network = check_settings(read), build_network(read, device, dtype)
        pad = network.tokenizer.pad_token_id
        stream = BatchStream(pad=pad, limit=network.positions, device=device, batch_tokens=batch_tokens)
        kind = "unified" if network.labels is None else "xcomet"
        name = f"{kind}|{pretrained.label(model)}|encoder:{dtype_name(dtype)}"
        self._assemble(name, segments, network, stream)

    def _assemble(self, name: str, segments: Sequence[str], network: XCOMETNetwork, stream: BatchStream) -> None:
        self.name, self.network, self.stream = name, network, stream
        self.reads_sources, self.reads_references = "src" in segments, "ref" in segments
        self.needs_source = self.reads_sources and self.reads_references

    def scorer(self, sentences: Sequence[Sentence]) -> XCOMETScorer:
        """The scorer of a window of these sentences."""
        return XCOMETScorer(self, sentences)


# Scores (rows,) and, where the network has labels, their probabilities in each row, (tokens, classes).
Scored: TypeAlias = tuple[NDArray[np.float32], list[NDArray[np.float32]]]


class XCOMETScorer(WindowScorer):
    """The strings of a window, and its hypotheses' scores with their sources."""

    utility: XCOMET
    number: Pieces

    def __init__(self, utility: XCOMET, sentences: Sequence[Sentence]) -> None:
        self.network, tokenizer = utility.network, utility.network.tokenizer
        between = [tokenizer.sep_token_id] * (2 if self.network.doubles_separator else 1)
        fixed = [[tokenizer.cls_token_id], between, [tokenizer.sep_token_id]]
        super().__init__(utility, sentences, Pieces(self._tokenize, fixed))
        self._dropped = np.zeros(len(fixed), dtype=np.int64)  # of each piece: how many `<pad>` were taken out of it
        self._of_sources: dict[tuple[int, int], tuple[np.float32, NDArray[np.float32]]] = {}  # (hypothesis, source)

    def scores(
        self, hypotheses: NDArray[np.int64], references: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of distinct pairs."""
        found = np.empty(len(hypotheses), dtype=np.float32)
        size = 1 << 16  # pairs at a time, because their label probabilities are held in memory
        for begin in range(0, len(hypotheses), size):
            part = slice(begin, begin + size)
            found[part] = self._scores(hypotheses[part], references[part], sources[part])
        return found

    def _scores(
        self, hypotheses: NDArray[np.int64], references: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        if not self.utility.reads_sources:
            return self._run(hypotheses, [references])[0]
        inputs = [
            self._with_sources(hypotheses, sources),
            self._run(hypotheses, [references]),
            self._run(hypotheses, [sources, references]),
        ]
        if self.network.labels is None:
            return np.mean([scores for scores, _ in inputs], axis=0, dtype=np.float32)  # type: ignore[no-any-return]
        weighted = zip(inputs, SCORE_WEIGHTS, strict=True)
        score = sum(np.minimum(each, 1) * np.float32(weight) for (each, _), weight in weighted)
        spans = [span_score(mixed_labels(labels)) for labels in zip(*(labels for _, labels in inputs), strict=True)]
        return np.asarray(score + np.array(spans, dtype=np.float32) * np.float32(SPANS_WEIGHT), dtype=np.float32)

    def qualities(self, hypotheses: NDArray[np.int64], sources: NDArray[np.int64]) -> NDArray[np.float32]:
        """Scores (hypotheses,) with their sources alone."""
        score, labels = self._with_sources(hypotheses, sources)
        if self.network.labels is None:
            return score
        found = np.minimum(score, 1) * np.float32(sum(SCORE_WEIGHTS))
        spans = np.array([span_score(each) for each in labels], dtype=np.float32)
        return np.asarray(found + spans * np.float32(SPANS_WEIGHT), dtype=np.float32)

    def _with_sources(self, hypotheses: NDArray[np.int64], sources: NDArray[np.int64]) -> Scored:
        """The scores of (mt, src) and their labels, which are computed if they are not known yet."""
        began = time.perf_counter()
        keys = list(zip(hypotheses.tolist(), sources.tolist(), strict=True))
        new = [key for key in dict.fromkeys(keys) if key not in self._of_sources]
        if new:
            columns = np.array(new, dtype=np.int64)
            self._of_sources.update(zip(new, zip(*self._run(columns[:, 0], [columns[:, 1]]), strict=True), strict=True))
        found = [self._of_sources[key] for key in keys]
        self.encode_seconds += time.perf_counter() - began
        return np.array([score for score, _ in found], dtype=np.float32), [labels for _, labels in found]

    def _run(self, hypotheses: NDArray[np.int64], others: Sequence[NDArray[np.int64]]) -> Scored:
        """Scores (rows,) of the hypothesis joined with the other segments, and the probabilities of its labels."""
        stream, lengths = self.utility.stream, self.number.lengths
        first, between, last = (np.full(len(hypotheses), number) for number in range(3))
        rows = np.stack([first, hypotheses, *(each for other in others for each in (between, other)), last], axis=1)
        kept = lengths[rows]
        ends = kept.cumsum(axis=1)
        stream.cut(int((ends[:, -1] > stream.limit).sum()))
        kept = np.clip(stream.limit - (ends - kept), 0, kept)
        own = lengths[hypotheses] + 2
        # As many tokens have labels as the hypothesis had before `<pad>` was taken out of it, special tokens included,
        # as the original counts them.
        counts = own + self._dropped[hypotheses]

        def forward(batch: TokenBatch) -> tuple[Tensor, ...]:
            count, batch = len(batch), batch.enough()
            found = self.network(
                batch, to_device(own[batch.indices], batch.flat.device), int(counts[batch.indices].max())
            )
            return tuple(output[:count] for output in found)

        def tokens_of(some: NDArray[np.int64]) -> Tokens:
            return self.number.join(rows[some], kept[some])

        sizes = kept.sum(axis=1)
        indices, scores, labels = [], [], [np.empty((0, len(PENALTIES)), dtype=np.float32)] * len(hypotheses)
        for some, outputs in stream.run(sizes, tokens_of, forward):
            indices.append(some)
            scores.append(outputs[0])
            if self.network.labels is not None:
                tables, most = outputs[1].cpu().numpy(), np.minimum(counts, sizes)[some].tolist()
                for index, table, size in zip(some.tolist(), tables, most, strict=True):
                    labels[index] = table[:size]
        return torch.cat(scores).float().cpu().numpy()[np.argsort(np.concatenate(indices))], labels

    def _tokenize(self, texts: Sequence[str]) -> Tokens:
        """Token ids of each string, cut to the limit of one segment, without special tokens around them and without
        literal `<pad>`, which the original drops."""
        tokenizer, stream = self.network.tokenizer, self.utility.stream
        whole, cut = tokenised(tokenizer.backend_tokenizer, texts, self.network.positions - 2)
        stream.cut(cut)
        inner = [ids[1:-1] for ids in whole]
        kept = [ids[ids != tokenizer.pad_token_id] for ids in inner]
        dropped = [len(ids) - len(some) for ids, some in zip(inner, kept, strict=True)]
        self._dropped = np.append(self._dropped, dropped)
        return Tokens.of([ids.tolist() for ids in kept])
