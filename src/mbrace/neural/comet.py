"""COMET as a utility: `Comet("Unbabel/wmt22-comet-da")`, or any regression checkpoint in its layout."""

from __future__ import annotations

from pathlib import Path

from mbrace.neural import checkpoint as layout
from mbrace.neural import pretrained
from mbrace.neural.device import choose_device_and_dtype, dtype_name
from mbrace.neural.encoder import Encoder
from mbrace.neural.head import Estimator
from mbrace.neural.scorer import NeuralUtility


class Comet(NeuralUtility):
    """COMET's score of a hypothesis given a reference, and the source where the head reads it.

    `model` is a folder or `.ckpt` in COMET's layout, or a hub name. `device` is by default a GPU if there is one.
    `dtype` is the encoder's, by default bfloat16 on a GPU and float32 elsewhere; the head is in float32. `batch_tokens`
    limits the tokens in a batch of the encoder.
    """

    encoder: Encoder

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        read = layout.read(model)
        self.encoder = build_encoder(read, device=device, dtype=dtype, batch_tokens=batch_tokens)
        self.head = build_estimator(read, self.encoder)
        self.needs_source = self.head.reads_source
        self.name = f"comet|{pretrained.label(model)}|encoder:{dtype_name(self.encoder.dtype)}"


def build_encoder(
    read: layout.Checkpoint, *, device: str | None, dtype: str | None, batch_tokens: int | None
) -> Encoder:
    """The checkpoint's encoder of single texts."""
    chosen_device, chosen_dtype = choose_device_and_dtype(device, dtype)
    network, tokenizer = layout.build_transformer(read)
    config = network.config
    return Encoder(
        network,
        tokenizer,
        layout.build_readout(read, config.num_hidden_layers + 1),
        max_length=config.max_position_embeddings - 4,  # COMET's: max_positions (2 fewer) - 2
        device=chosen_device,
        dtype=chosen_dtype,
        batch_tokens=batch_tokens,
    )


def build_estimator(read: layout.Checkpoint, encoder: Encoder) -> Estimator:
    """The head, which reads 4 or 6 features of the encoder's units."""
    units = encoder.units
    layers, activation, final = layout.build_feed_forward(read, (4 * units, 6 * units), encoder.device)
    return Estimator(layers, units, activation, final)
