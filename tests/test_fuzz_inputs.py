"""The fuzzer's targets for inputs, with random bytes and with small changes to good files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import fuzz_inputs as targets
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(["id", "hypotheses", "pseudo_references", "samples", "logprobs", "source", "reference"])


@settings(max_examples=300)
@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf{}")
@example(b"1" * 5000)
def test_any_bytes_are_a_record_or_say_why_not(raw: bytes) -> None:
    targets.check_record(raw)
    targets.check_record(targets.mutated(targets.START, raw))


@settings(max_examples=300)
@given(st.dictionaries(FIELDS, NESTED | st.lists(st.text(max_size=4), max_size=4), max_size=6))
def test_any_json_is_a_record_or_says_why_not(fields: dict[str, object]) -> None:
    targets.check_record(json.dumps(fields).encode())


@settings(max_examples=100)
@given(st.binary(max_size=60), NESTED)
def test_manifests_and_run_files_are_ours_or_refused(raw: bytes, value: object) -> None:
    for target in (targets.check_manifest, targets.check_run_file):
        target(raw)
        target(json.dumps(value).encode())
        target(json.dumps({"seed": 7, "input_digests": value}).encode())
        target(json.dumps({"format": 1, "complete": True, "work": {}, "inputs": [], "shards": [value]}).encode())
        target(targets.mutated(targets.MANIFEST, raw))


@settings(max_examples=40)
@given(
    st.binary(max_size=60),
    st.dictionaries(st.sampled_from(["alpha", "schedule", "utility-option", "output", "host", "n", "x"]), NESTED),
)
@example(b"&a [*a]", {})
@example(b"output: o", {"force": True})
@example(b"", {"output": 0})
@example(b"", {"save-utilities": 0.0})
@example(b"", {"host": 0})
@example(b"force: true", {"output": "o", "server": "http://x", "utility": "x.py:f"})
@example(b"!!python/object/apply:os.abort []", {})
@example(b"a: &a [x,x]\nb: &b [*a,*a,*a]\n", {})
def test_config_files_are_options_or_refused(raw: bytes, options: dict[str, object]) -> None:
    targets.check_config(raw)
    targets.check_config(json.dumps(options).encode())


@settings(max_examples=200)
@given(st.binary(max_size=60), NESTED, NESTED)
@example(b"[" * 9999, None, None)
@example(b"1" * 5000, {"content": 1}, {"content": [{"logprob": 10**400}]})
@example(b"", [{"msg": "a", "loc": 5}], None)
@example(b'{"choices": [{"message": {"content": null}, "finish_reason": "\\u001b[2J"}]}', None, None)
def test_answers_of_servers_are_read_or_an_error_of_the_server(raw: bytes, message: object, scores: object) -> None:
    pytest.importorskip("httpx")
    targets.check_server_answer(raw)
    for choice in (message, {"message": message}, {"message": {"content": "a"}, "logprobs": scores}, {"text": message}):
        targets.check_server_answer(json.dumps({"choices": [choice], "usage": scores, "data": message}).encode())
    targets.check_server_answer(json.dumps({"error": message, "detail": scores}).encode())
    targets.check_server_answer(json.dumps({"data": [{"index": 0, "embedding": scores}], "choices": scores}).encode())


@settings(max_examples=60)
@given(st.binary(max_size=60))
def test_changed_checkpoints_are_read_or_refused(changes: bytes) -> None:
    pytest.importorskip("torch")
    targets.check_checkpoint(targets.mutated(targets.checkpoint(), changes))
    targets.check_checkpoint(changes)


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path, str]]:
        return Path.write_text, (self.path, "ran")


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        targets.check_checkpoint(pickle.dumps({"state_dict": Evil(tmp_path / "evil")}, protocol))
    assert not (tmp_path / "evil").exists()
