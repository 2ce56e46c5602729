"""Recorded steps, on a CPU: instead of a CUDA graph a recording here runs the step again, after checking that the step
left every tensor where it was, as a graph takes for granted."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import stand_in_kernels
import tiny_models
import torch

import mbrace
from mbrace.errors import MbraceWarning
from mbrace.models import gpu, kv_cache, marian, search
from mbrace.models import sampling as sampling_

SOURCES = ["a b c", "d", "b b a d c", "c c c c c c a"]


class Recording:
    """A step and where its tensors were when it was recorded."""

    made = replayed = 0

    def __init__(self, step: Callable[[], None]) -> None:
        self._step, self._search = step, step.__self__  # type: ignore[attr-defined]
        self._places = self._now()
        Recording.made += 1

    def _now(self) -> list[int]:
        state = self._search.state
        owners = [self._search, state, state.cache, getattr(self._search, "random", None), state.memory]
        found: list[int] = []
        for owner in owners:
            for value in vars(owner).values() if owner is not None else ():
                tensors = value if isinstance(value, list) else [value]
                found += [each.data_ptr() for each in tensors if isinstance(each, torch.Tensor)]
        return found

    def replay(self) -> None:
        assert self._now() == self._places
        self._search.state.cache._time = 0  # a graph does not see what the host counts
        self._step()
        assert self._now() == self._places
        Recording.replayed += 1


def indexed(device: Any, dtype: Any, layers: int, shape: tuple[int, int], *, shared: bool) -> kv_cache.IndexedCache:
    """The past indexed, as on a GPU."""
    return kv_cache.IndexedCache(dtype, layers, stand_in_kernels.attend, shape, device, recordable=True)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(marian, "cache_for", indexed)
    monkeypatch.setattr(Recording, "made", 0)
    monkeypatch.setattr(Recording, "replayed", 0)
    return mbrace.Seq2Seq(tiny_models.marian(), tokenizer=tiny_models.tokenizer(), dtype="float32")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, steps are recorded."""

    def begin() -> None:
        monkeypatch.setattr(gpu, "can_record", lambda device: True)
        monkeypatch.setattr(gpu, "_record", lambda step, device: Recording(step))

    return begin


def outputs(model: Any, sampling: str) -> tuple[list[list[str]], list[list[str]], list[list[float]]]:
    drawn = model.sample(SOURCES, 30, max_length=70, sampling=sampling)
    beams = [beam for k, alpha in ((8, 0.6), (3, 1.0)) for beam in model.beam(SOURCES, k, max_length=70, alpha=alpha)]
    return [list(draws.texts) for draws in drawn], [list(b.texts) for b in beams], [list(b.scores) for b in beams]


@pytest.mark.parametrize("sampling", ["independent", "arithmetic"])
def test_recorded_searches_are_the_plain_ones(
    sampling: str, model: Any, recorded: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = outputs(model, sampling)
    assert Recording.made == 0
    recorded()
    monkeypatch.setattr(search, "RECORDING_ROWS", 2)
    assert outputs(model, sampling) == plain
    assert Recording.made > 2  # anew when there is no more room, and when rows are cut
    assert Recording.replayed > 2 * Recording.made


@pytest.mark.parametrize("sampling", ["independent", "arithmetic"])
@pytest.mark.parametrize("every", [1, 3, 8])
def test_recorded_searches_that_skip_rows_are_the_plain_ones(
    sampling: str, every: int, model: Any, recorded: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU with kernels, which leave rows that are not in use alone: here they are NaN."""
    monkeypatch.setattr(marian, "cache_for", kv_cache.cache_for)
    plain = outputs(model, sampling)
    recorded()
    monkeypatch.setattr(gpu, "kernels_for", lambda device: stand_in_kernels)
    monkeypatch.setattr(marian, "can_skip_rows", lambda dtype, units: dtype == torch.float32 and units % 16 == 0)
    monkeypatch.setattr(kv_cache, "FIRST_ROOM", 16)
    monkeypatch.setattr(stand_in_kernels, "skipped", 0)
    begun = search.Search.__init__

    def counted_seldom(self: Any, *arguments: Any) -> None:
        begun(self, *arguments)
        self.check_every = every

    monkeypatch.setattr(search.Search, "__init__", counted_seldom)
    drawn, texts, scores = outputs(model, sampling)
    assert (drawn, texts) == plain[:2]
    for mine, theirs in zip(scores, plain[2], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert Recording.replayed > 50
    assert stand_in_kernels.skipped > 50


def test_a_step_that_cannot_be_recorded_is_run(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = outputs(model, "arithmetic")

    def fail(step: Callable[[], None], device: torch.device) -> None:
        """After the step's Python ran, as where memory runs out: what it computed on the device did not happen."""
        owner: Any = step.__self__  # type: ignore[attr-defined]
        owner.state.cache._time += 1
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(gpu, "can_record", lambda device: True)
    monkeypatch.setattr(gpu, "_record", fail)
    monkeypatch.setattr(gpu, "_failed", set())
    with pytest.warns(MbraceWarning, match="without CUDA graphs: operation not permitted"):
        assert outputs(model, "arithmetic") == plain
    assert torch.device("cpu") in gpu._failed


def test_a_search_that_is_over_is_dropped_with_its_memory(
    model: Any, recorded: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded()
    left: list[Any] = []
    plain = sampling_._Sampling.__init__

    def watched(self: Any, *arguments: Any) -> None:
        plain(self, *arguments)
        left.append(weakref.ref(self))

    monkeypatch.setattr(sampling_._Sampling, "__init__", watched)
    gc.disable()
    try:
        model.sample(SOURCES, 3, max_length=20)
        assert left
        assert all(each() is None for each in left)
    finally:
        gc.enable()


def test_many_rows_are_not_recorded_and_nothing_is_on_a_cpu(recorded: Callable[[], None]) -> None:
    cpu = torch.device("cpu")
    assert not gpu.Recorder(cpu, 8).records
    recorded()
    assert gpu.Recorder(cpu, gpu.MOST_ROWS).records
    assert not gpu.Recorder(cpu, gpu.MOST_ROWS + 1).records


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_graphs_give_what_plain_steps_give(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    model = mbrace.Seq2Seq(tiny_models.marian().to(device), tokenizer=tiny_models.tokenizer(), dtype="float32")
    found = outputs(model, "arithmetic")
    monkeypatch.setattr(gpu, "can_record", lambda device: False)
    assert outputs(model, "arithmetic") == found
