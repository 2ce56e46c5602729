"""Is pruning right as often as it says? Replays of stored utilities, for results/calibration.md.

    python experiments/calibration.py CANDIDATES... [--sentences 200] [--trials 4]

Tables in Markdown, with chrF++: one application of a rule to all hypotheses, by the number of pseudo-references; how
far the leader's estimate is too high; win rates against truth; and whole races by rule, among them bounds on paired
differences instead of the bootstrap, and both roundings of beta. Truth is what all of R* says, 1,024 pseudo-references.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace.api import decode_corpus
from mbrace.experiments.significance import student
from mbrace.experiments.tables import Table, compute
from mbrace.experiments.trials import sample
from mbrace.io.candidates import read_records
from mbrace.metrics.chrf import ChrF
from mbrace.prune import Bottom, Confidence, PruningFunction, Standings
from mbrace.records import Record, key
from mbrace.settings import Race
from mbrace.utilities.replay import Replay

SIZES = (4, 8, 16, 32, 64, 128, 256)
WIDTH = 200.0  # differences of chrF++ are between -100 and 100
BINS = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class PairedBound:
    """Drop a hypothesis if the upper bound of its mean difference from the leader, over the draws, is below 0.

    The bound is Student's t, or the empirical Bernstein bound (Maurer and Pontil 2009), which holds for any
    distribution of differences within `WIDTH`. It fails with a chance of (1 - alpha) / comparisons: with comparisons =
    (hypotheses - 1) x steps the best hypothesis is dropped in at most 1 - alpha of races (Bonferroni), whoever leads.
    """

    alpha: float = 0.99
    kind: str = "t"  # or "bernstein"
    comparisons: int = 1

    def __call__(self, standings: Standings) -> NDArray[np.bool_]:
        """Keep those whose bound is 0 or more."""
        counts, draws = standings.counts, int(standings.counts.sum())
        leader = standings.leaders()[-1]
        gaps = standings.utilities.astype(np.float64) - standings.utilities[leader].astype(np.float64)
        means = gaps @ counts / draws
        variances = (gaps - means[:, None]) ** 2 @ counts / (draws - 1)
        error = (1 - self.alpha) / self.comparisons
        if self.kind == "t":
            bounds = means + student(1 - error, draws - 1) * np.sqrt(variances / draws)
        else:
            log = math.log(2 / error)
            bounds = means + np.sqrt(2 * variances * log / draws) + 7 * WIDTH * log / (3 * (draws - 1))
        keep: NDArray[np.bool_] = bounds >= 0
        keep[standings.leaders()] = True
        return keep


@dataclass(frozen=True)
class RoundedUp:
    """prune_beta as it was before: floor(beta n) are dropped, so that fewer than 1 / beta hypotheses all stay."""

    beta: float

    def __call__(self, standings: Standings) -> NDArray[np.bool_]:
        """Keep all but the bottom."""
        alive = len(standings.means)
        keep = np.zeros(alive, dtype=np.bool_)
        keep[standings.ranking()[: max(1, alive - math.floor(self.beta * alive + 1e-9))]] = True
        return keep


def read_tables(path: str, sentences: int) -> list[Table]:
    """The first sentences of a candidate file with their utilities by chrF++, in memory."""
    records = list(itertools.islice(read_records(path), sentences))
    return [Table(record, values) for record, values in zip(records, compute(records, ChrF()), strict=True)]


def trials_of(tables: Sequence[Table], trials: int) -> Iterator[tuple[int, list[Record]]]:
    """The seed of each trial, and its records: the draws of 256 of R*."""
    for trial in range(trials):
        seed = key(0, trial, "trial")
        yield seed, [sample(table, seed, SIZES[-1]) for table in tables]


@dataclass
class Applied:
    """What one application of a rule to all hypotheses did, summed over sentences and trials."""

    races: int = 0
    winner_lost: int = 0
    dropped: int = 0
    as_good: int = 0  # dropped although at least as good as the leader
    hypotheses: int = 0

    def row(self) -> list[float]:
        """Share of races that lose the winner, share of dropped that are as good as the leader, share dropped."""
        lost, wrong = self.winner_lost / self.races, self.as_good / max(1, self.dropped)
        return [lost, wrong, self.dropped / self.hypotheses]


@dataclass
class Calibration:
    """One application of each rule at each size, how much the leader flatters itself, and win rates against truth."""

    applied: dict[tuple[str, int], Applied] = field(default_factory=dict)
    flattery: dict[int, list[float]] = field(default_factory=dict)
    rates: dict[tuple[int, int], list[tuple[float, bool]]] = field(default_factory=dict)  # by size and bin

    def add(self, table: Table, standings: Standings, rules: Mapping[str, PruningFunction]) -> None:
        """Apply each rule to the standings of all hypotheses of a sentence."""
        size, truth = int(standings.counts.sum()), table.expected
        leader, best = standings.leaders()[0], truth.max()
        spread = float(truth.std())
        if spread == 0:
            return
        self.flattery.setdefault(size, []).append(float(standings.means[leader] - truth[leader]) / spread)
        good = truth >= truth[leader]
        for name, rule in rules.items():
            keep, found = rule(standings), self.applied.setdefault((name, size), Applied())
            found.races += 1
            found.winner_lost += not keep[truth == best].any()
            found.dropped += int((~keep).sum())
            found.as_good += int((good & ~keep).sum())
            found.hypotheses += len(keep) - 1
        others = np.arange(len(truth)) != leader
        rates = Confidence().win_rates(standings)[others]
        which = np.digitize(rates, BINS[1:-1], right=True)
        for one in range(len(BINS) - 1):
            here = which == one
            pairs = zip(rates[here].tolist(), good[others][here].tolist(), strict=True)
            self.rates.setdefault((size, one), []).extend(pairs)


def calibrate(tables: Sequence[Table], trials: int, rules: Mapping[str, PruningFunction]) -> Calibration:
    """A race that drops nobody goes through the sizes; at each, every rule is applied."""
    found, by_id = Calibration(), {table.id: table for table in tables}

    def check(record: Record, alive: NDArray[np.int64], standings: Standings, keep: NDArray[np.bool_]) -> None:
        found.add(by_id[record.id], standings, rules)

    replay = Replay(tables, name="chrF++", schedule=SIZES)
    for seed, records in trials_of(tables, trials):
        race = Race(prune=Bottom(0), schedule=SIZES, shuffle=False, seed=seed)
        list(decode_corpus(records, utility=replay, race=race, watch=check))
    return found


def race_rows(tables: Sequence[Table], trials: int, rules: Mapping[str, PruningFunction | None]) -> list[list[Any]]:
    """Whole races by rule: share that loses the winner, accuracy, loss in standard deviations, utility calls."""
    replay, by_id = Replay(tables, name="chrF++", schedule=ChrF().schedule), {table.id: table for table in tables}
    rows = []
    for name, rule in rules.items():
        values = []
        for seed, records in trials_of(tables, trials):
            gone: set[str | int] = set()

            def watch(
                record: Record, alive: NDArray[np.int64], _: Standings, keep: NDArray[np.bool_], gone: Any = gone
            ) -> None:
                truth = by_id[record.id].expected
                if not (truth[alive[keep]] == truth.max()).any():
                    gone.add(record.id)

            race = Race(prune=rule or Bottom(0), schedule="all" if rule is None else None, shuffle=False, seed=seed)
            answers = decode_corpus(records, utility=replay, race=race, watch=watch)
            for table, answer in zip(tables, answers, strict=True):
                truth = table.expected
                assert answer.index is not None
                lost = float(truth.max() - truth[answer.index]) / float(truth.std() or 1)
                values.append((table.id in gone, truth[answer.index] == truth.max(), lost, answer.utility_calls))
        *means, calls = np.mean(values, axis=0).tolist()
        rows.append([name, *means, round(calls)])
    return rows


def rules_of(comparisons: int) -> dict[str, PruningFunction]:
    """The rules that are compared; `comparisons`: pairs with the best hypothesis times steps, for bounds per race."""
    return {
        "bootstrap 0.99": Confidence(0.99),
        "bootstrap 0.9": Confidence(0.9),
        "t 0.99": PairedBound(0.99),
        "t 0.9": PairedBound(0.9),
        "t 0.99 per race": PairedBound(0.99, comparisons=comparisons),
        "t 0.9 per race": PairedBound(0.9, comparisons=comparisons),
        "Bernstein 0.9 per race": PairedBound(0.9, "bernstein", comparisons),
    }


def show(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table in Markdown."""
    print(f"\n| {' | '.join(heads)} |\n|{' --: |' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(f'{cell:.3f}' if isinstance(cell, float) else f'{cell}' for cell in row)} |")


