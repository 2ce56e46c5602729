"""The learned metric: what ships behaves, what trains can be loaded, and it works from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mbrace_learned
import numpy as np
import pytest
import tiny_models
import torch
import transformers

import mbrace
from mbrace.cli import main
from mbrace.neural.comet import SHIPPED, Learned
from mbrace.training.metric_data import kendall, pearson, read_judgements

torch.set_num_threads(1)  # tests run beside each other: more threads than cores wait for one another
HEADER = "lp\tmt\tref\tz\n"
WORDS = ["red", "blue", "tall", "small", "old", "new", "fast", "slow", "warm", "cold", "loud", "calm"]
SHAPE = {"vocab_size": len(WORDS) + 8, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
SHAPE["intermediate_size"] = 16
UPPER = "encoder.model.encoder.layer.1"


@pytest.fixture(scope="module")
def learned() -> Learned:
    return Learned(device="cpu")


def test_a_better_translation_scores_higher(learned: Learned) -> None:
    reference = "The government announced new measures to protect the environment on Tuesday."
    ranked = [
        reference,
        "On Tuesday the government presented new measures for protecting the environment.",
        "The government announced new environment on measures.",
        "The company sells shoes in three countries.",
        "lksdjf lkjsd flkj sdf",
    ]
    scores = learned.pairs(ranked, [reference] * len(ranked))
    assert scores[0] > scores[1] > scores[2] > scores[3]
    assert scores[0] > scores[1] > scores[2] > scores[4]
    assert learned.pairs([""], [reference])[0] < scores[2]


def test_it_decodes_from_the_command_line_and_window_changes_no_byte(
    demo_rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    candidates = tmp_path / "c.jsonl"
    cut = [
        {**r, "hypotheses": r["hypotheses"][:8], "pseudo_references": r["pseudo_references"][:24]} for r in demo_rows
    ]
    candidates.write_text("".join(json.dumps(row) + "\n" for row in cut[:5]))
    outputs = []
    for window in ("1", "5"):
        out = tmp_path / f"{window}.jsonl"
        options = ["--utility", "learned", "--threads", "1", "--schedule", "4,8,24", "--window", window]
        assert main(["decode", str(candidates), "-o", str(out), *options]) == 0
        outputs.append(out.read_bytes())
    assert outputs[0] == outputs[1]
    assert all(json.loads(line)["pairs_scored"] > 0 for line in outputs[0].splitlines())


def judgements(folder: Path, pairs: list[str], *, rows: int = 240, seed: int = 0) -> Path:
    """Made up from a rule: the share of words kept."""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        reference = random.choice(WORDS, 5, replace=False)
        keep = int(random.integers(0, 6))
        translation = [*reference[:keep], *random.choice(WORDS, 5 - keep)]
        lines.append(f"{random.choice(pairs)}\t{' '.join(translation)}\t{' '.join(reference)}\t{keep}\n")
    table = folder / "judgements.tsv"
    table.write_text(HEADER + "".join(lines))
    return table


def test_training_learns_and_its_folder_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The share of words kept, on few words: a head can learn that."""
    table = judgements(tmp_path, pairs=["xx-en", "yy-en"])
    out = tmp_path / "metric"
    arguments = ["train-metric", str(table), "-o", str(out), "--hold-out", "yy-en", "--device", "cpu", "--epochs", "8"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "held out yy-en  learned" in printed
    held = [row for row in read_judgements(str(table)) if row.pair == "yy-en"]
    metric = Learned(out, device="cpu")
    scores = metric.pairs([row.translation for row in held], [row.reference for row in held])
    found = pearson(scores, [row.score for row in held])
    assert found > 0.5
    assert f"Pearson {found:.3f}" in printed  # what the loaded checkpoint gives is what training reported
    assert main(arguments) == 2  # not over a checkpoint that exists
    assert "--force" in capsys.readouterr().err


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """Folders of BERT encoders of two layers, with random weights from a seed."""

    def make(seed: int) -> str:
        folder = tmp_path_factory.mktemp("bert")
        torch.manual_seed(seed)
        transformers.BertModel(transformers.BertConfig(**SHAPE)).save_pretrained(folder)
        tiny_models.tokenizer(WORDS).save_pretrained(folder)
        return str(folder)

    return make


def upper_checkpoint(folder: Path, encoder: str, *, layer: int = 1) -> dict[str, torch.Tensor]:
    """A metric whose encoder is `encoder`, of 8 units, but for one layer, which it holds in 8 bits; its state."""
    Path(encoder, "tokenizer.json").unlink()
    Path(encoder, "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    torch.manual_seed(3)
    own = transformers.BertModel(transformers.BertConfig(**{**SHAPE, "num_hidden_layers": 1}))
    state = {}
    for key, value in own.encoder.layer[0].state_dict().items():
        name = f"encoder.model.encoder.layer.{layer}.{key}"
        state[name] = torch.randn(value.shape)
        if value.dim() == 2:
            state[name] = torch.randint(-127, 128, value.shape, dtype=torch.int8)
            state[f"{name}.scale"] = torch.rand(len(value)) / 100
    for number, (width, size) in zip((0, 3), ((32, 4), (4, 1)), strict=True):
        state[f"estimator.ff.{number}.weight"] = torch.randn(size, width)
        state[f"estimator.ff.{number}.bias"] = torch.randn(size)
    state |= {f"layerwise_attention.scalar_parameters.{n}": torch.tensor([n / 2]) for n in range(3)}
    state["layerwise_attention.gamma"] = torch.ones(1)
    (folder / "checkpoints").mkdir(parents=True)
    settings = {"encoder_model": "BERT", "pretrained_model": encoder, "encoder_weights": "upper"}
    settings |= {"hidden_sizes": [4], "layer_norm": False}
    text = "".join(f"{key}: {value}\n" for key, value in settings.items())
    (folder / "hparams.yaml").write_text("class_identifier: regression_metric\n" + text)
    torch.save({"state_dict": state, "hyper_parameters": settings}, folder / "checkpoints" / "model.ckpt")
    return state


def test_upper_layers_in_8_bits_score_as_a_plain_bert_with_their_weights(
    tmp_path: Path, tiny: Callable[[int], str]
) -> None:
    """And to the bit the same in any batch."""
    encoder = tiny(1)
    state = upper_checkpoint(tmp_path / "m", encoder)
    metric = Learned(tmp_path / "m", device="cpu")
    bert = transformers.BertModel.from_pretrained(encoder, add_pooling_layer=False).eval()
    own = {key.removeprefix("encoder.model."): value for key, value in state.items() if key.startswith("encoder.")}
    scales = {key: own.pop(key) for key in list(own) if key.endswith(".scale")}
    own = {k: v.float() * scales[f"{k}.scale"][:, None] if v.dim() == 2 else v for k, v in own.items()}
    bert.load_state_dict(own, strict=False)
    made = transformers.BertTokenizerFast.from_pretrained(encoder)
    mix = torch.cat([state[f"layerwise_attention.scalar_parameters.{n}"] for n in range(3)]).softmax(0)

    def vector(text: str) -> torch.Tensor:
        states = bert(**made(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        return sum(weight * each[0].mean(0) for weight, each in zip(mix, states, strict=True))  # type: ignore[return-value]

    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(24)]
    scores = metric.pairs(texts[:12], texts[12:])
    for number in range(12):
        with torch.no_grad():
            h, r = vector(texts[number]), vector(texts[12 + number])
            x = torch.cat([h, r, h * r, (h - r).abs()])
            for part in (0, 3):
                x = state[f"estimator.ff.{part}.weight"] @ x + state[f"estimator.ff.{part}.bias"]
                x = x.tanh() if part == 0 else x
        assert scores[number] == pytest.approx(float(x), abs=1e-5)
        assert metric.pairs([texts[number]], [texts[12 + number]])[0] == scores[number]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda state: state.popitem(), r"missing weights \(layerwise_attention.gamma"),
        (lambda state: state.pop(f"{UPPER}.attention.self.key.weight.scale"), r"1 missing weights .*key.weight.scale"),
        (lambda state: state.pop(f"{UPPER}.output.dense.bias"), r"1 missing weights .*layer.1.output.dense.bias"),
        (lambda state: state.update({"encoder.model.x": torch.ones(1)}), r"1 unexpected weights \(encoder.model.x\)"),
    ],
)
def test_upper_layers_that_do_not_fit_are_named(
    damage: Callable[[dict[str, torch.Tensor]], Any], message: str, tmp_path: Path, tiny: Callable[[int], str]
) -> None:
    upper_checkpoint(tmp_path / "m", tiny(1))
    path = tmp_path / "m" / "checkpoints" / "model.ckpt"
    content = torch.load(path, weights_only=True)
    damage(content["state_dict"])
    torch.save(content, path)
    with pytest.raises(mbrace.UserError, match=message):
        Learned(tmp_path / "m", device="cpu")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_head_is_small_and_holds_no_encoder(name: str) -> None:
    folder = mbrace_learned.FOLDER / f"learned-{name}"
    path = folder / "checkpoints" / "model.ckpt"
    assert path.stat().st_size < 2 << 20
    state = torch.load(path, weights_only=True)["state_dict"]
    assert not any(key.startswith("encoder.") for key in state)
    assert (folder / "card.md").is_file()


def test_correlations_by_hand() -> None:
    """Of three pairs, two agree and one does not; with ties, 4 of 6 pairs agree and each side has one tie: 4/5."""
    assert kendall([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)
    assert kendall([1, 1, 2, 3], [1, 2, 2, 3]) == pytest.approx(0.8)
    assert pearson([0, 0, 2, 2], [0, 2, 0, 6]) == pytest.approx(1 / 6**0.5)
