"""`mbrace generate` and `mbrace translate` with a tiny model, for several test files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny

from mbrace.cli import main
from mbrace.models import seq2seq

SOURCES = ["a b", "c", "d d a", "b c", "a"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Marian model with its tokenizer."""
    path = tmp_path_factory.mktemp("model")
    model = tiny.marian()
    model.generation_config.bad_words_ids = [[tiny.PAD]]
    model.final_logits_bias.zero_()
    model.save_pretrained(path)
    tiny.tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sources in a file; models are read with our own tokenizer from now on."""
    # transformers would take a Marian folder's tokenizer to be SentencePiece's; ours is words
    loaded: dict[str, Any] = {}

    def load(name: str, tokenizer: Any, kind: str) -> tuple[Any, Any]:
        return loaded.setdefault(name, original(name, tokenizer or tiny.tokenizer(), kind))

    original = seq2seq.load
    monkeypatch.setattr(seq2seq, "load", load)
    path = tmp_path / "sources.txt"
    path.write_text("".join(source + "\n" for source in SOURCES))
    return path


def generate(sources: Path, folder: Path, out: Path, *more: str) -> int:
    sizes = ["--beam", "4", "--sample", "6", "--seed", "3"]
    return main(["generate", str(sources), "--model", str(folder), "-o", str(out), *sizes, "--device", "cpu", *more])


def translate(sources: Path, folder: Path, out: Path, *more: str) -> int:
    options = ["--beam", "4", "--schedule", "4,16", "--seed", "3", "--device", "cpu", "--window", "2"]
    return main(["translate", str(sources), "--model", str(folder), "-o", str(out), *options, *more])
