"""Random trials: races over stored utilities, for many settings, by the decoder's own loop.

A trial draws R from R* without replacement, with random numbers that depend only on (seed, trial, record id); all
settings race on the same draws. The measures are the paper's (section 4.1).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from zipfile import ZIP_LZMA, ZipFile

import numpy as np
from numpy.typing import NDArray

from mbrace.api import decode_corpus
from mbrace.errors import UserError
from mbrace.experiments.tables import Table
from mbrace.io.atomic import replacing
from mbrace.prune import Bottom, Confidence, PruningFunction, Standings
from mbrace.records import Record, generator, key
from mbrace.settings import PRESETS, Race
from mbrace.utilities.named import Kind
from mbrace.utilities.replay import Replay
from mbrace.utility import limit_helpers

ALPHAS = (0.8, 0.9, 0.95, 0.98, 0.99)
BETAS = tuple(round(0.05 * step, 2) for step in range(1, 20))
SIZES = (4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)  # |R| of Figure 1
REGRETS = (0.01, 0.02, 0.04, 0.08)
SCORE_BY = "score by "  # before the name of a metric that did not decode
COUNTS = ("pseudo_references", "utility_calls", "pairs_scored")
# `strict_*` are as the authors' scripts have them: of equally good hypotheses the first one has the better rank.
# `choice` is the index of the prediction.
MEASURES = ("score", "accuracy", "rr", "strict_accuracy", "strict_rr", "lost", *COUNTS, "steps", "choice")


@dataclass(frozen=True)
class Setting:
    """A pruning function and a schedule; beta = 0 is standard MBR, schedule () means the utility's own."""

    rule: str  # "alpha" or "beta"
    value: float
    schedule: tuple[int, ...] = ()
    regret: float = 0.0
    forecast: float = 0.0
    cover: bool = False

    @property
    def label(self) -> str:
        """`alpha=0.99`, `beta=0`, `beta=0, R=32`, `alpha=0.99, regret=0.04`."""
        size = f", R={self.schedule[-1]}" if self.rule == "beta" and self.schedule else ""
        more = [f"{name}={getattr(self, name):g}" for name in ("regret", "forecast") if getattr(self, name)]
        return ", ".join([f"{self.rule}={self.value:g}{size}", *more, *["cover"] * self.cover])

    def race(self, schedule: tuple[int, ...], *, seed: int, window: int) -> Race:
        """The decoder's settings; `schedule` is the utility's."""
        return Race(
            prune=self.prune,
            schedule=self.schedule or schedule,
            forecast=self.forecast,
            cover=self.cover,
            shuffle=self.cover,  # the draws are in a random order already, and covering goes with shuffling
            seed=seed,
            window=window,
        )

    @property
    def prune(self) -> PruningFunction | None:
        """The decoder's pruning function; None for standard MBR."""
        if self.rule == "alpha":
            return Confidence(self.value, regret=self.regret)
        return Bottom(self.value) if self.value > 0 else None


STANDARD = Setting("beta", 0.0)
ALPHA_SETTINGS = tuple(Setting("alpha", alpha) for alpha in ALPHAS)  # whose survivors are counted
TRADEOFF = (STANDARD, *ALPHA_SETTINGS, *(Setting("beta", b) for b in BETAS))
REGRET_SETTINGS = tuple(Setting("alpha", 0.99, regret=regret) for regret in REGRETS)
RACING = Setting("alpha", 0.99)  # the default of `mbrace decode`
REGRET = Setting("alpha", 0.99, regret=0.04)
FEWER_DRAWS = (32, 64, 128)  # pseudo-references of standard MBR at the cost of a race


def fast(kind: Kind) -> Setting:
    """`--preset fast` of `mbrace decode` for a kind of utility: "string", "encoder" or "pair"."""
    return Setting("alpha", 0.99, **PRESETS["fast"]["decode"][kind])  # type: ignore[misc]


