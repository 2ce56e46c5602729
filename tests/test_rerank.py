"""Estimated quality: the best hypothesis by it alone, and races among the best by it."""

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
SAMPLES = ["a x", "x y", "a b y", "x y z"]


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


@pytest.mark.parametrize("prune", [None, mbrace.Confidence()])
@pytest.mark.parametrize("samples", [SAMPLES, None])
def test_the_best_race_as_if_they_were_alone(samples: list[str] | None, prune: Any) -> None:
    """The answer is that of a race of the shortened list against the same pseudo-references, with the old indices."""
    found = mbrace.decode(
        HYPOTHESES, samples, source="a b c", qe=CommonWords(), qe_top=3, nbest=3, prune=prune, schedule=[2, 4, 6]
    )
    short = [1, 3, 5]  # "a y", which is before "a x" of the same quality, "a b y" and "a b c"
    texts = [HYPOTHESES[index] for index in short]
    alone = mbrace.decode(texts, samples or HYPOTHESES, nbest=3, prune=prune, schedule=[2, 4, 6])
    assert [best.text for best in found.nbest] == [best.text for best in alone.nbest]
    assert [best.utility for best in found.nbest] == [best.utility for best in alone.nbest]
    assert [best.index for best in found.nbest] == [short[best.index or 0] for best in alone.nbest]
    assert (found.index, found.steps) == (found.nbest[0].index, alone.steps)
    assert (found.quality_calls, alone.quality_calls) == (5, None)


def test_nothing_is_estimated_where_all_may_race() -> None:
    qe = CommonWords()
    found = mbrace.decode(HYPOTHESES, SAMPLES, source="a b c", qe=qe, qe_top=5)
    plain = mbrace.decode(HYPOTHESES, SAMPLES, source="a b c")
    assert qe.asked == []
    assert (found.nbest, found.steps, found.quality_calls) == (plain.nbest, plain.steps, 0)


def test_windows_of_races_by_quality() -> None:
    records = [Record(HYPOTHESES, SAMPLES, id=number, source="a b c"[: 1 + 2 * (number % 3)]) for number in range(9)]
    options: dict[str, Any] = {"utility": mbrace.ChrF(threads=2), "qe_top": 2}
    whole, small = CommonWords(), CommonWords()
    answers = list(mbrace.decode_corpus(records, qe=whole, **options))
    assert answers == list(mbrace.decode_corpus(records, qe=small, window=2, **options))
    assert (whole.asked, small.asked) == ([45], [10, 10, 10, 10, 5])


def test_a_record_without_source_is_named_and_costs_no_other() -> None:
    records = [Record(["a", "b"], id=number, source=None if number == 1 else "a") for number in range(3)]
    failed: list[tuple[Any, str]] = []

    def note(record: Record, error: Exception) -> None:
        failed.append((record.id, str(error)))

    for run in (
        mbrace.rerank_corpus(records, qe=CommonWords(), on_error=note),
        mbrace.decode_corpus(records, qe=CommonWords(), qe_top=1, on_error=note),
    ):
        assert [each.id for each in run] == [0, 2]
    message = "record 1: source: missing; common-words estimates quality from the source: give one, or on_error=skip"
    assert failed == [(1, message)] * 2


def test_a_quality_that_is_no_number_is_refused() -> None:
    class Broken(CommonWords):
        def quality(self, hypotheses: Sequence[str], sources: Sequence[str]) -> np.ndarray:
            return np.array([np.nan if text == "b" else 0.0 for text in hypotheses])

    with pytest.raises(mbrace.UserError, match=r"record 0: utility common-words: returned nan for hypothesis 'b'"):
        mbrace.rerank(["a", "b"], "s", qe=Broken())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qe": CommonWords()}, "qe and qe_top: give both"),
        ({"qe_top": 3}, "qe and qe_top: give both"),
        ({"qe": CommonWords(), "qe_top": 0}, "qe_top 0: must be 1 or more"),
        ({"qe": CommonWords(), "qe_top": 2, "nbest": 3}, r"qe_top 2: must be 1 or more, and at least nbest \(3\)"),
        ({"qe": CommonWords(), "qe_top": 2, "pool": True}, "qe: only valid without pool"),
        ({"qe": mbrace.ChrF(), "qe_top": 2}, "qe chrF.*: cannot estimate quality from the source"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mbrace.UserError, match=message):
        mbrace.decode(["a", "b"], ["c"], source="s", **options)
