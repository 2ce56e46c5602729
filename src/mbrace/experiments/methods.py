"""The study of methods: every published way to make MBR cheaper, on the same candidates.

A method may draw a record's first pseudo-references; the rest are held out and say what its choice is worth. The
decoder's own loop makes the choices: over stored utilities for a method that scores single pairs, over embeddings kept
in memory for one that averages them. Seconds are measured separately, by real decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from mbrace.api import decode_corpus
from mbrace.errors import UserError
from mbrace.experiments.strings import RACED, StringsTable, strings_tables
from mbrace.method_names import Method
from mbrace.methods import AggregateReferences, AggregateToFine, CentroidReferences, LowRank
from mbrace.metrics.chrf import ChrF
from mbrace.prune import Bottom, Confidence, Halving, PruningFunction
from mbrace.records import Record
from mbrace.result import Decoded
from mbrace.utilities.replay import Replay
from mbrace.utility import AggregatingUtility, CentroidUtility, EncodingUtility, QualityUtility, Utility

GROUP = 25  # the most sentences that are timed at once; there are at least five groups, for an interval
TOP = 32  # hypotheses on a shortlist


@dataclass(frozen=True)
class Way:
    """A way to choose a hypothesis. `family` is its series in the figure, `label` the text at its point."""

    name: str
    family: str
    label: str = ""
    prune: PruningFunction | None = None
    method: Method | None = None
    references: int = RACED
    start: int | None = None  # hypotheses, with `pool`; None: all
    pool: bool = False
    forecast: float = 0.0
    cover: bool = False  # pseudo-references in an order in which the first few cover all
    coarse: bool = False  # the best by chrF++ race
    qe: bool = False  # the best by estimated quality race
    weights: bool = False  # pseudo-references count by their probabilities
    options: str = ""  # of `mbrace decode`

    @property
    def any_utility(self) -> bool:
        """Whether it works with a utility that can only score pairs, such as a cross-encoder."""
        return self.method is None or isinstance(self.method, LowRank)


RACE = Confidence(0.99)
FEWER, RACES, LISTS = "standard MBR", "race (Cheng & Vlachos)", "shortlists, weights"
OWN, AGGREGATES = "regret, forecast, pool (ours)", "aggregation"
STANDARD = Way("standard MBR", FEWER, str(RACED), options="--prune none")
WAYS: tuple[Way, ...] = (
    STANDARD,
    *(
        Way(f"standard MBR, {n} references", FEWER, str(n), references=n, options=f"--prune none --schedule {n}")
        for n in (128, 64, 32)
    ),
    Way("prune_beta 0.5", RACES, "β 0.5", Bottom(0.5), options="--prune bottom --beta 0.5"),
    Way("prune_alpha 0.99", RACES, "α 0.99", RACE, options="--alpha 0.99"),
    Way("prune_alpha 0.9", RACES, "α 0.9", Confidence(0.9), options="--alpha 0.9"),
    Way("regret 0.02", OWN, "0.02", Confidence(0.99, regret=0.02), options="--regret 0.02"),
    Way("regret 0.08", OWN, "0.08", Confidence(0.99, regret=0.08), options="--regret 0.08"),
    Way("pool", OWN, "pool", RACE, pool=True, options="--pool"),
    Way(
        "pool from beam 64, regret 0.04", OWN, "pool 64, 0.04", Confidence(0.99, regret=0.04), pool=True, start=64,
        options="--pool --start 64 --regret 0.04",
    ),
    Way(
        "forecast, cover, regret 0.04", OWN, "forecast, cover", Confidence(0.99, regret=0.04), forecast=0.0005,
        cover=True, options="--forecast 0.0005 --regret 0.04 --cover",
    ),
    *(
        Way(f"halving, {n:,} calls", "halving (AMBR)", f"{n:,}", Halving(n), options=f"--prune halving --budget {n}")
        for n in (8192, 2048)
    ),
    Way("aggregate", AGGREGATES, "1", method=AggregateReferences(1), options="--method aggregate"),
    Way(
        "aggregate, 16 parts", AGGREGATES, "16", method=AggregateReferences(16),
        options="--method aggregate --aggregates 16",
    ),
    Way(
        "aggregate to fine, 20", AGGREGATES, "to fine", RACE, AggregateToFine(20),
        options="--method aggregate-to-fine --fine-top 20",
    ),
    *(
        Way(
            f"centroids, {n}", "centroids (CBMBR)", str(n), method=CentroidReferences(n),
            options=f"--method centroid --centroids {n}",
        )
        for n in (64, 16)
    ),
    *(
        Way(
            f"low rank, {name} of the pairs", "low rank (PMBR)", name, method=LowRank(8, fraction),
            options=f"--method low-rank --fraction {fraction:g}",
        )
        for name, fraction in (("1/8", 0.125), ("1/4", 0.25))
    ),
    Way(f"chrF++ to fine, {TOP}", LISTS, "chrF++", RACE, coarse=True, options=f"--coarse chrf++ --coarse-top {TOP}"),
    Way(f"quality shortlist, {TOP}", LISTS, "QE", RACE, qe=True, options=f"--qe MODEL --qe-top {TOP}"),
    Way("model-based weights", LISTS, "weights", weights=True, options="logprobs in the records"),
)  # fmt: skip
# A row of earlier runs, by a forecast that let in about a third more; it stays known, and is not run again.
EARLIER = Way(
    "forecast 0.01, regret 0.04", OWN, "forecast, 0.04", Confidence(0.99, regret=0.04), forecast=0.01,
    options="now about --forecast 0.0003 --regret 0.04",
)  # fmt: skip
BY_NAME = {way.name: way for way in (*WAYS, EARLIER)}
ARITHMETIC = ", arithmetic draws"  # after the name of a way on samples that were drawn so


def way_of(row: Mapping[str, Any]) -> Way:
    """The way of a row, whatever its draws."""
    return BY_NAME[row["way"].removesuffix(ARITHMETIC)]


def is_arithmetic(row: Mapping[str, Any]) -> bool:
    """Whether the samples of a row were drawn by arithmetic sampling."""
    return str(row["way"]).endswith(ARITHMETIC) or row["sampling"] == "arithmetic"


@dataclass(frozen=True)
class Study:
    """What all ways are measured with: a utility, a quality estimator for the shortlist if there is one, a seed."""

    utility: Utility
    qe: QualityUtility | None = None
    seed: int = 0

    def ways(self, records: Sequence[Record]) -> list[Way]:
        """Those of WAYS that are possible: centroids need embeddings, a coarse utility must be cheaper, weights need
        log-probabilities, a budget must cover at least one call per hypothesis."""
        most = max(len(set(record.hypotheses)) for record in records)
        logprobs = all(record.logprobs is not None for record in records)
        found = []
        for way in WAYS:
            needs = [
                not isinstance(way.method, CentroidReferences) or isinstance(self.utility, CentroidUtility),
                not isinstance(way.method, AggregateReferences | AggregateToFine)
                or isinstance(self.utility, AggregatingUtility),
                not way.coarse or not isinstance(self.utility, ChrF),
                not way.qe or self.qe is not None,
                not way.weights or logprobs,
                not isinstance(way.prune, Halving) or way.prune.budget >= most,
            ]
            if all(needs):
                found.append(way)
        return found

    def decode(self, records: Sequence[Record], way: Way, utility: Utility) -> list[Decoded]:
        """What a way chooses for some records."""
        given = [
            replace(
                record,
                pseudo_references=_pseudo_references(record)[: way.references],
                logprobs=None if not way.weights or record.logprobs is None else record.logprobs[: way.references],
            )
            for record in records
        ]
        options: dict[str, Any] = {"prune": way.prune, "method": way.method, "pool": way.pool, "start": way.start}
        options["forecast"] = way.forecast
        if way.coarse:
            options |= {"coarse": ChrF(threads=1), "coarse_top": TOP}
        if way.qe:
            options |= {"qe": self.qe, "qe_top": TOP}
        how: dict[str, Any] = {"seed": self.seed} | ({"cover": True} if way.cover else {"shuffle": False})
        return list(decode_corpus(given, utility=utility, window=len(given), **how, **options))


def check_records(records: Sequence[Record]) -> None:
    """Refuse records without pseudo-references to hold out, which say what a choice is worth."""
    for record in records:
        count = len(_pseudo_references(record))
        if count <= RACED:
            raise record.error(
                f"pseudo_references: {count}; {RACED} are to choose with, and more must be left to "
                "say what a choice is worth: give 512 or more (the paper: 1024)"
            )


def check_spread(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Refuse hypotheses between which there is nothing to choose."""
    if not any(row["spread"] for row in rows):
        raise UserError(f"{path}: hypotheses: all of a record have the same utility, in every record; give other ones")


