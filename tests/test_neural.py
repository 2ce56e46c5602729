"""Neural utilities: COMET's scores by the original package, the factored head, batches, and the race over them."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

import mbrace
from mbrace.neural.comet import Comet
from mbrace.neural.device import without_cudnn_attention
from mbrace.neural.encoder import Encoder
from mbrace.neural.head import Estimator, PairBlock
from mbrace.utility import Ask, Sentence

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SCORES = json.loads((Path(__file__).parent / "oracle" / "scores.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("comet"), "xlmr-sparsemax")


@pytest.fixture(scope="module")
def comet(folder: Path) -> Comet:
    return Comet(folder, device="cpu")


@pytest.fixture(scope="module")
def records(demo_rows: list[dict[str, Any]]) -> list[mbrace.Record]:
    """Real candidates, cut to a size that a test can afford; the first sentence has nothing to race for."""
    rows = [
        mbrace.Record(row["hypotheses"][:12], row["pseudo_references"][:40], id=row["id"], source=row["source"])
        for row in demo_rows[:7]
    ]
    return [mbrace.Record(["only one"], ["a", "b"], id="lone", source="eine"), *rows]


def random_head(
    features: int,
    sizes: Sequence[int],
    dtype: torch.dtype,
    units: int = 16,
    activation: torch.nn.Module | None = None,
    device: str = "cpu",
) -> Estimator:
    widths = [features * units, *sizes, 1]
    layers = [
        ((torch.randn(size, width) / width**0.5).to(device, dtype), torch.randn(size).to(device, dtype))
        for width, size in itertools.pairwise(widths)
    ]
    return Estimator(layers, units, activation or torch.nn.Tanh())


def plain(head: Estimator, hypotheses: torch.Tensor, references: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """COMET's `estimate` on the concatenation, in float64, pair by pair."""
    rows = []
    for h in hypotheses.double():
        for r in references.double():
            s = source.double()[0]
            parts = [h, r, h * r, (h - r).abs(), h * s, (h - s).abs()][: head.features]
            x = torch.cat(parts)
            for weight, bias in head.layers[:-1]:
                x = torch.tanh(weight.double() @ x + bias.double())
            weight, bias = head.layers[-1]
            rows.append(weight.double() @ x + bias.double())
    return torch.cat(rows).view(len(hypotheses), len(references))


@pytest.mark.parametrize("features", [4, 6])
@pytest.mark.parametrize("sizes", [(40, 20), (24,), (32, 16, 8)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.08)])
@pytest.mark.parametrize("together", [False, True])
def test_factored_head_is_the_plain_concatenation(
    features: int, sizes: Sequence[int], dtype: torch.dtype, tolerance: float, together: bool
) -> None:
    torch.manual_seed(0)
    head = random_head(features, sizes, dtype)
    blocks, expected = [], []
    for rows, columns in ((5, 7), (1, 3), (70, 2)):
        h, r, s = (torch.randn(n, 16, dtype=dtype) for n in (rows, columns, 1))
        blocks.append(PairBlock(h, r, s if features == 6 else None))
        expected.append(plain(head, h, r, s))
    found = head.score_together(blocks) if together else head.score(blocks)
    for table, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(table.double(), wanted, atol=tolerance, rtol=tolerance)


