"""Real servers as tests see them: live, through a proxy that records, or replayed from what they answered.

`make servers` starts the real ones, runs the tests of `test_real_servers.py` on them and writes what they answered to
tests/data/servers; without them the tests run on these files. A request that is not in a file fails its test: record
again.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from sysconfig import get_path
from typing import Any

from quiet_server import QuietHandler, begin_serving

FOLDER = Path(__file__).parent / "data" / "servers"


class Recorded:
    """Answers as the server `name` did; with `upstream`, asks it there, with `fixed` fields, and notes what it says."""

    def __init__(self, name: str, upstream: str | None = None, fixed: Mapping[str, Any] | None = None) -> None:
        self.path, self.upstream, self.lock = FOLDER / f"{name}.jsonl", upstream, threading.Lock()
        self.fixed = dict(fixed or {})
        self.answers: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.asked: list[dict[str, Any]] = []
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                found = json.loads(line)
                self.answers[_key(found["path"], found["body"])].append(found)
        recorded = self

        class Handler(QuietHandler):
            def answer(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.send(*recorded.answer(self.path, body))

            def do_GET(self) -> None:  # noqa: N802
                self.send(*recorded.answer(self.path, None))

        self.server, self.url = begin_serving(Handler)

    def answer(self, path: str, body: Any) -> tuple[int, bytes]:
        name = _key(path, body)
        with self.lock:
            self.asked.append({"path": path, "body": body})
            kept = self.answers.get(name)
        if self.upstream is None:
            if not kept:
                return 418, json.dumps({"error": f"not recorded: {name[:300]}; run make servers"}).encode()
            return kept[0]["status"], json.dumps(kept[0]["answer"]).encode()
        status, answer = _ask(self.upstream + path, None if body is None else body | self.fixed)
        with self.lock:
            self.answers[name] = [{"path": path, "body": body, "status": status, "answer": answer}]
        return status, json.dumps(answer).encode()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        if self.upstream is not None:
            lines = [json.dumps(each, sort_keys=True) for kept in self.answers.values() for each in kept]
            FOLDER.mkdir(parents=True, exist_ok=True)
            text = "".join(f"{line}\n" for line in sorted(lines))
            self.path.write_text(text.replace(f"{get_path('purelib')}/", ""), encoding="utf-8")


def _key(path: str, body: Any) -> str:
    """A request, without the model's name."""
    known = None if body is None else {name: value for name, value in body.items() if name != "model"}
    return json.dumps([path, known], sort_keys=True)


def _ask(url: str, body: Any) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            status, content = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, content = error.code, error.read()
    try:
        return status, _small(json.loads(content))
    except ValueError:
        return status, content.decode("utf-8", "replace")


def _small(answer: Any) -> Any:
    """Without what differs from run to run, is long, or names files of a machine."""
    if isinstance(answer, dict):
        gone = ("id", "created", "timings", "model", "bytes", "default_generation_settings", "chat_template")
        kept = {name: _small(value) for name, value in answer.items() if name not in gone}
        if "default_generation_settings" in answer:
            own = answer["default_generation_settings"].get("params", {})
            names = ("top_k", "top_p", "min_p", "temperature")
            return {"default_generation_settings": {"params": {name: own.get(name) for name in names}}}
        return kept
    return [_small(each) for each in answer] if isinstance(answer, list) else answer
