"""Utilities of your own by name: modules and files, sources, batches, and what can go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import mbrace
from mbrace.utilities.named import load_function
from mbrace.utility import Pairwise

CODE = """
import neighbour

def length(hypothesis, reference):
    return -abs(len(hypothesis) - len(reference))

def with_source(hypothesis, reference, source):
    return float(source in hypothesis)

def many(hypotheses, references):
    return [neighbour.VALUE] * len(hypotheses)

def marked(hypotheses, references):
    return [2.0] * len(hypotheses)

marked.batch = True
number = 3

class Kind:
    @staticmethod
    def score(hypothesis, reference):
        return 7.0

from mbrace import ChrF
chrf = ChrF(word_order=0)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_utility.py").write_text(CODE)
    (tmp_path / "neighbour.py").write_text("VALUE = 5.0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_function_of_a_file_is_a_utility(folder: Path) -> None:
    name = f"{folder}/own_utility.py:length"
    utility = load_function(name)
    assert utility.name == name
    assert not utility.needs_source
    assert utility.pairs(["abc"], ["a"]).tolist() == [-2]
    assert mbrace.decode(["a", "abcd", "abc"], ["xyz"], utility=utility).text == "abc"


def test_a_function_of_a_module_in_the_current_folder_is_a_utility(folder: Path) -> None:
    assert load_function("own_utility:length").pairs(["abc"], ["a"]).tolist() == [-2]
    assert load_function("own_utility:Kind.score").pairs(["abc"], ["a"]).tolist() == [7]


def test_a_third_argument_is_the_source(folder: Path) -> None:
    utility = load_function("own_utility.py:with_source")
    assert utility.needs_source
    assert utility.pairs(["ab", "cd"], ["", ""], ["a", "a"]).tolist() == [1, 0]


def test_batches_by_suffix_and_by_mark(folder: Path) -> None:
    by_suffix, by_mark = (load_function(f"own_utility.py:{name}") for name in ("many:batch", "marked"))
    assert by_suffix.pairs(["a", "b"], ["a", "b"]).tolist() == [5, 5]
    assert by_mark.pairs(["a", "b"], ["a", "b"]).tolist() == [2, 2]
    assert isinstance(by_mark, Pairwise)
    assert by_mark.batch


def test_a_utility_object_is_taken_as_it_is(folder: Path) -> None:
    assert load_function("own_utility.py:chrf") == mbrace.ChrF(word_order=0)
