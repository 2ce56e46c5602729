"""The kernel itself: variants, threads, lifetimes, bad calls, and the bootstrap's counts."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sacrebleu.metrics import CHRF

from mbrace import _native

DEFAULT = {"char_order": 6, "word_order": 2, "whitespace": False}


def sentences(count: int, seed: int) -> list[str]:
    """Texts in all three string layouts, of many lengths, with many repeated n-grams."""
    rng = random.Random(seed)
    words = ["a", "aa", "aba", "(ab)", "über", "naïve", "the", "of", "Zug.", "αβγ", "中文", "😀", "x" * 90]
    return [" ".join(rng.choices(words, k=rng.choice([0, 1, 3, 20, 60]))) for _ in range(count)]


def scores(
    hypotheses: list[str],
    references: list[str],
    *,
    threads: int = 1,
    simd: str = "",
    eps: bool = False,
    options: dict[str, Any] = DEFAULT,
) -> NDArray[np.float32]:
    indexes = _native.build_indexes([hypotheses], **options, threads=threads)
    chosen = [np.arange(len(hypotheses))]
    return _native.score_window(indexes, chosen, [references], beta=2.0, eps_smoothing=eps, threads=threads, simd=simd)[
        0
    ][0]


@pytest.mark.parametrize("simd", _native.simd_variants())
@pytest.mark.parametrize("eps", [False, True])
def test_every_instruction_set_gives_the_same_bits(simd: str, eps: bool) -> None:
    hypotheses, references = sentences(37, 1), sentences(43, 2)
    portable = scores(hypotheses, references, simd="portable", eps=eps)
    assert portable.std() > 5
    assert scores(hypotheses, references, simd=simd, eps=eps).tobytes() == portable.tobytes()


def test_threads_change_no_bit() -> None:
    hypotheses, references = sentences(30, 3), sentences(200, 4)
    alone = scores(hypotheses, references)
    assert scores(hypotheses, references, threads=4).tobytes() == alone.tobytes()


def test_window_equals_its_sentences_one_by_one() -> None:
    texts = [sentences(count, seed) for seed, count in enumerate([3, 1, 17, 40])]
    others = [sentences(count, seed) for seed, count in enumerate([9, 0, 33, 5], start=10)]
    indexes = _native.build_indexes(texts, **DEFAULT, threads=3)
    chosen = [np.arange(len(own)) for own in texts]
    window, share = _native.score_window(indexes, chosen, others, beta=2.0, eps_smoothing=False, threads=3)
    assert 0 < share < 1
    for own, other, got in zip(texts, others, window, strict=True):
        assert got.shape == (len(own), len(other))
        assert got.tobytes() == scores(own, other).tobytes()


def test_score_does_not_depend_on_the_other_hypotheses_and_references() -> None:
    hypotheses, references = sentences(12, 5), sentences(13, 6)
    together = scores(hypotheses, references)
    for i, hypothesis in enumerate(hypotheses):
        for j, reference in enumerate(references):
            assert scores([hypothesis], [reference])[0, 0] == together[i, j]


def test_real_beams_score_as_each_pair_alone(demo_rows: list[dict[str, Any]]) -> None:
    """Hypotheses that begin and repeat alike in every way that beams do; sacreBLEU's scores of pairs: test_chrf.py."""
    for row in demo_rows[::4]:
        hypotheses, references = list(dict.fromkeys(row["hypotheses"])), row["pseudo_references"][:6]
        pairs = [(h, r) for h in hypotheses for r in references]
        alone, _ = _native.score_pairs(
            [h for h, _ in pairs], [r for _, r in pairs], **DEFAULT, beta=2.0, eps_smoothing=False
        )
        assert scores(hypotheses, references).tobytes() == alone.tobytes()


