"""Writes the candidates that `mbrace demo` races: the first sentences of newstest2018 with fewer pseudo-references."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

HERE = Path(__file__).parent
CANDIDATES = HERE / "candidates" / "de-en.test.jsonl.xz"
BUNDLED = HERE.parent / "src" / "mbrace" / "data" / "newstest.jsonl.xz"
SENTENCES, PSEUDO_REFERENCES = 48, 256


def bundled_lines() -> list[str]:
    """One line per sentence, as it is bundled."""
    lines = []
    with lzma.open(CANDIDATES, "rt", encoding="utf-8") as file:
        for _, line in zip(range(SENTENCES), file, strict=False):
            record = json.loads(line)
            record["pseudo_references"] = record["pseudo_references"][:PSEUDO_REFERENCES]
            record.pop("logprobs", None)
            lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    return lines


if __name__ == "__main__":
    BUNDLED.write_bytes(lzma.compress("".join(bundled_lines()).encode(), preset=9))
    print(f"{BUNDLED.name}: {BUNDLED.stat().st_size:,} bytes")
