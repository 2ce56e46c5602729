"""The study of strings: how much expected utility is left when fewer strings are made and encoded.

A record's first pseudo-references are those that races may draw, in their order; the rest are held out and say what a
chosen string is worth. Every way of choosing runs by the decoder's own loop over one stored table per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace._native import covering_order
from mbrace.prune import Confidence, PruningFunction
from mbrace.race import race
from mbrace.records import Record
from mbrace.runner import Entry
from mbrace.sampler import Listed
from mbrace.utilities.replay import Replay
from mbrace.utility import Ask, Sentence, Utility

RACED = 256  # pseudo-references that races may draw; those after them are held out
MARGIN = 0.05  # of the standard deviation between hypotheses: less is no loss (fixed before any run)


@dataclass(frozen=True)
class Way:
    """A way to choose: how many beam hypotheses and pseudo-references, and how they race."""

    name: str
    beam: int = 256
    references: int = RACED
    alpha: float | None = None  # None: standard MBR
    regret: float = 0.0
    pool: bool = False
    forecast: float = 0.0
    cover: bool = False  # pseudo-references in an order in which the first few cover all
    schedule: tuple[int, ...] | None = None  # None: the utility's own

    @property
    def prune(self) -> PruningFunction | None:
        """The decoder's pruning function."""
        return None if self.alpha is None else Confidence(self.alpha, regret=self.regret)


STANDARD = Way("standard 256 + 256")
SMALL_STEPS = (8, 12, 18, 27, 40, 60, 90, 135, 200, 256)  # each half as large again, where a utility's own double
WAYS: tuple[Way, ...] = (
    STANDARD,
    *(Way(f"standard {n} + {n}", beam=n, references=n) for n in (16, 32, 64, 128)),
    Way("alpha 0.99", alpha=0.99),
    *(Way(f"regret {x:g}", alpha=0.99, regret=x) for x in (0.01, 0.02, 0.04, 0.08)),
    *(
        Way(f"pool from beam {beam}, regret {x:g}", beam=beam, alpha=0.99, regret=x, pool=True)
        for beam in (16, 64, 128)
        for x in (0.02, 0.04, 0.08)
    ),
    *(
        Way(f"forecast {least:g}, regret {x:g}", alpha=0.99, regret=x, forecast=least)
        for least, x in ((0.0005, 0.04), (0.0005, 0.06), (0.0003, 0.03), (0.0001, 0.03))
    ),
    *(
        Way(f"forecast 0.0005, regret {x:g}, small steps", alpha=0.99, regret=x, forecast=0.0005, schedule=SMALL_STEPS)
        for x in (0.03, 0.04)
    ),
    *(Way(f"standard 256 + {n}", references=n) for n in (32, 64)),
    *(Way(f"standard 256 + {n}, cover", references=n, cover=True) for n in (32, 64)),
    *(Way(f"regret {x:g}, cover", alpha=0.99, regret=x, cover=True) for x in (0.04, 0.08)),
    *(
        Way(f"forecast {least:g}, regret {x:g}, cover", alpha=0.99, regret=x, forecast=least, cover=True)
        for least, x in ((0.0005, 0.04), (0.0005, 0.06), (0.0005, 0.08))
    ),
)
# Rows of earlier runs, by a forecast that took the average of those who raced for the level of all. Not run again: what
# such a value lets in is no longer the same.
EARLIER: tuple[Way, ...] = tuple(
    Way(f"forecast {least:g}, regret {x:g}", alpha=0.99, regret=x, forecast=least)
    for least, x in ((0.01, 0.04), (0.01, 0.06), (0.005, 0.04))
)


@dataclass(frozen=True)
class StringsTable:
    """Utilities of every string that may win against every pseudo-reference, raced and held out, of one record."""

    record: Record
    texts: list[str]  # (rows): beam hypotheses first, then draws that are not among them
    utilities: NDArray[np.floating]  # (rows, columns)
    columns: dict[str, int]  # by pseudo-reference
    worth: NDArray[np.float64]  # (rows,) mean utility against the held-out draws
    human: dict[str, NDArray[np.float64]]  # by metric: (rows,) score against the human reference
    spread: float  # standard deviation of `worth` between the beam hypotheses
    raced: int = RACED  # draws that races may use

    @property
    def id(self) -> str | int:
        """The record's."""
        return self.record.id

    @property
    def rows(self) -> dict[str, int]:
        """By string that may win. Made anew each time: a table that changes cannot be sent to another process."""
        return {text: row for row, text in enumerate(self.texts)}


