"""Beam search whose paths share states of the decoder, against a naive transcription and plain beam search."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models as tiny
import torch

import mbrace
from mbrace.errors import UserError
from mbrace.models import beam_search, search
from mbrace.models.beam_search import RECOMBINED

SOURCES = ["a b c", "d d a b", "c"]


def naive(
    model: Any, source: str, *, k: int, states: int, longest: int, alpha: float, alike: int = RECOMBINED
) -> list[tuple[float, str]]:
    """Scores and texts, best first. A path is its score, its ids, and the ids that the decoder sees in their place."""
    encoded = torch.tensor([tiny.tokenizer()(source)["input_ids"]])

    def logprobs(seen: tuple[int, ...]) -> list[float]:
        start = torch.tensor([[model.config.decoder_start_token_id, *seen]])
        with torch.no_grad():
            logits = model(input_ids=encoded, decoder_input_ids=start).logits[0, -1]
        return torch.log_softmax(logits.float(), -1).tolist()

    Open = tuple[float, tuple[int, ...], tuple[int, ...]]
    paths: list[Open] = [(0.0, (), ())]
    done: list[tuple[float, tuple[int, ...]]] = []
    for time in range(longest):
        known = {seen: logprobs(seen) for _, _, seen in paths}
        longer = [
            (score + logprob, (*ids, number), (*seen, number))
            for score, ids, seen in paths
            for number, logprob in enumerate(known[seen])
            if logprob > -math.inf
        ]
        best = sorted(longer, reverse=True)[: 2 * k]
        ending = [path[1][-1] == tiny.EOS or time + 1 == longest for path in best]
        finished = [(best[i][0] / (time + 1) ** alpha, best[i][1]) for i in range(min(k, len(best))) if ending[i]]
        done = sorted(done + finished, reverse=True)[:k]
        left = [path for path, ended in zip(best, ending, strict=True) if not ended][:k]
        if not left or (len(done) == k and done[-1][0] >= left[0][0] / (time + 1) ** alpha):
            break
        seen_by: dict[tuple[int, ...], tuple[int, ...]] = {}
        paths = []
        for score, ids, seen in left:
            key = ids[-alike:]
            if key not in seen_by and len(seen_by) == states:
                continue  # no state is left for it
            paths.append((score, ids, seen_by.setdefault(key, seen)))
    return [(score, tiny.text_of(ids)) for score, ids in done]


@pytest.mark.parametrize(("k", "states"), [(8, 3), (12, 5), (12, 1), (20, 6)])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_paths_that_end_alike_share_a_state_as_in_a_naive_transcription(k: int, states: int, alpha: float) -> None:
    model = tiny.marian(seed=k)
    translator = mbrace.Seq2Seq(model, tokenizer=tiny.tokenizer(), dtype="float32")
    found = translator.beam(SOURCES, k=k, states=states, alpha=alpha, max_length=9)
    for source, outputs in zip(SOURCES, found, strict=True):
        expected = naive(model, source, k=k, states=states, longest=9, alpha=alpha)
        assert list(outputs.texts) == [text for _, text in expected]
        assert outputs.scores == pytest.approx([score for score, _ in expected], abs=1e-4)


@pytest.mark.parametrize("recombine", [1, 2, 3, 4])
@pytest.mark.parametrize("states", [None, 7])
def test_the_number_of_ids_in_common_can_be_chosen(recombine: int, states: int | None) -> None:
    model = tiny.marian(seed=recombine)
    translator = mbrace.Seq2Seq(model, tokenizer=tiny.tokenizer(), dtype="float32")
    found = translator.beam(SOURCES, k=20, states=states, recombine=recombine, max_length=9)
    for source, outputs in zip(SOURCES, found, strict=True):
        expected = naive(model, source, k=20, states=states or 20, longest=9, alpha=1.0, alike=recombine)
        assert list(outputs.texts) == [text for _, text in expected]
        assert outputs.scores == pytest.approx([score for score, _ in expected], abs=1e-4)


@pytest.mark.parametrize("recombine", [0, 5, 1.5])
def test_a_number_of_ids_in_common_that_cannot_be_is_refused(recombine: Any) -> None:
    translator = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer())
    with pytest.raises(UserError, match=f"recombine {recombine}: "):
        translator.beam(SOURCES, recombine=recombine)


@pytest.mark.parametrize("options", [{}, {"recombine": 2}])
def test_a_source_whose_scores_are_no_numbers_takes_nothing_from_the_others(
    options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer(), dtype="float32")
    expected = translator.beam(SOURCES, k=6, max_length=12, **options)
    start = translator.decoder.start

    def broken(memory: Any, width: int, most: int, full: bool) -> Any:
        state = start(memory, width, most, full=full)
        step = state.step

        def without_numbers(ids: torch.Tensor) -> Any:
            state.step = step
            logits, bias = step(ids)
            logits[0] = torch.nan  # of the longest source
            return logits, bias

        state.step = without_numbers
        return state

    monkeypatch.setattr(translator.decoder, "start", broken)
    found = translator.beam(SOURCES, k=6, max_length=12, **options)
    assert [found[0], found[2]] == [expected[0], expected[2]]
    assert not found[1].texts  # "d d a b"


def test_as_many_states_as_paths_are_plain_beam_search() -> None:
    translator = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer(), dtype="float32")
    plain = translator.beam(SOURCES, k=6, max_length=12)
    for states in (6, 60):
        assert translator.beam(SOURCES, k=6, max_length=12, states=states) == plain


def count_rows(translator: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The rows that the decoder gets at each step, of every search from now on."""
    searches: list[list[int]] = []
    start = translator.decoder.start

    def watched(memory: Any, width: int, most: int, full: bool) -> Any:
        state, mine = start(memory, width, most, full=full), []
        step = state.step
        searches.append(mine)

        def counted(ids: torch.Tensor) -> Any:
            mine.append(len(ids))
            return step(ids)

        state.step = counted
        return state

    monkeypatch.setattr(translator.decoder, "start", watched)
    return searches


