"""Tokens by way of words, against the tokenizers themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("torch")
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

from mbrace._native import WordList, join_words  # noqa: E402
from mbrace.neural import tokens as words  # noqa: E402
from mbrace.neural.tokens import WordTokenizer, whole_texts  # noqa: E402

SPECIALS = ["<s>", "</s>", "<unk>", "<pad>"]
TRAINING = ["the cat sat on the mat", "Grüße aus Łódź", "it's 1,000.50 % , really", "東京 大阪", "Привет мир"] * 5
# What tokenizers treat in ways of their own: spaces of all kinds, marks that join the character before them, what
# normalising turns into spaces or other characters, the mark of a word itself, special tokens in a text.
PIECES = [
    " ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u200b", "\u0301", "\u0308", "\u00a8", "\ufb01", "\u2581", "\u2019",
    "the", "cat", "mat", ",", ".", "'s", "1,000", "ß", "É", "İ", "Σ", "я", "ё", "東", "京", "서", "👩‍👧",
    "\u0e01\u0e33", "ع", "<s>", "</s>", "<pad>", "<unk>", "##a", "x" * 120,
]  # fmt: skip
TEXTS = st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=6)


def word_piece() -> Any:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIALS, show_progress=False)
    return trained(tokenizer, trainer)


def unigram(normalizer: Any, pre_tokenizer: Any) -> Any:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False)
    return trained(tokenizer, trainer)


def trained(tokenizer: Any, trainer: Any) -> Any:
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer


def one_space() -> Any:
    return normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])


def split_and_marked() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])


APART = {
    "WordPiece": word_piece(),
    "Unigram, split at spaces": unigram(normalizers.NFKC(), split_and_marked()),
    "Unigram, words marked": unigram(one_space(), pre_tokenizers.Metaspace()),
    "Unigram, not normalised": unigram(None, pre_tokenizers.Metaspace()),
}


@pytest.mark.parametrize("kind", APART)
@settings(max_examples=150, deadline=None)
@given(texts=TEXTS, limit=st.sampled_from([2, 3, 5, 9, 1000]))
def test_tokens_are_those_of_the_tokenizer(kind: str, texts: list[str], limit: int) -> None:
    tokenizer = APART[kind]
    found = WordTokenizer.of(tokenizer)
    assert found is not None
    expected, cut = whole_texts(tokenizer, texts, limit)
    for _ in range(2):  # with no word known, and with all of them known
        tokens, found_cut = found.tokens(texts, limit)
        assert [ids.tolist() for ids in tokens] == [ids.tolist() for ids in expected]
        assert found_cut == cut


def test_tokenizers_that_read_over_spaces_are_left_alone() -> None:
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="first")
    others = [
        unigram(normalizers.NFKC(), metaspace),
        unigram(normalizers.NFKC(), pre_tokenizers.Metaspace(split=False)),
        unigram(normalizers.NFKC(), pre_tokenizers.ByteLevel()),
        unigram(normalizers.Replace("t", "d"), pre_tokenizers.Metaspace()),
        unigram(normalizers.NFKC(), pre_tokenizers.Sequence([metaspace, pre_tokenizers.WhitespaceSplit()])),
        word_piece(),
    ]
    others[-1].add_tokens([AddedToken("New York", normalized=False)])
    assert [WordTokenizer.of(tokenizer) for tokenizer in others] == [None] * len(others)


@pytest.mark.parametrize("failure", [RuntimeError("no"), KeyboardInterrupt()])
def test_words_whose_tokens_were_not_found_are_no_words_yet(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C in a notebook, say, the words of the next texts would have the tokens of others."""
    tokenizer = WordTokenizer.of(word_piece())
    assert tokenizer is not None
    before = [ids.tolist() for ids in tokenizer.tokens(["the cat", "mat sat on"], 100)[0]]

    def fail(texts: object) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(tokenizer, "_encode", fail)
        with pytest.raises(type(failure)):
            tokenizer.tokens(["東京 , really the"], 100)
    usual = WordTokenizer.of(word_piece())
    assert usual is not None
    for texts in (["大阪 мир %"], ["東京 , really the", "it's"]):
        found, expected = (each.tokens(texts, 100)[0] for each in (tokenizer, usual))
        assert [ids.tolist() for ids in found] == [ids.tolist() for ids in expected]
    assert [ids.tolist() for ids in tokenizer.tokens(["the cat", "mat sat on"], 100)[0]] == before


