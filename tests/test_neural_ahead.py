"""Strings encoded ahead: the same vectors, each string once, and nothing that no race asks for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import mbrace  # noqa: E402
from mbrace.models.hypotheses import Hypothesiser  # noqa: E402
from mbrace.utilities.neural.ahead import EncodedAhead  # noqa: E402
from mbrace.utilities.neural.device import without_cudnn_attention  # noqa: E402
from mbrace.utilities.neural.head import Cosine  # noqa: E402
from mbrace.utilities.neural.scorer import Bank, NeuralUtility  # noqa: E402

CPU = torch.device("cpu")


class Letters:
    """An encoder by hand: how often a, b, c and d are in a string. It notes what it encodes, and on which thread."""

    device, truncated = CPU, 0

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.threads: set[str] = set()

    def embed(self, texts: Sequence[str]) -> Any:
        self.seen += texts
        self.threads.add(threading.current_thread().name.split("_")[0])
        return torch.tensor([[float(text.count(letter)) for letter in "abcd"] for text in texts])


class Cosines(NeuralUtility):
    name, needs_source, head = "cosines", False, Cosine()

    def __init__(self) -> None:
        self.encoder = Letters()


def test_what_was_begun_is_taken_and_the_rest_is_encoded() -> None:
    encoder = Letters()
    ahead = EncodedAhead(encoder.embed, CPU)
    ahead.begin(["ab", "a", "ab"])
    ahead.begin(["cd", "never asked for"])
    bank = Bank(encoder, ahead)
    bank.add(["b", "a", "cd", "d", "ab", "a"])
    assert sorted(encoder.seen) == sorted(["ab", "a", "cd", "never asked for", "b", "d"])
    assert bank[bank.numbers(["ab", "d", "cd", "a", "b"])].tolist() == [
        [1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0],
    ]  # fmt: skip
    bank.add(["a", "cd"])
    assert len(encoder.seen) == 6
    Bank(encoder, ahead).add(["a"])  # the next window's: what was taken is not kept
    assert encoder.seen[6:] == ["a"]


def test_groups_that_nobody_asks_for_are_dropped() -> None:
    encoder = Letters()
    ahead = EncodedAhead(encoder.embed, CPU)
    for number in range(10):
        ahead.begin([f"{number}"])
    assert list(ahead.take(["0", "5"])) == []
    assert [texts for texts, _ in ahead.take(["6", "9"])] == [["6"], ["9"]]


def test_an_error_in_the_thread_reaches_whoever_asks() -> None:
    def fails(texts: Sequence[str]) -> Any:
        raise mbrace.UserError("no such thing")

    ahead = EncodedAhead(fails, CPU)
    ahead.begin(["a"])
    with pytest.raises(mbrace.UserError, match="no such thing"):
        list(ahead.take(["a"]))


@pytest.mark.parametrize("threaded", [False, True])
def test_answers_and_strings_are_the_same(threaded: bool) -> None:
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcd"), 9)) for _ in range(120)]
    records = [mbrace.Record(texts[i : i + 20], texts[i + 20 : i + 40], id=i) for i in (0, 40, 80)]
    plain = Cosines()
    expected = list(mbrace.decode_corpus(records, utility=plain))
    utility = Cosines()
    if threaded:  # as on a GPU
        utility._ahead = EncodedAhead(utility.encoder.embed, CPU)
        utility._ahead.begin([text for record in records for text in record.hypotheses])
    else:
        utility.encode_ahead([text for record in records for text in record.hypotheses])
        assert utility.encoder.seen == []  # on a CPU nothing is begun
    assert list(mbrace.decode_corpus(records, utility=utility)) == expected
    assert sorted(utility.encoder.seen) == sorted(plain.encoder.seen)
    assert ("encode-ahead" in utility.encoder.threads) == threaded


def test_hypotheses_that_do_not_race_are_not_begun() -> None:
    begun: list[str] = []
    made = {"one": ["x"], "equal": ["y", "y"], "two": ["a", "b"], "none": []}
    hypotheses = Hypothesiser(lambda sources, ids: [made[source] for source in sources], begin=begun.extend)
    records = list(hypotheses.records(list(made)))
    assert begun == []  # nothing is made before it is looked at
    assert [list(record.hypotheses) for record in records] == list(made.values())
    assert begun == ["a", "b"]


def test_the_switch_of_attention_is_put_back_by_the_last_thread() -> None:
    switches = torch.backends.cuda
    assert switches.cudnn_sdp_enabled()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with without_cudnn_attention():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with without_cudnn_attention():
        thread.start()
        assert entered.wait(10)
    assert not switches.cudnn_sdp_enabled()  # the other thread is inside
    leave.set()
    thread.join()
    assert switches.cudnn_sdp_enabled()
