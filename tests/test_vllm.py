"""vLLM: our logits processor inside stand-ins of its two interfaces, and servers that know epsilon and beam search."""

from __future__ import annotations

import abc
import enum
import importlib
import importlib.util
import random
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_models_server import Mock, impatient, mock  # noqa: F401  (fixtures)

import mbrace
from mbrace.cli import main
from mbrace.errors import ServiceError
from mbrace.models.next_ids import Truncation

TOKENS = 12


@dataclass
class SamplingParams:
    """What a processor sees of vLLM's."""

    extra_args: dict[str, Any] | None = None
    temperature: float = 1.0


class Move(enum.Enum):
    UNIDIRECTIONAL = enum.auto()
    SWAP = enum.auto()


class V1(abc.ABC):
    """The interface of vLLM's V1 model runner, and of the loader's check that a class is made for it."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        return None

    @abc.abstractmethod
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None: ...

    @abc.abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor: ...

    @abc.abstractmethod
    def is_argmax_invariant(self) -> bool: ...

    @abc.abstractmethod
    def update_state(self, batch_update: Any) -> None: ...


class V2(abc.ABC):
    """The interface of vLLM's V2 model runner."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self.req_states = req_states

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        return None

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        return True

    def apply_staged_writes(self) -> None:
        return None

    @abc.abstractmethod
    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor: ...


def slots(count: int) -> Any:
    """What V2 says of its requests."""
    return SimpleNamespace(device=torch.device("cpu"), max_num_reqs=count, vocab_size=TOKENS)


def context(rows: list[int]) -> Any:
    return SimpleNamespace(expanded_idx_mapping=torch.tensor(rows, dtype=torch.int32))


def update(size: int, removed: list[int], added: list[Any], moved: list[Any]) -> Any:
    return SimpleNamespace(batch_size=size, removed=removed, added=added, moved=moved)


