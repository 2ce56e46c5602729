"""Mixtures: hand-computed sums, scales that stay, racing against brute force."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from conftest import table_of
from numpy.typing import NDArray

import mbrace
from mbrace.utilities.mixture import is_mixture, parts_of
from mbrace.utility import Ask, Pairwise, Sentence, Utility, parallel_of, truncated_texts

RNG = np.random.default_rng(11)
TEXTS = [" ".join(RNG.choice(["the", "cat", "sat", "on", "a", "mat", "dog"], 7)) for _ in range(120)]


def length(hypothesis: str, reference: str) -> float:
    return 10.0 - abs(len(hypothesis) - len(reference))


def test_fixed_scale_is_a_plain_weighted_sum() -> None:
    hypotheses, references = TEXTS[:5], TEXTS[5:9]
    mixture = mbrace.Mixture([(mbrace.ChrF(), 0.5), (mbrace.BLEU(), 0.25), (Pairwise(length), 2.0)], scale="fixed")
    chrf, bleu = (table_of(u, hypotheses, references).astype(float) for u in (mbrace.ChrF(), mbrace.BLEU()))
    by_hand = [
        [0.5 * chrf[i, j] / 100 + 0.25 * bleu[i, j] / 100 + 2 * length(h, r) for j, r in enumerate(references)]
        for i, h in enumerate(hypotheses)
    ]
    np.testing.assert_allclose(table_of(mixture, hypotheses, references), by_hand, rtol=1e-12)
    pairs = mixture.pairs(hypotheses[:4], references)
    np.testing.assert_allclose(pairs, np.diagonal(by_hand), rtol=1e-6)


def test_sentence_scale_is_that_of_the_first_table_and_stays() -> None:
    parts: list[Utility] = [mbrace.ChrF(), Pairwise(length)]
    mixture = mbrace.Mixture(list(zip(parts, [0.7, 0.3], strict=True)))
    scorer = mixture.start([Sentence(0, None, TEXTS[:6]), Sentence(1, None, TEXTS[20:24])])
    scorer.score([Ask(0, np.arange(6), TEXTS[6:9]), Ask(1, np.arange(4), TEXTS[24:26])])
    later = scorer.score([Ask(1, np.array([2]), TEXTS[30:32]), Ask(0, np.array([1, 4]), TEXTS[9:12])])[1]
    by_hand = np.zeros((2, 3))
    for part, weight in zip(parts, [0.7, 0.3], strict=True):
        first = table_of(part, TEXTS[:6], TEXTS[6:9]).astype(float)
        new = table_of(part, [TEXTS[1], TEXTS[4]], TEXTS[9:12]).astype(float)
        by_hand += weight * (new - first.mean()) / first.std()
    np.testing.assert_allclose(later, by_hand, rtol=1e-12)


def test_standard_mbr_with_a_mixture_is_brute_force() -> None:
    hypotheses, references = TEXTS[:30], TEXTS[30:110]
    mixture = mbrace.Mixture([(mbrace.ChrF(), 0.6), (mbrace.EditDistance(kind="wer"), 0.4)])
    total = np.zeros((30, 80))
    for part, weight in mixture.parts:
        whole = table_of(part, hypotheses, references).astype(float)
        total += weight * (whole - whole.mean()) / whole.std()
    decoded = mbrace.decode(hypotheses, references, utility=mixture, prune=None)
    assert decoded.index == int(total.mean(axis=1).argmax())
    assert decoded.utility == pytest.approx(total.mean(axis=1).max(), abs=1e-5)


@pytest.mark.parametrize("parts", ["native", "python"])
def test_windows_and_threads_change_no_answer(parts: str) -> None:
    other: Utility = mbrace.BLEU() if parts == "native" else Pairwise(length)
    mixture = mbrace.Mixture([(mbrace.ChrF(), 0.5), (other, 0.5)])
    records = [
        mbrace.Record(id=i, hypotheses=TEXTS[i : i + 20], pseudo_references=TEXTS[i + 20 : i + 90]) for i in range(9)
    ]
    runs = [
        list(mbrace.decode_corpus(records, utility=mixture, window=window, schedule=(8, 16, 64)))
        for window in (1, 4, 9)
    ]
    assert runs[0] == runs[1] == runs[2]
    assert any(len(answer.steps) > 1 for answer in runs[0])


class Counting(Pairwise):
    """Counts the pairs it scores."""

    calls = 0
    truncated = 2

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        self.calls += len(hypotheses)
        return super().pairs(hypotheses, references, sources)


def test_each_part_scores_a_pair_once() -> None:
    parts = [Counting(length), Counting(length)]
    mixture = mbrace.Mixture([(parts[0], 1.0), (parts[1], 2.0)])
    decoded = mbrace.decode(TEXTS[:10], TEXTS[10:74], utility=mixture, schedule=(16, 32, 64))
    assert parts[0].calls == parts[1].calls == decoded.pairs_scored


def test_what_it_tells_about_itself() -> None:
    sourced = Pairwise(lambda h, r, source: 1.0, name="sourced", schedule=(8, 512))
    mixture = mbrace.Mixture([(Counting(length), 1.0), (sourced, -0.5), (Counting(length), 1.0)])
    assert mixture.needs_source
    assert mixture.schedule == (8, 512)
    assert truncated_texts(mixture) == mixture.truncated == 4
    assert parallel_of(mixture) is None
    assert mixture.name == "mixture|scale:sentence|1 length + -0.5 sourced + 1 length"


def test_a_mixture_of_parallel_utilities_is_parallel_and_travels() -> None:
    mixture = mbrace.Mixture([(mbrace.ChrF(threads=3), 0.5), (mbrace.BLEU(threads=2), 0.5)], scale="fixed")
    assert parallel_of(mixture) is mixture
    assert mixture.workers == 3
    assert mixture.single_threaded().workers == 1
    again = pickle.loads(pickle.dumps(mixture))
    assert again.parts == mixture.parts
    assert again.name == mixture.single_threaded().name == mixture.name


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("comet:0.5+chrf++:0.5", [("comet", 0.5), ("chrf++", 0.5)]),
        ("chrf++:0.5+comet:0.5", [("chrf++", 0.5), ("comet", 0.5)]),
        ("chrf+:1+chrf++:2", [("chrf+", 1), ("chrf++", 2)]),
        ("my.module:score:0.25+a/file.py:f:batch:1e-1", [("my.module:score", 0.25), ("a/file.py:f:batch", 0.1)]),
        ("ter:.5+bleu:-2", [("ter", 0.5), ("bleu", -2)]),
    ],
)
def test_names_are_parsed(text: str, parts: list[tuple[str, float]]) -> None:
    assert is_mixture(text)
    assert parts_of(text) == parts


def test_names_that_are_no_mixtures() -> None:
    assert parts_of("my.module:score") == [("my.module:score", 1.0)]
    assert not any(map(is_mixture, ["chrf", "chrf++", "my.module:score", "file.py:f:batch", "file2.py:f2"]))


@pytest.mark.parametrize(
    "utility",
    [
        mbrace.BLEU(),
        mbrace.EditDistance(kind="wer"),
        mbrace.Mixture([(mbrace.BLEU(), 1.0), (mbrace.RougeL(), 1.0)], scale="fixed"),
    ],
    ids=lambda utility: utility.name.split("|")[0],
)
def test_strings_that_enter_a_race_later_score_as_pairs_do(utility: Utility) -> None:
    texts, references = TEXTS[:3], TEXTS[40:44]
    scorer = utility.start([Sentence(0, None, texts)])
    scorer.score([Ask(0, np.arange(3), references)])
    texts += TEXTS[3:9]
    (table,) = scorer.score([Ask(0, np.array([1, 4, 8]), references)])
    expected = [utility.pairs([texts[row]] * 4, references) for row in (1, 4, 8)]
    np.testing.assert_allclose(table, expected, rtol=1e-6)