def table_settings(schedule: Sequence[int], kind: Kind) -> tuple[Setting, ...]:
    """The settings of the test table: those of the paper's, `fast`, regret alone, a beta that makes about as many calls
    as alpha = 0.99, and standard MBR with fewer pseudo-references."""
    smaller = [Setting("beta", 0.0, (size,)) for size in FEWER_DRAWS if size < schedule[-1]]
    own = (STANDARD, RACING, Setting("alpha", 0.9), REGRET, fast(kind), Setting("beta", 0.6), *smaller)
    return tuple(dict.fromkeys(own))


@dataclass
class Outcomes:
    """Results of all races of one candidate file. Arrays are (settings, sentences, trials) unless noted."""

    settings: tuple[Setting, ...]
    measures: dict[str, NDArray[Any]]  # each of MEASURES
    # (alphas, sentences, trials, steps): hypotheses left after each step of ALPHA_SETTINGS, where the last number
    # repeats after a race ends; no alphas if these settings did not race
    survivors: NDArray[np.int16]
    pruned: NDArray[np.bool_]  # (sizes, alphas, sentences, trials): one application pruned the winner under R*
    sizes: tuple[int, ...]
    about: dict[str, Any] = field(default_factory=dict)  # candidate file, utility, seed, counts
    # by metrics other than the utility, against the human reference: (settings of `scored`, sentences, trials) each
    other_scores: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    scored: tuple[Setting, ...] = ()
    # of systems that do not race, such as beam search: the scores, (sentences,), by "score" and "score by NAME"
    baselines: dict[str, dict[str, NDArray[np.float32]]] = field(default_factory=dict)

    def measures_of(self, setting: Setting) -> dict[str, NDArray[np.float64]]:
        """The measures of a setting, each (sentences, trials); no score if there is no human reference."""
        index = self.settings.index(setting)
        found = {name: values[index].astype(np.float64) for name, values in self.measures.items()}
        if not self.about.get("references", True):
            del found["score"]
        else:
            found["score"] *= self.about.get("scale", 1)
        return found

    def other_scores_of(self, setting: Setting) -> dict[str, NDArray[np.float64]]:
        """The scores by other metrics of a setting of `scored`, each (sentences, trials), named "score by NAME"."""
        if setting not in self.scored:
            return {}
        index = self.scored.index(setting)
        return {f"{SCORE_BY}{name}": values[index].astype(np.float64) for name, values in self.other_scores.items()}

    def save(self, path: Path) -> None:
        """One file, written whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, shared=True) as temporary, ZipFile(temporary, "w", ZIP_LZMA) as archive:
            for name, values in self.arrays().items():  # an .npz file half the size of NumPy's own
                with archive.open(f"{name}.npy", "w") as file:
                    np.lib.format.write_array(file, values, allow_pickle=False)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as arrays of numbers and one of text, for a file."""
        named = [(name, measure) for name, scores in self.baselines.items() for measure in scores]
        header = {
            "about": self.about,
            "sizes": self.sizes,
            "settings": [asdict(setting) for setting in self.settings],
            "scored": [self.settings.index(setting) for setting in self.scored],
            "other_scores": list(self.other_scores),
            "baselines": named,
        }
        arrays = {**self.measures, "survivors": self.survivors, "pruned": self.pruned}
        arrays |= {f"other_{index}": values for index, values in enumerate(self.other_scores.values())}
        arrays |= {f"baseline_{index}": self.baselines[name][m] for index, (name, m) in enumerate(named)}
        return {"header": np.array(json.dumps(header)), **arrays}

    @classmethod
    def load(cls, path: Path) -> Outcomes:
        """What `save` wrote."""
        try:
            with np.load(path) as stored:
                return cls.of_arrays(stored)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: not outcomes of `mbrace experiment` ({error}); delete it and run again"
            ) from error

    @classmethod
    def of_arrays(cls, stored: Mapping[str, NDArray[Any]]) -> Outcomes:
        """What `arrays` gave."""
        header = json.loads(str(stored["header"]))
        settings = tuple(Setting(**{**s, "schedule": tuple(s["schedule"])}) for s in header["settings"])
        measures = {name: stored[name] for name in MEASURES if name in stored}  # e5b2b7a had fewer
        found = cls(settings, measures, stored["survivors"], stored["pruned"], tuple(header["sizes"]), header["about"])
        found.other_scores = {name: stored[f"other_{index}"] for index, name in enumerate(header["other_scores"])}
        found.scored = tuple(settings[index] for index in header["scored"])
        for index, (name, measure) in enumerate(header["baselines"]):
            found.baselines.setdefault(name, {})[measure] = stored[f"baseline_{index}"]
        return found

    @classmethod
    def join(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """The outcomes of all sentences from those of parts of them, in this order, with the same settings."""
        first = parts[0]
        return cls(
            first.settings,
            {name: np.concatenate([part.measures[name] for part in parts], axis=1) for name in first.measures},
            np.concatenate([part.survivors for part in parts], axis=1),
            np.concatenate([part.pruned for part in parts], axis=2),
            first.sizes,
            other_scores={
                name: np.concatenate([part.other_scores[name] for part in parts], axis=1) for name in first.other_scores
            },
            scored=first.scored,
            baselines={
                name: {m: np.concatenate([part.baselines[name][m] for part in parts]) for m in scores}
                for name, scores in first.baselines.items()
            },
        )


def run_trials(
    tables: Sequence[Table],
    *,
    name: str,
    schedule: tuple[int, ...],
    settings: Sequence[Setting],
    scored: Sequence[Setting] = (),
    sizes: Sequence[int] = SIZES,
    trials: int = 10,
    seed: int = 0,
    workers: int = 1,
    chunk: int = 10,
    advance: Callable[[int], None] = lambda count: None,
) -> Outcomes:
    """Every setting on every sentence in every trial, `chunk` sentences per job.

    The decisions of the settings in `scored` are also scored by the tables' other metrics. The results do not depend on
    `workers`, `chunk` or the order of the sentences.
    """
    if trials < 1:
        raise UserError(f"trials {trials}: must be 1 or more")
    chunks = [tables[first : first + chunk] for first in range(0, len(tables), chunk)]
    jobs = [(chunk, name, schedule, tuple(settings), tuple(scored), tuple(sizes), trials, seed) for chunk in chunks]
    parts: list[Outcomes] = []
    for part in _run_jobs(jobs, workers):
        advance(len(chunks[len(parts)]))
        parts.append(part)
    return Outcomes.join(parts)


def _run_jobs(jobs: Sequence[tuple[Any, ...]], workers: int) -> Iterator[Outcomes]:
    """The outcomes of each job, in order. Workers are spawned, not forked: this process may use a GPU."""
    if workers <= 1 or len(jobs) == 1:
        yield from (run_part(*job) for job in jobs)
        return
    context = get_context("spawn")  # one worker per core, each with one thread
    with ProcessPoolExecutor(min(workers, len(jobs)), context, limit_helpers, (1,)) as pool:
        yield from pool.map(run_part, *zip(*jobs, strict=True))


def run_part(
    tables: Sequence[Table],
    name: str,
    schedule: tuple[int, ...],
    settings: tuple[Setting, ...],
    scored: tuple[Setting, ...],
    sizes: tuple[int, ...],
    trials: int,
    seed: int,
) -> Outcomes:
    """All races of a few sentences; those of one part are in memory at a time."""
    replay = Replay(tables, name=name, schedule=schedule)
    shape = (len(settings), len(tables), trials)
    kinds: dict[str, Any] = dict.fromkeys(("score", "rr", "strict_rr", "lost"), np.float32)
    kinds |= {"accuracy": np.bool_, "strict_accuracy": np.bool_, "choice": np.int16}
    measures: dict[str, NDArray[Any]] = {m: np.zeros(shape, dtype=kinds.get(m, np.int32)) for m in MEASURES}
    shown = ALPHA_SETTINGS if set(ALPHA_SETTINGS) <= set(settings) else ()
    survivors = np.zeros((len(shown), *shape[1:], len(schedule)), dtype=np.int16)
    pruned = np.zeros((len(sizes), len(ALPHAS), len(tables), trials), dtype=np.bool_)
    others = {name: np.zeros((len(scored), *shape[1:]), dtype=np.float32) for name in tables[0].others}
    most = max([schedule[-1], *sizes, *(setting.schedule[-1] for setting in settings if setting.schedule)])
    for trial in range(trials):
        trial_seed = key(seed, trial, "trial")
        records = [sample(table, trial_seed, most) for table in tables]
        for index, setting in enumerate(settings):
            race = setting.race(schedule, seed=trial_seed, window=len(tables))
            answers = decode_corpus(records, utility=replay, race=race)
            for sentence, (table, answer) in enumerate(zip(tables, answers, strict=True)):
                assert answer.index is not None  # no hypothesis enters these races later
                values = measure(table, answer.index)
                values |= {m: getattr(answer, m) for m in COUNTS}
                values |= {"steps": len(answer.steps), "choice": answer.index}
                for m, value in values.items():
                    measures[m][index, sentence, trial] = value
                if setting in scored:
                    for other, scores in table.others.items():
                        others[other][scored.index(setting), sentence, trial] = scores[answer.index]
                if setting in shown:
                    left = [step.survivors for step in answer.steps] or [1]
                    survivors[shown.index(setting), sentence, trial] = left + left[-1:] * (len(schedule) - len(left))
        if sizes:
            pruned[..., trial] = false_pruning(tables, records, replay, sizes, trial_seed)
    return Outcomes(settings, measures, survivors, pruned, sizes, other_scores=others, scored=scored)


def sample(table: Table, trial_seed: int, most: int) -> Record:
    """A record whose pseudo-references are drawn from R* without replacement."""
    draws = table.draws
    order = generator(trial_seed, table.record.id, "sample").permutation(len(draws))[:most]
    return Record(table.hypotheses, [draws[draw] for draw in order.tolist()], id=table.record.id)


def measure(table: Table, choice: int) -> dict[str, float]:
    """Score against the human reference, exact accuracy and reciprocal rank of a prediction (section 4.1), and the last
    two without ties.

    `lost`: expected utility below the best under R*, in standard deviations between the hypotheses of the sentence.
    """
    expected = table.expected
    spread = float(np.std(expected))
    better_or_equal = int(np.count_nonzero(expected >= expected[choice]))  # including itself
    later = int(np.count_nonzero(expected[choice:] == expected[choice])) - 1  # equally good, and later in the list
    return {
        "score": float(table.human[choice]),
        "accuracy": float(expected[choice] == expected.max()),  # ties for the highest utility all count
        "rr": 1 / better_or_equal,
        "strict_accuracy": float(better_or_equal - later == 1),
        "strict_rr": 1 / (better_or_equal - later),
        "lost": float(expected.max() - expected[choice]) / spread if spread > 0 else 0.0,
    }


def false_pruning(
    tables: Sequence[Table], records: Sequence[Record], replay: Replay, sizes: Sequence[int], trial_seed: int
) -> NDArray[np.bool_]:
    """(sizes, alphas, sentences): does one application of Confidence at |R| = size prune the winner under R*?

    A race that prunes nothing goes through the sizes; at each, the decoder's rule is applied to the leader and the
    winner. The rule compares each hypothesis with the leader only, so the others make no difference.
    """
    sentences: Mapping[str | int, int] = {table.record.id: index for index, table in enumerate(tables)}
    winners = [np.flatnonzero(table.expected == table.expected.max()) for table in tables]
    pruned = np.zeros((len(sizes), len(ALPHAS), len(tables)), dtype=np.bool_)

    def check(record: Record, alive: NDArray[np.int64], standings: Standings, keep: NDArray[np.bool_]) -> None:
        size, sentence = int(standings.counts.sum()), sentences[record.id]
        if size not in sizes:  # R* is smaller than the size asked for
            return
        two = np.union1d(standings.ranking()[:1], winners[sentence])  # more than two if several tie
        seen = replace(standings, utilities=standings.utilities[two], means=standings.means[two])
        won = np.isin(two, winners[sentence])
        for index, alpha in enumerate(ALPHAS):
            pruned[sizes.index(size), index, sentence] = not Confidence(alpha)(seen)[won].any()

    race = Race(prune=Bottom(0), schedule=sizes, shuffle=False, seed=trial_seed, window=len(records))
    list(decode_corpus(records, utility=replay, race=race, watch=check))
    return pruned
