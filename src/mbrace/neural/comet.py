"""COMET checkpoints that embed each text on its own: `Comet`, the metrics that ship with mbrace (`Learned`), and
quality estimators (`Referenceless`)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError, require
from mbrace.metrics.base import Rebuilt
from mbrace.neural import checkpoint as layout
from mbrace.neural import pretrained
from mbrace.neural.device import dtype_name, place
from mbrace.neural.encoder import Encoder
from mbrace.neural.head import Estimator
from mbrace.neural.scorer import NeuralUtility, aligned_scores
from mbrace.settings import NetworkOptions
from mbrace.utility import check_aligned

if TYPE_CHECKING:
    from typing_extensions import Unpack

COMET_22 = "Unbabel/wmt22-comet-da"
QUALITY = "referenceless_regression_metric"
SHIPPED = ("en", "multilingual")  # the learned metrics of mbrace[learned]


class Comet(NeuralUtility):
    """COMET's score of a hypothesis given a reference, and the source where the head reads it.

    `model` is a folder or `.ckpt` in COMET's layout, or a hub name; a checkpoint that reads the texts of a pair
    together makes an `XCOMET`. `device` is by default a GPU if there is one. `dtype` is the encoder's, by default
    bfloat16 on a GPU and float32 elsewhere; the head is in float32. `batch_tokens` limits the tokens of a batch.
    """

    encoder: Encoder

    def __new__(cls, model: str | Path | None = None, **options: Any) -> Any:
        """An `XCOMET` where the checkpoint is one."""
        if cls is Comet and layout.class_of(model or COMET_22) in layout.CROSS_ENCODERS:
            # in a package above this one, which may only be imported when it is needed
            return importlib.import_module("mbrace.cross.xcomet").XCOMET(model, **options)
        return super().__new__(cls, model, **options)

    def __init__(self, model: str | Path = COMET_22, **network: Unpack[NetworkOptions]) -> None:
        read = layout.read(model)
        self.encoder, self.head = _encoder_and_head(read, network)
        self.needs_source = self.head.reads_source
        self.name = f"comet|{pretrained.label(model)}|encoder:{dtype_name(self.encoder.dtype)}"


class Learned(Comet):
    """A COMET estimator over a frozen encoder, trained on human judgements of translations.

    `model` is "en" (the default: all-MiniLM-L6-v2, for translations into English), "multilingual"
    (multilingual-e5-small, for other languages) or a folder made by `mbrace train-metric`. How well the two agree
    with people is in the cards of the package mbrace-learned. It and their encoders come with the extras
    `mbrace[learned]`, so they run without a network.
    """

    def __init__(self, model: str | Path | None = None, **network: Unpack[NetworkOptions]) -> None:
        chosen = model or "en"
        source: str | Path = chosen
        if chosen in SHIPPED:
            source = require("mbrace_learned", extra="learned").FOLDER / f"learned-{chosen}"
        super().__init__(source, **network)
        self.name = self.name.replace("comet|", "learned|", 1)


class Referenceless(Rebuilt):
    """Estimates quality without a reference: `Referenceless("Unbabel/wmt20-comet-qe-da")`, or any checkpoint of its
    class in COMET's layout. It is not a utility for a race. Parameters as
    for `Comet`."""

    reads_references = False

    def __init__(self, model: str | Path, **network: Unpack[NetworkOptions]) -> None:
        read = layout.read(model, {QUALITY: {"hidden_sizes": [2048, 1024]}})
        self.encoder, self.head = _encoder_and_head(read, network)
        if self.head.reads_source:  # six features: those of a head with source and reference
            found = f"{6 * self.encoder.units}, not {4 * self.encoder.units}"
            raise UserError(f"{read.path}: estimator.ff.0.weight reads {found} numbers; it is not a {QUALITY}")
        self.name = f"referenceless|{pretrained.label(model)}|encoder:{dtype_name(self.encoder.dtype)}"

    @property
    def truncated(self) -> int:
        """How many strings so far were longer than the limit and cut."""
        return self.encoder.truncated

    def quality(self, hypotheses: Sequence[str], sources: Sequence[str]) -> NDArray[np.float32]:
        """Scores (hypotheses,) of hypothesis i with source i; each distinct string is embedded once."""
        check_aligned(self.name, hypotheses=hypotheses, sources=sources)
        return aligned_scores(self.encoder, self.head, [hypotheses, sources])


def _encoder_and_head(read: layout.Checkpoint, options: NetworkOptions) -> tuple[Encoder, Estimator]:
    """The checkpoint's encoder of single texts, and its head, which reads 4 or 6 features of the encoder's units."""
    placement = place(options)
    network, tokenizer = layout.build_transformer(read)
    config = network.config
    readout = layout.build_readout(read, config.num_hidden_layers + 1)
    limit = config.max_position_embeddings - 4  # COMET's: max_positions (2 fewer) - 2
    encoder = Encoder(network, tokenizer, readout, max_length=limit, **placement._asdict())
    units = encoder.units
    layers, activation, final = layout.build_feed_forward(read, (4 * units, 6 * units), encoder.device)
    return encoder, Estimator(layers, units, activation, final)
