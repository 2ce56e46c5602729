"""How a translator is trained: sizes of models, and the options of a run, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mbrace.errors import LARGEST, SettingError
from mbrace.setting_fields import Settings, setting

if TYPE_CHECKING:
    from mbrace.models.marian_network import MarianNetwork
    from mbrace.models.tokenizers import Vocabulary


@dataclass(frozen=True)
class Size:
    """The shape of a model, and its defaults: vocabulary size, dropout, peak learning rate."""

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
    from mbrace.models.marian_network import MarianNetwork  # torch, which the command line's parser does without
    from mbrace.models.tokenizers import EOS

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


COUNT: dict[str, Any] = {"least": 1, "most": LARGEST, "metavar": "N"}


@dataclass(frozen=True)
class TrainingOptions(Settings):
    """How a translator is trained. `minutes` counts from the start of `train`, reading and tokenising included."""

    size: str = setting(
        "base", "base is that of Vaswani et al.; shallow has 2 decoder layers", str, choices=tuple(SIZES)
    )
    vocabulary: int | None = setting(  # ids are stored in 16 bits
        None, "size of the SentencePiece vocabulary of both languages", int, least=1, most=1 << 16, metavar="N"
    )
    initial: str | None = setting(
        None, "initialize weights and vocabulary from this model of the same --size", str, metavar="DIR"
    )
    minutes: float | None = setting(
        None, "time budget in minutes; the learning rate reaches zero at its end", float, metavar="M"
    )
    steps: int | None = setting(None, "maximum number of updates", int, **COUNT)
    tokens: int = setting(16384, "padded tokens per side and batch", int, **COUNT)
    rate: float | None = setting(None, "peak learning rate (default: that of the size)", float, metavar="LR")
    warmup: int = setting(1000, "warm-up updates", int, **COUNT)
    dropout: float | None = setting(None, "dropout (default: that of the size)", float, metavar="P")
    subword_sampling: float | None = setting(
        None, "random segmentations while training (Kudo, 2018), such as 0.1", float, metavar="ALPHA"
    )
    clip: float = setting(1.0, "gradient norm to clip at", float, flag=None)
    seed: int = setting(0, "random seed", int, least=0)
    validate_every: int | None = setting(
        None, "updates between validations (default: budget / 12, or 1000)", int, **COUNT
    )
    patience: int = setting(10, "validations without a lower loss before stopping", int, **COUNT)
    average: int = setting(5, "average the last N checkpoints if that lowers the loss", int, **COUNT)
    chrf_sentences: int = setting(100, "translated at each validation", int, least=0, flag=None)
    longest: int = setting(200, "maximum tokens per side; longer pairs are skipped", int, **COUNT, flag=None)
    device: str | None = setting(None, "cuda or cpu", str, metavar="NAME")
    bfloat16: bool | None = setting(None, "train in bfloat16 (default: only on a GPU)", bool, flag=None)
    half: bool = setting(False, "write the weights in 16 bits; --initial reads them", bool)
    threads: int | None = setting(None, "for SentencePiece (default: all cores)", int, **COUNT, flag=None)

    def __post_init__(self) -> None:
        """Refuse values out of range, also those that may not be 0 or 1."""
        for name in ("minutes", "rate", "clip", "subword_sampling", "dropout"):
            value = getattr(self, name)
            if name == "dropout" and value is not None and not 0 <= value < 1:
                raise SettingError(name, value, "must be 0 or more and less than 1")
            if name != "dropout" and value is not None and not 0 < value < math.inf:
                raise SettingError(name, value, "must be more than 0")
        super().__post_init__()

    @property
    def has_budget(self) -> bool:
        """Whether the end of the run is known from the start."""
        return self.minutes is not None or self.steps is not None