def test_fewer_states_are_fewer_rows_of_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    translator = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer(), dtype="float32")
    searches = count_rows(translator, monkeypatch)
    found = translator.beam(SOURCES[:1], k=16, states=4, max_length=12)
    [rows] = searches
    assert rows[0] == 1
    assert max(rows) == 4
    assert len(set(found[0].texts)) == 16  # each path is an output of its own


def test_outputs_do_not_depend_on_the_batch() -> None:
    translator = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer(), dtype="float32")
    together = translator.beam(SOURCES, k=12, states=4, max_length=12)
    for source, outputs in zip(SOURCES, together, strict=True):
        alone = translator.beam([source], k=12, states=4, max_length=12)[0]
        assert alone.texts == outputs.texts


@pytest.mark.parametrize(("states", "words"), [(0, "0: must be 1 or more"), (2.5, "2.5: must be a whole number")])
def test_a_number_of_states_that_cannot_be_is_refused(states: Any, words: str) -> None:
    translator = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer())
    for refused in (translator.beam, translator.translate):
        with pytest.raises(UserError, match=f"states {words}"):
            refused(SOURCES, states=states)


def test_large_ids_are_folded_into_keys() -> None:
    """Four ids of 17 bits and more have 16 bits each; small ones are kept as they are."""
    decoder: Any = SimpleNamespace(start=lambda memory, width, most, full: SimpleNamespace(recordable=False))
    four = beam_search.BeamSettings(4, recombine=4)
    search_of = beam_search._Beam(decoder, None, torch.tensor([9]), four, 0, (0,))
    search_of.scores[:] = 0.0
    ids = torch.tensor([[65535, 65536, 1, 70000]])
    first, leads = search_of._leaders(torch.zeros_like(ids), ids)
    assert search_of.keys.tolist() == [[65535, 1, 1, 70000 % 65536 ^ 1]]
    assert first.tolist() == [[0, 1, 1, 3]]
    assert leads.tolist() == [[True, True, False, True]]


@pytest.mark.parametrize("name", ["states", "recombine"])
def test_what_is_not_sent_to_a_server_is_refused(name: str, tmp_path: Any) -> None:
    sources = tmp_path / "sources.txt"
    sources.write_text("a\n", encoding="utf-8")
    server = mbrace.Server("http://127.0.0.1:1/v1", model="m")
    for run in (mbrace.translate_file, mbrace.generate_file):
        with pytest.raises(UserError, match=f"{name} 3: only valid with a model; not sent to a server"):
            run(sources, tmp_path / "out.jsonl", model=server, **{name: 3})


