"""TER, edit distances, exact match and ROUGE-L against sacreBLEU, rapidfuzz and the rouge-score package."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest
import rapidfuzz.distance
from conftest import table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu import metrics

import mbrace
from mbrace.errors import UserError
from mbrace.utility import CorpusUtility, ParallelUtility, Utility

WORDS = st.lists(st.sampled_from(["a", "b", "c", "A", "dd", ".", "Ä", "中", "😀"]), max_size=9)
TEXTS = st.one_of(WORDS.map(" ".join), WORDS.map("".join), st.text(max_size=8))


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.lists(TEXTS, min_size=1, max_size=4), st.data())
def test_ter_is_minus_sacrebleus(hypotheses: list[str], references: list[str], data: st.DataObject) -> None:
    names = ["normalized", "no_punct", "asian_support", "case_sensitive"]
    options = {name: data.draw(st.booleans(), label=name) for name in names}
    metric, utility = metrics.TER(**options), mbrace.TER(**options)
    expected = [[-metric.sentence_score(h, [r]).score for r in references] for h in hypotheses]
    np.testing.assert_allclose(table_of(utility, hypotheses, references), expected, atol=1e-9)
    some = min(len(hypotheses), len(references))
    assert utility.corpus(hypotheses[:some], references[:some]) == pytest.approx(
        -metric.corpus_score(hypotheses[:some], [references[:some]]).score
    )


KINDS = {"levenshtein": "Levenshtein", "osa": "OSA", "damerau-levenshtein": "DamerauLevenshtein", "indel": "Indel"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ["characters", "words"])
@settings(max_examples=40, deadline=None)
@given(hypotheses=st.lists(TEXTS, min_size=1, max_size=4), references=st.lists(TEXTS, min_size=1, max_size=4))
def test_similarities_are_rapidfuzz_normalised(
    kind: str, unit: str, hypotheses: list[str], references: list[str]
) -> None:
    similarity = getattr(rapidfuzz.distance, KINDS[kind]).normalized_similarity
    split: Any = str.split if unit == "words" else list
    expected = [[similarity(split(h), split(r)) for r in references] for h in hypotheses]
    utility = mbrace.EditDistance(kind=kind, unit=unit)
    np.testing.assert_allclose(table_of(utility, hypotheses, references), expected, atol=1e-12)
    aligned = [similarity(split(h), split(references[0])) for h in hypotheses]
    np.testing.assert_allclose(utility.pairs(hypotheses, references[:1] * len(hypotheses)), aligned, atol=1e-6)


def naive_edits(a: list[str], b: list[str]) -> int:
    """Levenshtein's distance as its recurrence says."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        before, row = row, [i]
        for j, right in enumerate(b, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right)))
    return row[-1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4), st.sampled_from(["wer", "cer"]), st.booleans())
def test_error_rates_are_edits_per_reference_length(pairs: list[tuple[str, str]], kind: str, lowercase: bool) -> None:
    split: Any = (lambda text: text.lower() if lowercase else text) if kind == "cer" else None
    split = split or (lambda text: (text.lower() if lowercase else text).split())
    edits = [naive_edits(list(split(h)), list(split(r))) for h, r in pairs]
    lengths = [len(split(r)) for _, r in pairs]
    rates = [edit / length if length else float(edit > 0) for edit, length in zip(edits, lengths, strict=True)]
    hypotheses, references = [list(side) for side in zip(*pairs, strict=True)]
    utility = mbrace.EditDistance(kind=kind, lowercase=lowercase)
    np.testing.assert_allclose(utility.pairs(hypotheses, references), np.negative(rates), atol=1e-6)
    whole = sum(edits) / sum(lengths) if sum(lengths) else float(sum(edits) > 0)
    assert utility.corpus(hypotheses, references) == pytest.approx(-whole)


# rougeL fmeasure of rouge-score 0.1.2: RougeScorer(["rougeL"]).score(reference, hypothesis)
ROUGE = [
    ("the cat sat on the mat", "a cat sat on mats, the end", 0.6153846153846153),
    ("The quick brown fox!", "the Quick-brown dog", 0.75),
    ("a b c d", "d c b a", 0.25),
    ("Zahlen: 12, 13 und Bäume", "zahlen 12 13 baume b ume", 0.8333333333333333),
    ("a a a b", "a b a", 0.5714285714285715),
    ("", "a", 0.0),
    ("...", "...", 0.0),
    ("中文", "中文", 0.0),
    ("x", "X", 1.0),
]


