"""The learned metrics that ship with mbrace: COMET heads on frozen, public encoders."""

from __future__ import annotations

from pathlib import Path

from mbrace.errors import require
from mbrace.neural.comet import Comet

SHIPPED = {"en": "minilm", "multilingual": "multilingual"}  # the extra of each


class Learned(Comet):
    """A COMET estimator over a frozen encoder, trained on human judgements of translations.

    `model` is "en" (the default: all-MiniLM-L6-v2, for translations into English), "multilingual"
    (multilingual-e5-small, for other languages) or a folder made by `mbrace train-metric`. How well the two agree
    with people is in the cards of the package mbrace-learned. It and their encoders come with the extras
    `mbrace[minilm]` and `mbrace[multilingual]`, so they run without a network.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        chosen = model or "en"
        source: str | Path = chosen
        if chosen in SHIPPED:
            source = require("mbrace_learned", extra=SHIPPED[str(chosen)]).FOLDER / f"learned-{chosen}"
        super().__init__(source, device=device, dtype=dtype, batch_tokens=batch_tokens)
        self.name = self.name.replace("comet|", "learned|", 1)
