"""The network of a unified COMET checkpoint: its settings and weights checked, and its forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mbrace.cross.batches import Batch
from mbrace.errors import UserError
from mbrace.neural import checkpoint as layout
from mbrace.neural.encoder import Readout
from mbrace.neural.head import FeedForward, linear

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
    layout.check_keys(set(read.part("hidden2tag.")), {"weight", "bias"} if words else set(), "hidden2tag.", path)
    layout.check_keys(set(read.part("wordloss.")) - {"weight"}, set(), "wordloss.", path)  # used in training only
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

    def __call__(self, batch: Batch, own: Tensor, labelled: int) -> tuple[Tensor, ...]:
        """Scores (rows,), and for XCOMET probabilities (rows, labelled, classes) of the first `labelled` tokens.

        `own` (rows,) is the number of tokens of the hypothesis, including the special tokens around it.
        """
        tokens = torch.arange(batch.ids.shape[1], device=batch.ids.device)[None]
        given: dict[str, Any] = {"attention_mask": None if batch.even else tokens < batch.lengths[:, None]}
        if self.token_types:
            given["token_type_ids"] = (tokens >= own[:, None]).long()
        last = self.readout.weights is None and self.readout.layer == self.model.config.num_hidden_layers
        all_layers = not last or self.labels is not None
        out = self.model(input_ids=batch.ids, output_hidden_states=all_layers, return_dict=True, **given)
        states = out.hidden_states if all_layers else {self.readout.layer: out.last_hidden_state}
        score = self.head(self.readout(states, None, batch.lengths))
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
        layout.check_shapes(state, {"weight": (classes, units), "bias": (classes,)}, "hidden2tag.", path)
        layout.check_finite(state, "hidden2tag.", path)
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
