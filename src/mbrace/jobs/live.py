"""The work of the commands that ask a model, `mbrace generate` and `mbrace translate`, for a cluster's workers."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mbrace.errors import require
from mbrace.io.candidates import Item
from mbrace.jobs.job import Decoder, Outcome, Summary

if TYPE_CHECKING:
    from mbrace.jobs.generate import Generator

MODEL = ("model", "kind", "source_language", "target_language", "source_prefix", "prompt", "stop", "dtype")
MADE = ("server", "server_model", "server_kind", "beam", "length_alpha", "epsilon", "temperature", "seed")


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
        from mbrace.cli.generate import candidates_from, window_from
        from mbrace.cli.models import maker_from
        from mbrace.jobs.generate import Generator

        require("torch", extra="models").set_num_threads(threads)
        options = candidates_from(self.args)
        return Generator(maker_from(self.args, options), options, window_from(self.args))

    def item(self, row: bytes, file: str, number: int, prefix: str) -> Item:
        """A source, and its reference if the file has two columns; numbered from 0, as `mbrace generate` does."""
        from mbrace.jobs.generate import source_item

        start = self.args.prefix + prefix
        return source_item(row, file, number, f"{start}{number - 1}" if start else number - 1)


@dataclass(frozen=True)
class TranslateWork:
    """What `mbrace translate` was asked to do."""

    args: argparse.Namespace
    text: bool

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        race = ("prune", "alpha", "bootstraps", "beta", "schedule", "nbest")
        names = (*MODEL, *MADE, "utility", "metric_model", "dtype", *race)
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
        from mbrace.jobs.generate import source_item

        return source_item(row, file, number, f"{prefix}{number}" if prefix else number, columns=False)


@dataclass
class Translator:
    """A worker that makes the hypotheses of a window, then lets them race against pseudo-references drawn live."""

    maker: Any
    decoder: Decoder
    summary: Summary

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        """One outcome an item."""
        return self.decoder(self.maker.items(items), skip=skip)