def quality_rows(
    study: Study,
    records: Sequence[Record],
    metrics: Mapping[str, Utility],
    ways: Sequence[Way],
    *,
    workers: int = 1,
    advance: Callable[[int], None] = lambda count: None,
) -> list[dict[str, Any]]:
    """A row per record and way: what its choice is worth, and what it cost apart from time. With several `workers`,
    that many processes race over stored utilities."""
    found: list[dict[str, Any] | Future[list[dict[str, Any]]]] = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) if workers > 1 else nullcontext() as pool:
        for first in range(0, len(records), 10):
            part = records[first : first + 10]
            utility = study.utility.remembering() if isinstance(study.utility, EncodingUtility) else study.utility
            scored = {name: utility if metric is study.utility else metric for name, metric in metrics.items()}
            tables = strings_tables(part, utility, scored)
            stored = [way for way in ways if way.any_utility and not way.qe]
            signature = utility.name, utility.schedule
            if pool is None:
                found += _replayed(tables, stored, *signature, study.seed)
            else:
                found.append(pool.submit(_replayed, tables, stored, *signature, study.seed))
            for way in ways:
                if way not in stored:
                    answers = study.decode(part, way, utility)
                    found += [_row(way, table, answer) for table, answer in zip(tables, answers, strict=True)]
            advance(len(part))
        rows = [row for each in found for row in ([each] if isinstance(each, dict) else each.result())]
    order = {way.name: number for number, way in enumerate(ways)}
    position = {record.id: number for number, record in enumerate(records)}
    return sorted(rows, key=lambda row: (order[row["way"]], position[row["id"]]))


