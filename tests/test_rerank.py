"""Estimated quality: the best hypothesis by it alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import mbrace
from mbrace import Record


class CommonWords:
    """How many words a hypothesis shares with its source, by hand; counts what it is asked for."""

    name = "common-words"
    reads_references = False

    def __init__(self) -> None:
        self.asked: list[int] = []

    def quality(self, hypotheses: Sequence[str], sources: Sequence[str]) -> np.ndarray:
        self.asked.append(len(hypotheses))
        rows = zip(hypotheses, sources, strict=True)
        return np.array([len(set(text.split()) & set(source.split())) for text, source in rows], dtype=np.float32)


HYPOTHESES = ["x y", "a y", "x y", "a b y", "a x", "a b c"]


def test_the_best_by_quality_with_copies_merged_and_ties_in_order() -> None:
    qe = CommonWords()
    answer = mbrace.rerank(HYPOTHESES, "a b c", qe=qe, nbest=4)
    assert [(best.text, best.index, best.utility) for best in answer.nbest] == [
        ("a b c", 5, 3.0),
        ("a b y", 3, 2.0),
        ("a y", 1, 1.0),
        ("a x", 4, 1.0),
    ]
    assert (answer.text, answer.index, answer.utility) == ("a b c", 5, 3.0)
    assert (answer.quality_calls, answer.utility_calls, answer.pseudo_references) == (5, 0, 0)
    assert qe.asked == [5]


@pytest.mark.parametrize(("window", "calls"), [(1, 7), (3, 3), (64, 1)])
def test_a_window_is_estimated_in_one_call_and_changes_no_answer(window: int, calls: int) -> None:
    records = [Record(HYPOTHESES[: 1 + number % 6], id=number, source="a b c x") for number in range(7)]
    qe = CommonWords()
    answers = list(mbrace.rerank_corpus(records, qe=qe, window=window))
    assert [each.id for each in answers] == list(range(7))
    assert len(qe.asked) == calls
    assert answers == list(mbrace.rerank_corpus(records, qe=CommonWords(), window=7))


def test_a_record_without_source_is_named_and_costs_no_other() -> None:
    records = [Record(["a", "b"], id=number, source=None if number == 1 else "a") for number in range(3)]
    failed: list[tuple[Any, str]] = []

    def note(record: Record, error: Exception) -> None:
        failed.append((record.id, str(error)))

    assert [each.id for each in mbrace.rerank_corpus(records, qe=CommonWords(), on_error=note)] == [0, 2]
    message = 'record 1: source: missing; common-words estimates from the source: give one, or on_error="skip"'
    assert failed == [(1, message)]


def test_a_quality_that_is_no_number_is_refused() -> None:
    class Broken(CommonWords):
        def quality(self, hypotheses: Sequence[str], sources: Sequence[str]) -> np.ndarray:
            return np.array([np.nan if text == "b" else 0.0 for text in hypotheses])

    with pytest.raises(mbrace.UserError, match=r"record 0: utility common-words: returned nan for hypothesis 'b'"):
        mbrace.rerank(["a", "b"], "s", qe=Broken())
