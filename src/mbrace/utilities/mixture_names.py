"""The names of mixtures, such as `comet:0.5+chrf++:0.5`, and their parts."""

from __future__ import annotations

import re

from mbrace.errors import UTILITY, UserError

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_PART = re.compile(rf"(.+?):({_NUMBER})(?:\+|$)")


def is_mixture(text: str) -> bool:
    """Whether a utility's name is that of a mixture: it has a weight at its end or before a plus sign."""
    return re.search(rf":{_NUMBER}(?:\+|$)", text) is not None


def parse_mixture(text: str) -> list[tuple[str, float]]:
    """The names and weights of `comet:0.5+chrf++:0.5`: a plus sign separates parts only after a weight."""
    parts: list[tuple[str, float]] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            raise UserError(f"{UTILITY} {text}: {text[at:]!r} has no weight; write name:weight+name:weight")
        parts.append((found[1], float(found[2])))
        at = found.end()
    if text.endswith("+"):
        raise UserError(f"{UTILITY} {text}: a part is missing at its end; write name:weight+name:weight")
    return parts
