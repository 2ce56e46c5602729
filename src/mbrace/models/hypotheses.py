"""Live candidates: sources in, records with lazy hypotheses out, and a sampler that draws for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeAlias, cast, overload, runtime_checkable

from mbrace.errors import RecordError, ServiceError, UserError
from mbrace.groups import in_groups, run_group
from mbrace.io.candidates import Item
from mbrace.protocols import implements
from mbrace.records import Location, Record
from mbrace.sampler import Draws, Sampler
from mbrace.schedule import Schedule, check, doubling, is_all
from mbrace.utility import Utility

# Hypotheses of each source; ids are those of the records.
MakeHypotheses: TypeAlias = Callable[[Sequence[str], Sequence["str | int"]], Sequence[Sequence[str]]]


class LiveSampler(Sampler, Protocol):
    """A sampler that counts what it draws."""

    @property
    def drawn(self) -> int:
        """Pseudo-references drawn so far."""


@runtime_checkable
class PrefetchingSampler(Protocol):
    """A sampler that can draw while something else goes on."""

    def begin(self, sources: Sequence[str], ids: Sequence[str | int]) -> None:
        """Begin to draw for these sources."""
        ...


class OutputTexts(Protocol):
    """The outputs of one source."""

    @property
    def texts(self) -> Sequence[str]:
        """Best first."""


class CandidateModel(Protocol):
    """What translating and generating ask of a model; `Seq2Seq` and `CausalLM` are such models."""

    device: Any  # a torch device, or anything with a `type` such as "cpu"

    def beam(self, sources: Sequence[str], k: int = 256, *, alpha: float = 1.0) -> Sequence[OutputTexts]:
        """The k best outputs of each source, scored log p / length ** alpha."""
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


@dataclass(frozen=True)
class SamplingSettings:
    """How candidates are made: `beam` hypotheses per source, pseudo-references by epsilon sampling (0: the whole
    distribution), top-k, top-p or min-p sampling at a temperature, independent of each other or spread evenly
    (arithmetic)."""

    beam: int = 256
    length_penalty: float = 1.0  # beam scores are log p / length ** length_penalty
    epsilon: float | None = 0.02
    temperature: float = 1.0
    sampling: str = "independent"
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def beam_options(self) -> dict[str, Any]:
        """Those of a model's `beam`."""
        return {"k": self.beam, "alpha": self.length_penalty}

    def options(self) -> dict[str, Any]:
        """Those of a model's `sample` and `sampler`; what was not asked for is left out: not all models know it."""
        always = {"epsilon": self.epsilon or None, "temperature": self.temperature, "sampling": self.sampling}
        asked = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return always | {name: value for name, value in asked.items() if value is not None}

    def describe(self) -> dict[str, Any]:
        """What candidates depend on."""
        return {**asdict(self), "sampling": None if self.sampling == "independent" else self.sampling}


FIRST_DRAWS = 20  # every search takes a CPU some time whatever its rows, and few races are over sooner


def live_candidates(
    model: CandidateModel,
    settings: SamplingSettings,
    utility: Utility,
    schedule: Schedule,
    *,
    seed: int,
    window: int,
    short_races: bool = False,
) -> tuple[Hypothesiser, LiveSampler]:
    """What translating with a model races over: hypotheses by beam search, and a sampler of pseudo-references.

    They are drawn step by step on a CPU, whose time goes with the rows, and all at once on a GPU, which takes as long
    for 16 rows as for 256. With `short_races` (stopped by regret) a GPU draws them in blocks that end at 64 (or the
    first size of the schedule), 128, ..., the first block during the beam search; a CPU draws at once what most of
    these races need: the sizes up to FIRST_DRAWS.
    """
    if is_all(schedule):
        raise UserError('schedule "all": a live source has no last pseudo-reference; give the sizes')
    sizes = check(utility.schedule if schedule is None else schedule)
    last, on_gpu = sizes[-1], model.device.type == "cuda"
    ahead: tuple[int, ...] = (last,) if on_gpu else ()
    if short_races:
        most_need = max(size for size in sizes if size <= max(FIRST_DRAWS, sizes[0]))
        ahead = doubling(min(max(64, sizes[0]), last), last) if on_gpu else (most_need,)
    sampler = model.sampler(seed=seed, ahead=ahead, **settings.options())
    begin = cast(PrefetchingSampler, sampler).begin if on_gpu and implements(sampler, PrefetchingSampler) else None
    return Hypothesiser(beam_hypotheses(model, settings), group_size=window, begin=begin), sampler