def main() -> None:
    """The tables of all files together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates", nargs="+")
    parser.add_argument("--sentences", type=int, default=200, help="of each file (200)")
    parser.add_argument("--trials", type=int, default=4)
    args = parser.parse_args()
    for path in args.candidates:
        tables = read_tables(path, args.sentences)
        most = max(len(table.hypotheses) for table in tables)
        rules = rules_of((most - 1) * len(ChrF().schedule))
        print(f"\n## {path.rsplit('/', 1)[-1]}: {len(tables)} sentences, {args.trials} trials")
        found = calibrate(tables, args.trials, rules)
        rows = [[name, size, *applied.row()] for (name, size), applied in found.applied.items()]
        show(("rule", "R", "winner lost", "dropped, as good as the leader", "dropped"), rows)
        show(("R", "leader's estimate too high by, sd"), [[n, float(np.mean(v))] for n, v in found.flattery.items()])
        bins = []
        for (size, one), pairs in found.rates.items():
            if pairs and size in (8, 16, 64, 256):
                said, true = np.mean(pairs, axis=0)
                bins.append([size, f"{BINS[one]:g} to {BINS[one + 1]:g}", len(pairs), float(said), float(true)])
        show(("R", "win rate", "pairs", "mean win rate", "truly as good"), bins)
        betas = [0.05, 0.1, 0.3, 0.5, 0.6, 0.9]
        whole: dict[str, PruningFunction | None] = {"standard MBR": None, **rules}
        whole |= {f"beta {b:g}": Bottom(b) for b in betas} | {f"beta {b:g}, before": RoundedUp(b) for b in betas}
        heads = ("rule", "races that lose the winner", "accuracy", "loss, sd", "utility calls")
        show(heads, race_rows(tables, args.trials, whole))


if __name__ == "__main__":
    main()
