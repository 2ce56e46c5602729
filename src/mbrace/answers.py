"""The consensus answer of a language model: each draw is hypothesis and pseudo-reference, and draws are made in steps
while the race between them is open."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace.api import decode_corpus
from mbrace.errors import LARGEST, Parameter, ServiceError, SettingError, UserError, check_number, check_whole
from mbrace.metrics.exact_match import ExactMatch
from mbrace.prune import Confidence, PruningFunction, RaceState, Standings
from mbrace.race import Watch
from mbrace.records import Record
from mbrace.result import Candidate, Decoded, Phases
from mbrace.sampler import Draws, FunctionDrawer, Receipt, Sampler, Want, doubling, ids_of
from mbrace.setting_fields import Settings, setting
from mbrace.utility import PairFunction, Utility
from mbrace.windows import OnError

FIRST_STEP = 4
Message = Mapping[str, Any]
Prompts: TypeAlias = "str | Sequence[Message] | Sequence[str | Sequence[Message]]"


@dataclass(frozen=True, kw_only=True)
class Answering(Settings):
    """How answers are drawn, and when a race between them is over: flags of `mbrace answer` and `serve`, keywords of
    `Server.answer` and `CausalLM.answer`."""

    n: int = setting(16, "most draws per prompt", int, least=1, most=LARGEST, flag="-n", metavar="N")
    regret: float = setting(
        0.2,
        "no more draws when the expected regret of answering now is at most X of the spread between draws",
        float,
        least=0,
        metavar="X",
    )
    confidence: float = setting(
        0.95,
        "with --utility exact: the vote is over when the leader is ahead with this probability; 1: only when nothing "
        "can overtake it",
        float,
        least=0.5,
        most=1,
        metavar="P",
        excludes=(("logprobs", True, "whose weights are no votes to count: they stop by regret"),),
    )
    nbest: int = setting(1, "write the N best answers", int, least=1, most=LARGEST, metavar="N")
    logprobs: bool = setting(False, "weight draws by their log-probabilities", bool)
    seed: int = setting(0, "random seed", int)
    window: int = setting(64, "prompts racing at once", int, least=1, most=LARGEST, metavar="N", described=False)

    def __post_init__(self) -> None:
        """Refuse settings that make no sense, before anything is drawn."""
        super().__post_init__()
        if self.nbest > self.n:
            raise SettingError("nbest", self.nbest, f"only valid with {Parameter('n', self.nbest)} or more")


@dataclass(frozen=True)
class Prompt(Record):
    """What a model is asked: `source` as text or, where there are more turns or a system prompt, `messages`."""

    messages: tuple[Message, ...] | None = None
    request: Mapping[str, Any] | None = None  # fields of its requests, in place of the server's own
    seed: int | None = None  # of its draws, in place of the server's own
    is_continued: bool = False  # answers go on where it ends: the whitespace before them is part of them


def prompt_of(prompt: str | Sequence[Message], id: str | int, **fields: Any) -> Prompt:
    """A prompt from text, or from the messages of a chat; its `source`, for utilities, is the last message."""
    messages, text = None, prompt
    if not isinstance(prompt, str):
        messages = tuple(prompt)
        if not messages or not all(
            isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in messages
        ):
            raise UserError('messages: expected a list such as [{"role": "user", "content": "..."}]')
        text = _text_of(messages[-1].get("content"))
    if not str(text).strip():
        raise UserError("prompt: is empty" if messages is None else "messages: the last one is empty")
    return Prompt((), id=id, source=str(text), messages=messages, **fields)


def _text_of(content: Any) -> str:
    """The text of a message, whose content may come in parts."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "\n".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str):
        raise UserError("messages: the last one has no text in its content")
    return content


def answer_in(text: str) -> str:
    """The text without the reasoning before it; blank if it ends before the reasoning does."""
    before, _, thoughts = text.partition("<think>")
    _, closed, after = thoughts.partition("</think>")
    rest = before.rstrip() + after if closed else text
    if not closed and "</think>" in text:  # a template that writes the opening tag itself
        rest = text.rpartition("</think>")[2]
    return "" if rest.lstrip().startswith("<think>") else rest.strip()


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt, and what it cost.

    `stopped` says why no more draws were made: "regret" (little to regret in answering now), "vote" (decided), "one
    text" (all draws were the same), "all draws", or "cost" (the budget was spent). `utility` is its expected utility;
    None where it is the only whole draw, which agrees with nothing but itself.
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
        tokens = {"tokens_in": cost.tokens_in, "tokens_out": cost.tokens_out}
        found |= {"utility": self.utility, **(dict.fromkeys(tokens) if cost.untold else tokens)}
        found |= {"requests": cost.requests, "seconds": round(cost.seconds, 3)}
        unusable = {"cut": cost.cut, "blank": cost.blank, "unmatched": cost.unmatched}
        return found | {name: count for name, count in unusable.items() if count}


