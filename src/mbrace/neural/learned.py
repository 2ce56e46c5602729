"""The learned metric that ships with mbrace: a COMET head on a frozen, public encoder."""

from __future__ import annotations

from pathlib import Path

from mbrace.neural.comet import Comet

FOLDER = Path(__file__).resolve().parent.parent / "data" / "learned-en"


class Learned(Comet):
    """A COMET estimator over all-MiniLM-L6-v2, trained on human judgements of translations into English.

    Its card (`mbrace/data/learned-en/card.md`) says what it reaches. The encoder comes with the extra
    `mbrace[minilm]`, so it runs without a network. `model` is another folder made by `mbrace train-metric`.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        super().__init__(model or FOLDER, device=device, dtype=dtype, batch_tokens=batch_tokens)
        self.name = self.name.replace("comet|", "learned|", 1)
