"""The line that an answer becomes in an output file."""

from __future__ import annotations

from typing import Any

from mbrace.io.jsonl import json_line, valid_unicode
from mbrace.result import Decoded


def answer_line(answer: Decoded, *, text: bool, nbest: int) -> bytes:
    """One output line: the text alone, or a JSON object."""
    if text:
        return valid_unicode(answer.text, "Plain text").replace("\r", " ").replace("\n", " ").encode() + b"\n"
    fields: dict[str, Any] = {
        "id": answer.id,
        "text": answer.text,
        "index": answer.index,
        "utility": answer.utility,
        "utility_calls": answer.utility_calls,
        "pairs_scored": answer.pairs_scored,
        "strings": answer.strings,
        "pseudo_references": answer.pseudo_references,
        "survivors": [step.survivors for step in answer.steps],
    }
    for name in ("quality_calls", "coarse_calls"):
        if (calls := getattr(answer, name)) is not None:
            fields[name] = calls
    if nbest > 1:
        fields["nbest"] = [{"text": c.text, "index": c.index, "utility": c.utility} for c in answer.nbest]
    return json_line(fields)