def _replayed(
    tables: Sequence[StringsTable], ways: Sequence[Way], name: str, schedule: tuple[int, ...], seed: int
) -> list[dict[str, Any]]:
    """The rows of ways that score single pairs, over stored utilities."""
    study = Study(Replay(tables, name=name, schedule=schedule), seed=seed)
    records, rows = [table.record for table in tables], []
    for way in ways:
        answers = study.decode(records, way, study.utility)
        rows += [_row(way, table, answer) for table, answer in zip(tables, answers, strict=True)]
    return rows


def _row(way: Way, table: StringsTable, answer: Decoded) -> dict[str, Any]:
    row = table.rows[answer.text]
    drawn = _pseudo_references(table.record)
    counts = np.bincount([table.columns[text] for text in drawn], minlength=len(table.columns))
    expected = np.asarray(table.utilities, dtype=np.float64) @ counts / len(drawn)
    best = expected[: len(dict.fromkeys(table.record.hypotheses))].max()
    return {
        "way": way.name,
        "id": table.record.id,
        "worth": float(table.worth[row]),
        "spread": table.spread,
        "agrees": float(expected[row] >= best - 1e-9),
        "drawn": (way.start or len(table.record.hypotheses)) + answer.pseudo_references,
        "strings": answer.strings,
        "utility_calls": answer.utility_calls,
        "pairs_scored": answer.pairs_scored,
        "other_calls": (answer.coarse_calls or 0) + (answer.quality_calls or 0),
        "text": answer.text,
        **{f"human {name}": float(scores[row]) for name, scores in table.human.items()},
    }


def timed_rows(
    study: Study,
    records: Sequence[Record],
    ways: Sequence[Way],
    *,
    full_warm_up: bool = False,
    advance: Callable[[int], None] = lambda count: None,
) -> Iterator[dict[str, Any]]:
    """The seconds that decoding groups of records takes, and what was chosen.

    Ways take turns, so that none has the machine to itself while it is quiet. Before that each warms up on two records,
    or (without `full_warm_up`, for a CPU) on small parts of them.
    """
    for way in ways:
        some = [replace(record, pseudo_references=_pseudo_references(record)[:96]) for record in records[:2]]
        cut = [replace(record, hypotheses=record.hypotheses[:32], logprobs=None) for record in some]
        study.decode(records[:2] if full_warm_up else cut, way, study.utility)
    size = min(GROUP, max(1, len(records) // 5))
    for first in range(0, len(records), size):
        part = records[first : first + size]
        for way in ways:
            began = time.perf_counter()
            answers = study.decode(part, way, study.utility)
            seconds = time.perf_counter() - began
            texts = [answer.text for answer in answers]
            yield {"way": way.name, "group": first // size, "sentences": len(part), "seconds": seconds, "texts": texts}
        advance(len(part))


def _pseudo_references(record: Record) -> Sequence[str]:
    given = record.listed()
    if not isinstance(given, Sequence):
        raise UserError(f"{record.where}: pseudo_references: experiments need a list")
    return given
