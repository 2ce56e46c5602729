"""Races of requests that are open together: one thread for each, one shared window for the utility."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace.answers import Answer, Answering, Prompt
from mbrace.metrics.exact_match import ExactMatch
from mbrace.prune import Standings
from mbrace.race import Watch
from mbrace.records import Record
from mbrace.servers.server import Server
from mbrace.utility import Ask, Sentence, Utility, as_utility, parallel_of

Tables: TypeAlias = "Sequence[NDArray[np.floating]]"
Step: TypeAlias = "Callable[[dict[str, Any]], None]"
PLACES = 256  # races in a window, before another one is begun


class _Window:
    """Sentences of races, most of which begin later, and the scorer that holds what is encoded for them."""

    def __init__(self, utility: Utility) -> None:
        self.sentences = [Sentence(0, "", ())] * PLACES
        self.scorer = utility.start(self.sentences)
        self.taken = 0


class SharedWindow:
    """A utility for races on many threads: what they ask at the same time is scored together, in one batch.

    A race takes a place in a window that others are in already. Once all places are taken a new window is begun, and
    the old one goes with its last race.
    """

    def __init__(self, utility: Utility) -> None:
        self._utility = utility
        self.name, self.schedule, self.needs_source = utility.name, utility.schedule, utility.needs_source
        self._window, self._lock = _Window(utility), threading.Lock()
        self._waiting: SimpleQueue[tuple[_Window, Sequence[Ask], Future[Tables]] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="mbrace-window", daemon=True).start()

    def start(self, sentences: Sequence[Sentence]) -> _SharedScorer:
        """Begin a race."""
        with self._lock:
            if self._window.taken + len(sentences) > PLACES:
                self._window = _Window(self._utility)
            window, first = self._window, self._window.taken
            window.taken += len(sentences)
        window.sentences[first : first + len(sentences)] = sentences
        return _SharedScorer(self, window, first)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.floating]:
        """Scores of aligned pairs, (pairs,)."""
        return self._utility.pairs(hypotheses, references, sources)

    def score(self, window: _Window, asks: Sequence[Ask]) -> Tables:
        """The tables of one race's asks, scored with those of the others that wait."""
        found: Future[Tables] = Future()
        self._waiting.put((window, asks, found))
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
            for window in {id(each[0]): each[0] for each in batch}.values():
                self._answer(window, [(asks, found) for own, asks, found in batch if own is window])
            del first, batch, window  # a window that is over should go

    def _answer(self, window: _Window, batch: Sequence[tuple[Sequence[Ask], Future[Tables]]]) -> None:
        """Score what races of one window ask."""
        try:
            tables = iter(window.scorer.score([ask for asks, _ in batch for ask in asks]))
            parts = [[next(tables) for _ in asks] for asks, _ in batch]
        except Exception as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            for each in batch:  # one of them is at fault: each for itself
                self._answer(window, [each])
            return
        for (_, found), part in zip(batch, parts, strict=True):
            found.set_result(part)


class _SharedScorer:
    encode_seconds = 0.0

    def __init__(self, shared: SharedWindow, window: _Window, first: int) -> None:
        self._shared, self._window, self._first = shared, window, first

    def score(self, asks: Sequence[Ask]) -> Tables:
        return self._shared.score(self._window, [ask._replace(sentence=ask.sentence + self._first) for ask in asks])


def for_many_threads(utility: Utility) -> Utility:
    """The utility for races on many threads: string metrics as they are, on one thread each, others with a window."""
    if (parallel := parallel_of(utility)) is not None:
        return parallel.single_threaded()
    return utility if isinstance(utility, ExactMatch) else SharedWindow(utility)


class Metrics:
    """Counters in Prometheus' text format."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counters: Counter[str] = Counter()

    def add(self, name: str, amount: float = 1) -> None:
        """Add to a counter, such as `requests_total{status="200"}`."""
        with self._lock:
            self.counters[name] += amount  # type: ignore[assignment]

    def text(self, others: Mapping[str, float], *, open_requests: int) -> str:
        """All of them, and those that are counted elsewhere."""
        with self._lock:
            found = {**self.counters, **others}
        lines, seen = [], set()
        for name in sorted(found):
            family = name.partition("{")[0]
            if family not in seen:
                lines.append(f"# TYPE mbrace_{family} counter")
                seen.add(family)
            lines.append(f"mbrace_{name} {found[name]:.15g}")
        return "\n".join([*lines, "# TYPE mbrace_open_requests gauge", f"mbrace_open_requests {open_requests}", ""])


class Engine:
    """Answers requests by races between draws of one model on a server."""

    def __init__(
        self,
        make_server: Callable[[bool], Server],
        utilities: Mapping[str, Utility],
        settings: Answering,
        *,
        open_requests: int,
    ) -> None:
        self._make_server = make_server
        self._servers: dict[bool, Server] = {}
        self._lock = threading.Lock()
        self.utilities = {name: for_many_threads(as_utility(utility)) for name, utility in utilities.items()}
        self.settings, self.open_requests = settings, open_requests
        self.metrics = Metrics()
        self.open: set[asyncio.Task[Answer]] = set()  # the races of open requests

    def metrics_text(self) -> str:
        """The metrics; what draws cost is what the servers have received, whatever became of the races."""
        with self._lock:
            servers = list(self._servers.values())
        spent: Counter[str] = Counter()
        for server in servers:
            spent["upstream_requests_total"] += server.cost.requests
            spent["tokens_in_total"] += server.cost.prompt_tokens
            spent["tokens_out_total"] += server.cost.completion_tokens
            for name, count in (("draws", server.drawn), ("cut", server.cut), ("blank", server.blank)):
                spent[f"{name}_total"] += count
        return self.metrics.text(spent, open_requests=len(self.open))

    def server(self, chat: bool) -> Server:
        """The upstream server, by endpoint."""
        with self._lock:
            if chat not in self._servers:
                self._servers[chat] = self._make_server(chat)
            return self._servers[chat]

    async def answer(
        self, prompt: Prompt, settings: Answering, *, chat: bool, utility: str, tell: Step | None = None
    ) -> Answer:
        """The answer to one request; cancelling it cancels its upstream requests."""
        started, watch = time.monotonic(), None if tell is None else watching(tell)
        answer = await self.server(chat).answer_prompt(prompt, settings, utility=self.utilities[utility], watch=watch)
        self.metrics.add(f'answers_total{{stopped="{answer.stopped}"}}')
        self.metrics.add("race_seconds_total", time.monotonic() - started)
        return answer

    def close(self) -> None:
        """End all requests to the server."""
        for server in self._servers.values():
            server.close()
        for utility in self.utilities.values():
            if isinstance(utility, SharedWindow):
                utility.close()


def watching(tell: Step) -> Watch:
    """A watcher of a race that tells each step as the report's viewer shows it, with the texts and how often each was
    drawn."""

    def watch(record: Record, alive: NDArray[np.int64], standings: Standings, keep: NDArray[np.bool_]) -> None:
        step = {"alive": alive.tolist(), "means": standings.means.tolist(), "kept": np.flatnonzero(keep).tolist()}
        counts = standings.counts
        step |= {"pseudo_references": int(counts.sum()), "copies": counts[alive].tolist()}
        tell({"step": step, "texts": list(standings.texts)})

    return watch