@dataclass(frozen=True)
class Vote:
    """The pruning function of votes, for a utility that is 1 for the same answer and 0 for another.

    A vote is over when no answer can overtake the leader within `most` draws, or when the leader is more probable than
    the second with at least `confidence`, under a Beta posterior of their votes (Adaptive-Consistency, Aggarwal et al.
    2023); 1 leaves only the first reason, which changes no answer. A step draws as many as it takes at least to decide
    the vote, so that no draw is made after the one that decides it. Of texts with the same answer the first stays.
    """

    most: int
    confidence: float = Answering.confidence
    plans_pools: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("most", self.most, least=1)
        check_number("confidence", self.confidence, least=0.5, most=1)

    def __call__(self, standings: Standings) -> NDArray[np.bool_]:
        """Keep one text per answer."""
        utilities = np.ascontiguousarray(standings.utilities)
        keep = np.zeros(len(utilities), dtype=np.bool_)
        first: dict[bytes, int] = {}
        for row in [*standings.leaders().tolist(), *range(len(utilities))]:
            first.setdefault(utilities[row].tobytes(), row)
        keep[list(first.values())] = True
        return keep

    def draws(self, state: RaceState) -> int:
        """The fewest draws that may decide the vote; 0: it is decided."""
        shares = [] if state.means is None else state.means.tolist()
        leader, rival = [*sorted((round(share * state.draws) for share in shares), reverse=True), 0, 0][:2]
        left = self.most - state.used
        sizes = range(0 if leader else 1, left)
        return min(left, sizes.start + bisect_left(sizes, True, key=lambda more: self._ends(leader, rival, more, left)))

    def _ends(self, leader: int, rival: int, more: int, left: int) -> bool:
        """Whether the vote is decided if the leader gets all of the next `more` draws, of `left`."""
        return leader + more - rival > left - more or self.is_decided(leader + more, rival)

    def is_decided(self, leader: int, second: int) -> bool:
        """Whether P(p_leader > p_second) >= confidence under Beta(leader + 1, second + 1), in exact integers."""
        if self.confidence == 1:
            return False
        total = leader + second + 1
        term = ways = 1
        for j in range(leader):  # binomial coefficients up to that of `leader`
            term = term * (total - j) // (j + 1)
            ways += term
        return bool(ways >= self.confidence * 2**total)


def answer_all(
    prompts: Prompts,
    source: Sampler,
    settings: Answering,
    *,
    ids: Sequence[str | int] | None,
    utility: Utility | PairFunction | None,
    on_error: OnError | None,
) -> Any:
    """An `Answer` for each prompt, or one for one text or one conversation (None if `on_error` was told of it)."""
    is_one = isinstance(prompts, str) or bool(prompts and isinstance(prompts[0], Mapping))
    given: Sequence[Any] = [prompts] if is_one else prompts
    records = [prompt_of(prompt, name) for prompt, name in zip(given, ids_of(given, ids), strict=True)]
    found = list(answers(records, source, settings, utility=utility, on_error=on_error))
    return next(iter(found), None) if is_one else found


def answers(
    prompts: Iterable[Record],
    source: Sampler,
    settings: Answering = Answering(),
    *,
    utility: Utility | PairFunction | None = None,
    watch: Watch | None = None,
    phases: Phases | None = None,
    on_error: OnError | None = None,
) -> Iterator[Answer]:
    """The answers to prompts, in order, `window` of them racing at a time.

    At most `n` draws are made for each: 4, then 8, 16, ... in all, while the race is open. It is over when the expected
    `regret` of answering now is at most this part of the spread between the draws. With an `ExactMatch` as utility the
    draws vote (`Vote`), unless log-probabilities weight them: then there are no votes to count, and regret decides. A
    race is for the best answer alone, whatever `nbest` is. A prompt that the budget leaves without a whole draw is a
    ServiceError.
    """
    n, is_vote = settings.n, isinstance(utility, ExactMatch) and not settings.logprobs
    prune: PruningFunction = Vote(n, settings.confidence) if is_vote else Confidence(regret=settings.regret)
    sampler = _KeptDraws(source, utility.answer if isinstance(utility, ExactMatch) and utility.pattern else None)

    def failed(record: Record, error: Exception) -> None:
        if sampler.forget(record).denied:
            budget, kept = Parameter("max_cost_tokens"), Parameter("save_draws")
            raise ServiceError(
                f"{record.where}: has no whole draw, and what is left of {budget} pays for no more; give more "
                f"({kept} keeps the draws that are paid for)"
            )
        if on_error is None:
            raise error
        on_error(record, error)

    found = decode_corpus(
        sampler.followed(prompts),
        utility=utility,
        prune=prune,
        schedule=(n,) if is_vote else steps_to(n),
        seed=settings.seed,
        window=settings.window,
        sampler=sampler,
        pool=True,
        keep_utilities=settings.nbest > 1,
        watch=watch,
        phases=phases,
        on_error=failed,
    )
    for decoded in found:
        receipt, ranked, value = sampler.finish(), _ranked(decoded, utility)[: settings.nbest], decoded.utility
        if decoded.pseudo_references < 2:
            ranked, value = (replace(ranked[0], utility=None),), None
        why = _why(decoded, receipt, n, is_vote)
        yield Answer(decoded.id, decoded.text, receipt.draws, why, value, receipt, ranked, decoded)


