"""Training: a toy language is learned, a crash changes nothing, and the result is an ordinary Marian folder."""

from __future__ import annotations

import fcntl
import importlib
import itertools
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy as safetensors
import tiny_models
import torch
import transformers

import mbrace
from mbrace.cli import main
from mbrace.io.texts import read_pairs
from mbrace.models.marian_network import load_bundled, read_network
from mbrace.models.next_ids import sentence_key
from mbrace.models.tokenizers import Vocabulary
from mbrace.training import loop as training_run
from mbrace.training.train import TrainingOptions, train

WORDS = {
    "hund": "dog", "katze": "cat", "haus": "house", "baum": "tree", "rot": "red", "blau": "blue", "gross": "big",
    "klein": "small", "mann": "man", "frau": "woman", "kind": "child", "wasser": "water", "buch": "book",
}  # fmt: skip
OPTIONS = TrainingOptions(
    size="tiny", vocabulary=340, steps=200, tokens=512, warmup=20, rate=3e-3, threads=1, device="cpu"
)


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    chosen = [rng.choices(sorted(WORDS), k=rng.randint(1, 3)) for _ in range(count)]
    return [(" ".join(words), " ".join(WORDS[word] for word in words)) for words in chosen]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained for 200 steps on word-for-word translation, once for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    path = shared / "toy"
    with open(shared / "toy.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (path / "training.json").exists():
            train(sentences(2000, 1), sentences(50, 2), path, replace(OPTIONS, validate_every=50))
    return path


def test_200_steps_learn_to_translate_word_for_word(folder: Path) -> None:
    unseen = [pair for pair in sentences(150, 3) if pair not in sentences(2000, 1)]
    beams = mbrace.Seq2Seq(folder).beam([source for source, _ in unseen], k=2)
    right = sum(beam.texts[0] == target for beam, (_, target) in zip(beams, unseen, strict=True))
    assert len(unseen) > 20
    assert right >= 0.9 * len(unseen)
    history = json.loads((folder / "training.json").read_text())["history"]
    assert history[-1]["valid_loss"] < 0.2 * history[0]["valid_loss"]
    assert history[-1]["chrf"] > 90


def test_transformers_alone_loads_and_translates_the_same(folder: Path) -> None:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sources = [source for source, _ in sentences(10, 4)]
    given = tokenizer(sources, return_tensors="pt", padding=True)
    ids = model.generate(**given, num_beams=3, max_new_tokens=40)
    theirs = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert [beam.texts[0] for beam in mbrace.Seq2Seq(folder).beam(sources, k=3)] == theirs


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The state is saved after every step, and the run crashes at the step given, once."""
    update = training_run.TrainingRun.update

    def crash_at(step: int) -> None:
        def crash(self: Any) -> None:
            update(self)
            if self.step == step:
                monkeypatch.setattr(training_run.TrainingRun, "update", update)
                raise KeyboardInterrupt

        monkeypatch.setattr(training_run, "SAVE_SECONDS", 0.0)
        monkeypatch.setattr(training_run.TrainingRun, "update", crash)

    return crash_at


def test_a_run_that_is_cut_ends_with_the_same_weights(
    tmp_path: Path, crash_at: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    options = replace(OPTIONS, steps=12, validate_every=8, chrf_sentences=0)
    pairs, valid = sentences(300, 5), sentences(20, 6)
    whole = train(pairs, valid, tmp_path / "whole", options)
    for steps in (0, 3, 4):  # interrupted before the first step, and between validations
        answers = itertools.chain([False] * steps, itertools.repeat(True))
        assert train(pairs, valid, tmp_path / "cut", options, interrupted=answers.__next__) is None
        assert "is saved: run the same command to continue" in capsys.readouterr().err
    crash_at(10)
    with pytest.raises(KeyboardInterrupt):
        train(pairs, valid, tmp_path / "cut", options)
    cut = train(pairs, valid, tmp_path / "cut", options)
    assert whole is not None
    assert cut is not None
    assert "resumed from" in capsys.readouterr().err
    saved = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert saved[0] == saved[1]
    losses = [[(entry["step"], entry["train_loss"]) for entry in run["history"]] for run in (whole, cut)]
    assert losses[0] == losses[1]
    assert [step for step, _ in losses[0]] == [8, 12]
    assert not (tmp_path / "cut" / "state.pt").exists()


def test_the_train_command_saves_what_a_signal_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = files_of_pairs(tmp_path)
    update = training_run.TrainingRun.update

    def signalled(self: Any) -> None:
        update(self)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(training_run.TrainingRun, "update", signalled)
    assert main(command) == 130
    assert "interrupted; step 1 is saved" in capsys.readouterr().err
    monkeypatch.setattr(training_run.TrainingRun, "update", update)
    assert main(command) == 0
    assert "state.pt: step 1, 1 validation, lowest" in capsys.readouterr().err


def test_a_saved_state_that_is_damaged_or_of_another_model_is_refused(tmp_path: Path) -> None:
    options = replace(OPTIONS, steps=3)
    pairs, valid = sentences(50, 5), sentences(20, 6)
    train(pairs, valid, tmp_path / "m", options, interrupted=lambda: True)
    state = tmp_path / "m" / "state.pt"
    whole = state.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"not a checkpoint"):
        state.write_bytes(content)
        with pytest.raises(
            mbrace.UserError, match=r"state.pt: cannot be read: damaged.*; use force=True to start over"
        ):
            train(pairs, valid, tmp_path / "m", options)
    torch.save({"model": {}}, state)
    with pytest.raises(mbrace.UserError, match=r"state.pt: not the state of this run"):
        train(pairs, valid, tmp_path / "m", options)


def test_an_interrupted_run_is_taken_up_only_with_the_same_options_and_data(
    tmp_path: Path, crash_at: Callable[[int], None]
) -> None:
    options = replace(OPTIONS, steps=6, validate_every=2, chrf_sentences=0)
    pairs, valid = sentences(300, 5), sentences(20, 6)
    crash_at(4)
    with pytest.raises(KeyboardInterrupt):
        train(pairs, valid, tmp_path, options)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert "state.pt" in before
    for other, told in [
        (replace(options, vocabulary=310), "with vocabulary 340, not 310"),
        (replace(options, size="small"), "with size 'tiny', not 'small'"),
        (replace(options, seed=1), "with seed 0, not 1"),
        (replace(options, steps=7), "with steps 6, not 7"),
    ]:
        with pytest.raises(mbrace.UserError, match=f"has an interrupted run {told}; give the same options and data, "):
            train(pairs, valid, tmp_path, other)
    for data, other_pairs, other_valid, spm in [
        ("train", pairs[:-1], valid, None),
        ("valid", pairs, valid[:-1], None),
        ("spm", pairs, valid, before["source.spm"]),
    ]:
        with pytest.raises(mbrace.UserError, match=rf"with other data \({data}\);"):
            train(other_pairs, other_valid, tmp_path, options, spm=spm)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "run.json").unlink()
    with pytest.raises(mbrace.UserError, match=r"has state\.pt but no run\.json.*force=True to start over"):
        train(pairs, valid, tmp_path, options)
    (tmp_path / "run.json").write_bytes(before["run.json"])
    assert train(pairs, valid, tmp_path, replace(options, threads=2))["steps"] == 6  # threads change no weight
    assert not {"state.pt", "run.json"} & {path.name for path in tmp_path.iterdir()}


def test_training_begins_with_the_weights_of_another_model_in_16_bits(folder: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(folder, half)
    read_network(folder).save(half, half=True)
    weights = safetensors.load_file(half / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {np.dtype(np.float16)}
    before = json.loads((folder / "training.json").read_text())
    options = replace(OPTIONS, initial=str(half), steps=2, warmup=1, rate=1e-5, validate_every=1, chrf_sentences=0)
    valid = sentences(20, 8)
    found = train(sentences(60, 7), valid, tmp_path / "m", options)
    again = train(sentences(60, 7), valid, tmp_path / "random", replace(options, initial=None))
    assert found is not None
    assert again is not None
    first, trained = found["history"][0]["valid_loss"], min(before["best_loss"], before["averaged_loss"])
    assert abs(first - trained) < 0.3 < again["history"][0]["valid_loss"] - first
    with pytest.raises(mbrace.UserError, match="half: is of another size or vocabulary"):
        train(sentences(60, 7), valid, tmp_path / "x", replace(options, size="small"))


def test_subword_sampling_trains_on_segmentations_that_differ_and_decode_to_the_text(tmp_path: Path) -> None:
    pairs, seen = sentences(60, 7), set()
    encode = Vocabulary.encode

    def watched(self: Vocabulary, lines: Sequence[str], **options: Any) -> Any:
        rows = encode(self, lines, **options)
        if options.get("sampling"):
            seen.update(tuple(row.tolist()) for row in rows)
            assert [self.processor.decode(row.tolist()[:-1]) for row in rows] == list(lines)
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vocabulary, "encode", watched)
        options = replace(OPTIONS, subword_sampling=0.1, steps=12, warmup=1, chrf_sentences=0, half=True)
        assert train(pairs, sentences(20, 8), tmp_path, options) is not None
    assert len(seen) > 2 * len({text for pair in pairs for text in pair})
    assert "float16" in (tmp_path / "config.json").read_text()


def test_early_stopping_ends_a_run_without_a_budget(tmp_path: Path) -> None:
    options = replace(OPTIONS, steps=None, validate_every=2, patience=2, rate=10.0, chrf_sentences=0)
    result = train(sentences(60, 7), sentences(20, 8), tmp_path, options)
    losses = [entry["valid_loss"] for entry in result["history"]]
    best = losses.index(min(losses))
    assert len(losses) == best + 1 + options.patience


def test_the_int8_bundle_translates_as_the_model_it_is_made_from(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "experiments"))
    size = importlib.import_module("evaluate").quantise(folder, tmp_path)
    assert size < 0.6 * sum(path.stat().st_size for path in folder.iterdir())
    model, vocabulary = load_bundled(tmp_path)
    pairs = sentences(30, 9)
    beams = mbrace.Seq2Seq.of(model, vocabulary).beam([source for source, _ in pairs], k=2)
    assert sum(beam.texts[0] == target for beam, (_, target) in zip(beams, pairs, strict=True)) >= 27
    full = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict()
    for name, weight in model.state_dict().items():
        if weight.dim() == 2 and "positions" not in name:
            step = full[name].abs().amax(1, keepdim=True) / 127
            assert bool(((weight - full[name]).abs() <= 0.51 * step + 1e-9).all()), name


def files_of_pairs(tmp_path: Path) -> list[str]:
    for name, pairs in (("t", sentences(200, 1)), ("v", sentences(10, 2))):
        (tmp_path / f"{name}.de").write_text("".join(source + "\n" for source, _ in pairs))
        (tmp_path / f"{name}.en").write_text("".join(target + "\n" for _, target in pairs))
    files = ["--train", f"{tmp_path}/t.de", f"{tmp_path}/t.en", "--valid", f"{tmp_path}/v.de", f"{tmp_path}/v.en"]
    small = ["--size", "tiny", "--vocabulary", "340", "--steps", "3", "--tokens", "256", "--device", "cpu"]
    return ["train", *files, "-o", f"{tmp_path}/model", *small]


def test_train_command_reads_two_files_and_writes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = files_of_pairs(tmp_path)
    assert main(command) == 0
    assert {"model.safetensors", "config.json", "source.spm", "target.spm", "vocab.json", "training.json"} <= {
        path.name for path in (tmp_path / "model").iterdir()
    }
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    capsys.readouterr()
    assert main([*command, "--seed", "1"]) == 2  # a finished model is not trained over unasked
    assert "model: has a finished model; use --force" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    assert main([*command, "--spm", f"{tmp_path}/t.de", "--force"]) == 2  # a mistake costs nothing
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    assert main([*command, "--seed", "1", "--force"]) == 0
    assert (tmp_path / "model" / "model.safetensors").read_bytes() != before["model.safetensors"]


def test_a_model_is_replaced_only_when_the_new_one_is_done(tmp_path: Path, folder: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    options = TrainingOptions(size="tiny", vocabulary=340, steps=3, tokens=256, device="cpu")
    data = sentences(200, 1), sentences(10, 2)
    assert train(*data, model, options, force=True, interrupted=lambda: True) is None
    assert {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()} == before
    resumed, whole = train(*data, model, options), train(*data, tmp_path / "other", options)
    assert resumed is not None
    assert whole is not None
    assert resumed["best_loss"] == whole["best_loss"]
    new, other = ({path.name for path in of.iterdir()} for of in (model, tmp_path / "other"))
    assert new == other
    assert (model / "model.safetensors").read_bytes() == (tmp_path / "other" / "model.safetensors").read_bytes()


def test_any_id_has_a_random_stream() -> None:
    assert sentence_key(0, "\ud800") != sentence_key(0, "\udfff")  # lone surrogates are legal in JSON
    assert sentence_key(0, "de-en.test.7") == 6697101671322091389  # committed candidates were drawn with these keys


def test_origins_choose_rows_of_a_tsv(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("eins\tone\tx\nzwei\ttwo\ty\ndrei\tthree\tx\n")
    assert read_pairs(tmp_path / "t.tsv", origins=["x"]) == [("eins", "one"), ("drei", "three")]
    with pytest.raises(mbrace.UserError, match="no sentence pairs of origin z"):
        read_pairs(tmp_path / "t.tsv", origins=["z"])


def test_batches_hold_every_pair_once_and_keep_to_the_budget() -> None:
    rng = np.random.default_rng(0)
    sides = [[np.arange(n, dtype=np.uint16) for n in rng.integers(1, 60, 500)] for _ in range(2)]
    corpus = training_run.Corpus.of(*sides)
    plan = corpus.plan(512, np.random.default_rng(1))
    assert sorted(np.concatenate(plan).tolist()) == list(range(500))
    for batch in plan:
        source, target, count = corpus.padded(batch, 99)
        assert max(source.size, target.size) <= 512
        assert count == sum(len(sides[1][i]) for i in batch)
        assert (np.where(target == 99, 0, 1).sum(1) == [len(sides[1][i]) for i in batch]).all()


def test_language_codes_of_a_real_multilingual_tokenizer_frame_source_and_target(folder: Path) -> None:
    tokenizer = transformers.M2M100Tokenizer(vocab_file=str(folder / "vocab.json"), spm_file=str(folder / "source.spm"))
    german, english = tokenizer.get_lang_id("de"), tokenizer.get_lang_id("en")
    config = transformers.M2M100Config(
        vocab_size=english + 200, pad_token_id=tokenizer.pad_token_id, eos_token_id=0, decoder_start_token_id=0,
        **tiny_models.SHAPE, **tiny_models.HEADS, **{**tiny_models.FEET, "max_position_embeddings": 512},
    )  # fmt: skip
    model = transformers.M2M100ForConditionalGeneration(config)
    translator = mbrace.Seq2Seq(model, tokenizer=tokenizer, source_language="de", target_language="en")
    row = translator.codec.encode(["hund"])[0]
    assert (row[0], row[-1]) == (german, tokenizer.eos_token_id)
    assert translator.decoder._prefix == [0, english]  # type: ignore[attr-defined]
    assert translator.beam(["hund"], k=2, max_length=4)[0].texts
    with pytest.raises(mbrace.UserError, match="language 'klingon': unknown; choose from af, am"):
        mbrace.Seq2Seq(model, tokenizer=tokenizer, source_language="klingon")
