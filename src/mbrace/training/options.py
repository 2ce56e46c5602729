"""How a translator is trained: sizes of models, and the options of a run, checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mbrace.errors import UserError
from mbrace.models.marian_network import MarianNetwork
from mbrace.models.tokenizers import EOS, Vocabulary
from mbrace.utility import cores


@dataclass(frozen=True)
class Size:
    """The shape of a model, and its defaults: number of pieces, dropout, highest learning rate."""

    width: int
    feed_forward: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    vocabulary: int
    dropout: float
    rate: float


SIZES = {
    "base": Size(512, 2048, 8, 6, 6, 24000, 0.1, 7e-4),  # "base" of Vaswani et al.
    "shallow": Size(512, 2048, 8, 6, 2, 20000, 0.1, 7e-4),  # base with two decoder layers: quick to train and to sample
    "small": Size(320, 1536, 5, 6, 2, 8000, 0.1, 1.2e-3),  # the bundled translator: 14.5M weights, a quick decoder
    "tiny": Size(64, 128, 2, 2, 2, 1000, 0.0, 3e-3),  # for tests
}


POSITIONS = 512  # ids per side that a new model can take


def new_model(size: Size, vocabulary: Vocabulary, *, dropout: float | None = None) -> MarianNetwork:
    """A Marian network with random weights."""
    config = {
        "vocab_size": len(vocabulary),
        "max_position_embeddings": POSITIONS,
        "d_model": size.width,
        "encoder_layers": size.encoder_layers,
        "decoder_layers": size.decoder_layers,
        "encoder_ffn_dim": size.feed_forward,
        "decoder_ffn_dim": size.feed_forward,
        "encoder_attention_heads": size.heads,
        "decoder_attention_heads": size.heads,
        "activation_function": "swish",
        "dropout": size.dropout if dropout is None else dropout,
        "scale_embedding": True,
        "pad_token_id": vocabulary.pad,
        "decoder_start_token_id": vocabulary.pad,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
    }
    return MarianNetwork.random(config, {"bad_words_ids": [[vocabulary.pad]]})


@dataclass(frozen=True)
class TrainingOptions:
    """How a translator is trained. `minutes` counts from the start of `train`, reading and tokenising included."""

    size: str = "base"
    vocabulary: int | None = None
    initial: str | None = None  # a Marian folder of this size, of any precision, to begin with; None: random weights
    minutes: float | None = None
    steps: int | None = None
    tokens: int = 16384  # padded ids per side of a batch
    rate: float | None = None  # the highest learning rate; None, here and for dropout and vocabulary: that of the size
    warmup: int = 1000  # steps
    dropout: float | None = None
    subword_sampling: float | None = None  # alpha of sampled segmentations (Kudo, 2018); None: always the best one
    clip: float = 1.0  # the largest norm of the gradients
    seed: int = 0
    validate_every: int | None = None  # steps; None: twelve times in the budget, or 1000 steps without one
    patience: int = 10  # validations without a lower loss, after which training ends
    average: int = 5  # checkpoints
    chrf_sentences: int = 100  # translated at each validation
    longest: int = 200  # ids per side; longer pairs are left out
    device: str | None = None
    bfloat16: bool | None = None  # None: only on a GPU
    half: bool = False  # write the weights in float16: another run can begin with them (`initial`)
    threads: int = field(default_factory=cores)

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise UserError(f"size {self.size!r} is not one of {', '.join(SIZES)}")
        counts = ("vocabulary", "steps", "tokens", "warmup", "validate_every", "patience", "average", "longest")
        for name in (*counts, "threads"):
            self._check(name, "1 or more", lambda value: value >= 1)
        for name in ("seed", "chrf_sentences"):
            self._check(name, "0 or more", lambda value: value >= 0)
        for name in ("minutes", "rate", "clip", "subword_sampling"):
            self._check(name, "more than 0", lambda value: 0 < value < math.inf)
        self._check("dropout", "0 or more and less than 1", lambda value: 0 <= value < 1)
        self._check("vocabulary", "65536 or less", lambda value: value <= 1 << 16)  # ids are stored in 16 bits

    def _check(self, name: str, allowed: str, is_allowed: Callable[[Any], bool]) -> None:
        value = getattr(self, name)
        if value is not None and not is_allowed(value):
            raise UserError(f"{name.replace('_', '-')} {value}: must be {allowed}")

    @property
    def has_budget(self) -> bool:
        """Whether the end of the run is known from the start."""
        return self.minutes is not None or self.steps is not None
