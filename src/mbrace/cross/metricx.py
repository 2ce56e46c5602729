"""MetricX-23 and MetricX-24 as utilities: `MetricX("google/metricx-24-hybrid-large-v2p6")`.

MetricX predicts the errors of a translation, from 0 (none) to 25: lower is better. A utility is better when higher, so
every score here is MetricX's, negated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mbrace.cross import mt5
from mbrace.cross.scorer import CrossUtility, Numbers, WindowScorer
from mbrace.errors import UserError
from mbrace.neural import pretrained
from mbrace.neural.batches import BatchStream
from mbrace.neural.device import dtype_name, place
from mbrace.neural.tokens import Tokens, tokenised
from mbrace.settings import NetworkOptions
from mbrace.utility import Sentence

if TYPE_CHECKING:
    from typing_extensions import Unpack

TOKENIZER = "google/mt5-xl"  # the published recipe's; MetricX's own repositories have none
HYPOTHESIS, REFERENCE, SOURCE = "candidate", "reference", "source"  # how an input names its texts
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

    def scorer(self, sentences: Sequence[Sentence]) -> MetricXScorer:
        """The scorer of a window of these sentences."""
        return MetricXScorer(self, sentences)


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


class MetricXScorer(WindowScorer):
    """The inputs of MetricX for a window, which are tokenised as whole texts."""

    utility: MetricX

    def __init__(self, utility: MetricX, sentences: Sequence[Sentence]) -> None:
        super().__init__(utility, sentences, Numbers())

    def scores(
        self, hypotheses: NDArray[np.int64], references: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of distinct pairs."""
        columns = {HYPOTHESIS: hypotheses, REFERENCE: references, SOURCE: sources}
        return self._run({role: columns[role] for role in self.utility.version.order})

    def qualities(self, hypotheses: NDArray[np.int64], sources: NDArray[np.int64]) -> NDArray[np.float32]:
        """Scores (hypotheses,) with their sources alone."""
        columns = {HYPOTHESIS: hypotheses, SOURCE: sources}
        return self._run({role: columns[role] for role in self.utility.version.quality})

    def _run(self, columns: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Scores of inputs, given as the numbers of their texts by role, in order."""
        texts, stream = self.number.texts, self.utility.stream
        characters = np.array([len(text) for text in texts])
        backend = self.utility.tokenizer.backend_tokenizer

        def tokens_of(some: NDArray[np.int64]) -> Tokens:
            parts = [[f"{role}: {texts[n]}" for n in column[some].tolist()] for role, column in columns.items()]
            tokens, cut = tokenised(backend, map(" ".join, zip(*parts, strict=True)), stream.limit, special=False)
            stream.cut(cut)
            return tokens

        sizes = np.sum([characters[column] for column in columns.values()], axis=0)
        return -stream.scores(sizes, tokens_of, self.utility.network).clip(0.0, MOST)
