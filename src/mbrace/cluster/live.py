"""The work of the commands that ask a model, `mbrace generate` and `mbrace translate`, for a cluster's workers."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mbrace.errors import UserError, require
from mbrace.files import Bad, Item, bad_from, decode_line
from mbrace.job import Decoder, Outcome, Summary
from mbrace.records import Record

MODEL = ("model", "kind", "source_language", "target_language", "source_prefix", "prompt", "stop", "dtype")
MADE = ("server", "server_model", "beam", "length_alpha", "epsilon", "temperature", "seed")


@dataclass(frozen=True)
class GenerateWork:
    """What `mbrace generate` was asked to do."""

    args: argparse.Namespace

    def describe(self) -> dict[str, Any]:
        """What candidates depend on."""
        names = (*MODEL, *MADE, "sample", "logprobs", "prefix")
        return {"command": "generate", **{name: getattr(self.args, name) for name in names}}

    def start(self, threads: int) -> Generator:
        """Load the model."""
        from mbrace.cli.generate import candidates_from
        from mbrace.cli.models import maker_from
        from mbrace.models.generate import candidate_line

        require("torch", extra="models").set_num_threads(threads)
        options = candidates_from(self.args)
        make = maker_from(self.args, options)

        def lines(records: list[Record]) -> list[bytes]:
            made = make([record.source or "" for record in records], [record.id for record in records])
            pairs = zip(records, made, strict=True)
            return [candidate_line(r.id, r.source or "", r.reference, h, d, options) + b"\n" for r, (h, d) in pairs]

        return Generator(lines)

    def item(self, row: bytes, file: str, number: int, prefix: str) -> Item:
        """A source, and its reference if the file has two columns; numbered from 0, as `mbrace generate` does."""
        start = self.args.prefix + prefix
        return _source(row, file, number, f"{start}{number - 1}" if start else number - 1, columns=".tsv" in file)


@dataclass
class Generator:
    """A worker that turns some records at a time into lines."""

    make: Callable[[list[Record]], list[bytes]]
    together: int = 32
    summary: Summary = field(default_factory=Summary)

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        """One outcome an item."""
        rest = iter(items)
        while chunk := list(itertools.islice(rest, self.together)):
            records = [item for item in chunk if isinstance(item, Record)]
            made = iter(self._outcomes(records))
            for item in chunk:
                line, bad = (None, item) if isinstance(item, Bad) else next(made)
                if bad is not None and not skip:
                    raise bad.error()
                self.summary.sentences += bad is None
                yield line, bad

    def _outcomes(self, records: list[Record]) -> list[Outcome]:
        try:
            return [(line, None) for line in self.make(records)] if records else []
        except Exception as error:
            if len(records) == 1:
                return [(None, bad_from(records[0], error))]
            return [outcome for record in records for outcome in self._outcomes([record])]


@dataclass(frozen=True)
class TranslateWork:
    """What `mbrace translate` was asked to do."""

    args: argparse.Namespace
    text: bool

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        names = (*MODEL, *MADE, "utility", "metric_model", "prune", "alpha", "bootstraps", "beta", "schedule", "nbest")
        return {"command": "translate", **{name: getattr(self.args, name) for name in names}}

    def start(self, threads: int) -> Translator:
        """Load the model and the utility."""
        from mbrace.cli.options import prune_from, schedule_from, utility_from
        from mbrace.cli.translate import candidates_from

        args = argparse.Namespace(**{**vars(self.args), "threads": self.args.threads or threads})
        require("torch", extra="models").set_num_threads(args.threads)
        utility, schedule = utility_from(args), schedule_from(args)
        maker, sampler = candidates_from(args, schedule or utility.schedule)
        settings = {"seed": args.seed, "nbest": args.nbest, "window": args.window, "sampler": sampler}
        decoder = Decoder(utility, prune_from(args), schedule, text=self.text, **settings)
        return Translator(maker, decoder, decoder.summary)

    def item(self, row: bytes, file: str, number: int, prefix: str) -> Item:
        """A source."""
        return _source(row, file, number, f"{prefix}{number}" if prefix else number, columns=False)


@dataclass
class Translator:
    """A worker that makes the hypotheses of a window, then lets them race against pseudo-references drawn live."""

    maker: Any
    decoder: Decoder
    summary: Summary

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        """One outcome an item."""
        return self.decoder(self._with_hypotheses(iter(items)), skip=skip)

    def _with_hypotheses(self, items: Iterator[Item]) -> Iterator[Item]:
        from mbrace.models.translate import with_hypotheses

        while chunk := list(itertools.islice(items, self.decoder.window)):
            records = iter(with_hypotheses(self.maker, [item for item in chunk if isinstance(item, Record)]))
            for item in chunk:
                yield item if isinstance(item, Bad) else next(records)


def _source(row: bytes, file: str, number: int, identity: str | int, *, columns: bool) -> Item:
    where = f"{file}:{number}"
    try:
        line = decode_line(row, where).removesuffix("\n").removesuffix("\r")
    except UserError as error:
        return Bad(file, number, None, str(error).removeprefix(f"{where}: "))
    source, _, reference = line.partition("\t") if columns else (line, "", "")
    return Record((), id=identity, source=source, reference=reference.split("\t")[0] or None, where=where)
