"""chrF against sacreBLEU: every option, random Unicode and real text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sacrebleu.metrics import CHRF

from mbrace.errors import UserError
from mbrace.utilities.chrf import ChrF

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


def table(utility: ChrF, hypotheses: list[str], references: list[str]) -> NDArray[np.float32]:
    scorer = utility.start([SimpleNamespace(id=0, source=None, hypotheses=hypotheses)])  # type: ignore[list-item]
    ask = SimpleNamespace(sentence=0, hypotheses=np.arange(len(hypotheses)), references=references)
    return scorer.score([ask])[0]  # type: ignore[list-item]


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
        table(ChrF(**options), hypotheses, references), expected(options, hypotheses, references), atol=1e-4
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


@pytest.mark.parametrize("word_order", [0, 1, 2])
@pytest.mark.parametrize("eps_smoothing", [False, True])
@pytest.mark.parametrize("whitespace", [False, True])
@pytest.mark.parametrize("lowercase", [False, True])
def test_real_text_equals_sacrebleu(word_order: int, eps_smoothing: bool, whitespace: bool, lowercase: bool) -> None:
    options = {
        "word_order": word_order,
        "eps_smoothing": eps_smoothing,
        "whitespace": whitespace,
        "lowercase": lowercase,
    }
    np.testing.assert_allclose(table(ChrF(**options), REAL, REAL), expected(options, REAL, REAL), atol=1e-4)


def test_hand_worked_example() -> None:
    # "abab" against "aba", characters, order 2: unigrams 3 of 4 and 3 of 3 match, bigrams 2 of 3 and 2 of 2.
    precision, recall = (3 / 4 + 2 / 3) / 2, 1.0
    by_hand = 100 * 5 * precision * recall / (4 * precision + recall)
    assert table(ChrF(char_order=2, word_order=0), ["abab"], ["aba"])[0, 0] == pytest.approx(by_hand, abs=1e-4)


def test_line_of_100000_characters_equals_sacrebleu() -> None:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdeéß"), size=size)) for size in rng.integers(1, 9, 400)]
    long, other = (" ".join(rng.choice(words, 18000)) for _ in range(2))
    assert len(long) > 80_000
    got = table(ChrF(), [long, "short"], [other, "short", ""])
    np.testing.assert_allclose(got, expected({"word_order": 2}, [long, "short"], [other, "short", ""]), atol=1e-4)


def test_later_references_are_scored_against_the_survivors_only() -> None:
    scorer = ChrF().start([SimpleNamespace(id=0, source=None, hypotheses=REAL)])  # type: ignore[list-item]
    ask = SimpleNamespace(sentence=0, hypotheses=np.array([4, 1]), references=REAL[2:5])
    full = table(ChrF(), REAL, REAL)
    assert (scorer.score([ask])[0] == full[[4, 1]][:, 2:5]).all()  # type: ignore[list-item]
    assert scorer.encode_seconds > 0


def test_beta_that_overflows_a_float_weighs_recall_alone() -> None:
    options = {"char_order": 2, "word_order": 0}
    assert table(ChrF(beta=1e15, **options), ["abab"], ["aba"])[0, 0] == pytest.approx(100, abs=1e-4)


def test_corpus_score_of_nothing_is_zero() -> None:
    assert ChrF().corpus([], []) == 0
    assert ChrF(eps_smoothing=True).corpus([""], [""]) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"char_order": 0, "word_order": 0},
        {"char_order": -1},
        {"word_order": 30},
        {"beta": -1},
        {"beta": float("nan")},
        {"threads": 0},
    ],
)
def test_bad_option_is_a_user_error(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="chrF"):
        ChrF(**options)


def test_sides_of_different_length_are_a_user_error() -> None:
    with pytest.raises(UserError, match="2 hypotheses but 1 references"):
        ChrF().pairs(["a", "b"], ["a"])


def test_unknown_instruction_set_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MBRACE_SIMD", "mmx")
    with pytest.raises(UserError, match="MBRACE_SIMD=mmx"):
        ChrF()


def test_name_is_sacrebleus_signature() -> None:
    assert ChrF().name == "chrF2++|case:mixed|eff:yes|nc:6|nw:2|space:no"
    assert ChrF(word_order=0, lowercase=True, eps_smoothing=True).name == "chrF2|case:lc|eff:no|nc:6|nw:0|space:no"
