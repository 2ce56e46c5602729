"""chrF against sacreBLEU: every option, random Unicode and real text."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from conftest import table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sacrebleu.metrics import CHRF

from mbrace.errors import UserError
from mbrace.metrics.chrf import ChrF
from mbrace.utility import Ask, Sentence

# Few letters make many matches; the rest are every kind of whitespace, punctuation, all three string layouts, combining
# marks, emoji and lone surrogates.
LETTERS = "aabbc.,'(Äß \t\x1c\x85\xa0\u2003\u3000éα中文\u0301\ud800😀🏽"
TEXTS = st.one_of(st.text(alphabet=LETTERS, max_size=30), st.text(max_size=12))
OPTIONS = st.fixed_dictionaries(
    {
        "char_order": st.integers(0, 9),
        "word_order": st.integers(0, 4),
        "beta": st.integers(0, 4),
        "lowercase": st.booleans(),
        "whitespace": st.booleans(),
        "eps_smoothing": st.booleans(),
    }
).filter(lambda options: options["char_order"] + options["word_order"] > 0)

REAL = [
    "The European Union's (EU) foreign ministers met on Tuesday, 14 May; no decision was taken.",
    "On Tuesday the foreign ministers of the European Union met. No decision has been taken.",
    "Außenminister der Europäischen Union trafen sich am Dienstag - ohne Ergebnis!",
    "Avrupa Birliği dışişleri bakanları Salı günü toplandı; karar alınmadı.",
    "欧盟外长周二举行会晤,未作出任何决定。",
    "...",
    "a",
    "",
    " \t ",
]


def expected(options: dict[str, Any], hypotheses: list[str], references: list[str]) -> NDArray[np.float64]:
    metric = CHRF(**options)
    return np.array([[metric.sentence_score(h, [r]).score for r in references] for h in hypotheses]).reshape(
        len(hypotheses), len(references)
    )


@settings(max_examples=250, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=6), st.lists(TEXTS, min_size=1, max_size=10), OPTIONS)
def test_table_equals_sacrebleu_on_random_unicode(
    hypotheses: list[str], references: list[str], options: dict[str, Any]
) -> None:
    np.testing.assert_allclose(
        table_of(ChrF(**options), hypotheses, references), expected(options, hypotheses, references), atol=1e-4
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5), OPTIONS)
def test_pairs_and_corpus_equal_sacrebleu_on_random_unicode(
    pairs: list[tuple[str, str]], options: dict[str, Any]
) -> None:
    hypotheses, references = [list(side) for side in zip(*pairs, strict=True)]
    metric, utility = CHRF(**options), ChrF(**options)
    sentence = [metric.sentence_score(h, [r]).score for h, r in pairs]
    np.testing.assert_allclose(utility.pairs(hypotheses, references), sentence, atol=1e-4)
    corpus = metric.corpus_score(hypotheses, [references]).score
    assert utility.corpus(hypotheses, references) == pytest.approx(corpus, abs=1e-4)


SWITCHES = itertools.product([0, 1, 2], *[[False, True]] * 3)


@pytest.mark.parametrize("chosen", SWITCHES)
def test_real_text_equals_sacrebleu(chosen: tuple[int, bool, bool, bool]) -> None:
    options = dict(zip(["word_order", "eps_smoothing", "whitespace", "lowercase"], chosen, strict=True))
    np.testing.assert_allclose(table_of(ChrF(**options), REAL, REAL), expected(options, REAL, REAL), atol=1e-4)


def test_hand_worked_example() -> None:
    # "abab" against "aba", characters, order 2: unigrams 3 of 4 and 3 of 3 match, bigrams 2 of 3 and 2 of 2.
    precision, recall = (3 / 4 + 2 / 3) / 2, 1.0
    by_hand = 100 * 5 * precision * recall / (4 * precision + recall)
    assert table_of(ChrF(char_order=2, word_order=0), ["abab"], ["aba"])[0, 0] == pytest.approx(by_hand, abs=1e-4)


def test_line_of_100000_characters_equals_sacrebleu() -> None:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdeéß"), size=size)) for size in rng.integers(1, 9, 400)]
    long, other = (" ".join(rng.choice(words, 18000)) for _ in range(2))
    assert len(long) > 80_000
    got = table_of(ChrF(), [long, "short"], [other, "short", ""])
    np.testing.assert_allclose(got, expected({"word_order": 2}, [long, "short"], [other, "short", ""]), atol=1e-4)


def test_corpus_score_of_nothing_is_zero() -> None:
    assert ChrF().corpus([], []) == 0
    assert ChrF(eps_smoothing=True).corpus([""], [""]) == 0


def test_unknown_instruction_set_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MBRACE_SIMD", "mmx")
    with pytest.raises(UserError, match="MBRACE_SIMD=mmx"):
        ChrF()


def test_name_is_sacrebleus_signature() -> None:
    assert ChrF().name == "chrF2++|case:mixed|eff:yes|nc:6|nw:2|space:no"
    assert ChrF(word_order=0, lowercase=True, eps_smoothing=True).name == "chrF2|case:lc|eff:no|nc:6|nw:0|space:no"


@pytest.mark.parametrize("lowercase", [False, True])
def test_hypotheses_that_come_later_have_the_scores_of_those_who_were_there(lowercase: bool) -> None:
    rng = random.Random(1)
    texts = [" ".join(rng.choices(["the", "The", "cat", "CAT", "sat", "über", "x"], k=9)) for _ in range(60)]
    texts = list(dict.fromkeys(texts))
    hypotheses, references = texts[:30], texts[20:]
    utility = ChrF(lowercase=lowercase, threads=2)
    whole = utility.start([Sentence(0, None, hypotheses)]).score([Ask(0, np.arange(30), tuple(references))])[0]
    raced: list[str] = hypotheses[:8]
    growing = utility.start([Sentence(0, None, hypotheses), Sentence(1, None, raced)])

    def check(*rows_and_columns: tuple[list[int], list[int]]) -> None:
        asks = [Ask(1, np.array(rows), tuple(references[c] for c in columns)) for rows, columns in rows_and_columns]
        for table, (rows, columns) in zip(growing.score(asks), rows_and_columns, strict=True):
            assert np.array_equal(table, whole[np.ix_(rows, columns)])

    check((list(range(8)), [0, 1, 2]))
    raced += hypotheses[8:12]
    check(([0, 3, 7], [3, 4, 5, 6]), ([8, 9, 10, 11], list(range(7))))  # those alive, and those admitted against all
    raced += hypotheses[12:30]
    check(([0, 9], [7, 8]), (list(range(12, 30)), list(range(9))))
    check(([0, 9, 29], [1, 8, 0, 25, 12]))  # in any order
    check(([9, 13], [26, 26, 3, 26]), ([2], [27, 28, 27]))  # and several times, as the parts of a mixture may ask
    other = growing.score([Ask(0, np.arange(30), tuple(references)), Ask(1, np.array([29]), (references[-1],))])
    assert np.array_equal(other[0], whole)
    assert np.array_equal(other[1], whole[29:, -1:])
