"""Quality estimators that `train-metric --quality` writes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mbrace
from mbrace.cli import main
from mbrace.neural.comet import Learned, Referenceless
from mbrace.training.metric import _apart, _split, length_ratios
from mbrace.training.metric_data import Judgement, pearson, read_judgements
from mbrace.training.metric_head import Recipe
from mbrace.utilities.named import load_quality

sys.path.insert(0, str(Path(__file__).parent / "oracle"))
import tiny

torch.set_num_threads(1)  # tests run beside each other: more threads than cores wait for one another

HEADER = "lp\tsplit\tsrc\tmt\tz\n"
WORDS = ["red", "blue", "tall", "small", "old", "new", "fast", "slow", "warm", "cold", "loud", "calm"]


def judgements(path: Path, *, rows: int = 300, seed: int = 0) -> Path:
    """Made up from a rule, the share of the source's words that are kept: every fifth row dev, every fifth test."""
    random, lines = np.random.default_rng(seed), []
    for number in range(rows):
        source = random.choice(WORDS, 5, replace=False)
        keep = int(random.integers(0, 6))
        translation = [*source[:keep], *random.choice(WORDS, 5 - keep)]
        split = {3: "dev", 4: "test"}.get(number % 5, "train")
        lines.append(
            f"{'xx-en' if number % 2 else 'yy-en'}\t{split}\t{' '.join(source)}\t{' '.join(translation)}\t{keep}\n"
        )
    path.write_text(HEADER + "".join(lines))
    return path


def by_hand(folder: Path, estimator: Referenceless, hypotheses: list[str], sources: list[str]) -> np.ndarray[Any, Any]:
    """The head of a checkpoint in NumPy, over [h, s, h*s, |h-s|] of the vectors."""
    state = torch.load(folder / "checkpoints" / "model.ckpt", weights_only=True)["state_dict"]
    layers = sorted({int(key.split(".")[2]) for key in state if key.startswith("estimator.")})
    h, s = (estimator.encoder.embed(texts).numpy().astype(np.float64) for texts in (hypotheses, sources))
    hidden = np.concatenate([h, s, h * s, np.abs(h - s)], axis=1)
    for layer in layers:
        weight, bias = (state[f"estimator.ff.{layer}.{kind}"].numpy().astype(np.float64) for kind in ("weight", "bias"))
        hidden = hidden @ weight.T + bias
        if layer != layers[-1]:
            hidden = np.tanh(hidden)
    return hidden[:, 0]


def test_training_learns_from_sources_and_its_folder_estimates_quality(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the loaded checkpoint gives for the test split is what training printed; then it chooses who races."""
    table, out = judgements(tmp_path / "j.tsv", rows=600), tmp_path / "qe"
    encoder = ["--encoder", "sentence-transformers/all-MiniLM-L6-v2", "--device", "cpu", "--epochs", "8"]
    assert main(["train-metric", str(table), "-o", str(out), "--quality", *encoder]) == 0
    printed = capsys.readouterr().out
    assert "held out yy-en  lengths" in printed
    estimator = load_quality(str(out), device="cpu")
    for pair in ("xx-en", "yy-en"):
        rows = [row for row in read_judgements(str(table), quality=True) if (row.pair, row.split) == (pair, "test")]
        scores = estimator.quality([row.translation for row in rows], [row.reference for row in rows])
        found = pearson(scores, [row.score for row in rows])
        assert found > 0.5
        assert re.search(rf"held out {pair}  learned +Pearson {found:.3f}", printed)
    with pytest.raises(mbrace.UserError, match="it has no reference"):
        Learned(out, device="cpu")


def test_a_trained_head_is_computed_as_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a tiny encoder, whose numbers are large enough for a slip in the order of features to show."""
    table, out = judgements(tmp_path / "j.tsv"), tmp_path / "qe"
    encoder = tiny.make_pretrained(tmp_path)
    options = ["--encoder", str(encoder), "--device", "cpu", "--epochs", "2"]
    assert main(["train-metric", str(table), "-o", str(out), "--quality", *options]) == 0
    splits: dict[str, list[list[str]]] = {"train": [], "dev": [], "test": []}
    for line in table.read_text().splitlines()[1:]:
        splits[line.split("\t")[1]].append(line.split("\t")[2:4])
    others = {text for name in ("dev", "test") for texts in splits[name] for text in texts}
    trained = sum(not others & set(texts) for texts in splits["train"])
    assert f"trained on {trained} judgements; " in capsys.readouterr().out
    estimator = Referenceless(out, device="cpu")
    hypotheses, sources = ["red old", "new calm fast", "tall"], ["blue old", "slow", "red red warm"]
    want = by_hand(out, estimator, hypotheses, sources)
    assert np.ptp(want) > 1e-3
    np.testing.assert_allclose(estimator.quality(hypotheses, sources), want, atol=1e-4)
    assert np.abs(estimator.quality(sources, hypotheses) - want).max() > 1e-3  # source and translation are told apart


def row(translation: str, source: str, split: str = "") -> Judgement:
    return Judgement("f", "de-en", translation, source, score=0.0, post_edited=False, split=split)


def test_a_files_own_splits_are_kept_to() -> None:
    """Also where two splits share a text: such rows are not trained on."""
    rows = [row("a", "A", "train"), row("b", "B", "train"), row("c", "B", "dev"), row("d", "D", "dev")]
    assert _split(rows, Recipe(), 0) == ([rows[0]], rows[2:])
    assert _apart(rows, [row("a", "X", "test")]) == rows[1:]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lp\tmt\tref\tz\n", r"j.tsv:1: header must name lp, mt, src, and z or score; found lp, mt, ref, z"),
        (HEADER + "de-en\tdev\ta\tb\tc\n", r"j.tsv:2: z: 'c' is not a number"),
        (HEADER + "de-en\tall\ta\tb\t1\n", r"j.tsv:2: split: 'all' is not one of train, dev, test"),
    ],
)
def test_a_wrong_table_is_named_by_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "j.tsv"
    path.write_text(text)
    with pytest.raises(mbrace.UserError, match=message):
        read_judgements(str(path), quality=True)


def test_measures_by_hand() -> None:
    """Ratios count one character more, so that empty texts have one."""
    assert length_ratios(["abc", "", "a"], ["a", "", "abc"]) == [0.5, 1.0, 0.5]
