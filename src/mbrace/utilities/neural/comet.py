"""COMET as a utility: `Comet("Unbabel/wmt22-comet-da")`, or any regression checkpoint in its layout."""

from __future__ import annotations

from pathlib import Path

from mbrace.utilities.neural import checkpoint as layout
from mbrace.utilities.neural import pretrained, shared
from mbrace.utilities.neural.device import choose_device, choose_dtype
from mbrace.utilities.neural.encoder import Encoder
from mbrace.utilities.neural.head import Estimator, activation_named
from mbrace.utilities.neural.scorer import NeuralUtility


class Comet(NeuralUtility):
    """COMET's score of a hypothesis given a reference, and the source where the head reads it.

    `model` is a folder or `.ckpt` in COMET's layout, or a hub name. `device` is a GPU if there is one; `dtype` is the
    encoder's, bfloat16 on a GPU and float32 elsewhere by default, and the head is in float32; `batch_tokens` is the
    most tokens in a batch of the encoder.
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
        precision = str(self.encoder.dtype).removeprefix("torch.")
        self.name = f"comet|{pretrained.label(model)}|encoder:{precision}"


def build_encoder(
    read: layout.Checkpoint, *, device: str | None, dtype: str | None, batch_tokens: int | None
) -> Encoder:
    """The checkpoint's encoder of single texts."""
    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device)
    network, tokenizer = shared.transformer(read, chosen_device, chosen_dtype)
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
    """The head, with its weights' names and shapes checked; it reads 6 features of the encoder's units, or 4."""
    settings, state, units = read.settings, read.part("estimator."), encoder.units
    sizes = [*settings["hidden_sizes"], 1]
    names = [f"ff.{3 * index}" for index in range(len(sizes))]  # linear, activation, dropout, linear, ...
    wanted = {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}
    layout.check_keys(set(state), wanted, "estimator.", read.path)
    inputs = state["ff.0.weight"].shape[1]
    features = 4 if inputs == 4 * units else 6
    widths = [features * units, *sizes]
    for name, width, size in zip(names, widths[:-1], widths[1:], strict=True):
        shapes = {f"{name}.weight": (size, width), f"{name}.bias": (size,)}
        layout.check_shapes(state, shapes, "estimator.", read.path)
    layout.check_finite(state, "estimator.", read.path)
    layers = [(state[f"{n}.weight"].to(encoder.device), state[f"{n}.bias"].to(encoder.device)) for n in names]
    final = settings["final_activation"]
    return Estimator(
        layers,
        units,
        activation_named(settings["activations"], read.path),
        None if final is None else activation_named(final, read.path),
    )
