"""`mbrace export`: what trainers read, the worst hypothesis found by hand, and records that are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import overlap

import mbrace
from mbrace.cli import main

RECORDS = [
    {
        "id": "a",
        "source": "eins",
        "hypotheses": ["one", "one two", "three"],
        "pseudo_references": ["one", "one two", "x"],
    },
    {"id": "b", "source": "zwei", "hypotheses": ["two", "two"], "pseudo_references": ["two"]},
    {"id": 7, "source": "drei", "hypotheses": ["three", "tree"], "pseudo_references": ["three", "three tree"]},
    {"id": "d", "source": "vier", "hypotheses": ["4", "5"], "pseudo_references": ["six"]},
]


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Candidates, and answers with all hypotheses in their n-best lists."""
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in RECORDS))
    mbrace.decode_file(tmp_path / "c.jsonl", tmp_path / "a.jsonl", utility=overlap, prune=None, nbest=9)
    return tmp_path


def export(folder: Path, *options: str, output: str = "out.jsonl") -> int:
    words = [word.replace("@", f"{folder}/") for word in options]
    return main(["export", str(folder / "a.jsonl"), "-o", str(folder / output), *words])


def test_supervised_lines_have_prompt_and_completion(folder: Path) -> None:
    assert export(folder, "--sources", "@c.jsonl", "--prompt", "Translate: {source}") == 0
    texts = [row["text"] for row in written(folder / "a.jsonl")]
    assert texts == ["one", "two", "three", "4"]
    assert written(folder / "out.jsonl") == [
        {"id": row["id"], "prompt": f"Translate: {row['source']}", "completion": text}
        for row, text in zip(RECORDS, texts, strict=True)
    ]


def test_chat_lines_have_messages(folder: Path) -> None:
    assert export(folder, "--sources", "@c.jsonl", "--chat") == 0
    assert written(folder / "out.jsonl")[0] == {
        "id": "a",
        "messages": [
            {"role": "user", "content": "eins"},
            {"role": "assistant", "content": "one"},
        ],
    }


def test_a_preference_pair_is_the_best_and_the_worst(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(folder, "--sources", "@c.jsonl", "--format", "preference") == 0
    # one: (1 + 1/2 + 0) / 3, one two: the same, three: 0
    first, second = written(folder / "out.jsonl")
    assert first == {
        "id": "a",
        "prompt": "eins",
        "chosen": "one",
        "rejected": "three",
        "score_chosen": pytest.approx(0.5),
        "score_rejected": 0.0,
    }
    assert (second["id"], second["chosen"], second["rejected"]) == (7, "three", "tree")
    left = written(folder / "out.jsonl.errors.jsonl")
    assert [(row["id"], row["reason"]) for row in left] == [
        ("b", "its answer has no full score"),
        ("d", "no hypothesis with a full score is worse"),
    ]
    assert "2 lines written; 2 records left out" in capsys.readouterr().err
    assert export(folder, "--sources", "@c.jsonl", "--format", "preference", "--chat", output="chat.jsonl") == 0
    chat = written(folder / "chat.jsonl")[0]
    assert chat["prompt"] == [{"role": "user", "content": "eins"}]
    assert (chat["chosen"], chat["rejected"]) == (
        [{"role": "assistant", "content": "one"}],
        [{"role": "assistant", "content": "three"}],
    )


def test_an_interrupted_export_goes_on_to_the_same_bytes(folder: Path) -> None:
    options = ("--sources", "@c.jsonl", "--format", "preference")
    assert export(folder, *options) == 0
    whole, errors = (folder / "out.jsonl").read_bytes(), (folder / "out.jsonl.errors.jsonl").read_bytes()
    (folder / "out.jsonl").write_bytes(whole.splitlines(keepends=True)[0])
    (folder / "out.jsonl.errors.jsonl").write_bytes(b"")
    assert export(folder, *options) == 2  # it exists
    assert export(folder, *options, "--resume") == 0
    assert ((folder / "out.jsonl").read_bytes(), (folder / "out.jsonl.errors.jsonl").read_bytes()) == (whole, errors)
    assert export(folder, "--sources", "@c.jsonl", "--resume") == 2  # another format
    (folder / "c.jsonl").write_bytes((folder / "c.jsonl").read_bytes().replace(b"eins", b"Eins"))
    assert export(folder, *options, "--resume") == 2  # other sources of the same ids


def test_sources_may_be_lines_of_text_and_answers_may_bring_theirs(tmp_path: Path) -> None:
    answers, sources = tmp_path / "a.jsonl", tmp_path / "s.txt"
    answers.write_text('{"id": 1, "text": "one"}\n{"id": 2, "text": "two", "source": "own"}\n')
    sources.write_text("eins\nzwei\n")
    summary = mbrace.export_file(answers, tmp_path / "out.jsonl", sources=sources)
    assert summary.sentences == 2
    assert [row["prompt"] for row in written(tmp_path / "out.jsonl")] == ["eins", "own"]
