"""`mbrace rerank` on tiny checkpoints: the originals' scores, records for `mbrace decode`, resuming, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_cross
from cli_helpers import lines

import mbrace
from mbrace.cli import main
from mbrace.utilities.named import load_quality

ORACLE = Path(__file__).parent / "oracle"

pytestmark = pytest.mark.filterwarnings("ignore:.*over the metric's limit")
SCORES = json.loads((ORACLE / "scores_cross.json").read_text())
MAKE: dict[str, Callable[[Path, str], Path]] = {
    "kiwi-xlmr": tiny_cross.make,
    "xcomet-xl": tiny_cross.make,
    "referenceless-xlmr": tiny_cross.make,
    "metricx-24": tiny_cross.make_metricx,
    "metricx-23-qe": tiny_cross.make_metricx,
}
HYPOTHESES = [text for text in dict.fromkeys(tiny.HYPOTHESES) if text][:6]
ROWS = [
    {"id": f"r{number}", "source": source, "hypotheses": HYPOTHESES, "pseudo_references": tiny.REFERENCES[:4]}
    for number, source in enumerate(tiny.SOURCES[:4])
]


def answers(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def run(command: str, folder: Path, *options: str | Path) -> int:
    (folder / "in.jsonl").write_bytes(lines(ROWS))
    device = ["--device", "cpu"] if command == "rerank" else []
    return main([command, str(folder / "in.jsonl"), *device, *map(str, options)])


@pytest.fixture(scope="module")
def kiwi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_cross.make(tmp_path_factory.mktemp("kiwi"), "kiwi-xlmr")


@pytest.mark.parametrize("variant", MAKE)
def test_qualities_are_the_originals(variant: str, tmp_path: Path) -> None:
    """The class is read from the checkpoint; a record of one hypothesis has the score of the original package."""
    rows = [{"hypotheses": [text], "source": tiny.SOURCES[number]} for number, text in enumerate(tiny.HYPOTHESES)]
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    made, out = MAKE[variant](tmp_path, variant), tmp_path / "out.jsonl"
    command = ["rerank", str(tmp_path / "in.jsonl"), "-o", str(out), "--qe", str(made), "--device", "cpu"]
    assert main(command) == 0
    sign = -1 if variant.startswith("metricx") else 1
    want = sign * np.array(SCORES[variant]["quality"][: len(rows)])
    np.testing.assert_allclose([each["utility"] for each in answers(out)], want, atol=1e-5, rtol=0)


def test_the_best_are_written_best_first(kiwi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    assert run("rerank", tmp_path, "-o", out, "--qe", kiwi, "--nbest", "3") == 0
    assert "4 sentences" in (told := capsys.readouterr().err)
    assert f"quality of {4 * len(HYPOTHESES)} hypotheses estimated" in told
    qe = mbrace.XCOMET(kiwi, device="cpu")
    for row, answer in zip(ROWS, answers(out), strict=True):
        scores = [float(qe.quality([text], [str(row["source"])])[0]) for text in HYPOTHESES]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[:3]
        assert [best["index"] for best in answer["nbest"]] == order
        assert [best["utility"] for best in answer["nbest"]] == [scores[index] for index in order]
        assert (answer["id"], answer["text"]) == (row["id"], HYPOTHESES[order[0]])
        assert (answer["quality_calls"], answer["utility_calls"]) == (len(HYPOTHESES), 0)


def test_flat_text_and_python_give_the_same(kiwi: Path, tmp_path: Path) -> None:
    assert run("rerank", tmp_path, "-o", tmp_path / "out.txt", "--text", "--qe", kiwi) == 0
    (tmp_path / "h").write_text("".join(f"{text}\n" for _ in ROWS for text in HYPOTHESES))
    (tmp_path / "s").write_text("".join(f"{row['source']}\n" for row in ROWS))
    flat = ["--hypotheses", f"{tmp_path}/h", "--source", f"{tmp_path}/s", "--num-candidates", str(len(HYPOTHESES))]
    options = ["-o", f"{tmp_path}/flat.txt", "--text", "--qe", str(kiwi), "--device", "cpu"]
    assert main(["rerank", *flat, *options]) == 0
    assert (tmp_path / "flat.txt").read_bytes() == (tmp_path / "out.txt").read_bytes()
    qe = mbrace.XCOMET(kiwi, device="cpu")
    summary = mbrace.rerank_file(tmp_path / "in.jsonl", tmp_path / "python.txt", qe=qe, text=True, window=1)
    assert (tmp_path / "python.txt").read_bytes() == (tmp_path / "out.txt").read_bytes()
    assert (summary.sentences, summary.quality_calls) == (4, 4 * len(HYPOTHESES))


@pytest.mark.parametrize(("command", "top"), [("rerank", []), ("rerank", ["--top", "3"]), ("decode", ["--top", "3"])])
def test_a_run_is_resumed_byte_for_byte(
    command: str, top: list[str], kiwi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--window", "1", *(["--qe", kiwi] if command == "rerank" else []), *top]
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    assert run(command, tmp_path, "-o", whole, *options) == 0
    part.write_bytes(b"".join(whole.read_bytes().splitlines(keepends=True)[:2]))
    shutil.copy(f"{whole}.run.json", f"{part}.run.json")
    if top:
        assert run(command, tmp_path, "-o", part, *options[:-2], "--resume") == 2
        assert "was made with top 3, not the default; give the same options" in capsys.readouterr().err
    assert run(command, tmp_path, "-o", part, *options, "--resume") == 0
    assert part.read_bytes() == whole.read_bytes()
    assert "2 kept from before" in capsys.readouterr().err


@pytest.mark.parametrize("utility", ["chrf++", "xcomet"])
def test_only_the_best_by_quality_race(utility: str, kiwi: Path, tmp_path: Path) -> None:
    """The records that `rerank --top` writes are raced as records that hold the best alone."""
    best_of, options = tmp_path / "best.jsonl", ["--utility", utility, "--nbest", "2"]
    assert run("rerank", tmp_path, "-o", best_of, "--qe", kiwi, "--top", "3") == 0
    if utility == "xcomet":
        options += ["--metric-model", str(tiny_cross.make(tmp_path, "xcomet-xl")), "--device", "cpu"]
    out = tmp_path / "out.jsonl"
    assert main(["decode", str(best_of), "-o", str(out), *options]) == 0
    made = mbrace.ChrF() if utility == "chrf++" else mbrace.XCOMET(tmp_path / "xcomet-xl", device="cpu")
    qe = load_quality(str(kiwi), device="cpu")
    for row, answer in zip(ROWS, answers(out), strict=True):
        source = str(row["source"])
        scores = qe.quality(HYPOTHESES, [source] * len(HYPOTHESES))
        best = sorted(np.argsort(-scores, kind="stable")[:3].tolist())
        texts = [HYPOTHESES[index] for index in best]
        alone = mbrace.decode(texts, tiny.REFERENCES[:4], utility=made, nbest=2, source=source, id=str(row["id"]))
        assert [each["text"] for each in answer["nbest"]] == [each.text for each in alone.nbest]
        assert (answer["index"], answer["utility_calls"]) == (alone.index, alone.utility_calls)


def test_python_takes_a_model_as_the_option_does(kiwi: Path) -> None:
    scores = load_quality(str(kiwi)).quality(HYPOTHESES, ["a b"] * len(HYPOTHESES))
    assert mbrace.rerank(HYPOTHESES, "a b", qe=str(kiwi)).text == HYPOTHESES[int(np.argmax(scores))]


def test_records_with_the_best_keep_all_pseudo_references_and_other_fields(kiwi: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "two", "source": "a b", "reference": "c", "hypotheses": ["x", "a b", "x", "a"],
         "pseudo_references": ["a", "b", "a"], "logprobs": [-1.0, -2.0, -1.0], "domain": {"name": "news"}},
        {"id": "one", "source": "a b", "samples": ["x", "a b", "x", "a"], "line": 7},
    ]  # fmt: skip
    (tmp_path / "two.jsonl").write_bytes(lines(rows))
    for command in (["rerank", "--qe", str(kiwi)], ["decode", "--prune", "none"]):
        out = tmp_path / f"{command[0]}.jsonl"
        assert main([command[0], str(tmp_path / "two.jsonl"), "-o", str(out), *command[1:], "--top", "2"]) == 0
        two, one = answers(out)
        for row, best in ((rows[0], two), (rows[1], one)):
            given = row.get("hypotheses") or row["samples"]
            assert best.pop("hypotheses") in (["x", "a b"], ["x", "a"], ["a b", "a"])
            wanted = {name: value for name, value in row.items() if name not in ("hypotheses", "samples")}
            assert best == {"pseudo_references": given, **wanted}


def test_a_bad_record_is_set_aside(kiwi: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [dict(ROWS[0]), {**ROWS[1], "source": None}, dict(ROWS[2])]
    file.write_bytes(lines(rows))
    command = ["rerank", str(file), "-o", str(out), "--qe", str(kiwi), "--device", "cpu"]
    assert main([*command, "--on-error", "skip"]) == 0
    assert [each["id"] for each in answers(out)] == ["r0", "r2"]
    (bad,) = answers(tmp_path / "out.jsonl.errors.jsonl")
    assert bad["line"] == 2
    assert "source: missing" in json.dumps(bad)


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("xlmr-sparsemax", "metric class regression_metric: needs references"),
        ("unite-mt-ref", "does not read the source, so it cannot estimate quality"),
        ("metricx-23", "does not read the source, so it cannot estimate quality"),
    ],
)
def test_a_checkpoint_that_needs_references_is_refused(
    variant: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make = tiny_cross.make_metricx if "metricx" in variant else tiny_cross.make if "unite" in variant else tiny.make
    made = make(tmp_path, variant)
    assert run("rerank", tmp_path, "-o", tmp_path / "out.jsonl", "--qe", made) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()
