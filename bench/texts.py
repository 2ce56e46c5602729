"""What the benchmarks score: real samples of a translation model, joined to the length wanted."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path

HERE = Path(__file__).parent
DEMO = HERE.parent / "src" / "mbrace" / "data" / "demo.jsonl.xz"


def _read(path: Path) -> list[dict]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _newstest() -> list[dict]:
    folder = HERE.parent / "experiments" / "candidates"
    return [record for part in ("test", "valid") for record in _read(folder / f"de-en.{part}.jsonl.xz")]


def newstest(hypotheses: int, references: int, *, beam: bool) -> tuple[list[str], list[str]]:
    """Texts of one newstest2018 sentence (German to English), the one whose samples are nearest to 186 characters.

    References are its first epsilon samples, hypotheses its best of beam search or, else, its last samples.
    """
    records = [record for record in _newstest()[:200] if len(set(record["pseudo_references"])) == 1024]
    record = min(records, key=lambda r: abs(sum(map(len, r["pseudo_references"])) / 1024 - 186))
    samples = record["pseudo_references"]
    own = list(dict.fromkeys(record["hypotheses"])) if beam else samples[::-1]
    assert hypotheses <= len(own)
    assert beam or hypotheses + references <= len(samples)
    return own[:hypotheses], samples[:references]


def newstest_records(sentences: int) -> list[dict]:
    """Records of 256 beam hypotheses and 256 samples: each of 400 sentences with the four quarters of its samples."""
    records = _newstest()
    return [
        {
            "id": f"{i // 4}/{i % 4}",
            "source": records[i // 4]["source"],
            "hypotheses": records[i // 4]["hypotheses"],
            "pseudo_references": records[i // 4]["pseudo_references"][256 * (i % 4) : 256 * (i % 4 + 1)],
        }
        for i in range(sentences)
    ]


def sides(hypotheses: int, references: int, *, seed: int = 0) -> tuple[list[str], list[str]]:
    """Distinct texts of about 190 characters: a sample of one caption and a sample of another, drawn independently.

    Hypotheses come from the first 512 samples of each, references from the other 512.
    """
    pools = [record["samples"] for record in _read(HERE / "data" / "samples.jsonl.xz")]
    rng = random.Random(seed)

    def draw(count: int, first: int) -> list[str]:
        texts: dict[str, None] = {}
        while len(texts) < count:
            texts[" ".join(rng.choice(pool[first : first + 512]) for pool in pools)] = None
        return list(texts)

    return draw(hypotheses, 0), draw(references, 512)


def documents(count: int, characters: int, *, seed: int = 0) -> tuple[list[str], list[str]]:
    """Texts of `characters` characters: samples of one caption after another, like a translated document."""
    pools = [record["pseudo_references"] for record in _read(DEMO)]
    rng = random.Random(seed)

    def draw(half: slice) -> str:
        parts: list[str] = []
        length, caption = 0, 0
        while length < characters:
            parts.append(rng.choice(pools[caption % len(pools)][half]))
            length += len(parts[-1]) + 1
            caption += 1
        return " ".join(parts)[:characters]

    return [draw(slice(0, 128)) for _ in range(count)], [draw(slice(128, 256)) for _ in range(count)]


def candidates(sentences: int, *, captions: int = 1) -> list[dict]:
    """Records of 256 hypotheses and 256 pseudo-references: the bundled ones, repeated under new ids.

    With `captions` above 1, that many records are joined, candidate by candidate, into one with longer texts.
    """
    records = _read(DEMO)

    def join(i: int) -> dict:
        parts = [records[(i * (k + 1) + 7 * k) % len(records)] for k in range(captions)]
        texts = {
            field: [" ".join(texts) for texts in zip(*(part[field] for part in parts), strict=True)]
            for field in ("hypotheses", "pseudo_references")
        }
        return {"id": f"{captions}/{i}", "source": " ".join(part["source"] for part in parts), **texts}

    return [join(i) for i in range(sentences)]