def beam_hypotheses(model: CandidateModel, settings: SamplingSettings) -> MakeHypotheses:
    """Hypotheses by beam search, which depends on no id."""
    return lambda sources, ids: [found.texts for found in model.beam(sources, **settings.beam_options())]


class Hypothesiser:
    """Gives records hypotheses that are made, for `group_size` records at a time, when the first of them is looked at.

    Sources whose answers an earlier run wrote are never looked at, so that resuming costs no beam search for them.
    `begin` is called before, with the sources and ids of the group.
    """

    def __init__(
        self,
        make: MakeHypotheses,
        *,
        group_size: int = 64,
        begin: Callable[[Sequence[str], Sequence[str | int]], None] | None = None,
    ) -> None:
        self._make, self._group_size, self._begin = make, group_size, begin
        self.seconds = 0.0  # spent on hypotheses so far

    def records(self, sources: Iterable[str], *, name: str = "") -> Iterator[Record]:
        """One record per source, without pseudo-references; ids are line numbers from 1."""
        lines = enumerate(sources, 1)
        named = (Record((), id=n, source=source, location=Location(name or "<stdin>", n)) for n, source in lines)
        return (item for item in self.items(named) if isinstance(item, Record))

    def items(self, items: Iterable[Item]) -> Iterator[Item]:
        """Records with their hypotheses; what is bad stays as it is."""
        # as many records in each as windows of races have, and what is bad among them
        for group in in_groups(items, self._group_size, lambda item: isinstance(item, Record)):
            records = [item for item in group if isinstance(item, Record)]
            made = _GroupHypotheses(records, run_group(records, self._hypotheses))
            numbers = iter(range(len(records)))
            for item in group:
                yield replace(item, hypotheses=_Hypotheses(made, next(numbers))) if isinstance(item, Record) else item

    def _hypotheses(self, records: Sequence[Record]) -> Sequence[Sequence[str]]:
        started = time.perf_counter()
        sources, ids = [record.source or "" for record in records], [record.id for record in records]
        if self._begin is not None:
            self._begin(sources, ids)
        found = self._make(sources, ids)
        self.seconds += time.perf_counter() - started
        return found


class _GroupHypotheses:
    """The hypotheses of a group of records, made as far as they are needed."""

    def __init__(self, records: Sequence[Record], results: Iterator[Sequence[str] | Exception]) -> None:
        self._records, self._results = records, results
        self._made: list[Sequence[str] | Exception] = []
        self._failure: ServiceError | None = None

    def __getitem__(self, number: int) -> Sequence[str]:
        while len(self._made) <= number:
            if self._failure is not None:
                raise self._failure
            try:
                self._made.append(next(self._results))
            except ServiceError as error:  # for all of them
                self._failure = error
                raise
        made = self._made[number]
        if isinstance(made, UserError) and not isinstance(made, RecordError | ServiceError):
            raise self._records[number].error(str(made))
        if isinstance(made, Exception):
            raise made
        return made


class _Hypotheses(Sequence[str]):
    """The hypotheses of one record of a group, made when they are first looked at."""

    def __init__(self, group: _GroupHypotheses, number: int) -> None:
        self._group, self._number = group, number

    def __len__(self) -> int:
        return len(self._group[self._number])

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._group[self._number][index]

    def __iter__(self) -> Iterator[str]:  # all at once, not one after another by their indexes
        return iter(self._group[self._number])

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._group[self._number])
