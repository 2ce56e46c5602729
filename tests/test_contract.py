"""What a utility, a pruning function and a decoder of one's own need: public names, few lines, and no surprises."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import overlap, records

import mbrace

HYPOTHESES = ["a b", "a c", "b c", "c c"]
SAMPLES = ["a b c", "a b", "b", "a c"] * 8


# Each of the next three tests adds a part by public names alone, in at most 15 lines.


def test_a_utility_of_ones_own() -> None:
    class Same:
        name, schedule, needs_source = "same", (4, 8), False

        def pairs(self, hypotheses: Any, references: Any, sources: Any = None) -> np.ndarray:
            return np.array([float(h == r) for h, r in zip(hypotheses, references, strict=True)])

        def start(self, sentences: Sequence[mbrace.utility.Sentence]) -> mbrace.utility.Scorer:
            return mbrace.Pairwise(lambda h, r: float(h == r)).start(sentences)

    assert isinstance(Same(), mbrace.Utility)
    assert mbrace.decode(HYPOTHESES, SAMPLES, utility=Same()).text == "a b"


def test_a_pruning_function_of_ones_own() -> None:
    def without_c(standings: mbrace.prune.Standings) -> np.ndarray:
        return np.array(["c" not in text for text in standings.texts])

    best = mbrace.decode(HYPOTHESES, SAMPLES, utility=overlap, prune=without_c, nbest=1)
    assert (best.text, best.steps[0].survivors) == ("a b", 1)


def test_a_decoder_of_ones_own() -> None:
    def coarse_to_fine(hypotheses: list[str], samples: list[str], keep: int) -> mbrace.Decoded:
        shortlist = mbrace.decode(hypotheses, samples, prune=None, nbest=keep).nbest
        return mbrace.decode([best.text for best in shortlist], samples, utility=overlap, prune=None)

    standard = mbrace.decode(HYPOTHESES, SAMPLES, utility=overlap, prune=None)
    assert coarse_to_fine(HYPOTHESES, SAMPLES, keep=4).text == standard.text


# The contract in detail


@pytest.mark.parametrize("batch", [False, True])
def test_a_function_with_a_third_argument_is_given_the_source(batch: bool) -> None:
    def one(hypothesis: str, reference: str, source: str) -> float:
        return float(source.upper() == hypothesis)

    def many(hypotheses: list[str], references: list[str], sources: list[str]) -> list[float]:
        return [one(*texts) for texts in zip(hypotheses, references, sources, strict=True)]

    utility = mbrace.Pairwise(many if batch else one, batch=batch)
    corpus = [mbrace.Record(["A", "B", "C"], ["r", "s"], id=n, source=source) for n, source in enumerate("bca")]
    answers = mbrace.decode_corpus(corpus, utility=utility, prune=None)
    assert [answer.text for answer in answers] == ["B", "C", "A"]
    with pytest.raises(mbrace.UserError, match=r"record 7: source: missing; utility (one|many) scores with the source"):
        mbrace.decode(["A", "B"], ["r"], utility=utility, id=7)
    with pytest.raises(mbrace.UserError, match="give sources"):
        utility.pairs(["A"], ["r"])


def test_only_an_argument_that_must_be_given_or_is_named_source_asks_for_the_source() -> None:
    assert not mbrace.Pairwise(lambda h, r: 0.0).needs_source
    assert not mbrace.Pairwise(lambda h, r, scale=1.0: 0.0).needs_source
    assert mbrace.Pairwise(lambda h, r, source=None: 0.0).needs_source
    assert mbrace.Pairwise(lambda h, r, x: 0.0).needs_source
    assert not mbrace.Pairwise(max).needs_source  # type: ignore[arg-type]


def test_a_public_name_is_imported_from_where_type_checkers_see_it() -> None:
    tree = ast.parse(Path(mbrace.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert {name: seen[name] for name in mbrace.__all__} == mbrace._MODULES


def test_importing_the_package_imports_no_numpy() -> None:
    command = "import mbrace, sys; assert 'numpy' not in sys.modules; mbrace.prune.Confidence; mbrace.decode(['a'])"
    subprocess.run([sys.executable, "-c", command], check=True)


def test_there_are_at_most_60_public_names_and_each_can_be_imported() -> None:
    assert len(mbrace.__all__) <= 60
    for name in mbrace.__all__:
        assert getattr(mbrace, name) is not None
        assert name in dir(mbrace)


def test_standings_say_which_hypotheses_they_are_about() -> None:
    seen: list[tuple[list[int], list[str]]] = []

    def drop_the_first(standings: mbrace.prune.Standings) -> np.ndarray:
        seen.append((standings.indexes.tolist(), list(standings.texts)))
        return np.arange(len(standings.means)) > 0

    mbrace.decode(["x", "x", "y", "z"], ["z", "y", "z", "z"], utility=overlap, prune=drop_the_first, schedule=(1, 2, 4))
    assert seen[0] == ([0, 2, 3], ["x", "y", "z"])
    assert seen[1][0] == [2, 3]
    for indexes, texts in seen:
        assert texts == [["x", "x", "y", "z"][index] for index in indexes]


def test_standings_cannot_be_changed_by_a_pruning_function() -> None:
    def change(standings: mbrace.prune.Standings) -> np.ndarray:
        for field in ("utilities", "counts", "weights", "means", "indexes"):
            with pytest.raises(ValueError, match="read-only"):
                getattr(standings, field)[0] = 100
        return np.ones(len(standings.means), dtype=bool)

    plain = mbrace.decode(HYPOTHESES, SAMPLES, utility=overlap, prune=None)
    assert mbrace.decode(HYPOTHESES, SAMPLES, utility=overlap, prune=change).text == plain.text


@pytest.mark.parametrize("pool", [False, True])
def test_asks_and_sentences_cannot_be_changed_by_a_utility(pool: bool) -> None:
    class Changing(mbrace.Pairwise):
        encode_seconds = 0.0

        def start(self, sentences: Sequence[mbrace.utility.Sentence]) -> Any:
            self.sentences = sentences
            for sentence in sentences:
                assert not hasattr(sentence.hypotheses, "sort")
                with pytest.raises((TypeError, IndexError)):
                    sentence.hypotheses[0] = "other"  # type: ignore[index]
            return self

        def score(self, asks: Sequence[mbrace.utility.Ask]) -> list[np.ndarray]:
            for ask in asks:
                assert not hasattr(ask.references, "sort")
                with pytest.raises(ValueError, match="read-only"):
                    ask.hypotheses[0] = 1
            return super().start(self.sentences).score(asks)

    given = [] if pool else HYPOTHESES
    plain, changed = (
        mbrace.decode(given, iter(SAMPLES), utility=utility, prune=None, pool=pool)
        for utility in (overlap, Changing(overlap))
    )
    assert changed.text == plain.text


def test_a_decision_cannot_be_changed_by_a_watcher() -> None:
    def change(record: mbrace.Record, alive: np.ndarray, standings: mbrace.prune.Standings, keep: np.ndarray) -> None:
        alive[:] = 0
        with pytest.raises(ValueError, match="read-only"):
            keep[:] = False

    records = [mbrace.Record(HYPOTHESES, SAMPLES)]
    (plain,) = mbrace.decode_corpus(records, utility=overlap)
    assert list(mbrace.decode_corpus(records, utility=overlap, watch=change)) == [plain]


def test_a_subclass_of_confidence_decides_by_what_it_overrides(demo_rows: list[dict]) -> None:
    class Never(mbrace.Confidence):
        def __call__(self, standings: mbrace.prune.Standings) -> np.ndarray:
            return np.ones(len(standings.means), dtype=bool)

    class Strict(mbrace.Confidence):
        @property
        def max_losing_wins(self) -> int:
            return self.bootstraps - 1

    corpus = records(demo_rows, 4)
    never = list(mbrace.decode_corpus(corpus, prune=Never()))
    assert all(step.survivors == answer.steps[0].survivors for answer in never for step in answer.steps)
    assert all(answer.steps[0].survivors <= 2 for answer in mbrace.decode_corpus(corpus, prune=Strict()))


def test_a_corpus_that_is_left_early_waits_for_nobody(demo_rows: list[dict]) -> None:
    answers = mbrace.decode_corpus(
        records(demo_rows, 16), utility=mbrace.ChrF(threads=2), prune=lambda s: s.means >= np.median(s.means), window=8
    )
    next(answers)
    answers.close()  # type: ignore[attr-defined]


def test_an_error_in_a_pruning_function_reaches_the_caller_from_any_thread(demo_rows: list[dict]) -> None:
    def fail(standings: mbrace.prune.Standings) -> np.ndarray:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        list(mbrace.decode_corpus(records(demo_rows, 16), utility=mbrace.ChrF(threads=2), prune=fail))


def test_a_utility_may_have_its_members_in_the_object_and_another_of_its_class_may_not() -> None:
    own = mbrace.Pairwise(lambda h, r: float(h == r), name="own")
    members = {name: getattr(own, name) for name in ("name", "schedule", "needs_source", "start", "pairs")}
    assert mbrace.decode(["a", "b"], ["b", "c"], utility=SimpleNamespace(**members)).text == "b"
    with pytest.raises(mbrace.UserError, match="give a utility"):
        mbrace.decode(["a", "b"], ["b", "c"], utility=SimpleNamespace(name="other"))  # type: ignore[arg-type]
