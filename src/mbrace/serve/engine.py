"""Races of requests that are open together: one thread for each, one shared window for the utility."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace.answers import Answer, Prompt, answers
from mbrace.metrics.exact_match import ExactMatch
from mbrace.servers.server import Ongoing, Server
from mbrace.utility import Ask, Sentence, Utility, as_utility

Tables: TypeAlias = "Sequence[NDArray[np.floating]]"
Step: TypeAlias = "Callable[[dict[str, Any]], None]"


class SharedWindow:
    """A utility for races on many threads: what they ask at the same time is scored together, in one batch."""

    def __init__(self, utility: Utility) -> None:
        self._utility = utility
        self.name, self.schedule, self.needs_source = utility.name, utility.schedule, utility.needs_source
        self._waiting: SimpleQueue[tuple[Sequence[Sentence], Sequence[Ask], Future[Tables]] | None] = SimpleQueue()
        self.largest = 0  # races in one batch
        threading.Thread(target=self._work, name="mbrace-window", daemon=True).start()

    def start(self, sentences: Sequence[Sentence]) -> _SharedScorer:
        """Begin a race."""
        return _SharedScorer(self, sentences)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.floating]:
        """Scores of aligned pairs, (pairs,)."""
        return self._utility.pairs(hypotheses, references, sources)

    def score(self, sentences: Sequence[Sentence], asks: Sequence[Ask]) -> Tables:
        """The tables of one race's asks, scored with those of the others that wait."""
        found: Future[Tables] = Future()
        self._waiting.put((sentences, asks, found))
        return found.result()

    def close(self) -> None:
        """End the thread."""
        self._waiting.put(None)

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            try:
                while (more := self._waiting.get_nowait()) is not None:
                    batch.append(more)
            except Empty:
                pass
            self.largest = max(self.largest, len(batch))
            try:
                found = self._score([(sentences, asks) for sentences, asks, _ in batch])
            except Exception:  # one of them is at fault: each for itself
                for sentences, asks, future in batch:
                    try:
                        future.set_result(self._score([(sentences, asks)])[0])
                    except Exception as error:
                        future.set_exception(error)
                continue
            for (_, _, future), tables in zip(batch, found, strict=True):
                future.set_result(tables)

    def _score(self, batch: Sequence[tuple[Sequence[Sentence], Sequence[Ask]]]) -> list[Tables]:
        """The tables of several races, as one window."""
        window: list[Sentence] = []
        asks: list[Ask] = []
        for sentences, own in batch:
            asks += [ask._replace(sentence=ask.sentence + len(window)) for ask in own]
            window += sentences
        tables = iter(self._utility.start(window).score(asks))
        return [[next(tables) for _ in own] for _, own in batch]


class _SharedScorer:
    encode_seconds = 0.0

    def __init__(self, window: SharedWindow, sentences: Sequence[Sentence]) -> None:
        self._window, self._sentences = window, sentences

    def score(self, asks: Sequence[Ask]) -> Tables:
        return self._window.score(self._sentences, asks)