def processor(monkeypatch: pytest.MonkeyPatch, *, v1: bool = True, v2: bool = True) -> Any:
    """`Epsilon` as it is imported beside a vLLM that has these interfaces."""
    from mbrace.servers import vllm_epsilon

    for name, base in zip(vllm_epsilon.INTERFACES, (V2 if v2 else None, V1 if v1 else None), strict=True):
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            part = ".".join(parts[:count])
            if part not in sys.modules:
                monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
                sys.modules[part].__path__ = []  # type: ignore[attr-defined]
        if base is not None:
            monkeypatch.setattr(sys.modules[name], "LogitsProcessor", base, raising=False)
    spec = importlib.util.spec_from_file_location("vllm_epsilon_beside_vllm", vllm_epsilon.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Epsilon


def expected(row: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The ids that our own epsilon sampling may draw."""
    epsilon = (params.extra_args or {}).get("epsilon_cutoff")
    return Truncation(epsilon, params.temperature)(row[None])[0] > 0


def some_params(chance: random.Random) -> SamplingParams:
    arguments = chance.choice([None, {}, {"other": "x"}, {"epsilon_cutoff": 0.0}])
    if chance.random() < 0.6:
        arguments = {"epsilon_cutoff": chance.choice([0.02, 0.1, 0.3, 1])}
    return SamplingParams(arguments, chance.choice([0.5, 1.0, 2.0]))


@pytest.mark.parametrize("seed", range(20))
def test_v1_rows_are_cut_as_our_own_sampling_cuts_them_wherever_requests_move(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    made = processor(monkeypatch)(None, torch.device("cpu"), False)
    assert made.is_argmax_invariant()  # so it is applied after the temperature
    batch: list[SamplingParams] = []
    for _ in range(30):
        finished = sorted(chance.sample(range(len(batch)), chance.randint(0, len(batch))))
        rows: dict[int, SamplingParams] = dict(enumerate(batch))
        added = []
        for number in range(chance.randint(0, 4)):  # a new request takes the row of a finished one, or a new row
            row = finished.pop(0) if finished else len(rows)
            params = some_params(chance)
            added.append((row, params, None, []))
            rows[row] = params
            assert number < 5
        for row in finished:
            del rows[row]
        moved: list[tuple[int, int, Move]] = []
        while rows and max(rows) >= len(rows):  # no gaps: the last row goes to the first empty one
            source, target = max(rows), min(set(range(len(rows))) - set(rows))
            rows[target] = rows.pop(source)
            moved.append((source, target, Move.UNIDIRECTIONAL))
        if len(rows) > 1 and chance.random() < 0.5:
            one, other = chance.sample(range(len(rows)), 2)
            rows[one], rows[other] = rows[other], rows[one]
            moved.append((one, other, Move.SWAP))
        batch = [rows[row] for row in range(len(rows))]
        changed = bool(added or finished or moved)
        made.update_state(update(len(batch), finished, added, moved) if changed else None)
        if not batch:
            continue
        logits = 3 * torch.randn(len(batch), TOKENS)
        cold = torch.stack([row / params.temperature for row, params in zip(logits, batch, strict=True)])
        cut = made.apply(cold.clone())
        for row, params in enumerate(batch):
            keep = expected(logits[row], params)
            assert torch.equal(torch.isfinite(cut[row]), keep)
            assert torch.equal(cut[row][keep], cold[row][keep])


@pytest.mark.parametrize("seed", range(20))
def test_v2_rows_are_cut_by_their_slots_before_the_temperature(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    made = processor(monkeypatch)(None, slots(6))
    taken: dict[int, SamplingParams] = {}
    for _ in range(30):
        for slot in list(taken):
            if chance.random() < 0.3:
                del taken[slot]  # vLLM says nothing; the slot is taken again later
        for slot in set(range(6)) - set(taken):
            if chance.random() < 0.5:
                taken[slot] = some_params(chance)
                wanted = bool((taken[slot].extra_args or {}).get("epsilon_cutoff"))
                assert made.add_request(slot, taken[slot]) == wanted
        made.apply_staged_writes()
        rows = [slot for slot in taken for _ in range(chance.randint(1, 3))]  # drafts have rows of their own
        chance.shuffle(rows)
        if not rows:
            continue
        logits = 3 * torch.randn(len(rows), TOKENS)
        cut = made.apply(logits.clone(), context(rows))
        for row, slot in enumerate(rows):
            keep = expected(logits[row], taken[slot])
            assert torch.equal(torch.isfinite(cut[row]), keep)
            assert torch.equal(cut[row][keep], logits[row][keep])


@pytest.mark.parametrize("epsilon", [-1, 1.5, "0.02", True, float("nan"), [0.1]])
def test_a_bad_epsilon_is_refused_at_the_door_and_harmless_in_the_engine(
    epsilon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = processor(monkeypatch)
    params = SamplingParams({"epsilon_cutoff": epsilon})
    with pytest.raises(ValueError, match=r"epsilon_cutoff .*: must be a number from 0 to 1"):
        made.validate_params(params)
    made.validate_params(SamplingParams())
    made.validate_params(SamplingParams({"epsilon_cutoff": 0.02}))
    logits = torch.randn(1, TOKENS)
    v1, v2 = made(None, torch.device("cpu"), False), made(None, slots(2))
    v1.update_state(update(1, [], [(0, params, None, [])], []))
    assert v1.apply(logits) is logits
    assert not v2.add_request(1, params)
    assert not v2.add_request(0, SamplingParams({"epsilon_cutoff": 0.5}, temperature=0.0))  # greedy
    assert v2.apply(logits, context([1])) is logits


def test_the_class_is_made_for_the_interfaces_that_vllm_has(monkeypatch: pytest.MonkeyPatch) -> None:
    old, both = processor(monkeypatch, v2=False), processor(monkeypatch)
    assert [issubclass(made, base) for made in (old, both) for base in (V1, V2)] == [True, False, True, True]
    assert old(None, torch.device("cpu"), False).is_argmax_invariant()


def test_the_package_names_the_processor_for_vllm() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^\[project.entry-points."vllm.logits_processors"\]\n\w+ = "(.+):(.+)"$', text, re.MULTILINE)
    assert found is not None
    module, name = found.groups()
    from mbrace.servers.vllm_epsilon import Epsilon

    assert getattr(importlib.import_module(module), name) is Epsilon


# ---- requests


class VLLM(Mock):
    """A server with our processor (unless `knows_epsilon` is False) and with beam search."""

    knows_epsilon = knows_beams = True

    def made(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        content = body["messages"][-1]["content"]
        if body.get("use_beam_search") and self.knows_beams:
            return [{"message": {"content": f"{content} beam {index}"}} for index in range(body["n"])]
        if body["temperature"] == 0.0:
            return [{"message": {"content": f"{content} greedy"}}] * body["n"]
        epsilon = (body.get("vllm_xargs") or {}).get("epsilon_cutoff")
        if epsilon == 0.999 and self.knows_epsilon:
            return [{"message": {"content": "the best"}}] * body["n"]
        return super().made(body)


@pytest.fixture
def vllm() -> Any:
    made = VLLM()
    yield made
    made.close()


def test_epsilon_is_sent_once_the_server_has_shown_that_it_knows_it(vllm: VLLM) -> None:
    options = {"vllm_xargs": {"other": 1}, "skip_special_tokens": True}
    server = mbrace.Server(
        vllm.url, "m", prompt="{source}", epsilon=0.03, samples_per_request=2, top_p=0.9, options=options
    )
    draws = server.candidates(["eins", "zwei"], 4)
    assert [len(each.texts) for each in draws] == [4, 4]
    samples = vllm.bodies
    extremes = [body for body in vllm.probes if body["vllm_xargs"]["epsilon_cutoff"] == 0.999]
    assert extremes
    assert all("top_p" not in body and body["vllm_xargs"]["other"] == 1 for body in extremes)
    assert len(samples) == 4
    assert all(body["vllm_xargs"] == {"other": 1, "epsilon_cutoff": 0.03} for body in samples)
    assert all(body["top_p"] == 0.9 for body in samples)
    assert server.drawn == 8


def test_a_server_that_ignores_epsilon_is_refused_and_told_how_to_learn_it(vllm: VLLM) -> None:
    vllm.knows_epsilon = False
    server = mbrace.Server(vllm.url, "m", prompt="{source}", epsilon=0.03)
    with pytest.raises(ServiceError, match="epsilon has no effect there; start vLLM in an environment in which mbrace"):
        server.candidates(["eins"], 4)


def test_hypotheses_by_beam_search_have_no_settings_of_samples(vllm: VLLM) -> None:
    server = mbrace.Server(
        vllm.url, "m", prompt="{source}", beam_search=True, length_penalty=0.7, temperature=0.8, top_p=0.5, epsilon=0.02
    )
    found = [draws.texts for draws in server.hypotheses(["eins", " ", "zwei"], 5)]
    assert found == [[f"eins beam {n}" for n in range(5)], [""], [f"zwei beam {n}" for n in range(5)]]
    assert len(vllm.bodies) == 2
    for body in vllm.bodies:
        assert body["use_beam_search"] is True
        assert (body["n"], body["temperature"], body["length_penalty"]) == (5, 0.0, 0.7)
        assert not {"top_p", "vllm_xargs", "seed"} & set(body)


def test_a_server_without_beam_search_is_refused(vllm: VLLM) -> None:
    vllm.knows_beams = False
    server = mbrace.Server(vllm.url, "m", prompt="{source}", beam_search=True)
    with pytest.raises(ServiceError, match="asked for 5 outputs of beam search, got 1 different of 5"):
        list(server.hypotheses(["eins"], 5))


@pytest.mark.parametrize("command", ["translate", "generate"])
def test_commands_pass_epsilon_and_beam_search_on(command: str, vllm: VLLM, tmp_path: Any) -> None:
    sources = tmp_path / "sources.txt"
    sources.write_text("eins\nzwei\n")
    server = ["--server", vllm.url, "--model", "m", "--prompt", "{source}"]
    own = ["--sample", "4"] if command == "generate" else ["--schedule", "4"]
    how = [*own, "--beam", "3", "--epsilon", "0.05", "--server-option", "beam_search=yes", "--length-penalty", "0.5"]
    assert main([command, str(sources), "-o", str(tmp_path / "out.jsonl"), *server, *how]) == 0
    beams = [body for body in vllm.bodies if body.get("use_beam_search")]
    samples = [body for body in vllm.bodies if not body.get("use_beam_search")]
    assert [(body["n"], body["length_penalty"]) for body in beams] == [(3, 0.5)] * 2
    assert {body["vllm_xargs"]["epsilon_cutoff"] for body in samples} == {0.05}
    assert "eins beam" in (tmp_path / "out.jsonl").read_text()