@pytest.mark.parametrize("longest", [0, 70_000])
@pytest.mark.parametrize("options", [DEFAULT, {"char_order": 8, "word_order": 3, "whitespace": True}])
def test_many_hypotheses_score_as_each_alone(longest: int, options: dict[str, Any]) -> None:
    """More than 256, so in two blocks, with or without a long text among them."""
    rng = random.Random(11)
    hypotheses = [f"{text} {rng.choice('abc')}{i}x {i % 50} {i % 17}" for i, text in enumerate(sentences(400, 12))]
    hypotheses.append("ab " * (longest // 3))
    references = [*sentences(12, 13), *rng.sample(hypotheses[:-1], 12), "a1x b2x c3x 17 17 1"]
    together = scores(hypotheses, references, options=options)
    for simd in _native.simd_variants():
        assert scores(hypotheses, references, options=options, simd=simd).tobytes() == together.tobytes()
    for i in [*range(0, 400, 23), 400]:
        assert scores([hypotheses[i]], references, options=options).tobytes() == together[i].tobytes()


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_survivors_score_as_in_the_full_table(data: st.DataObject) -> None:
    """Few survivors are counted by bytes, many by bits, and more than 256 hypotheses in blocks: the same bits."""
    options = {
        "char_order": data.draw(st.sampled_from([0, 1, 2, 3, 6, 8])),
        "word_order": data.draw(st.integers(1, 3)),
        "whitespace": data.draw(st.booleans()),
    }
    beta, eps = data.draw(st.sampled_from([0.0, 1.0, 2.0, 3.5])), data.draw(st.booleans())
    simd = data.draw(st.sampled_from(_native.simd_variants()))
    seed = data.draw(st.integers(0, 99))
    hypotheses = sentences(data.draw(st.sampled_from([3, 40, 270, 530])), seed)
    references = sentences(data.draw(st.sampled_from([1, 7, 40])), seed + 100)
    size = data.draw(st.integers(1, min(36, len(hypotheses))))
    chosen = np.array(random.Random(seed).sample(range(len(hypotheses)), size))
    indexes = _native.build_indexes([hypotheses], **options)
    full, some = (
        _native.score_window(indexes, [rows], [references], beta=beta, eps_smoothing=eps, simd=simd)[0][0]
        for rows in (np.arange(len(hypotheses)), chosen)
    )
    assert some.tobytes() == full[chosen].tobytes()
    row, column = chosen[0], len(references) - 1
    alone = _native.build_indexes([[hypotheses[row]]], **options)
    pair = _native.score_window(alone, [np.arange(1)], [references[-1:]], beta=beta, eps_smoothing=eps)[0][0]
    assert pair[0, 0] == full[row, column]


@pytest.mark.parametrize("orders", [(0, 1), (0, 2), (0, 4), (1, 1), (4, 3), (6, 2), (9, 0), (9, 4)])
def test_nothing_is_left_over_from_the_text_before(orders: tuple[int, int]) -> None:
    """Long and short texts in turns, by the same thread: each scores as it does alone."""
    options = {"char_order": orders[0], "word_order": orders[1], "whitespace": False}
    texts = [" ".join(["ab", "c", "ab."] * 40)[:length] for length in (200, 1, 90, 0, 47, 50, 53, 34, 160, 17, 60)]
    together = scores(texts, texts, options=options)
    pairs = [(text, other) for text in texts for other in texts]
    alone, _ = _native.score_pairs(
        [h for h, _ in pairs], [r for _, r in pairs], **options, beta=2.0, eps_smoothing=False
    )
    for i, (hypothesis, reference) in enumerate(pairs):
        single = scores([hypothesis], [reference], options=options)[0, 0]
        assert together.flat[i] == alone[i] == single, (hypothesis, reference)
        oracle = CHRF(char_order=orders[0], word_order=orders[1]).sentence_score(hypothesis, [reference]).score
        assert abs(single - oracle) < 1e-4


def test_scores_outlive_the_index_and_the_strings() -> None:
    got = scores(sentences(5, 7), sentences(5, 8))
    copy = got.copy()
    gc.collect()
    sentences(500, 9)
    assert (got == copy).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_empty_sides_give_empty_tables(threads: int) -> None:
    assert scores(["a"], [], threads=threads).shape == (1, 0)
    assert scores([], ["a"], threads=threads).shape == (0, 1)


def made(**changes: Any) -> list[_native.ChrFIndex]:
    return _native.build_indexes(changes.pop("texts", [["a", "b"]]), **(DEFAULT | changes))


def scored(rows: list[int], references: Any = ("a",), **changes: Any) -> Any:
    options = {"beta": 2.0, "eps_smoothing": False} | changes
    return _native.score_window(made(), [np.array(rows)] if rows else [], [references], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: scored([2]), IndexError, "survivor"),
        (lambda: scored([-1]), IndexError, "survivor"),
        (lambda: made(texts=[["a", 1]]), TypeError, "str"),
        (lambda: scored([0], [b"a"]), TypeError, "str"),
        (lambda: scored([]), ValueError, "equally long"),
        (lambda: _native.score_pairs(["a"], [], **DEFAULT, beta=2.0, eps_smoothing=False), ValueError, "equally long"),
        (lambda: made(char_order=0, word_order=0), ValueError, "order"),
        (lambda: made(char_order=-1), ValueError, "order"),
        (lambda: made(char_order=25, word_order=0), ValueError, "order"),
        (lambda: scored([0], simd="mmx"), ValueError, "portable"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_index_reports_its_memory() -> None:
    small, large = _native.build_indexes([sentences(2, 1), sentences(200, 1)], **DEFAULT)
    assert len(large) == 200
    assert 0 < small.nbytes < large.nbytes
    texts = ["".join(text.split()) for text in sentences(200, 1)]
    sixgrams = {text[i : i + 6] for text in texts for i in range(len(text) - 5)}
    assert large.nbytes >= len(sixgrams) * 256 / 8  # a bit for each of up to 256 hypotheses


@given(st.lists(st.text(alphabet="aβ中😀\ud800 ", max_size=20), max_size=300))
def test_distinct_strings_are_those_of_a_dictionary(texts: list[str]) -> None:
    copies = [text[:1] + text[1:] for text in texts]  # equal, and not the same objects
    assert _native.distinct(texts + copies) == list(dict.fromkeys(texts))
    tally = _native.Tally(2)
    new = [tally.draw(texts[first : first + 7]) for first in range(0, len(texts), 7)]
    assert [text for step in new for text in step] == list(dict.fromkeys(texts))
    assert tally.counts.tolist() == list(Counter(texts).values())
    assert tally.draws == len(texts)


def test_what_others_keep_to_the_end_of_a_program_is_not_reported_as_a_leak() -> None:
    program = "import ctypes, mbrace._native as native; kept = native.Resamples(0, 2, 2)\n"
    program += "ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stderr == ""


WITHOUT_THREADS = """
import resource, sys, threading
import numpy as np
from mbrace import _native

pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**26,) * 2)
try:
    threading.Thread(target=print).start()
except RuntimeError:
    print("no thread can be started")
texts = [[f"{word} {i}" for i in range(20)] for word in ("a", "b", "c")]
for threads in (1, 8):
    indexes = _native.build_indexes(texts, char_order=6, word_order=2, whitespace=False, threads=threads)
    chosen = [np.arange(20)] * 3
    tables, _ = _native.score_window(indexes, chosen, texts, beta=2.0, eps_smoothing=False, threads=threads)
    print(b"".join(table.tobytes() for table in tables).hex())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_that_cannot_be_started_are_done_without() -> None:
    """A thread's stack of 1 GiB does not fit the address space that is left."""
    program = ["bash", "-c", 'ulimit -S -s 1048576 && exec "$0" -c "$1"', sys.executable, WITHOUT_THREADS]
    ended = subprocess.run(program, capture_output=True, text=True, check=True)
    refused, alone, many = ended.stdout.splitlines()
    assert refused == "no thread can be started"
    assert alone == many
