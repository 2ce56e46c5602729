"""Candidate files: hypotheses and pseudo-references of every source, written as they are made."""

from __future__ import annotations

import gzip
import itertools
import lzma
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias, cast

from mbrace.errors import UserError
from mbrace.files import open_input, parse_json, read_lines, to_json
from mbrace.sampler import Draws

Source: TypeAlias = "tuple[str, str | None]"  # a source and its reference, if there is one
OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}


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


class Maker(Protocol):
    """Makes the candidates of some sources, in order: hypotheses (or None) and draws (or None) of each."""

    def __call__(
        self, sources: Sequence[str], ids: Sequence[str | int]
    ) -> Iterable[tuple[Sequence[str] | None, Draws | None]]:
        """As they are done."""
        ...


def from_model(model: Any, options: Candidates) -> Maker:
    """Beam hypotheses and sampled pseudo-references of a live model."""

    def make(sources: Sequence[str], ids: Sequence[str | int]) -> Iterable[tuple[Sequence[str] | None, Draws | None]]:
        beams: Any = itertools.repeat(None)
        draws: Any = itertools.repeat(None)
        if options.beam:
            beams = [beam.texts for beam in model.beam(sources, k=options.beam, alpha=options.alpha)]
        if options.sample:
            settings = {"epsilon": options.epsilon, "temperature": options.temperature, "seed": options.seed}
            draws = model.sample(sources, options.sample, ids=ids, **settings)
        return zip(beams, draws)  # noqa: B905  (one may be endless)

    return make


def read_sources(path: str, references: str | None = None) -> Iterator[Source]:
    """Sources with their references: lines of text, or a TSV (by suffix) with `source TAB reference`."""
    lines = read_lines(path)
    if ".tsv" in Path(path).suffixes:
        for line in lines:
            columns = line.split("\t")
            yield columns[0], columns[1] if len(columns) > 1 and columns[1] else None
        return
    theirs: Iterator[str | None] = itertools.repeat(None) if references is None else iter(read_lines(references))
    missing = object()
    for number, line in enumerate(lines, 1):
        reference: Any = next(theirs, missing)
        if reference is missing:
            raise UserError(f"{references}: ends before line {number}, which {path} has")
        yield line, reference
    if references is not None and next(theirs, missing) is not missing:
        raise UserError(f"{references}: has more lines than {path}")


def generate(
    make: Maker,
    sources: Iterable[Source],
    output: str,
    options: Candidates,
    *,
    prefix: str = "",
    together: int = 32,
    minutes: float | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> int:
    """Write one JSON line a source to `output` (`.gz`, `.xz` by suffix; `-`), `together` sources at a time.

    Ids are `prefix` and the number of the line, from 0. Sources that `output` already has are not made again; a line
    cut off by a crash is. Stops after `minutes`. Returns how many lines the file has.
    """
    started = time.monotonic()
    rest = iter(sources)
    done = _take_up(output, rest, prefix)
    advance(done)
    with _append(output) as file:
        while window := list(itertools.islice(rest, together)):
            if minutes is not None and time.monotonic() - started > 60 * minutes:
                break
            ids: list[str | int] = [f"{prefix}{done + n}" if prefix else done + n for n in range(len(window))]
            made = make([source for source, _ in window], ids)
            for name, (source, reference), (hypotheses, draws) in zip(ids, window, made, strict=True):
                file.write(_line(name, source, reference, hypotheses, draws, options) + b"\n")
                done += 1
                advance(1)
            file.flush()
    return done


def _line(
    name: str | int,
    source: str,
    reference: str | None,
    hypotheses: Sequence[str] | None,
    draws: Draws | None,
    options: Candidates,
) -> bytes:
    record: dict[str, Any] = {"id": name, "source": source}
    if reference is not None:
        record["reference"] = reference
    if hypotheses is not None:
        record["hypotheses"] = list(hypotheses)
    if draws is not None:
        record["pseudo_references"] = list(draws.texts)
        if options.logprobs and draws.logprobs is not None:
            record["logprobs"] = [round(value, 4) for value in draws.logprobs]
    return to_json(record)


def _append(output: str) -> BinaryIO:
    if output == "-":
        return cast(BinaryIO, os.fdopen(os.dup(sys.stdout.fileno()), "wb"))
    opener = OPENERS.get(Path(output).suffix, open)
    try:
        return cast(BinaryIO, opener(output, "ab"))
    except OSError as error:
        raise UserError(f"{output}: {error.strerror}; give an output file that can be written") from error


def _take_up(output: str, sources: Iterator[Source], prefix: str) -> int:
    """Skip the sources whose lines an earlier run wrote whole; a line that was cut off is removed from the file.

    A packed file is packed again beside the old one, since a cut-off end cannot be continued.
    """
    path = Path(output)
    if output == "-" or not path.exists():
        return 0
    packed = path.suffix in OPENERS
    beside = path.with_name("part." + path.name)
    copy: Any = OPENERS[path.suffix](beside, "wb") if packed else None
    done = size = 0
    try:
        for line in _whole_lines(output):
            where = f"{output}:{done + 1}"
            record, source = parse_json(line, where), next(sources, None)
            name: str | int = f"{prefix}{done}" if prefix else done
            if source is None or (record.get("id"), record.get("source")) != (name, source[0]):
                raise UserError(f"{where}: not of these sources; give another output, or remove this file")
            done, size = done + 1, size + len(line)
            if packed:
                copy.write(line)
    except BaseException:
        if packed:
            copy.close()
            beside.unlink()
        raise
    if packed:
        copy.close()
        os.replace(beside, path)
    else:
        os.truncate(path, size)
    return done


def _whole_lines(path: str) -> Iterator[bytes]:
    """Lines up to the first that is cut off, or to where a packed file is."""
    with open_input(path) as file:
        while True:
            try:
                line = file.readline()
            except (EOFError, OSError, lzma.LZMAError):
                return
            if not line.endswith(b"\n"):
                return
            yield line
