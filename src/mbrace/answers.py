"""The consensus answer of a language model: each draw is hypothesis and pseudo-reference, and draws are made in steps
while the race between them is open."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mbrace.api import decode_corpus
from mbrace.errors import UserError, check_number, check_whole
from mbrace.metrics.exact_match import ExactMatch
from mbrace.prune import Confidence, PruningFunction, Standings
from mbrace.race import Watch
from mbrace.records import Record
from mbrace.result import Candidate, Decoded, Phases
from mbrace.sampler import Drawer, Draws, FunctionDrawer, Receipt, Want
from mbrace.utility import PairFunction, Utility
from mbrace.windows import OnError

DRAWS = 16
FIRST_STEP = 4
REGRET = 0.2
VOTE_CONFIDENCE = 0.95
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Prompt(Record):
    """What a model is asked: `source` as text or, where there are more turns or a system prompt, `messages`."""

    messages: tuple[Message, ...] | None = None
    request: Mapping[str, Any] | None = None  # fields of its requests, in place of the server's own
    seed: int | None = None  # of its draws, in place of the server's own


def prompt_of(prompt: str | Sequence[Message], id: str | int, **fields: Any) -> Prompt:
    """A prompt from text, or from the messages of a chat; its `source`, for utilities, is the last message."""
    if isinstance(prompt, str):
        return Prompt((), id=id, source=prompt, **fields)
    messages = tuple(prompt)
    if not messages or not all(isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in messages):
        raise UserError('messages: expected a list such as [{"role": "user", "content": "..."}]')
    return Prompt((), id=id, source=_text_of(messages[-1].get("content")), messages=messages, **fields)


def _text_of(content: Any) -> str:
    """The text of a message, whose content may come in parts."""
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if isinstance(part, Mapping) and "text" in part)
    if not isinstance(content, str):
        raise UserError("messages: the last one has no text in its content")
    return content


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt, and what it cost.

    `stopped` says why no more draws were made: "regret" (little to regret in answering now), "vote" (decided), "one
    text" (all draws were the same), "all draws", or "cost" (the budget was spent). `utility` is its expected utility.
    """

    id: str | int
    text: str
    draws: int
    stopped: str
    utility: float | None
    receipt: Receipt
    nbest: tuple[Candidate, ...] = ()
    decoded: Decoded | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of an output record."""
        cost = self.receipt
        found: dict[str, Any] = {"text": self.text, "draws": self.draws, "stopped": self.stopped}
        found |= {"utility": self.utility, "tokens_in": cost.tokens_in, "tokens_out": cost.tokens_out}
        found |= {"requests": cost.requests, "seconds": round(cost.seconds, 3)}
        unusable = {"cut": cost.cut, "blank": cost.blank, "unmatched": cost.unmatched}
        return found | {name: count for name, count in unusable.items() if count}


class CountedSource(Protocol):
    """A model or a server whose draws are counted by record."""

    def start_counted(self, records: Sequence[Record], receipts: dict[str | int, Receipt]) -> Drawer:
        """Begin a window of races, whose costs are added to `receipts`."""
        ...


@dataclass(frozen=True)
class Vote:
    """The pruning function of votes, for a utility that is 1 for the same answer and 0 for another.

    A vote is over when no answer can overtake the leader within `most` draws, or when the leader is more probable than
    the second with at least `confidence`, under a Beta posterior of their votes (Adaptive-Consistency, Aggarwal et al.
    2023); 1 leaves only the first reason, which changes no answer. Texts with the same answer never part, so all but
    the first are dropped.
    """

    most: int
    confidence: float = VOTE_CONFIDENCE

    def __post_init__(self) -> None:
        check_whole("most", self.most, least=1)
        check_number("confidence", self.confidence, least=0.5, most=1)

    def __call__(self, standings: Standings) -> NDArray[np.bool_]:
        """Keep one text per answer, or the leaders alone if the vote is decided."""
        utilities = np.ascontiguousarray(standings.utilities)
        votes = np.rint(utilities @ standings.counts).astype(np.int64)
        keep = np.zeros(len(votes), dtype=np.bool_)
        keep[standings.leaders()] = True
        first: dict[bytes, int] = {}
        for row in [*standings.leaders().tolist(), *range(len(votes))]:
            first.setdefault(utilities[row].tobytes(), row)
        rows = sorted(first.values(), key=lambda row: -votes[row])
        rank = standings.nbest
        left = self.most - int(standings.counts.sum())
        lowest = int(votes[rows[min(rank, len(rows)) - 1]])
        rival = int(votes[rows[rank]]) if rank < len(rows) else 0
        if lowest - rival > left or self.is_decided(lowest, rival):
            return keep
        keep[rows] = True
        if len(rows) <= rank:  # too few answers so far: another may come
            keep[:] = True
        return keep

    def is_decided(self, leader: int, second: int) -> bool:
        """Whether P(p_leader > p_second) >= confidence under Beta(leader + 1, second + 1), in exact integers."""
        if self.confidence == 1:
            return False
        total = leader + second + 1
        ways = sum(math.comb(total, j) for j in range(leader + 1))
        return bool(ways >= self.confidence * 2**total)

    @property
    def first_step(self) -> int:
        """The fewest equal draws that decide a vote, but at least 4."""
        sizes = range(FIRST_STEP, self.most)
        return next((size for size in sizes if 2 * size > self.most or self.is_decided(size, 0)), self.most)


def answers(
    prompts: Iterable[Record],
    source: CountedSource,
    *,
    n: int = DRAWS,
    utility: Utility | PairFunction | None = None,
    regret: float = REGRET,
    confidence: float = VOTE_CONFIDENCE,
    nbest: int = 1,
    seed: int = 0,
    window: int = 64,
    weighted: bool = False,
    keep_utilities: bool = False,
    watch: Watch | None = None,
    phases: Phases | None = None,
    on_error: OnError | None = None,
) -> Iterator[Answer]:
    """The answers to prompts, in order, `window` of them racing at a time.

    At most `n` draws are made for each: 4, then 8, 16, ... in all, while the race is open. It is over when the expected
    `regret` of answering now is at most this part of the spread between the draws or, with an `ExactMatch` as utility,
    when the vote is decided with `confidence`. `weighted` says that the source gives log-probabilities, which weight
    the draws: then votes stop by regret too.
    """
    check_whole("n", n, least=1)
    check_whole("nbest", nbest, least=1, most=n)
    is_vote = isinstance(utility, ExactMatch) and not weighted
    prune: PruningFunction = Vote(n, confidence) if is_vote else Confidence(regret=regret)
    begin = prune.first_step if isinstance(prune, Vote) else FIRST_STEP
    sampler = _Counted(source, utility.answer if isinstance(utility, ExactMatch) and utility.pattern else None)
    found = decode_corpus(
        prompts,
        utility=utility,
        prune=prune,
        schedule=steps_to(n, begin),
        seed=seed,
        nbest=nbest,
        window=window,
        sampler=sampler,
        pool=True,
        keep_utilities=keep_utilities,
        watch=watch,
        phases=phases,
        on_error=on_error,
    )
    for decoded in found:
        receipt = sampler.finish(decoded.id)
        yield Answer(
            decoded.id, decoded.text, receipt.draws, _why(decoded, receipt, n, is_vote), decoded.utility, receipt,
            decoded.nbest, decoded,
        )  # fmt: skip


def steps_to(n: int, begin: int = FIRST_STEP) -> tuple[int, ...]:
    """The sample sizes of a race: 4, 8, 16, ..., n."""
    sizes = []
    while begin < n:
        sizes.append(begin)
        begin *= 2
    return (*sizes, n)


def _why(decoded: Decoded, receipt: Receipt, n: int, is_vote: bool) -> str:
    if receipt.denied:
        return "cost"
    if receipt.draws >= n:
        return "all draws"
    if decoded.strings == 1:
        return "one text"
    return "vote" if is_vote else "regret"


class _Counted:
    """A sampler that counts what each record's draws cost, leaves out those without an answer, and makes no draw again
    when a window is raced again because one of its records failed."""

    def __init__(self, source: CountedSource, answer_in: Callable[[str], object] | None) -> None:
        self._source, self._answer_in = source, answer_in
        self._receipts: dict[str | int, Receipt] = {}
        self._drawn: dict[str | int, dict[Want, Draws]] = {}

    def start(self, records: Sequence[Record]) -> FunctionDrawer:
        """Begin a window."""
        drawer = self._source.start_counted(records, self._receipts)

        def draw(wants: Sequence[Want]) -> list[Draws]:
            kept = [self._drawn.setdefault(records[want.sentence].id, {}) for want in wants]
            missing = [want for want, known in zip(wants, kept, strict=True) if replace(want, sentence=0) not in known]
            for want, draws in zip(missing, drawer.draw(missing) if missing else (), strict=True):
                record = records[want.sentence]
                self._drawn[record.id][replace(want, sentence=0)] = self._usable(record, draws)
            return [known[replace(want, sentence=0)] for want, known in zip(wants, kept, strict=True)]

        return FunctionDrawer(draw)

    def finish(self, name: str | int) -> Receipt:
        """What a record's draws cost; nothing of them is kept."""
        self._drawn.pop(name, None)
        return self._receipts.pop(name, Receipt())

    def _usable(self, record: Record, draws: Draws) -> Draws:
        if self._answer_in is None:
            return draws
        matching = [self._answer_in(text) is not None for text in draws.texts]
        unmatched = matching.count(False)
        self._receipts[record.id] = self._receipts.get(record.id, Receipt()) + Receipt(unmatched=unmatched)
        logprobs = draws.logprobs
        return Draws(
            [text for text, good in zip(draws.texts, matching, strict=True) if good],
            None if logprobs is None else [value for value, good in zip(logprobs, matching, strict=True) if good],
            draws.unusable + unmatched,
        )
