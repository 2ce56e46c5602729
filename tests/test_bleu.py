"""BLEU against sacreBLEU: every option, random Unicode and real text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import table_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sacrebleu import metrics

import mbrace
from mbrace.utility import Ask, Sentence

# Few words make many matches; the rest is what the 13a tokenizer replaces or separates, whitespace of every kind, all
# three string layouts and lone surrogates.
PIECES = ["a", "b", "ab", " ", " ", "  ", ".", ",", "-", "3", "10", "1.5", "$", "&", "'", "/", "<skipped>", "-\n", "\n"]
PIECES += ["&quot;", "&amp;", "&lt;", "&gt;", "&amp;lt;", "<", "\t", "\x85", "\xa0", "\u3000", "Ä", "中"]
PIECES += ["\ud800", "😀"]
TEXTS = st.one_of(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), st.text(max_size=12))
OPTIONS = st.fixed_dictionaries(
    {
        "tokenize": st.sampled_from(["13a", "none", "char"]),
        "smooth_method": st.sampled_from(["exp", "floor", "add-k", "none"]),
        "max_ngram_order": st.integers(1, 6),
        "effective_order": st.booleans(),
        "lowercase": st.booleans(),
    }
)
REAL = [
    "The European Union's (EU) foreign ministers met on Tuesday, 14 May; no decision was taken.",
    "On Tuesday the foreign ministers of the European Union met. No decision has been taken.",
    "Inflation was 3.5 - 4.0% in 2023-24, i.e. $1,000.50 &quot;more&quot;, they said...",
    "Inflation was 3.5% in 2023-24; they said &quot;more&quot;.",
    "Außenminister der Europäischen Union trafen sich am Dienstag - ohne Ergebnis!",
    "欧盟外长周二举行会晤,未作出任何决定。",
    "no no no no no",
    "no",
    "",
    " \t ",
]


def expected(options: dict[str, Any], hypotheses: list[str], references: list[str]) -> NDArray[np.float64]:
    metric = metrics.BLEU(**{"effective_order": True, **options})
    return np.array([[metric.sentence_score(h, [r]).score for r in references] for h in hypotheses])


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=6), st.lists(TEXTS, min_size=1, max_size=6), OPTIONS)
@example(["a,.b 1,.2 3-4--5 .,."], ["a , . b 1 ,. 2"], {})  # matches of the tokenizer's expressions that would overlap
@example(["<skip<skipped>ped> x-\n"], ["<skipped> x-"], {})
def test_table_equals_sacrebleu_on_random_unicode(
    hypotheses: list[str], references: list[str], options: dict[str, Any]
) -> None:
    np.testing.assert_allclose(
        table_of(mbrace.BLEU(**options), hypotheses, references), expected(options, hypotheses, references), atol=1e-4
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5), OPTIONS)
def test_pairs_and_corpus_equal_sacrebleu_on_random_unicode(
    pairs: list[tuple[str, str]], options: dict[str, Any]
) -> None:
    hypotheses, references = [list(side) for side in zip(*pairs, strict=True)]
    utility = mbrace.BLEU(**options)
    sentences = [metrics.BLEU(**options).sentence_score(h, [r]).score for h, r in pairs]
    np.testing.assert_allclose(utility.pairs(hypotheses, references), sentences, atol=1e-4)
    corpus = metrics.BLEU(**{**options, "effective_order": False}).corpus_score(hypotheses, [references]).score
    assert utility.corpus(hypotheses, references) == pytest.approx(corpus, abs=1e-9)


@pytest.mark.parametrize("tokenize", ["13a", "none", "char", "intl", "zh"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_real_text_equals_sacrebleu(tokenize: str, lowercase: bool) -> None:
    options = {"tokenize": tokenize, "lowercase": lowercase}
    np.testing.assert_allclose(table_of(mbrace.BLEU(**options), REAL, REAL), expected(options, REAL, REAL), atol=1e-4)


@pytest.mark.parametrize(
    ("method", "value"), [("floor", 0.01), ("floor", 0.0), ("add-k", 0.0), ("add-k", 0.5), ("add-k", 2.0)]
)
@pytest.mark.parametrize("effective_order", [False, True])
def test_smoothing_values_equal_sacrebleus(method: str, value: float, effective_order: bool) -> None:
    options = {"smooth_method": method, "smooth_value": value, "effective_order": effective_order}
    np.testing.assert_allclose(table_of(mbrace.BLEU(**options), REAL, REAL), expected(options, REAL, REAL), atol=1e-4)


def test_hand_worked_example() -> None:
    # "a b c d" against "a b c e f": 3 of 4 unigrams, 2 of 3 bigrams, 1 of 2 trigrams match, and none of 1, which exp
    # smoothing makes 1/2; four tokens where the reference has five.
    by_hand = 100 * np.exp(1 - 5 / 4) * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** (1 / 4)
    assert table_of(mbrace.BLEU(), ["a b c d"], ["a b c e f"])[0, 0] == pytest.approx(by_hand, abs=1e-5)


def test_hypotheses_that_come_later_and_survivors_score_as_in_one_table() -> None:
    hypotheses = REAL[:4]
    scorer = mbrace.BLEU(threads=2).start([Sentence(0, None, ["x"]), Sentence(1, None, hypotheses)])
    full = table_of(mbrace.BLEU(), REAL, REAL)
    first = scorer.score([Ask(1, np.array([1, 3]), REAL[:2])])[0]
    hypotheses.extend(REAL[4:])
    later = scorer.score([Ask(0, np.array([0]), ["x", "y"]), Ask(1, np.array([0, 3, 8]), REAL[2:])])
    assert (first == full[[1, 3]][:, :2]).all()
    assert (later[1] == full[[0, 3, 8]][:, 2:]).all()
    assert later[0].tolist() == [[100.0, 0.0]]
    assert scorer.encode_seconds > 0


def test_threads_change_no_score() -> None:
    windows = [Sentence(i, None, REAL[i:]) for i in range(4)]
    asks = [Ask(i, np.arange(len(REAL) - i), REAL * 8) for i in range(4)]
    alone, together = (mbrace.BLEU(threads=threads).start(windows).score(asks) for threads in (1, 3))
    assert all((a == b).all() for a, b in zip(alone, together, strict=True))


def test_name_is_sacrebleus_signature() -> None:
    for options in [
        {},
        {"lowercase": True, "tokenize": "intl"},
        {"smooth_method": "floor"},
        {"smooth_method": "add-k"},
    ]:
        metric = metrics.BLEU(effective_order=True, **options)
        metric.sentence_score("a", ["a"])
        fields = metric.get_signature().info
        assert mbrace.BLEU(**options).name == "BLEU|" + "|".join(
            f"{field}:{fields[field]}" for field in ("case", "eff", "tok", "smooth")
        )