class Counting:
    """Counts the strings that a utility's encoder is given."""

    def __init__(self, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        embed = encoder.embed

        def counted(texts: Sequence[str]) -> torch.Tensor:
            self.seen.update(texts)
            return embed(texts)

        monkeypatch.setattr(encoder, "embed", counted)


def test_no_string_is_embedded_twice_and_none_after_its_race(
    comet: Comet, records: list[mbrace.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(comet.encoder, monkeypatch)
    answers = list(mbrace.decode_corpus(records, utility=comet, schedule=[4, 8, 16, 40], window=8))
    assert max(counting.seen.values()) == 1
    assert "only one" not in counting.seen  # nothing to race for
    used = sum(answer.pseudo_references for answer in answers[1:])
    offered = sum(len(record.pseudo_references) for record in records[1:])  # type: ignore[arg-type]
    assert used < offered  # else this test could not fail
    hypotheses = {text for record in records[1:] for text in record.hypotheses}
    sources = {record.source for record in records[1:]}
    assert len(counting.seen.keys() - hypotheses - sources) <= used


@pytest.mark.parametrize("variant", ["xlmr-sparsemax", "bert-softmax-norm"])
@pytest.mark.parametrize("prune", [None, mbrace.Confidence()])
def test_window_and_batch_size_change_no_bit(
    variant: str, prune: Any, tmp_path: Path, records: list[mbrace.Record]
) -> None:
    made = tiny.make(tmp_path, variant)
    results = []
    for window, batch_tokens in ((1, None), (3, 64), (64, 100_000)):
        utility = Comet(made, device="cpu", batch_tokens=batch_tokens)
        answers = mbrace.decode_corpus(records, utility=utility, schedule=[4, 8, 16, 40], window=window, prune=prune)
        results.append(list(answers))
    assert results[0] == results[1] == results[2]  # utilities are compared as floats, exactly


def test_threads_change_no_bit(comet: Comet, records: list[mbrace.Record]) -> None:
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(list(mbrace.decode_corpus(records[:3], utility=comet, schedule=[2, 8], prune=None)))
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1]


def test_standard_mbr_is_brute_force_over_pairs(comet: Comet, records: list[mbrace.Record]) -> None:
    record = records[1]
    references = list(record.pseudo_references)  # type: ignore[arg-type]
    answer = mbrace.decode(record.hypotheses, references, utility=comet, prune=None, source=record.source)
    means = [
        comet.pairs([text] * len(references), references, [record.source or ""] * len(references)).mean()
        for text in record.hypotheses
    ]
    assert answer.index == int(np.argmax(means))
    assert answer.utility == pytest.approx(max(means), abs=1e-5)


def test_truncated_strings_are_counted(folder: Path) -> None:
    comet = Comet(folder, device="cpu")
    with pytest.warns(UserWarning, match="36 tokens"):
        comet.pairs(["word " * 50, "short"], ["b", "c " * 60], ["a", "a"])
    assert comet.truncated == 2


def test_a_head_without_memory_for_all_pairs_takes_fewer_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    head = random_head(6, (24, 8), torch.float32)
    vectors, s = torch.randn(60, 16), torch.randn(1, 16)
    block = PairBlock(vectors, vectors, s)
    pairs, most = head.pairs, 200

    def small_only(given: Any, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        if len(rows) > most:
            raise torch.cuda.OutOfMemoryError("no room")
        return pairs(given, rows, columns)

    monkeypatch.setattr(head, "pairs", small_only)
    with pytest.warns(UserWarning, match="out of memory") as caught:
        tables = [*head.score([block]), *head.score([block])]
    assert len(caught) == 1
    for table in tables:
        torch.testing.assert_close(table.double(), plain(head, vectors, vectors, s), atol=1e-5, rtol=1e-5)
    most = 0
    with pytest.raises(mbrace.UserError, match="out of memory for"):
        head.score([block])


def test_the_switch_of_attention_is_put_back_by_the_last_thread() -> None:
    switches = torch.backends.cuda
    assert switches.cudnn_sdp_enabled()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with without_cudnn_attention():
            entered.set()
            leave.wait(120)

    thread = threading.Thread(target=other)
    with without_cudnn_attention():
        thread.start()
        assert entered.wait(120)
    assert not switches.cudnn_sdp_enabled()  # the other thread is inside
    leave.set()
    thread.join()
    assert switches.cudnn_sdp_enabled()


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_scores_are_the_original_packages(variant: str, tmp_path: Path) -> None:
    comet = Comet(tiny.make(tmp_path, variant), device="cpu")
    found = comet.pairs(tiny.HYPOTHESES, tiny.REFERENCES, tiny.SOURCES)
    np.testing.assert_allclose(found, SCORES[variant], atol=1e-5, rtol=0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_a_race_scores_as_the_original_package(variant: str, device: str, tmp_path: Path) -> None:
    """The way of a race: hypotheses prepared, parts of the head shared, sentences together, on a GPU its kernels."""
    comet = Comet(tiny.make(tmp_path, variant), device=device, dtype="float32")
    texts = list(dict.fromkeys([*tiny.HYPOTHESES, *tiny.REFERENCES]))
    scorer = comet.start([Sentence(number, source, texts) for number, source in enumerate(tiny.SOURCES)])
    asks = [Ask(number, np.arange(len(texts)), texts) for number in range(len(tiny.SOURCES))]
    pairs = zip(tiny.HYPOTHESES, tiny.REFERENCES, strict=True)
    places = [(texts.index(hypothesis), texts.index(reference)) for hypothesis, reference in pairs]
    found = [table[place] for table, place in zip(scorer.score(asks), places, strict=True)]
    np.testing.assert_allclose(found, SCORES[variant], atol=1e-5 if device == "cpu" else 1e-4, rtol=0)


def test_the_scores_are_of_the_version_we_name() -> None:
    assert SCORES["unbabel-comet"] == "2.2.7"