def test_rouge_l_equals_the_original_package() -> None:
    references, hypotheses, expected = [list(column) for column in zip(*ROUGE, strict=True)]
    np.testing.assert_allclose(mbrace.RougeL().pairs(hypotheses, references), expected, atol=1e-7)
    whole = table_of(mbrace.RougeL(), hypotheses, references)
    np.testing.assert_allclose(np.diagonal(whole), expected, atol=1e-12)


def test_exact_match_compares_the_last_answer() -> None:
    utility = mbrace.ExactMatch(pattern=r"answer is (-?\d+)")
    texts = [
        "So 4; the answer is 12.",
        "The answer is 3? No, the answer is 12",
        "the answer is 3",
        "I do not know",
        "none",
    ]
    assert table_of(utility, texts, texts[:4]).tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0] * 4, [0] * 4]
    assert utility.pairs(texts[:2], texts[1:3]).tolist() == [1, 0]
    assert utility.name == r"exact|case:mixed|numbers|pattern:answer is (-?\d+)"


def test_answers_that_are_found_by_a_pattern_are_compared_by_value_unless_told_otherwise() -> None:
    texts = [f"It is {number}." for number in ("1,000", "1000.0", "1000", "999", "999")]
    pattern = r"(\S*\d)\."
    assert mbrace.decode(texts, utility=mbrace.ExactMatch(pattern=pattern)).text == texts[0]
    assert mbrace.decode(texts, utility=mbrace.ExactMatch(pattern=pattern, numbers=False)).text == texts[3]
    assert mbrace.ExactMatch().answer("1,000") == "1,000"


def test_exact_match_takes_the_group_that_took_part_or_the_whole_match_or_the_whole_text() -> None:
    either = mbrace.ExactMatch(pattern=r"#### (\S+)|\\boxed\{(.*?)\}")
    assert either.answer("#### 7") == either.answer(r"so \boxed{7}") == "7"
    assert mbrace.ExactMatch(pattern=r"[A-D]\b").answer("I choose B") == "B"
    assert mbrace.ExactMatch(pattern="x(y)?").answer("x") is None
    assert mbrace.ExactMatch(lowercase=True).answer(" Yes\n") == "yes"


def test_exact_match_makes_decoding_a_vote() -> None:
    texts = ["2+2=4, so: 4", "it is 5: 5", "by counting: 4", "a guess: 5", "surely: 4"]
    decoded = mbrace.decode(texts, texts, utility=mbrace.ExactMatch(pattern=r": (\d)"))
    assert decoded.index == 0
    assert decoded.utility == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    "utility",
    [mbrace.BLEU(tokenize="intl"), mbrace.TER(), mbrace.EditDistance(kind="wer"), mbrace.EditDistance(),
     mbrace.RougeL(), mbrace.ExactMatch()],
    ids=lambda utility: type(utility).__name__,
)  # fmt: skip
def test_races_and_brute_force_agree(utility: Utility) -> None:
    rng = np.random.default_rng(5)
    texts = [" ".join(rng.choice(list("abcde"), 5)) for _ in range(24)]
    means = table_of(utility, texts[:12], texts[12:]).mean(axis=1)
    decoded = mbrace.decode(texts[:12], texts[12:], utility=utility, prune=None)
    assert decoded.utility == pytest.approx(means.max(), abs=1e-5)
    assert decoded.index == int(means.argmax())
    assert pickle.loads(pickle.dumps(utility)) == utility
    assert isinstance(utility, Utility)


def test_abilities_are_the_written_ones() -> None:
    assert isinstance(mbrace.BLEU(), CorpusUtility)
    assert isinstance(mbrace.BLEU(), ParallelUtility)
    assert isinstance(mbrace.TER(), CorpusUtility)
    assert isinstance(mbrace.EditDistance(), CorpusUtility)
    assert not isinstance(mbrace.ExactMatch(), CorpusUtility)
    assert [isinstance(u, ParallelUtility) for u in (mbrace.EditDistance(), mbrace.RougeL(), mbrace.TER())] == [1, 1, 0]
    assert (mbrace.EditDistance(threads=3).workers, mbrace.EditDistance(threads=3).single_threaded().workers) == (3, 1)


@pytest.mark.parametrize(("make", "package"), [(mbrace.TER, "sacrebleu"), (mbrace.EditDistance, "rapidfuzz")])
def test_a_missing_package_is_named_with_its_extra(make: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{package} is not installed .*mbrace\[strings\]"):
        make()