def steps_to(n: int) -> tuple[int, ...]:
    """The sample sizes of a race: 4, 8, 16, ..., n."""
    return doubling(min(FIRST_STEP, n), n)


def _ranked(decoded: Decoded, utility: object) -> tuple[Candidate, ...]:
    """The answer, then the other draws (one for each answer of a vote), best first. One that left the race has the
    utility of the answer plus its difference from it over the draws that it was scored with."""
    if (table := decoded.utilities) is None:
        return decoded.nbest
    counts = np.broadcast_to(table.counts if table.weights is None else table.weights, table.utilities.shape)
    shares = np.where(np.isnan(table.utilities), 0.0, counts)
    behind = np.nan_to_num(table.utilities - table.utilities[table.rows[decoded.text]])
    means = (decoded.utility or 0.0) + (behind * shares).sum(1) / shares.sum(1)
    name = utility.answer if isinstance(utility, ExactMatch) else str
    found = {name(decoded.text): decoded.nbest[0]}
    for row in np.argsort(-means, kind="stable").tolist():
        text = table.hypotheses[row]
        found.setdefault(name(text), Candidate(text, None, float(means[row])))
    return tuple(found.values())


def _why(decoded: Decoded, receipt: Receipt, n: int, is_vote: bool) -> str:
    if receipt.denied:
        return "cost"
    if receipt.draws >= n:
        return "all draws"
    if decoded.strings == 1:
        return "one text"
    return "vote" if is_vote else "regret"


class _KeptDraws:
    """A sampler that counts what each record's draws cost, leaves out those without an answer, and makes no draw again
    when a window is raced again because one of its records failed."""

    def __init__(self, source: Sampler, answer_in: Callable[[str], object] | None) -> None:
        self._source, self._answer_in = source, answer_in
        self._open: deque[Record] = deque()  # read, and not answered yet
        self._drawn: dict[int, dict[tuple[int, int], Draws]] = {}  # by identity: records may have the same id

    def followed(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records as they are read."""
        for record in records:
            self._open.append(record)
            yield record

    def start(self, records: Sequence[Record]) -> FunctionDrawer:
        """Begin a window."""
        drawer = self._source.start(records)
        drawn = [self._drawn.setdefault(id(record), {}) for record in records]

        def draw(wants: Sequence[Want]) -> list[Draws]:
            missing = [want for want in wants if (want.first, want.count) not in drawn[want.sentence]]
            for want, draws in zip(missing, drawer.draw(missing) if missing else (), strict=True):
                drawn[want.sentence][want.first, want.count] = self._usable(draws)
            return [drawn[want.sentence][want.first, want.count] for want in wants]

        return FunctionDrawer(draw)

    def finish(self) -> Receipt:
        """What the draws of the next record cost, which is answered; nothing of them is kept."""
        return self.forget(self._open[0])

    def forget(self, record: Record) -> Receipt:
        """What the draws of a record cost; nothing of them is kept."""
        del self._open[next(place for place, each in enumerate(self._open) if each is record)]
        drawn = self._drawn.pop(id(record), {})
        return sum((draws.receipt or Receipt() for draws in drawn.values()), Receipt())

    def _usable(self, draws: Draws) -> Draws:
        if self._answer_in is None:
            return draws
        places = [place for place, text in enumerate(draws.texts) if self._answer_in(text) is not None]
        unmatched, logprobs = len(draws.texts) - len(places), draws.logprobs
        return draws._replace(
            texts=[draws.texts[place] for place in places],
            logprobs=None if logprobs is None else [logprobs[place] for place in places],
            unusable=draws.unusable + unmatched,
            receipt=(draws.receipt or Receipt()) + Receipt(unmatched=unmatched),
        )
