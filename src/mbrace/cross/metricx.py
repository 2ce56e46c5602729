"""MetricX-23 and MetricX-24 as utilities: `MetricX("google/metricx-24-hybrid-large-v2p6")`.

MetricX predicts the errors of a translation, from 0 (none) to 25: lower is better. A utility is better when higher, so
every score here is MetricX's, negated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mbrace.cross import mt5
from mbrace.cross.batches import EMPTY, Batch, BatchStream, InputRows, Pieces
from mbrace.cross.scorer import HYPOTHESIS, REFERENCE, SOURCE, CrossUtility, WindowScorer, chunks
from mbrace.errors import UserError
from mbrace.neural import pretrained
from mbrace.neural.device import dtype_name, place
from mbrace.neural.tokens import valid_unicode
from mbrace.settings import NetworkOptions
from mbrace.utility import Sentence

if TYPE_CHECKING:
    from typing_extensions import Unpack

TOKENIZER = "google/mt5-xl"  # the published recipe's; MetricX's own repositories have none
LABELS = {HYPOTHESIS: "candidate", REFERENCE: "reference", SOURCE: "source"}
WHOLE = "whole"  # the role of an input that is tokenised as a single text
MOST = 25.0  # the highest (worst) score


@dataclass(frozen=True)
class Version:
    """What the inputs of one version of MetricX consist of."""

    limit: int  # tokens, including the end-of-sentence token, which is then dropped
    order: tuple[str, ...]  # of the texts, with a reference
    quality: tuple[str, ...]  # and without one
    hybrid: bool  # one checkpoint works with and without a reference


VERSIONS = {
    "23": Version(1024, (HYPOTHESIS, REFERENCE), (HYPOTHESIS, SOURCE), hybrid=False),
    "24": Version(1536, (SOURCE, HYPOTHESIS, REFERENCE), (SOURCE, HYPOTHESIS), hybrid=True),
}


class MetricX(CrossUtility):
    """MetricX's score of a hypothesis against a reference, negated: 0 is the best and -25 the worst.

    `model` is a folder as transformers has it, or a hub name. `version` ("23" or "24") and, for version 23, `qe`
    (whether the checkpoint is for quality estimation) are taken from the model's name unless given. Version 24 also
    reads the source, and can estimate quality without a reference. `tokenizer` is a folder or hub name, by default the
    model's own folder if it has a tokenizer, else mT5's. Other parameters are those of `settings.Network`.
    """

    def __init__(
        self,
        model: str | Path = "google/metricx-24-hybrid-large-v2p6",
        *,
        version: str | None = None,
        qe: bool | None = None,
        tokenizer: str | Path | None = None,
        **options: Unpack[NetworkOptions],
    ) -> None:
        label = pretrained.label(model)
        version = _version(label, version)
        qe = _quality_only(label, version, qe)
        device, dtype, batch_tokens = place(options)
        folder = pretrained.find(str(model))
        config = mt5.read_mt5_config(folder)
        words = _find_tokenizer(folder, tokenizer)
        made = pretrained.tokenizer(words, "T5TokenizerFast", config.vocab_size)
        network = mt5.MT5Network(config, mt5.read_mt5_weights(folder, config), device, dtype)
        limit = VERSIONS[version].limit - 1
        stream = BatchStream(pad=0, limit=limit, device=device, batch_tokens=batch_tokens)
        kind = f"metricx-{version}{'-qe' if qe else ''}"
        name = f"{kind}|{label}|negated|{dtype_name(dtype)}"
        self._assemble(name, version, qe, network, made, stream)

    def _assemble(
        self, name: str, version: str, qe: bool, network: mt5.MT5Network, tokenizer: Any, stream: BatchStream
    ) -> None:
        self.name, self.network, self.tokenizer, self.stream = name, network, tokenizer, stream
        self.version = VERSIONS[version]
        self.reads_references = not qe
        self.reads_sources = qe or self.version.hybrid
        self.needs_source = self.reads_references and SOURCE in self.version.order
        self._joins = _joins(self)

    def scorer(self, sentences: Sequence[Sentence]) -> MetricXScorer:
        """The scorer of a window of these sentences."""
        return MetricXScorer(self, sentences)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, without an end of sentence."""
        backend = self.tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        return [encoding.ids for encoding in backend.encode_batch(valid_unicode(texts), add_special_tokens=False)]

    def tokenize(self, entries: Sequence[tuple[str, str]]) -> list[list[int] | None]:
        """Token ids of strings, with the word that names their role, as they would be inside an input; None for a
        string whose tokens would depend on its neighbours."""
        if not self._joins:
            return [self.encode([text])[0] if role == WHOLE else None for role, text in entries]
        neighbour = self.encode(["x"])[0]  # before and after each string
        framed = [text if role == WHOLE else f"x {LABELS[role]}: {text} x" for role, text in entries]
        found: list[list[int] | None] = []
        for (role, text), ids in zip(entries, self.encode(framed), strict=True):
            begin, end = len(neighbour), len(ids) - len(neighbour)
            if role == WHOLE:
                found.append(ids)
            elif _is_plain(text) and ids[:begin] == neighbour and ids[end:] == neighbour:
                found.append(ids[begin:end])
            else:
                found.append(None)
        return found


