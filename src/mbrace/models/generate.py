"""Candidate files: beam hypotheses and sampled pseudo-references of every source, written as they are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson

from mbrace.errors import UserError
from mbrace.models.text import open_text, read_lines


@dataclass(frozen=True)
class Candidates:
    """How many of what: `beam` hypotheses and `sample` pseudo-references a source (0: none)."""

    beam: int = 256
    sample: int = 1024
    epsilon: float | None = 0.02
    temperature: float = 1.0
    seed: int = 0
    alpha: float = 1.0
    logprobs: bool = False


def read_sources(path: str, references: str | None = None) -> list[tuple[str, str | None]]:
    """Sources with their references: lines of text, or a TSV (by suffix) with `source TAB reference`."""
    lines = list(read_lines(path))
    if ".tsv" in Path(path).suffixes:
        return [(line.split("\t")[0], (line.split("\t") + [""])[1] or None) for line in lines]
    if references is None:
        return [(line, None) for line in lines]
    theirs = list(read_lines(references))
    if len(theirs) != len(lines):
        raise UserError(f"{references} has {len(theirs)} lines but {path} has {len(lines)}; they must match")
    return list(zip(lines, theirs, strict=True))


def generate(
    model: Any, sources: Sequence[tuple[str, str | None]], output: str, options: Candidates, *, prefix: str = "",
    together: int = 32, minutes: float | None = None, tell: Callable[[int, int], None] | None = None,
) -> int:  # fmt: skip
    """Write one JSON line a source to `output` (`.gz`, `.xz` by suffix; `-`), `together` sources at a time.

    Ids are `prefix` and the number of the line, from 0. Sources that `output` already has are not made again; a line cut
    off by a crash is. Stops after `minutes`. Returns how many lines the file has.
    """
    started = time.monotonic()
    done = _done(output, prefix)
    with open_text(output, "a" if done and output != "-" else "w") as file:
        for first in range(done, len(sources), together):
            if minutes is not None and time.monotonic() - started > 60 * minutes:
                return first
            _write(file, model, sources[first : first + together], first, options, prefix)
            file.flush()
            if tell:
                tell(min(first + together, len(sources)), len(sources))
    return len(sources)


def _write(
    file: IO[str], model: Any, sources: Sequence[tuple[str, str | None]], first: int, options: Candidates, prefix: str
) -> None:
    texts = [source for source, _ in sources]
    ids: list[str | int] = [f"{prefix}{first + n}" if prefix else first + n for n in range(len(texts))]
    beams = model.beam(texts, k=options.beam, alpha=options.alpha) if options.beam else None
    draws = None
    if options.sample:
        draws = model.sample(
            texts, options.sample, epsilon=options.epsilon, temperature=options.temperature, seed=options.seed, ids=ids
        )
    for n, (source, reference) in enumerate(sources):
        record: dict[str, Any] = {"id": ids[n], "source": source}
        if reference is not None:
            record["reference"] = reference
        if beams is not None:
            record["hypotheses"] = list(beams[n].texts)
        if draws is not None:
            record["pseudo_references"] = list(draws[n].texts)
            if options.logprobs:
                record["logprobs"] = [round(value, 4) for value in draws[n].logprobs or []]
        file.write(orjson.dumps(record).decode() + "\n")


def _done(output: str, prefix: str) -> int:
    """Whole lines of an earlier run; a plain file is cut after the last of them, a packed one written again."""
    path = Path(output)
    if output == "-" or not path.exists():
        return 0
    kept: list[str] = []
    try:
        for line in read_lines(path):
            orjson.loads(line)
            kept.append(line)
    except (EOFError, OSError, ValueError):
        pass
    with open_text(path.with_name(path.name.replace(".jsonl", ".part.jsonl")), "w") as file:
        file.writelines(line + "\n" for line in kept)
    path.with_name(path.name.replace(".jsonl", ".part.jsonl")).replace(path)
    return len(kept)