def strings_tables(
    records: Sequence[Record], utility: Utility, metrics: dict[str, Utility], *, raced: int = RACED, pool: bool = True
) -> list[StringsTable]:
    """Score all strings of some records once, in one call; `metrics` score against the human reference. Without `pool`,
    draws cannot win."""
    drawn = [list(record.listed() or ()) for record in records]  # type: ignore[arg-type]
    pairs = zip(records, drawn, strict=True)
    texts = [list(dict.fromkeys([*record.hypotheses, *draws[: raced if pool else 0]])) for record, draws in pairs]
    columns = [{text: column for column, text in enumerate(dict.fromkeys(draws))} for draws in drawn]
    scorer = utility.start([Sentence(r.id, r.source, own) for r, own in zip(records, texts, strict=True)])
    asks = [Ask(i, np.arange(len(own)), list(columns[i])) for i, own in enumerate(texts)]
    human = {name: human_scores(records, texts, metric) for name, metric in metrics.items()}
    found = []
    for i, (record, table) in enumerate(zip(records, scorer.score(asks), strict=True)):
        counts = np.bincount([columns[i][text] for text in drawn[i][raced:]], minlength=len(columns[i]))
        worth = np.asarray(table, dtype=np.float64) @ counts / max(1, counts.sum())
        beam = len(dict.fromkeys(record.hypotheses))
        scores = {name: values[i] for name, values in human.items()}
        found.append(
            StringsTable(record, texts[i], table, columns[i], worth, scores, float(np.std(worth[:beam])), raced)
        )
    return found


def human_scores(
    records: Sequence[Record], texts: Sequence[Sequence[str]], metric: Utility
) -> list[NDArray[np.float64]]:
    """Of each record, the scores of its texts against the human reference."""
    flat = [(text, record) for record, own in zip(records, texts, strict=True) for text in own]
    scores = metric.pairs(
        [text for text, _ in flat], [r.reference or "" for _, r in flat], [r.source or "" for _, r in flat]
    )
    return np.split(np.asarray(scores, dtype=np.float64), np.cumsum([len(own) for own in texts])[:-1])


def strings_rows(
    table: StringsTable, utility: Utility, ways: Sequence[Way] = WAYS, *, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """What each way chose for one record, and what it cost."""
    stored = Replay([table], name=utility.name, schedule=utility.schedule)
    given = list(table.record.listed() or ())[: table.raced]  # type: ignore[arg-type]
    for way in ways:
        beam = list(table.record.hypotheses)[: way.beam]
        drawn = [given[position] for position in covering_order(given)] if way.cover else given
        record = Record(beam, drawn[: way.references], id=table.record.id)
        answer = race(
            [record],
            stored,
            prune=way.prune,
            schedule=way.schedule,
            sampler=Listed(seed=seed, shuffle=False),
            seed=seed,
            nbest=1,
            entry=Entry(pool=way.pool, forecast=way.forecast),
        )[0]
        row = table.texts.index(answer.text)
        yield {
            "way": way.name,
            "id": table.record.id,
            "worth": float(table.worth[row]),
            "spread": table.spread,
            "drawn": len(beam) + answer.pseudo_references,
            "strings": answer.strings,
            "utility_calls": answer.utility_calls,
            "pseudo_references": answer.pseudo_references,
            **{f"human {name}": float(scores[row]) for name, scores in table.human.items()},
        }


def run_strings(
    records: Sequence[Record],
    utility: Utility,
    metrics: dict[str, Utility],
    *,
    ways: Sequence[Way] = WAYS,
    seed: int = 0,
    advance: Callable[[int], None] = lambda count: None,
) -> list[dict[str, Any]]:
    """The study over some records: one row per record and way; `metrics` need human references."""
    for record in records:
        drawn = len(record.listed() or ())  # type: ignore[arg-type]
        if drawn <= RACED:
            raise record.error(
                f"pseudo_references: {drawn}; {RACED} race, and more must be left to say what a choice is worth: "
                "give 512 or more (the paper: 1024)"
            )
    rows: list[dict[str, Any]] = []
    for first in range(0, len(records), 10):
        tables = strings_tables(records[first : first + 10], utility, metrics)
        for table in tables:
            rows += strings_rows(table, utility, ways, seed=seed)
        advance(len(tables))
    return rows


def summarise(rows: Sequence[dict[str, Any]], *, resamples: int = 2000, seed: int = 0) -> list[dict[str, Any]]:
    """One row per way: means, and 95% intervals (bootstrap over sentences) of its differences from standard MBR."""
    by_way: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_way.setdefault(row["way"], []).append(row)
    base = by_way[STANDARD.name]
    spread = np.array([row["spread"] for row in base])
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(base), (resamples, len(base)))
    found = []
    for way, own in by_way.items():
        summary: dict[str, Any] = {"way": way, "sentences": len(own)}
        for field in ("drawn", "strings", "utility_calls", "pseudo_references"):
            summary[field] = float(np.mean([row[field] for row in own]))
        summary["share of strings"] = summary["strings"] / float(np.mean([row["strings"] for row in base]))
        lost = np.array([a["worth"] - b["worth"] for a, b in zip(own, base, strict=True)])
        ratio = [lost[pick].mean() / spread[pick].mean() for pick in picks]
        summary["utility"] = float(lost.mean() / spread.mean())
        summary["utility interval"] = [float(value) for value in np.quantile(ratio, (0.025, 0.975))]
        for field in [name for name in own[0] if name.startswith("human ")]:
            changed = np.array([a[field] - b[field] for a, b in zip(own, base, strict=True)])
            means = changed[picks].mean(axis=1)
            summary[field] = float(np.mean([row[field] for row in own]))
            summary[f"{field} change"] = float(changed.mean())
            summary[f"{field} interval"] = [float(value) for value in np.quantile(means, (0.025, 0.975))]
        found.append(summary)
    return found