class Metrics:
    """Counters in Prometheus' text format."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counters: Counter[str] = Counter()
        self.open = 0

    def add(self, name: str, amount: float = 1) -> None:
        """Add to a counter, such as `requests_total{status="200"}`."""
        with self._lock:
            self.counters[name] += amount  # type: ignore[assignment]

    def count(self, answer: Answer) -> None:
        """Note what an answer cost."""
        cost = answer.receipt
        self.add(f'answers_total{{stopped="{answer.stopped}"}}')
        for name in ("draws", "cut", "blank", "tokens_in", "tokens_out"):
            self.add(f"{name}_total", getattr(cost, name))
        self.add("upstream_requests_total", cost.requests)

    def text(self) -> str:
        """All of them."""
        with self._lock:
            found = dict(self.counters)
        lines, seen = [], set()
        for name in sorted(found):
            family = name.partition("{")[0]
            if family not in seen:
                lines.append(f"# TYPE mbrace_{family} counter")
                seen.add(family)
            lines.append(f"mbrace_{name} {found[name]:g}")
        return "\n".join([*lines, "# TYPE mbrace_open_requests gauge", f"mbrace_open_requests {self.open}", ""])


class Engine:
    """Answers requests by races between draws of one model on a server."""

    def __init__(
        self,
        make_server: Callable[[bool], Server],
        utilities: Mapping[str, Utility],
        *,
        most_draws: int,
        regret: float,
        confidence: float,
        open_requests: int,
    ) -> None:
        self._make_server = make_server
        self._servers: dict[bool, Server] = {}
        self._lock = threading.Lock()
        self.windows = {name: SharedWindow(as_utility(utility)) for name, utility in utilities.items()}
        self._plain = dict(utilities)
        self.most_draws, self.regret, self.confidence, self.open_requests = (
            most_draws,
            regret,
            confidence,
            open_requests,
        )
        self._threads = ThreadPoolExecutor(open_requests, thread_name_prefix="mbrace-race")
        self.metrics = Metrics()

    def server(self, chat: bool) -> Server:
        """The upstream server, by endpoint."""
        with self._lock:
            if chat not in self._servers:
                self._servers[chat] = self._make_server(chat)
            return self._servers[chat]

    async def answer(
        self, prompt: Prompt, *, chat: bool, n: int, regret: float | None, utility: str, watch: Step | None = None
    ) -> Answer:
        """The answer to one request; cancelling it cancels its upstream requests."""
        ongoing = Ongoing(self.server(chat))
        plain = self._plain[utility]
        shared = plain if isinstance(plain, ExactMatch) else self.windows[utility]  # a vote is no work for a batch
        started = time.monotonic()

        options: dict[str, Any] = {"utility": shared, "regret": self.regret if regret is None else regret}
        if watch is not None:
            options["watch"] = watching(watch, ongoing, plain)

        def race() -> Answer:
            found = answers([prompt], ongoing, n=n, confidence=self.confidence, keep_utilities=True, **options)
            return next(found)

        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, race)
        except asyncio.CancelledError:
            ongoing.cancel()
            raise
        self.metrics.count(answer)
        self.metrics.add("race_seconds_total", time.monotonic() - started)
        return answer

    def close(self) -> None:
        """End all requests to the server."""
        for server in self._servers.values():
            server.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for window in self.windows.values():
            window.close()


def watching(tell: Step, ongoing: Ongoing, utility: Utility) -> Any:
    """A watcher of a race that tells each step: every distinct draw, its expected utility so far, and whether it is
    still in the race."""
    last: dict[int, float] = {}

    def watch(record: Any, alive: NDArray[np.int64], standings: Any, keep: NDArray[np.bool_]) -> None:
        for row, mean in zip(alive.tolist(), standings.means.tolist(), strict=True):
            last[row] = mean
        left = set(alive[keep].tolist())
        drawn = list(ongoing.texts)
        if isinstance(utility, ExactMatch) and utility.pattern:
            drawn = [text for text in drawn if utility.answer(text) is not None]
        texts, counts = list(dict.fromkeys(drawn)), Counter(drawn)
        rows = [
            {"text": text, "utility": last.get(row), "copies": counts[text], "alive": row in left}
            for row, text in enumerate(texts)
        ]
        tell({"draws": len(drawn), "rows": rows})

    return watch


def ranked(answer: Answer) -> list[tuple[str, float | None]]:
    """All distinct draws, the answer first, then the others by their expected utility when they left the race."""
    table = None if answer.decoded is None else answer.decoded.utilities
    if table is None:
        return [(answer.text, answer.utility)]
    counts = np.broadcast_to(table.counts, table.utilities.shape)
    scored = ~np.isnan(table.utilities)
    total = np.where(scored, table.utilities, 0.0) * counts
    means = total.sum(1) / np.maximum((counts * scored).sum(1), 1)
    order = np.argsort(-means, kind="stable").tolist()
    others = [(table.hypotheses[row], float(means[row])) for row in order if table.hypotheses[row] != answer.text]
    return [(answer.text, answer.utility), *others]