def test_only_rows_in_use_go_through_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long source and a short one; in a batch as many rows as both have when each is alone."""
    translator = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer(), dtype="float32")
    rows = count_rows(translator, monkeypatch)
    sources = ["a b c d a b c d", "c"]
    for options in ({"k": 12, "states": 6}, {"k": 5}):
        rows.clear()
        for batch in (sources[:1], sources[1:], sources):
            translator.beam(batch, max_length=12, **options)
        alone, other, together = rows
        other += [0] * (len(alone) - len(other))
        alone += [0] * (len(other) - len(alone))
        assert together == [a + b for a, b in zip(alone, other, strict=True)]
        assert min(map(min, rows)) == 0  # one of them is finished before the other


@pytest.mark.parametrize("options", [{}, {"recombine": 2}, {"states": 2}])
def test_a_gpu_without_kernels_looks_at_every_step_whether_rows_are_left(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, int]
) -> None:
    """Rows are then those in use, as on a CPU, and there are none once all sources are finished."""
    translator = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer(), dtype="float32")
    expected = translator.beam(SOURCES, k=6, **options)
    begin = search.Search.__init__

    def as_on_a_gpu(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self.check_every = 1000

    monkeypatch.setattr(search.Search, "__init__", as_on_a_gpu)
    assert translator.beam(SOURCES, k=6, **options) == expected


@pytest.mark.parametrize(
    ("rows", "of", "skips", "moves", "worth"),
    [
        (1 * 256, 64 * 256, False, False, True),  # 16,128 rows less are worth another recording
        (1 * 10, 64 * 10, False, False, False),
        (1 * 256, 64 * 256, True, False, False),  # they take no time
        (1 * 256, 64 * 256, True, True, True),  # a recording is made anyway
        (63 * 256, 64 * 256, True, True, False),
    ],
)
def test_a_recorded_search_is_cut_where_that_pays(rows: int, of: int, skips: bool, moves: bool, worth: bool) -> None:
    cut: Any = search.Search.worth_cutting
    state = SimpleNamespace(skips=skips, moves=lambda time: moves)
    assert cut(SimpleNamespace(recorder=SimpleNamespace(records=True), state=state), rows, of, 8) is worth


def test_states_are_refused_for_a_model_that_knows_none(tmp_path: Path) -> None:
    class Plain:
        device = SimpleNamespace(type="cpu")

        def beam(self, sources: Any, k: int = 256, *, alpha: float = 1.0) -> Any:
            raise AssertionError("not reached")

        sample = sampler = beam

    source = tmp_path / "s.txt"
    source.write_text("a b\n")
    for call in (mbrace.translate_file, mbrace.generate_file):
        for name in ("states", "recombine"):
            with pytest.raises(mbrace.UserError, match=f"{name} 4: beam of Plain has no such option; leave it out"):
                call(source, tmp_path / "o.jsonl", model=Plain(), beam=8, **{name: 4})


def test_translating_recombines_and_says_so(tmp_path: Path) -> None:
    """The option reaches the beam, and what was written without it is not continued with it."""
    translator = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer(), dtype="float32")
    asked: list[Any] = []
    plain = translator.beam

    def watched(*arguments: Any, **options: Any) -> Any:
        asked.append(options.get("recombine"))
        return plain(*arguments, **options)

    translator.beam = watched  # type: ignore[method-assign]
    source, out = tmp_path / "s.txt", tmp_path / "o.jsonl"
    source.write_text("a b\nc\n")
    mbrace.translate_file(source, out, model=translator, beam=8, schedule=(4,), recombine=2, text=False)
    assert asked == [2]
    with pytest.raises(UserError, match="recombine"):
        mbrace.translate_file(source, out, model=translator, beam=8, schedule=(4,), resume=True, text=False)
    list(translator.translate(["a b"], beam=8, schedule=(4,), recombine=3))
    assert asked[-1] == 3
