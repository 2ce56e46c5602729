"""Live candidates: sources in, records with hypotheses out, and a sampler that draws for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from mbrace.errors import RecordError, ServiceError, SettingError, UserError
from mbrace.io.candidates import Item, bad_from
from mbrace.prune import stops_by_regret
from mbrace.records import Location, Record
from mbrace.sampler import Draws, Sampler, check_schedule, doubling, is_all
from mbrace.settings import Race, Sampling
from mbrace.utility import Utility
from mbrace.windows import in_groups, run_group

# Hypotheses of each source; ids are those of the records.
MakeHypotheses: TypeAlias = Callable[[Sequence[str], Sequence["str | int"]], Sequence["Sequence[str] | Exception"]]


class LiveSampler(Sampler, Protocol):
    """A sampler that counts what it draws."""

    @property
    def drawn(self) -> int:
        """Pseudo-references drawn so far."""


class CandidateModel(Protocol):
    """What translating and generating need of a model; `Seq2Seq` and `CausalLM` are such models."""

    device: Any  # a torch device, or anything with a `type` such as "cpu"

    def beam(self, sources: Sequence[str], k: int = 256, *, alpha: float = 1.0) -> Sequence[Any]:
        """The k best outputs of each source, scored log p / length ** alpha: their `texts`, best first."""
        ...

    def sample(
        self,
        sources: Sequence[str],
        n: int,
        *,
        epsilon: float | None = 0.02,
        temperature: float = 1.0,
        seed: int = 0,
        ids: Sequence[str | int] | None = None,
        sampling: str = "independent",
    ) -> Sequence[Draws]:
        """`n` samples of each source, that depend on the seed and its id alone."""
        ...

    def sampler(
        self,
        *,
        epsilon: float | None = 0.02,
        temperature: float = 1.0,
        seed: int = 0,
        ahead: int | Sequence[int] = 0,
        sampling: str = "independent",
    ) -> LiveSampler:
        """Draws in steps, the first `ahead` at once; several numbers are the ends of blocks drawn at once."""
        ...


FIRST_DRAWS = 20  # every search has a fixed cost on a CPU, and few races end sooner


def live_candidates(
    model: CandidateModel, settings: Sampling, utility: Utility, race: Race
) -> tuple[HypothesisMaker, LiveSampler]:
    """The candidates of translating with a model: hypotheses by beam search, and a sampler of pseudo-references.

    These are drawn step by step on a CPU, where time grows with the rows, and in one batch on a GPU, where 256 rows
    take as long as 16. If regret ends races early, a GPU draws them in blocks that end at 64 (or the first size of the
    schedule), 128, ..., the first block during the beam search; a CPU draws at once what most of these races need: the
    sizes up to FIRST_DRAWS.
    """
    if is_all(race.schedule):
        raise SettingError("schedule", "all", "a live source has no last pseudo-reference; give the sizes")
    sizes = check_schedule(utility.schedule if race.schedule is None else race.schedule)
    last, on_gpu = sizes[-1], model.device.type == "cuda"
    ahead: tuple[int, ...] = (last,) if on_gpu else ()
    if stops_by_regret(race.pruning_function()):
        most_need = max(size for size in sizes if size <= max(FIRST_DRAWS, sizes[0]))
        ahead = doubling(min(max(64, sizes[0]), last), last) if on_gpu else (most_need,)
    sampler = model.sampler(seed=race.seed, ahead=ahead, **settings.options())
    prefetch = getattr(sampler, "prefetch", None) if on_gpu else None  # draws in the background

    def make(sources: Sequence[str], ids: Sequence[str | int]) -> list[Sequence[str]]:
        return [found.texts for found in model.beam(sources, **settings.beam_options())]

    return HypothesisMaker(make, window=race.window, prefetch=prefetch), sampler


class HypothesisMaker:
    """Makes the hypotheses of records, for `window` of them at a time, before they race.

    `prefetch` is called first, with the sources and ids of the window, so that draws are made during beam search.
    """

    def __init__(
        self,
        make: MakeHypotheses,
        *,
        window: int = 64,
        prefetch: Callable[[Sequence[str], Sequence[str | int]], None] | None = None,
    ) -> None:
        self._make, self._window, self._prefetch = make, window, prefetch
        self.seconds = 0.0  # spent on hypotheses so far

    def records(self, sources: Iterable[str], *, name: str = "<stdin>") -> Iterator[Record]:
        """One record per source, without pseudo-references; ids are line numbers from 1."""
        lines = enumerate(sources, 1)
        named = (Record((), id=n, source=source, location=Location(name, n)) for n, source in lines)
        for record, error in self._made(named):
            assert isinstance(record, Record)
            if isinstance(error, UserError) and not isinstance(error, RecordError | ServiceError):
                raise record.error(str(error))
            if error is not None:
                raise error
            yield record

    def items(self, items: Iterable[Item]) -> Iterator[Item]:
        """Records with their hypotheses. Those whose hypotheses cannot be made are bad; what is bad stays as it is."""
        for item, error in self._made(items):
            if isinstance(error, ImportError):  # a missing package is not the record's fault
                raise error
            yield bad_from(item, error) if isinstance(item, Record) and error is not None else item

    def _made(self, items: Iterable[Item]) -> Iterator[tuple[Item, Exception | None]]:
        # as many records in each group as windows of races have, and what is bad among them
        for group in in_groups(items, self._window, lambda item: isinstance(item, Record)):
            found = run_group([item for item in group if isinstance(item, Record)], self._hypotheses)
            for item in group:
                if isinstance(item, Record):
                    made = next(found)
                    yield (item, made) if isinstance(made, Exception) else (replace(item, hypotheses=made), None)
                else:
                    yield item, None

    def _hypotheses(self, records: Sequence[Record]) -> Sequence[Sequence[str] | Exception]:
        started = time.perf_counter()
        sources, ids = [record.source or "" for record in records], [record.id for record in records]
        if self._prefetch is not None:
            self._prefetch(sources, ids)
        found = self._make(sources, ids)
        self.seconds += time.perf_counter() - started
        return found
