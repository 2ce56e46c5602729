"""Nothing that is read is executed, and docs/security.md names tests that exist."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mbrace

SOURCES = sorted(Path(mbrace.__file__).parent.rglob("*.py"))
FORBIDDEN = {"eval", "exec", "compile"}  # built-in names; methods such as re.compile are others
MODULES = {"pickle", "dill", "marshal", "shelve", "joblib", "cloudpickle", "subprocess", "tarfile"}


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def name_of(node: ast.Call) -> str:
    return ast.unparse(node.func)


def test_no_module_unpickles_evaluates_or_extracts() -> None:
    assert len(SOURCES) > 20
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            name.split(".")[0]
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert not imported & MODULES, path
        called = {name_of(call) for call in calls(tree)}
        assert not FORBIDDEN & called, path
        assert not any(name.endswith((".extract", ".extractall", ".unpack_archive")) for name in called), path


def test_checkpoints_are_loaded_with_weights_only_and_yaml_with_a_safe_loader() -> None:
    seen = 0
    for path in SOURCES:
        for call in calls(ast.parse(path.read_text(encoding="utf-8"))):
            name = name_of(call)
            if name == "torch.load":
                seen += 1
                settings = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert settings.get("weights_only") == "True", f"{path}:{call.lineno}"
            assert name not in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"), f"{path}:{call.lineno}"
    assert seen


def test_loaders_of_transformers_are_called_in_one_place_and_never_trust_code() -> None:
    found = []
    for path in SOURCES:
        for call in calls(ast.parse(path.read_text(encoding="utf-8"))):
            name = name_of(call)
            if name.endswith((".from_pretrained", ".from_config", ".pipeline", "load_custom_generate")):
                found.append(path.name)
                settings = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert settings["trust_remote_code"] == "False"
    assert found == ["pretrained.py"]


CODE = "open('CODE RAN', 'w')\n"
CONFIGURATION = (
    CODE + "from transformers import PretrainedConfig\nclass Evil(PretrainedConfig):\n    model_type = 'evil'\n"
)


EVIL = [
    ("translate s.txt --model evil --beam 2", ("config", "tokenizer", "stray", "custom_generate", "kernel", "part")),
    ("generate s.txt --model evil -o o.jsonl --beam 2 --prompt {source}", ("config",)),
    (
        "decode c.jsonl -o o.jsonl --utility embedding --metric-model evil --device cpu",
        ("config", "tokenizer", "kernel"),
    ),
    ("decode c.jsonl -o o.jsonl --utility bertscore --metric-model evil --utility-option layer=1", ("config",)),
    ("decode c.jsonl -o o.jsonl --utility comet --metric-model comet --device cpu", ("config", "tokenizer")),
]


@pytest.mark.parametrize(("command", "kind"), [(command, kind) for command, kinds in EVIL for kind in kinds])
def test_code_in_a_model_folder_never_runs_whatever_is_typed(command: str, kind: str, tmp_path: Path) -> None:
    """As `printf 'y\\ny\\n' | mbrace translate - --model evil` once ran it."""
    pytest.importorskip("transformers")
    for name in ("evil", "comet"):
        (tmp_path / name).mkdir()
    evil = tmp_path / "evil"
    known = {"model_type": "bert", "vocab_size": 9, "num_hidden_layers": 2, "hidden_size": 8}
    known |= {"num_attention_heads": 2, "intermediate_size": 8}
    auto = {"AutoConfig": "evil_code.Evil", "AutoModel": "evil_code.Evil", "AutoModelForSeq2SeqLM": "evil_code.Evil"}
    config = {"model_type": "evil", "auto_map": auto} if kind == "config" else known
    config |= {"attn_implementation": "evil/kernel"} if kind == "kernel" else {}  # transformers gets it from the hub
    config |= {"text_config": {"auto_map": auto}} if kind == "part" else {}
    (evil / "config.json").write_text(json.dumps(config))
    (evil / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n")
    if kind == "tokenizer":
        tokenizer = {"auto_map": {"AutoTokenizer": ["evil_code.Evil", None]}, "tokenizer_class": "Evil"}
        (evil / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    if kind == "custom_generate":
        (evil / "custom_generate").mkdir()
        (evil / "custom_generate" / "generate.py").write_text(CODE)
    elif kind in ("config", "tokenizer"):
        (evil / "evil_code.py").write_text(CONFIGURATION)
    elif kind == "stray":
        (evil / "stray.py").write_text(CODE)
    write_comet(tmp_path / "comet", evil)
    assert re.search(r"evil: brings code of its own \(.*which mbrace never runs", refusal_in(tmp_path, command))


@pytest.mark.parametrize("is_link", [False, True])
def test_code_of_a_part_in_a_folder_of_its_own_never_runs(is_link: bool, tmp_path: Path) -> None:
    """RagTokenizer loads its parts without saying that no code may run."""
    transformers = pytest.importorskip("transformers")
    known = {"vocab_size": 9, "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2}
    network = transformers.BertModel(transformers.BertConfig(**known, intermediate_size=8))
    network.config.update({"question_encoder": {"model_type": "vit"}, "generator": {"model_type": "vit"}})
    network.save_pretrained(tmp_path / "evil")
    part = tmp_path / ("elsewhere" if is_link else "evil/question_encoder_tokenizer")
    part.mkdir()
    if is_link:
        (tmp_path / "evil" / "question_encoder_tokenizer").symlink_to(part)
    (part / "evil_code.py").write_text(CODE)
    auto = {"auto_map": {"AutoTokenizer": [f"{part.relative_to(tmp_path)}--evil_code.Evil", None]}}
    (part / "tokenizer_config.json").write_text(json.dumps(auto))
    (tmp_path / "evil" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RagTokenizer"}))
    (tmp_path / "evil" / "vocab.txt").write_text("a\n")
    refusal = refusal_in(tmp_path, "decode c.jsonl -o o.jsonl --utility embedding --metric-model evil --device cpu")
    assert re.search("requires you to execute" if is_link else "evil: brings code of its own", refusal), refusal


def refusal_in(folder: Path, command: str) -> str:
    """What a command says that is asked to run code, whatever is typed, and does not."""
    (folder / "s.txt").write_text("hello\n")
    (folder / "c.jsonl").write_text(json.dumps({"hypotheses": ["a b", "c"], "source": "d"}) + "\n")
    ran = subprocess.run(
        [sys.executable, "-m", "mbrace", *command.split()],
        cwd=folder,
        input="y\ny\ny\nhello\n",
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"},
    )
    assert not (folder / "CODE RAN").exists()
    assert ran.returncode == 2, ran.stderr
    assert "[y/N]" not in ran.stdout + ran.stderr
    return ran.stderr


def write_comet(folder: Path, encoder: Path) -> None:
    """A COMET checkpoint that names this encoder."""
    import torch

    settings = {"class_identifier": "regression_metric", "encoder_model": "BERT", "pretrained_model": str(encoder)}
    settings |= {"pool": "avg", "layer": 1, "hidden_sizes": [4], "activations": "Tanh", "final_activation": None}
    (folder / "checkpoints").mkdir()
    (folder / "hparams.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
    state = {"estimator.ff.0.weight": torch.zeros(4, 48), "estimator.ff.0.bias": torch.zeros(4)}
    state |= {"estimator.ff.3.weight": torch.zeros(1, 4), "estimator.ff.3.bias": torch.zeros(1)}
    state |= {"encoder.model.embeddings.word_embeddings.weight": torch.zeros(9, 8)}
    torch.save({"state_dict": state}, folder / "checkpoints" / "model.ckpt")


def test_every_test_named_in_the_document_exists_and_every_claim_of_distrust_has_one() -> None:
    here = Path(__file__).parent
    document = (here.parent / "docs" / "security.md").read_text(encoding="utf-8")
    found = {
        node.name
        for path in here.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    named = set(re.findall(r"`(test_\w+)`", document))
    assert named <= found, named - found
    tables = [table.splitlines() for table in document.split("\n\n") if table.startswith("| a ")]
    assert len(tables) == 3
    for row in (row for table in tables for row in table[2:]):
        assert "`test_" in row.rsplit("|", 2)[1], row
