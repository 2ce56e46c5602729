"""What strangers may give us, as targets for a fuzzer: each takes bytes, and fails at anything but a `UserError`.

`make fuzz` gives them bytes that lead to new code; tests/test_fuzz_inputs.py gives them random ones.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from mbrace.errors import UserError
from mbrace.io.candidates import Bad, item_from
from mbrace.io.folders import Manifest
from mbrace.io.resume import RunFile
from mbrace.records import Record

START = b'{"id": 1, "hypotheses": ["a", "b"], "pseudo_references": ["a \\ud800"], "logprobs": [-1.5], "source": "s"}'
MANIFEST = (
    b'{"format": 1, "complete": true, "work": {}, "inputs": ["x"], "shards": [{"file": "part-00000-000000.jsonl"}]}'
)


def mutated(start: bytes, changes: bytes) -> bytes:
    """`start` with parts replaced, three bytes of `changes` for each: where (two bytes), and by what."""
    data = bytearray(start)
    for position in range(0, len(changes) - 2, 3):
        where = int.from_bytes(changes[position : position + 2], "little") % (len(data) + 1)
        data[where : where + 1] = changes[position + 2 : position + 3]
    return bytes(data)


def check_record(raw: bytes) -> None:
    """A line is a record with strings in it, or says what is wrong; it can be decoded, or says why not."""
    import mbrace

    item = item_from(raw, "fuzz", 1)
    assert isinstance(item, Record | Bad)
    if isinstance(item, Bad):
        assert item.reason
        json.loads(item.to_line())
        return
    assert all(isinstance(text, str) for text in item.hypotheses)
    small = isinstance(item.pseudo_references, list) and len(item.hypotheses) + len(item.pseudo_references) < 20
    if small and sum(map(len, item.hypotheses)) < 1000:
        try:
            (answer,) = mbrace.decode_corpus([item], schedule=[1, 2])
        except UserError:
            return
        assert answer.text in item.hypotheses


def check_manifest(raw: bytes) -> None:
    """A manifest names files of its own folder, or is refused."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "manifest.json").write_bytes(raw)
        try:
            paths = list(Manifest.read(Path(folder)).paths())
        except UserError:
            return
        assert all(path.parent == Path(folder) for path in paths)


def check_run_file(raw: bytes) -> None:
    """OUT.run.json is that of the same settings, or refused."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "o.run.json").write_bytes(raw)
        run_file = RunFile(f"{folder}/o", {"seed": 7})
        try:
            run_file.check()
        except UserError:
            return
        assert json.loads(raw)["seed"] == 7
        run_file.inputs.add(Record(["a"], id=1))


ANSWER = (
    b'{"choices": [{"message": {"content": "<think>b</think>a"}, "finish_reason": "stop", '
    b'"logprobs": {"content": [{"logprob": -0.5}]}}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}, '
    b'"data": [{"index": 0, "embedding": [0.5, -1.0]}]}'
)


@functools.cache
def server_client() -> Any:
    """A client of a server that answers with its `content`."""
    from mbrace.servers.http import Client
    from mbrace.settings import Connection

    class Replayed(Client):
        status, content = 200, b""

        async def _exchange(self, body: Any, path: str) -> tuple[int, dict[str, str], bytes]:
            return self.status, {"retry-after": self.content[:9].decode("latin-1")}, self.content

    connection = Connection(concurrency=1, retries=0, timeout=5)
    return Replayed("http://localhost", "/chat/completions", connection, api_key=None)


def check_server_answer(raw: bytes) -> None:
    """What a server sends is choices with finite numbers, or embeddings, or an error that can be printed."""
    from mbrace.servers import chat, embeddings, judge

    def choices(found: Any, chat_endpoint: bool) -> None:
        for choice in chat.choices_of(found, chat=chat_endpoint):
            assert type(choice.text) is str
            assert math.isfinite(choice.logprob or 0)
        assert chat.cost_of(found).prompt_tokens >= 0

    def vectors(found: Any) -> None:
        ((vector,), _) = embeddings._read(found, 1)
        assert all(map(math.isfinite, vector))

    def judgement(found: Any) -> None:
        choice, scores, _ = judge._read(found)
        assert type(choice.text) is str
        assert all(type(token) is str for token, _ in scores)

    async def ask() -> None:
        for client.status in (200, 500):
            for client.content in (raw, mutated(ANSWER, raw)):
                for read in (
                    lambda found: choices(found, True),
                    lambda found: choices(found, False),
                    vectors,
                    judgement,
                ):
                    try:
                        await client.ask({}, read)
                    except UserError as error:
                        if not str(error).isprintable():
                            raise AssertionError("an escape in a message") from error

    client = server_client()
    client.gather([ask()])


CONFIGS = {
    ".json": b'{"alpha": 0.9, "schedule": [16, 32], "utility": "chrf", "utility-option": {"lowercase": true}}',
    ".yaml": b"alpha: 0.9\nschedule: [16, 32]\nutility: chrf\nutility-option: {lowercase: true}\ninputs: [c.jsonl]\n",
    ".toml": b'alpha = 0.9\nschedule = [16, 32]\nutility = "chrf"\n[utility-option]\nlowercase = true\n',
}


COMMANDS = {"decode": [], "serve": [], "answer": ["p"], "judge": ["a", "b", "--source", "s", "-o", "r"]}


def check_config(raw: bytes) -> None:
    """A file of options becomes defaults of a command, or is refused; nothing in it runs, is written or asked for."""
    from mbrace.cli.config import TRUSTED, use_config
    from mbrace.cli.parser import make_parser

    with tempfile.TemporaryDirectory() as folder:
        for suffix, start in CONFIGS.items():
            path = Path(folder, f"config{suffix}")
            for data, (command, words) in itertools.product((raw, mutated(start, raw)), COMMANDS.items()):
                path.write_bytes(data)
                parser, plain = make_parser(command), make_parser(command).parse_args([command, *words])
                try:
                    use_config(parser, [command, *words, "--config", str(path)])
                except UserError:
                    continue
                found = parser.parse_args([command, *words, "--config", str(path)])
                for name in TRUSTED:
                    assert getattr(found, name, None) == getattr(plain, name, None), name


@functools.cache
def checkpoint() -> bytes:
    """A small file in the layout of COMET's checkpoints."""
    import torch

    state = {"estimator.ff.0.weight": torch.ones(2, 4), "estimator.ff.0.bias": torch.ones(2)}
    settings: dict[str, Any] = {"class_identifier": "regression_metric", "hidden_sizes": [2], "pool": "avg"}
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"state_dict": state, "hyper_parameters": settings}, f"{folder}/model.ckpt")
        return Path(folder, "model.ckpt").read_bytes()


def check_checkpoint(raw: bytes) -> None:
    """A checkpoint is tensors by name and settings, or refused; nothing in it runs."""
    import torch

    from mbrace.neural.checkpoint import read

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.ckpt")
        path.write_bytes(raw)
        try:
            found = read(path)
        except UserError:
            return
        assert all(isinstance(weight, torch.Tensor) for weight in found.state.values())