def _version(label: str, given: str | None) -> str:
    named = re.search(r"metricx[-_]?(\d\d)", label.lower())
    version = str(given) if given is not None else named[1] if named else None
    if version is None:
        raise UserError(
            f"{label}: version: not in the model's name; give version='24' or version='23', or a folder whose name "
            "has it, such as metricx-24-large"
        )
    if version not in VERSIONS:
        raise UserError(f"{label}: version {version}: is not supported; give a checkpoint of {' or '.join(VERSIONS)}")
    return version


def _quality_only(label: str, version: str, given: bool | None) -> bool:
    if VERSIONS[version].hybrid:
        if given:
            raise UserError(f"{label}: qe: only for version 23; a checkpoint of {version} works with and without")
        return False
    return "-qe" in label.lower() if given is None else given


def _find_tokenizer(folder: Path, given: str | Path | None) -> Path:
    if given is None and any((folder / name).is_file() for name in pretrained.TOKENIZERS):
        return folder
    return pretrained.find(str(given or TOKENIZER), near=(folder, folder.parent), weights=False)


def _is_plain(text: str) -> bool:
    """Whether both ends of a string are visible characters: a tokenizer may merge spaces with their neighbours."""
    return bool(text) and text[0].isprintable() and text[-1].isprintable() and not (text[0] + text[-1]).count(" ")


def _joins(utility: MetricX) -> bool:
    """Whether the tokenizer splits at spaces, so that inputs can be joined from strings tokenised separately."""
    utility._joins = True
    texts = ["A man rides, slowly.", "x", "1,024 Wörter (2023)!", "он сказал", "これは本です", "the the", "source: a"]
    roles = utility.version.order if utility.reads_references else utility.version.quality
    rows = [[texts[(begin + step) % len(texts)] for step in range(len(roles))] for begin in range(len(texts))]
    wholes = utility.encode([_input(roles, row) for row in rows])
    for row, whole in zip(rows, wholes, strict=True):
        parts = utility.tokenize(list(zip(roles, row, strict=True)))
        if any(part is None for part in parts) or [one for part in parts for one in part or ()] != whole:
            return False
    return True


def _input(roles: Sequence[str], texts: Sequence[str]) -> str:
    """The text of an input."""
    return " ".join(f"{LABELS[role]}: {text}" for role, text in zip(roles, texts, strict=True))


class MetricXScorer(WindowScorer):
    """The inputs of MetricX for a window."""

    utility: MetricX

    def __init__(self, utility: MetricX, sentences: Sequence[Sentence]) -> None:
        super().__init__(utility, sentences)
        self.pieces = Pieces(utility.tokenize)

    def number(self, texts: Iterable[str], role: str) -> NDArray[np.int64]:
        """The numbers of strings in a role: each is tokenised with the word that names its role."""
        return self.pieces.number(texts, role)

    def scores(
        self, hypotheses: NDArray[np.int64], references: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of distinct pairs."""
        columns = {HYPOTHESIS: hypotheses, REFERENCE: references, SOURCE: sources}
        return self._run(self.utility.version.order, columns)

    def qualities(self, hypotheses: NDArray[np.int64], sources: NDArray[np.int64]) -> NDArray[np.float32]:
        """Scores (hypotheses,) with their sources alone."""
        return self._run(self.utility.version.quality, {HYPOTHESIS: hypotheses, SOURCE: sources})

    def _run(self, roles: Sequence[str], columns: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        rows = self._rows(roles, [columns[role] for role in roles])
        errors = self.utility.stream.scores(self.pieces, rows, self._forward)
        return -errors.clip(0.0, MOST)

    def _rows(self, roles: Sequence[str], columns: Sequence[NDArray[np.int64]]) -> Iterator[InputRows]:
        """The inputs, joined from their strings; an input with a string that cannot be joined is tokenised as a
        whole."""
        for chunk in chunks(columns):
            self.pieces.ensure(chunk.pieces)
            apart = np.flatnonzero((self.pieces.lengths[chunk.pieces] == -2).any(axis=1))
            if len(apart):
                texts = [[self.pieces.text(number) for number in row] for row in chunk.pieces[apart].tolist()]
                wholes = self.pieces.number((_input(roles, row) for row in texts), WHOLE)
                chunk.pieces[apart] = EMPTY
                chunk.pieces[apart, 0] = wholes
            yield chunk

    def _forward(self, batch: Batch) -> tuple[Tensor, ...]:
        return (self.utility.network(batch),)
