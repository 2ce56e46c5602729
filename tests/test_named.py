"""Utilities by name: every name, options as text, mixtures of them, and what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mbrace
from mbrace.utilities.named import NAMED, kind_of, make_utility, model_of, scored_options, uses_model


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("chrf", {}, mbrace.ChrF(word_order=0, threads=2)),
        ("chrf+", {}, mbrace.ChrF(word_order=1, threads=2)),
        ("chrf++", {"beta": "3", "whitespace": "yes"}, mbrace.ChrF(beta=3, whitespace=True, threads=2)),
        ("bleu", {}, mbrace.BLEU(threads=2)),
        (
            "bleu",
            {"tokenize": "char", "smooth_method": "floor", "smooth_value": "0.2", "max_ngram_order": "3"},
            mbrace.BLEU(tokenize="char", smooth_method="floor", smooth_value=0.2, max_ngram_order=3, threads=2),
        ),
        ("ter", {"normalized": "true"}, mbrace.TER(normalized=True)),
        ("wer", {"lowercase": "no"}, mbrace.EditDistance(kind="wer", threads=2)),
        ("cer", {}, mbrace.EditDistance(kind="cer", threads=2)),
        ("edit", {"kind": "osa", "unit": "words"}, mbrace.EditDistance(kind="osa", unit="words", threads=2)),
        ("exact", {"pattern": "(a=b)"}, mbrace.ExactMatch(pattern="(a=b)")),
        ("rouge-l", {}, mbrace.RougeL(threads=2)),
    ],
)
def test_names_make_utilities(name: str, options: dict[str, str], expected: Any) -> None:
    assert make_utility(name, options, threads=2) == expected


def test_neural_names_get_model_and_device() -> None:
    utility = make_utility("learned", model="en", device="cpu", dtype="float32")
    assert utility.name.startswith("learned|")
    assert make_utility("learned", {"model": "en", "batch_tokens": "512"}, device="cpu").name == utility.name


def test_a_mixture_of_names_with_options_of_its_parts() -> None:
    options = {"bleu.tokenize": "char", "scale": "fixed", "chrf++.lowercase": "yes"}
    mixture = make_utility("chrf++:0.5+bleu:0.25+exact:2", options)
    expected = mbrace.Mixture(
        [(mbrace.ChrF(lowercase=True), 0.5), (mbrace.BLEU(tokenize="char"), 0.25), (mbrace.ExactMatch(), 2)],
        scale="fixed",
    )
    assert isinstance(mixture, mbrace.Mixture)
    assert (mixture.parts, mixture.scale) == (expected.parts, expected.scale)


def test_functions_and_mixtures_with_them(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def score(hypothesis, reference):\n    return 1.0\n")
    name = f"{tmp_path}/own.py:score"
    assert make_utility(name).pairs(["a"], ["b"]).tolist() == [1]
    mixture = make_utility(f"{name}:3+chrf:1", {"scale": "fixed"})
    assert mixture.pairs(["a"], ["b"])[0] == 3.0


def test_every_name_is_a_class_that_exists() -> None:
    pytest.importorskip("torch")
    for name, named in NAMED.items():
        module = __import__(f"mbrace.{named.module}", fromlist=[named.class_name])
        assert callable(getattr(module, named.class_name)), name


def test_models_are_used_by_neural_names_and_mixtures_with_one() -> None:
    used = {name for name in [*NAMED, "chrf:1+learned:1", "chrf:1+bleu:1", "m:f"] if uses_model(name)}
    assert used == {"comet", "embedding", "learned", "bertscore", "bleurt", "xcomet", "metricx", "chrf:1+learned:1"}


def test_what_a_mixture_costs_is_what_its_dearest_part_costs() -> None:
    names = ["chrf++", "replay", "learned", "metricx", "judge", "m:f", "chrf:1+comet:1", "xcomet:1+comet:1"]
    assert [kind_of(name) for name in names] == 2 * ["string"] + ["encoder"] + 3 * ["pair"] + ["encoder", "pair"]


def test_a_name_may_have_a_default_model() -> None:
    assert model_of("comet") == "Unbabel/wmt22-comet-da"
    assert model_of("comet", "mine") == "mine"
    assert [model_of(name) for name in ("embedding", "chrf++", "m:f")] == [None, None, None]


def test_python_takes_the_names_of_the_command_line(tmp_path: Path) -> None:
    samples = ["a cat", "the cat sat", "the cat sat down", "the cat"]
    (tmp_path / "own.py").write_text("def score(hypothesis, reference):\n    return -len(hypothesis)\n")
    assert mbrace.decode(samples, utility="bleu") == mbrace.decode(samples, utility=mbrace.BLEU())
    mixture = mbrace.Mixture([(mbrace.ChrF(), 1.0), (mbrace.BLEU(), 1.0)])
    assert mbrace.decode(samples, utility="chrf++:1+bleu:1") == mbrace.decode(samples, utility=mixture)
    assert mbrace.decode(samples, utility=f"{tmp_path}/own.py:score").text == "a cat"


def test_a_default_that_older_versions_did_not_have_is_told_apart_from_theirs() -> None:
    assert scored_options("exact", {"pattern": "x"}) == {"pattern": "x", "numbers": "yes"}
    assert scored_options("exact", {"pattern": "x", "numbers": "no"}) == {"pattern": "x", "numbers": "no"}
    assert scored_options("exact", {"lowercase": "yes"}) == {"lowercase": "yes"}
    assert scored_options("chrf:1+exact:1", {"exact.pattern": "x"}) == {"exact.pattern": "x", "exact.numbers": "yes"}
    assert scored_options("judge", {"url": "u", "model": "m", "budget": "5"}) == {"model": "m", "prompt": "default 2"}
    assert scored_options("judge", {"model": "m", "prompt": "p"}) == {"model": "m", "prompt": "p"}
