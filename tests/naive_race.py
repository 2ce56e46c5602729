"""Algorithms 1 and 2 of the paper in fractions, one sentence, one step and one pair at a time: what races must equal.

With the paper's races, those that this project adds: for the n best, with weights by probability, stopped by regret,
over one list that is drawn, without the comparison of a hypothesis with its own draw, and with a forecast.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
from test_forecast import NaiveForecast

import mbrace
from mbrace._native import Resamples, covering_order
from mbrace.records import generator, key

STARTERS, MOST_ADMITTED = 24, 16  # with a forecast


class NaiveRace:
    """The race of one record; `options` are keywords of `decode`, `default` is the utility's own schedule."""

    def __init__(
        self,
        record: mbrace.Record,
        utility: Callable[[str, str], float],
        default: Sequence[int],
        options: dict[str, Any],
    ) -> None:
        self.hypotheses, self.utility, self.default, self.options = record.hypotheses, utility, default, options
        self.prune, self.nbest, self.pool = options["prune"], options["nbest"], options["pool"]
        own = record.pseudo_references is None
        draws: list[str] = list(record.hypotheses if own else record.pseudo_references)  # type: ignore[arg-type]
        order = list(range(len(draws)))
        if options["shuffle"] and len(draws) > 1:
            order = generator(options["seed"], record.id, "shuffle").permutation(len(draws)).tolist()
        if options["cover"]:
            order = [order[place] for place in covering_order([draws[place] for place in order]).tolist()]
        self.draws = [draws[place] for place in order]
        self.logprobs = None if record.logprobs is None else [record.logprobs[place] for place in order]
        self.leaves_out = options["exclude_self"] and (own or self.pool)
        self.steps: list[tuple[int, int, int, int]] = []  # as `Step`
        self.is_close_call = False  # decided by less than the kernel's rounding
        self.dropped: list[float] = []  # expected utilities of those pruned, as they were then
        self.run()

    def sizes(self) -> Iterator[int]:
        """r_1, r_2, ...; without pruning the last one alone."""
        schedule = self.options["schedule"]
        if schedule == "all":
            doubled = (self.default[0] << step for step in itertools.count())
            return iter([len(self.draws) + 1]) if self.prune is None else doubled
        sizes = list(schedule or self.default)
        return iter(sizes if self.prune is not None else sizes[-1:])

    def run(self) -> None:
        """Algorithm 1."""
        alive, means, used, exhausted = self.starters(), list[float](), 0, False
        stops_by_regret = isinstance(self.prune, mbrace.Confidence) and self.prune.regret > 0
        enough, sizes = self.nbest if stops_by_regret else 1, self.sizes()
        while True:
            needs_draws = len(alive) > (enough if self.steps else 1) or (self.pool and not self.steps)
            size = next(sizes, used)
            count = max(0, size - used) if needs_draws and not exhausted else 0
            if not count and not self.pending:
                break
            before, used = used, min(used + count, len(self.draws))
            exhausted |= used - before < count
            if count and used == before:
                continue
            drawn, old = self.draws[:used], set(self.draws[:before])
            columns = list(dict.fromkeys(drawn))
            new = [text for text in columns if text not in old]
            entering, self.pending = new if self.pool else self.pending, []  # in a pool each draw is a hypothesis too
            calls = len(alive) * (used - before) + len(entering) * used
            pairs = len(alive) * len(new) + len(entering) * len(columns)
            alive = alive + entering
            self.raced |= set(alive)
            rows, means = self.table(alive, drawn, columns)
            self.look(dict(zip(alive, means, strict=True)))
            keep = self.kept(rows, means, drawn, columns)
            self.dropped += [mean for mean, stays in zip(means, keep, strict=True) if not stays]
            alive, means = list(itertools.compress(alive, keep)), list(itertools.compress(means, keep))
            self.steps.append((used, len(alive), calls, pairs))
        first = {text: self.hypotheses.index(text) for text in alive if text in self.hypotheses}
        utilities: list[float | None] = [*means] if self.steps else [None] * len(alive)
        found = [(text, first.get(text), mean) for text, mean in zip(alive, utilities, strict=True)]
        # equal ones in the caller's order; of a pool by their text, not in the order of the draws
        found.sort(key=lambda each: (each[0] if self.pool else "", each[1] or 0))
        self.nbest_list = sorted(found, key=lambda each: -(each[2] or 0.0))[: self.nbest]
        self.used = used

    def starters(self) -> list[str]:
        """Who races from the start: all, or with a forecast some that say much about the others."""
        distinct = list(dict.fromkeys(self.hypotheses))
        self.pending, self.raced, self.known = list[str](), set[str](), dict[str, float]()
        self.least, count = self.options.get("forecast", 0), max(STARTERS, self.nbest)
        self.forecast = NaiveForecast(distinct) if self.least and len(distinct) > count else None
        return distinct if self.forecast is None else [distinct[row] for row in self.forecast.start(count)]

    def look(self, now: dict[str, float]) -> None:
        """With a forecast: who enters next, by the expected utilities of all that raced; those of pruned ones have
        moved as much as the others'."""
        if self.forecast is None:
            return
        both = now.keys() & self.known.keys()
        moved = sum(now[text] - self.known[text] for text in both) / len(both) if both else 0.0
        entered = [*self.known, *(text for text in now if text not in self.known)]
        self.known = {text: now[text] if text in now else self.known[text] + moved for text in entered}
        rival = sorted(now.values())[-min(self.nbest, len(now))]
        if len(set(self.known.values())) > 1:
            chosen = self.forecast.next(list(self.known.values()), rival, self.least, MOST_ADMITTED)
            distinct = list(dict.fromkeys(self.hypotheses))
            self.pending = [distinct[row] for row in chosen]

    def weights(self, drawn: Sequence[str], columns: Sequence[str]) -> list[Fraction]:
        """Of each distinct draw: its count, or its share by the average log-probability of its copies."""
        if self.logprobs is None:
            return [Fraction(drawn.count(text)) for text in columns]
        logprobs = dict[str, list[float]]()
        for text, logprob in zip(drawn, self.logprobs, strict=False):
            logprobs.setdefault(text, []).append(logprob)
        averages = np.array([math.fsum(copies) / len(copies) for copies in logprobs.values()])
        shares = np.exp(averages - averages.max())
        return [Fraction(share) for share in (shares / math.fsum(shares)).tolist()]

    def table(
        self, alive: Sequence[str], drawn: Sequence[str], columns: Sequence[str]
    ) -> tuple[list[list[Fraction]], list[float]]:
        """The utilities and their means; for a draw that is left out stands the mean of the others, rounded."""
        weights, rows, means, self.rounded = self.weights(drawn, columns), [], [], set()
        for hypothesis in alive:
            row = [Fraction(self.utility(hypothesis, text)) for text in columns]
            total = sum(map(Fraction.__mul__, weights, row))
            mean = float(total / sum(weights)) if self.leaves_out else float(total) / float(sum(weights))
            if self.leaves_out and hypothesis in columns:
                own = columns.index(hypothesis)
                copies, others = drawn.count(hypothesis), list(weights)
                if self.logprobs is None:
                    others[own] -= 1
                elif copies == 1:
                    others[own] = Fraction(0)
                if sum(others):
                    left = sum(map(Fraction.__mul__, others, row)) / sum(others)
                    mean = float(left)
                    self.rounded.add(len(rows))
                    if self.logprobs is None:
                        row[own] = Fraction(float((row[own] * (copies - 1) + left) / copies))
                    elif copies == 1:
                        row[own] = Fraction(mean)
            rows.append(row)
            means.append(mean)
        return rows, means

    def kept(
        self, rows: list[list[Fraction]], means: list[float], drawn: Sequence[str], columns: Sequence[str]
    ) -> list[bool]:
        """Line 9 of Algorithm 1: who stays; always the n best."""
        order = sorted(range(len(means)), key=lambda row: -means[row])
        leaders = order[: self.nbest]
        if self.prune is None or len(means) <= self.nbest:
            return [True] * len(means)
        if isinstance(self.prune, mbrace.Bottom):
            best = order[: max(1, math.floor(len(means) * (1 - self.prune.beta) + 1e-9))]
            return [row in best or row in leaders for row in range(len(means))]
        if not isinstance(self.prune, mbrace.Confidence):  # a function of the means
            stays = self.prune(SimpleNamespace(means=np.array(means)))
            return [bool(stays[row]) or row in leaders for row in range(len(means))]
        return self.confident(rows, means, leaders, drawn, columns)

    def confident(
        self,
        rows: list[list[Fraction]],
        means: list[float],
        leaders: list[int],
        drawn: Sequence[str],
        columns: Sequence[str],
    ) -> list[bool]:
        """Algorithm 2, on the same resamples; then whether there is little to regret in answering now."""
        rule, weighted = self.prune, self.logprobs is not None
        copies = [1 if weighted else drawn.count(text) for text in columns]  # with weights, each counts once
        weights = self.weights(drawn, columns) if weighted else [Fraction(1)] * len(columns)
        owner = np.repeat(np.eye(len(columns), dtype=int), copies, axis=0)
        resamples = Resamples(key(self.options["seed"], 0, "bootstrap"), len(owner), rule.bootstraps).counts()
        parts = [
            [count * weight for count, weight in zip(line, weights, strict=True)]
            for line in (resamples.astype(int) @ owner).tolist()
        ]
        totals = [[sum(map(Fraction.__mul__, part, row)) for part in parts] for row in rows]
        rival = totals[leaders[-1]]
        wins = [sum(map(Fraction.__ge__, own, rival)) for own in totals]
        for row, own in enumerate(totals):
            if row != leaders[-1] and {row, leaders[-1]} & self.rounded:
                self.is_close_call |= any(abs(a - b) < 1e-9 for a, b in zip(own, rival, strict=True))
        keep = [won * 10**9 > round((1 - rule.alpha) * 10**9) * rule.bootstraps for won in wins]
        for row in leaders:
            keep[row] = True
        if rule.regret and sum(keep) > self.nbest:
            left = [own for own, stays in zip(totals, keep, strict=True) if stays]
            best = sum(sum(sorted(column)[-self.nbest :]) for column in zip(*left, strict=True))
            mine = sum(sum(totals[row]) for row in leaders)
            scale = len(parts) * self.nbest * (sum(weights) if weighted else len(owner))
            regret, most = float((best - mine) / scale), rule.regret * float(np.std(self.dropped + means))
            self.is_close_call |= abs(regret - most) < 1e-3 * most  # the kernel's regret is of 16-bit numbers
            if regret <= most:
                keep = [row in leaders for row in range(len(means))]
        return keep
