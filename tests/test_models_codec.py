"""Ids to texts: native code writes what SentencePiece and transformers' Marian tokenizer write."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mbrace._native import Pieces

pytest.importorskip("sentencepiece")
pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from mbrace.models.marian_network import load_bundled  # noqa: E402
from mbrace.models.tokenizers import (  # noqa: E402
    MarianCodec,
    Vocabulary,
    VocabularyCodec,
    texts_of,
)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_bundled()[1]


def padded(rows: list[list[int]], extra: int = 3) -> Any:
    table = np.full((len(rows), max(map(len, rows), default=0) + extra), -1, dtype=np.int32)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


def one_by_one(vocabulary: Vocabulary, row: list[int]) -> str:
    """SentencePiece's own text of one row."""
    return str(vocabulary.processor.decode([n for n in row if 0 < n < vocabulary.pad])).strip()


def random_rows(vocabulary: Vocabulary, count: int) -> list[list[int]]:
    """Real pieces, and many odd ones: bytes that make characters or none, <unk>, the end, padding, ids beyond."""
    spm, rng = vocabulary.processor, random.Random(5)
    bytes_at = {int(spm.id_to_piece(n)[3:5], 16): n for n in range(vocabulary.pad) if spm.is_byte(n)}
    assert len(bytes_at) == 256
    rows: list[list[int]] = [[], [0], [1], [1, 1, 0], [vocabulary.pad], [vocabulary.pad + 7, 300, 2**31 - 1]]
    written = ["é", "中", "😀", "\u00a0", "\u2028", "\u3000", "\ud7ff", "\ue000", "▁", "\x1f", "\t", "�"]
    unwritten = [b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe4\xb8", b"\xff", b"\x80\x80", b"\xf0\x9f\x98"]
    for _ in range(count):
        row = []
        for _ in range(rng.randrange(12)):
            kind = rng.randrange(8)
            if kind < 3:
                row.append(rng.randrange(vocabulary.pad))
            elif kind < 5:
                row += [bytes_at[byte] for byte in rng.choice([*(text.encode() for text in written), *unwritten])]
            elif kind == 5:
                row.append(bytes_at[rng.randrange(256)])
            elif kind == 6:
                row.append(rng.choice([0, 1, vocabulary.pad, vocabulary.pad + 1]))
            else:
                row += spm.encode("▁ " * rng.randrange(3) + "Haus  am  See")
        rows.append(row)
    return rows


def test_native_texts_are_those_of_sentencepiece(vocabulary: Vocabulary) -> None:
    rows = random_rows(vocabulary, 4000)
    rows += [row for n in range(vocabulary.pad) for row in ([n], [300, n, 301])]  # alone, and after another
    codec = VocabularyCodec(vocabulary)
    assert codec.pieces is not None
    expected = [one_by_one(vocabulary, row) for row in rows]
    assert any("�" in text for text in expected)
    assert any("⁇" in text for text in expected)
    assert texts_of(codec, padded(rows)) == expected == codec.decode(rows)
    for threads in (1, 2, 5):
        assert codec.pieces.texts(padded(rows), threads=threads) == expected


def test_equal_rows_are_one_string_and_no_rows_are_none(vocabulary: Vocabulary) -> None:
    codec = VocabularyCodec(vocabulary)
    first, second, third = texts_of(codec, padded([[300, 301, 0], [302, 0], [300, 301, 0]]))
    assert first is third
    assert first != second
    assert texts_of(codec, padded([])) == []
    assert texts_of(codec, np.empty((2, 0), dtype=np.int32)) == ["", ""]
    wide = padded([[300, 301, 302], [303, 304, 305]])
    assert texts_of(codec, wide[:, ::2]) == [one_by_one(vocabulary, row) for row in ([300, 302], [303, 305])]


def test_pieces_are_not_used_where_one_alone_is_written_otherwise(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = VocabularyCodec.decode
    monkeypatch.setattr(VocabularyCodec, "decode", lambda self, rows: [t.upper() for t in decode(self, rows)])
    codec = VocabularyCodec(vocabulary)
    assert codec.pieces is None
    rows = random_rows(vocabulary, 300)
    assert texts_of(codec, padded(rows)) == [one_by_one(vocabulary, row).upper() for row in rows]


@pytest.mark.parametrize("separate", [False, True])
def test_marian_texts_are_those_of_its_tokenizer(tmp_path: Path, vocabulary: Vocabulary, separate: bool) -> None:
    """A tokenizer whose numbers are not SentencePiece's, without bytes and with pieces that SentencePiece has not."""
    vocabulary = Vocabulary.train([f"das Haus {n} ist schön, ja {n * 37 % 101}" for n in range(300)], 300)
    spm = vocabulary.processor
    vocabulary.save(tmp_path)
    pieces = [spm.id_to_piece(n) for n in range(vocabulary.pad) if not spm.is_byte(n)]
    random.Random(1).shuffle(rest := [*pieces[2:], "▁extra", "▁▁zwei▁"])
    numbers = {piece: number for number, piece in enumerate(["</s>", "<unk>", *rest, "<pad>"])}
    for name in ("vocab.json", "target_vocab.json") if separate else ("vocab.json",):
        (tmp_path / name).write_text(json.dumps(numbers), encoding="utf-8")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["separate_vocabs"] = separate
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path)
    codec = MarianCodec.of(tokenizer)
    assert codec.pieces is not None
    texts = ["das Haus 7 ist schön", "", ">>est<< ja", "ganz 中 unbekannt", "  zwei  Wörter "]
    assert codec.encode(texts) == [tokenizer(text)["input_ids"] for text in texts]
    read = MarianCodec.read(tmp_path)
    assert read.encode(texts) == codec.encode(texts)
    assert MarianCodec.read(tmp_path, ">>est<< ").encode(texts) == codec.encode([f">>est<< {text}" for text in texts])
    rng = random.Random(2)
    rows = [[rng.randrange(len(numbers) + 2) for _ in range(rng.randrange(9))] for _ in range(2000)]
    assert texts_of(codec, padded(rows)) == codec.decode(rows)
    known = [[n for n in row if n < len(numbers)] for row in rows]
    theirs = [tokenizer.decode(row, skip_special_tokens=True).strip() for row in known]
    assert texts_of(codec, padded(known)) == texts_of(read, padded(known)) == theirs


def test_marian_with_bytes_is_left_to_sentencepiece(tmp_path: Path, vocabulary: Vocabulary) -> None:
    vocabulary.save(tmp_path)
    codec = MarianCodec.of(transformers.MarianTokenizer.from_pretrained(tmp_path))
    assert codec.pieces is None
    rows = [[n for n in row if n < len(vocabulary)] for row in random_rows(vocabulary, 200)]
    assert texts_of(codec, padded(rows)) == codec.decode(rows)


@pytest.mark.parametrize(
    ("texts", "bytes_of", "error", "message"),
    [
        (["a"], [], ValueError, "a text and a byte for each id"),
        (["a"], [256], ValueError, "0 to 255"),
        (["\ud800"], [-1], UnicodeEncodeError, "surrogates"),
        ([b"a"], [-1], TypeError, None),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    texts: Any, bytes_of: list[int], error: type[Exception], message: str | None
) -> None:
    with pytest.raises(error, match=message):
        Pieces(texts, bytes_of)