def test_words_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_MOST_WORDS", 30)
    found = WordTokenizer.of(APART["WordPiece"])
    assert found is not None
    for first in range(0, 100, 10):
        texts = [f"cat {number} mat" for number in range(first, first + 10)]
        expected, _ = whole_texts(APART["WordPiece"], texts, 50)
        assert [ids.tolist() for ids in found.tokens(texts, 50)[0]] == [ids.tolist() for ids in expected]
        assert len(found._words) <= 30 + 12


@settings(max_examples=300, deadline=None)
@given(texts=TEXTS)
def test_words_joined_by_spaces_are_the_text(texts: list[str]) -> None:
    listed, known = WordList(), []
    for _ in range(2):
        numbers, counts, new = listed.numbers(texts)
        known += new
        assert len(counts) == len(texts)
        found, begin = [], 0
        for count in counts.tolist():
            found.append(" ".join(known[number] for number in numbers[begin : begin + count].tolist()))
            begin += count
        assert found == texts
        assert begin == len(numbers)
    assert new == []
    assert len(listed) == len(known)


def test_words_are_cut_at_single_spaces_between_characters_that_stand_alone() -> None:
    texts = ["a b  c", " a b ", "é ü", "a \u0301b", "東 京", "a\tb c"]
    listed = WordList()
    numbers, counts, new = listed.numbers(texts)
    # equal words of texts whose characters have other widths have numbers of their own
    assert counts.tolist() == [2, 2, 2, 1, 2, 2]
    assert [new[number] for number in numbers.tolist()] == [
        "a", "b  c", " a", "b ", "é", "ü", "a \u0301b", "東", "京", "a\tb", "c",
    ]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
def test_words_joined_to_texts(threads: int) -> None:
    """By hand: words 0 to 3 are [7], [], [8, 9] and one whose tokens nobody may ask for."""
    ids, begin, size = np.array([7, 8, 9], np.int32), np.array([0, 1, 1, 0]), np.array([1, 0, 2, -1])
    around = np.array([1], np.int32), np.array([2, 3], np.int32)
    numbers, counts = np.array([0, 2, 1, 2, 2], np.int32), np.array([2, 1, 2])
    flat, lengths, cut = join_words(numbers, counts, ids, begin, size, *around, 10, threads)
    assert flat.tolist() == [1, 7, 8, 9, 2, 3, 1, 2, 3, 1, 8, 9, 8, 9, 2, 3]
    assert (lengths.tolist(), cut) == ([6, 3, 7], 0)
    flat, lengths, cut = join_words(numbers, counts, ids, begin, size, *around, 2, threads)
    assert flat.tolist() == [1, 7, 8, 2, 3, 1, 2, 3, 1, 8, 9, 2, 3]
    assert (lengths.tolist(), cut) == ([5, 3, 5], 2)
    assert join_words(numbers, counts, ids, begin, size, *around, 0, threads)[0].tolist() == [1, 2, 3] * 3
    for wrong, message in (
        ({"numbers": np.array([0, 2, 1, 2, 3], np.int32)}, "no tokens"),
        ({"numbers": np.array([0, 2, 1, 2, -1], np.int32)}, "no tokens"),
        ({"numbers": np.array([0, 2, 1, 2, 4], np.int32)}, "no tokens"),
        ({"begin": np.array([0, 1, 2, 0])}, "that there are not"),
        ({"begin": np.array([-1, 1, 1, 0])}, "that there are not"),
        ({"counts": np.array([2, 1, 3])}, "as many numbers"),
        ({"counts": np.array([2, -1, 4])}, "negative"),
        ({"size": np.array([1, 0, 2])}, "equally long"),
    ):
        given: dict[str, Any] = {"numbers": numbers, "counts": counts, "ids": ids, "begin": begin, "size": size} | wrong
        with pytest.raises((IndexError, ValueError), match=message):
            join_words(**given, before=around[0], after=around[1], room=4, threads=threads)
