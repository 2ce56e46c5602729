"""`mbrace judge` before it serves: pairing, arranging and marking texts."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_server import write_jsonl

from mbrace.errors import UserError
from mbrace.judge.items import Piece, PredictionPair, arrange, differences, pieces, read_prediction_pairs, sample


def test_pairs_come_by_id_and_equal_ones_are_counted(tmp_path: Path) -> None:
    a = write_jsonl(tmp_path / "a.jsonl", [{"id": n, "text": t} for n, t in ((1, "one"), (2, "two"), (3, "three"))])
    b = write_jsonl(tmp_path / "b.jsonl", [{"id": n, "text": t} for n, t in ((3, "drei"), (1, "one "), (2, "zwei"))])
    s = write_jsonl(tmp_path / "s.jsonl", [{"id": n, "source": f"s{n}", "hypotheses": ["x"]} for n in (0, 3, 2, 1)])
    pairs = read_prediction_pairs(a, b, s)
    assert (pairs.total, pairs.equal) == (3, 1)  # "one " and "one" look the same
    assert pairs.different == [PredictionPair("2", "s2", "two", "zwei"), PredictionPair("3", "s3", "three", "drei")]


def test_plain_gzipped_lines_are_paired_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("eins\nzw\u2028ei\n".encode()))
    (tmp_path / "b.txt").write_text("eins\r\n\r\n", newline="")
    (tmp_path / "s.txt").write_text("one\ntwo\n")
    pairs = read_prediction_pairs(*(str(tmp_path / name) for name in ("a.txt.gz", "b.txt", "s.txt")))
    assert (pairs.equal, pairs.different) == (1, [PredictionPair("2", "two", "zw\u2028ei", "")])


def test_pairs_are_read_from_parquet_too(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {"id": [2, 1], "text": ["zwei", "eins"], "survivors": [[1], [2]]}
    parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    b = write_jsonl(tmp_path / "b.jsonl", [{"id": "1", "text": "one"}, {"id": "2", "text": "zwei"}])
    parquet.write_table(pyarrow.table({"id": [1, 2], "source": ["s1", "s2"]}), tmp_path / "s.parquet")
    pairs = read_prediction_pairs(str(tmp_path / "a.parquet"), b, str(tmp_path / "s.parquet"))
    assert (pairs.equal, pairs.different) == (1, [PredictionPair("1", "s1", "eins", "one")])
    with pytest.raises(UserError, match=r"s\.parquet:1: text: missing; give records with a string `text`"):
        read_prediction_pairs(str(tmp_path / "s.parquet"), b, b)


def test_a_study_is_recognised_by_the_digest_it_always_had(tmp_path: Path) -> None:
    a = write_jsonl(tmp_path / "a.jsonl", [{"id": 1, "text": "\ud83d"}, {"id": "x", "text": "two"}])
    (tmp_path / "s.txt").write_text("\ufeffone\ntwo\n", encoding="utf-8")
    expected = [[["1", "x"], ["\ufffd", "two"]], [None, ["one", "two"]]]
    digests = read_prediction_pairs(a, a, str(tmp_path / "s.txt")).digests
    hashed = [hashlib.sha256(json.dumps(e, ensure_ascii=False, separators=(",", ":")).encode()) for e in expected]
    assert [digests["A"], digests["source"]] == [h.hexdigest() for h in hashed]


def test_half_a_surrogate_pair_is_replaced_so_that_it_can_be_stored_and_shown(tmp_path: Path) -> None:
    for name, text in (("a.jsonl", r'{"text": "\ud83d"}'), ("b.jsonl", r'{"text": "\ud83d\ude00"}'), ("s.txt", "s")):
        (tmp_path / name).write_text(text)
    pairs = read_prediction_pairs(*(str(tmp_path / name) for name in ("a.jsonl", "b.jsonl", "s.txt")))
    assert pairs.different == [PredictionPair("1", "s", "\ufffd", "\U0001f600")]


def test_sample_depends_on_the_seed_alone_and_keeps_all_when_few() -> None:
    items = [PredictionPair(str(n), "", "a", "b") for n in range(100)]
    assert sample(items, 10, 3) == sample(items, 10, 3) != sample(items, 10, 4)
    assert len(set(sample(items, 10, 3))) == 10
    assert sample(items, 125, 3) == sample(items, None, 3) == items


@given(count=st.integers(1, 60), seed=st.integers(0, 2**40), rater=st.integers(1, 50))
def test_each_rater_sees_every_item_once_and_each_system_on_both_sides_alike(count: int, seed: int, rater: int) -> None:
    turns = arrange(count, seed, rater)
    assert sorted(item for item, _ in turns) == list(range(count))
    assert abs(2 * sum(a_left for _, a_left in turns) - count) <= 1
    assert turns == arrange(count, seed, rater)


def test_raters_get_different_orders_and_sides() -> None:
    orders = [[item for item, _ in arrange(50, 0, rater)] for rater in range(1, 9)]
    sides = [dict(arrange(50, 0, rater)) for rater in range(1, 9)]
    assert len({tuple(order) for order in orders}) == 8
    assert all(len({side[item] for side in sides}) == 2 for item in range(5))


def test_words_or_chinese_characters_that_differ_are_marked_and_common_ones_are_not() -> None:
    left, right = differences("The old cat sat down.", "The cat sat right here.")
    assert [(piece.text, piece.changed) for piece in left] == [
        ("The ", False), ("old", True), (" cat sat ", False), ("down", True), (".", False),
    ]  # fmt: skip
    assert [piece.text for piece in right if piece.changed] == ["right here"]
    left, _ = differences("我喜欢猫", "我讨厌猫")
    assert [piece.text for piece in left if piece.changed] == ["喜欢"]


def test_characters_that_reorder_or_hide_text_are_shown_by_name() -> None:
    assert pieces("a\u202eb\x00") == [
        Piece("a"), Piece("U+202E", control=True), Piece("b"), Piece("U+0000", control=True),
    ]  # fmt: skip
    assert pieces("می\u200cروم\tx\ny") == [Piece("می\u200cروم\tx\ny")]  # the joiner belongs to Persian spelling


@given(st.text(max_size=60), st.text(max_size=60))
def test_nothing_is_added_to_a_text_or_lost_by_marking_it(left: str, right: str) -> None:
    for text, shown in zip((left, right), differences(left, right), strict=True):
        assert "".join(chr(int(p.text[2:], 16)) if p.control else p.text for p in shown) == text


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_unmarked_words_are_a_common_subsequence(left: list[str], right: list[str]) -> None:
    kept = [
        "".join(p.text for p in side if not p.changed).split() for side in differences(" ".join(left), " ".join(right))
    ]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(("count", "kept"), [(400, "a"), (5000, "w{n}")])  # otherwise 3 and 18 seconds for each view
def test_texts_of_few_words_or_many_changes_are_not_compared_word_by_word(count: int, kept: str) -> None:
    left, right = (f"start {' '.join(f'{name}{n} {kept.format(n=n)}' for n in range(count))} end" for name in "uv")
    for side, name in zip(differences(left, right), "uv", strict=True):
        assert [piece.changed for piece in side] == [False, True, False]
        assert side[1].text.startswith(f"{name}0 {kept.format(n=0)} {name}1 ")


def test_answers_bring_their_prompts_and_ids_of_any_kind(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    rows: list[dict[str, object]] = [
        {"id": 1, "prompt": "What?", "text": "one"},
        {"id": "1", "messages": turns, "text": "two"},
        {"prompt": "Why?", "text": "three"},
    ]
    a = write_jsonl(tmp_path / "a.jsonl", rows)
    b = write_jsonl(tmp_path / "b.jsonl", [row | {"text": f"{row['text']}!"} for row in rows])
    pairs = read_prediction_pairs(a, b)
    assert pairs.are_answers
    wanted = [("1", "What?", "one"), ("'1'", "Who?", "two"), ("3", "Why?", "three")]
    assert [(pair.id, pair.source, pair.a) for pair in pairs.different] == wanted
    s = write_jsonl(tmp_path / "s.jsonl", [{"id": 1, "text": "one", "source": "eins"}])
    assert not read_prediction_pairs(s, s, s).are_answers
    with pytest.raises(UserError, match=r"s\.jsonl: no file of answers with their prompts; give source=\"FILE\""):
        read_prediction_pairs(s, s)
