"""Options of `mbrace generate` and `mbrace translate` that are refused, and the bundled translator."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_commands import save_model, translate, write_sources

import mbrace
from mbrace.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_sources(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--beam", "0"], "--beam 0: must be 1 or more"),
        (["--schedule", "all"], "a live model has no last pseudo-reference"),
        (["--prompt", "say it"], "--prompt: has no {source}; put it where the source goes"),
        (["--stop", "x"], "--stop: only valid with --prompt or --server"),
        (["--kind", "causal"], "--kind: is not needed now"),
        (["--temperature", "0"], "--temperature 0.0: must be 1e-06 or more"),
        (["--temperature", "-1"], "--temperature -1.0: must be 0 or more"),
        (["--epsilon", "1.5"], "--epsilon 1.5: must be between 0 and 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    sources: Path, folder: Path, tmp_path: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert translate(sources, folder, tmp_path / "o.txt", *more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o.txt").exists()


SERVER = ["--server", "http://127.0.0.1:9", "--model", "m", "--prompt", "{source}"]


@pytest.mark.parametrize("command", ["translate", "generate"])
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--source-language", "deu_Latn"], "--source-language: only valid with --model"),
        (["--target-language", "eng_Latn"], "--target-language: only valid with --model"),
        (["--source-prefix", "translate: "], "--source-prefix: only valid with --model"),
        (["--server-model", "m"], "--server-model: only valid with --server"),
        (["--server-option", "kind=chat"], "--server-option: only valid with --server"),  # what is the default too
        (["--concurrency", "2"], "--concurrency 2: only valid with --server"),
        (["--prompt", "{source}"], "--prompt: only valid with --model"),
        (["--model", "M", "--prompt", "{source}", "--source-prefix", "x"], "--source-prefix x: only valid without"),
        (["--server", "http://127.0.0.1:9"], "needs --model, the model's name there"),
        ([*SERVER, "--epsilon", "1.5"], "--epsilon 1.5: must be between 0 and 1"),
        ([*SERVER, "--source-language", "de"], "--source-language de: only valid without --server, which"),
        (
            [*SERVER, "--server-option", "kinds=chat"],
            "--server-option kinds: no option of a server; did you mean kind?",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    sources: Path, tmp_path: Path, command: str, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(sources), "-o", f"{tmp_path}/o", *more]) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"sources.txt"}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["translate", *SERVER, "--sampling", "arithmetic"], "--sampling arithmetic: only valid with a model here"),
        (["generate", *SERVER, "--length-penalty", "2"], "--length-penalty 2.0: only valid with beam search"),
        (["translate", *SERVER, "--length-alpha", "1"], "--length-alpha: is called --length-penalty now"),
        (["generate", *SERVER, "--device", "cpu"], "--device cpu: only valid without --server"),
        (["generate", "--logprobs", "--sample", "0"], "--logprobs: only valid with pseudo-references"),
    ],
)
def test_an_option_of_one_command_that_would_do_nothing_is_refused(
    sources: Path, tmp_path: Path, command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(sources), "-o", f"{tmp_path}/o"]) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"sources.txt"}


def test_the_bundled_translator_takes_no_languages() -> None:
    for options in ({"source_language": "de"}, {"target_language": "en"}, {"prefix": "translate: "}):
        with pytest.raises(mbrace.UserError, match="bundled translator is German to English"):
            mbrace.Seq2Seq(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["translate", "generate", "train"])
def test_a_device_that_cannot_be_used_is_named_before_work(
    sources: Path, folder: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"train": ["--train", str(sources), str(sources), "--valid", str(sources), str(sources)]}
    given = files.get(command, [str(sources), "--model", str(folder)])
    assert main([command, *given, "-o", f"{tmp_path}/o", "--device", "abacus"]) == 2
    assert "device abacus: cannot be used (" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"sources.txt"}
