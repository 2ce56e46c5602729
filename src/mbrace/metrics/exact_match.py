"""Exact match of answers as a utility: MBR with it is a vote among the answers (self-consistency)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import SettingError, check_switches
from mbrace.metrics.base import StringMetric

_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,3})?")


@dataclass(frozen=True, kw_only=True)
class ExactMatch(StringMetric[str | None]):
    r"""1 where hypothesis and reference give the same answer, else 0.

    The answer is taken from the last match of `pattern` in a text: its first group that matched, as in
    `r"answer is (-?\d+)"`, or the whole match if the pattern has no groups. Without a pattern it is the whole text.
    Whitespace around it is dropped. A text without a match has no answer, and does not match anything, not even
    another text without an answer. With `numbers`, equal numbers are equal answers: 1,000 = 1000.0. By default, they
    are where there is a pattern.
    """

    pattern: str | None = None
    lowercase: bool = False
    numbers: bool | None = None

    def __post_init__(self) -> None:
        if self.numbers is None:
            object.__setattr__(self, "numbers", self.pattern is not None)
        check_switches(self)
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise SettingError("pattern", self.pattern, f"no regular expression ({error})") from error

    @property
    def name(self) -> str:
        """Its signature, for results: the pattern is part of it."""
        case = "lc" if self.lowercase else "mixed"
        numbers = "|numbers" if self.numbers else ""
        return f"exact|case:{case}{numbers}" + ("" if self.pattern is None else f"|pattern:{self.pattern}")

    def answer(self, text: str) -> str | None:
        """The answer in a text, None if there is none."""
        found: str | None = text
        if self.pattern is not None:
            matches = list(re.finditer(self.pattern, text))
            if not matches:
                return None
            groups = matches[-1].groups()
            found = next((group for group in groups if group is not None), None) if groups else matches[-1][0]
        if found is None:
            return None
        found = found.strip().lower() if self.lowercase else found.strip()
        return number_in(found) if self.numbers else found

    def preparer(self) -> Callable[[str], str | None]:
        """The answers of texts."""
        return self.answer

    def table(self, hypotheses: Sequence[str | None], references: Sequence[str | None]) -> NDArray[np.float32]:
        """(hypotheses, references): 1 for the same answer, else 0."""
        numbers: dict[str | None, int] = {}
        rows = [numbers.setdefault(answer, len(numbers)) for answer in hypotheses]
        columns = [-1 if answer is None else numbers.setdefault(answer, len(numbers)) for answer in references]
        return np.asarray(np.array(rows)[:, None] == np.array(columns)[None, :], dtype=np.float32)


def number_in(text: str) -> str:
    """A number in its shortest form; other text as it is."""
    if not _NUMBER.fullmatch(text) or not re.search("[0-9]", text):
        return text
    short = f"{Decimal(text.replace(',', '')).normalize():f}"
    return "0" if short in ("-0", "0") else short
