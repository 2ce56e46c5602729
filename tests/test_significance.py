"""Intervals cover what they should; paired tests give sacreBLEU's p-values and the exact ones of small cases."""

from __future__ import annotations

import itertools
import json
import re
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest
from scipy import stats

from mbrace import ChrF
from mbrace.cli import main
from mbrace.experiments import significance
from mbrace.experiments.significance import averages, compare, paired_tests, sentence_interval, trial_interval


@pytest.fixture(scope="module")
def systems(demo_rows: list[dict[str, Any]]) -> tuple[list[str], list[str], list[str]]:
    """Beam search's first and a worse candidate, and the references, of the bundled sentences."""
    first = [row["hypotheses"][0] for row in demo_rows]
    second = [row["hypotheses"][i % 7] for i, row in enumerate(demo_rows)]
    return first, second, [row["reference"] for row in demo_rows]


@pytest.mark.parametrize(("kind", "samples"), [("bs", 1000), ("ar", 10000)])
def test_corpus_p_values_are_those_of_sacrebleu(systems: Any, kind: str, samples: int) -> None:
    first, second, references = systems
    metric = CHRF(word_order=2, references=[references])
    pair = [("B", second), ("A", first)]  # the first is sacreBLEU's baseline
    _, scores = PairedTest(pair, {"chrF": metric}, None, test_type=kind, n_samples=samples)()
    theirs = scores["chrF2++"]
    ours = compare(second, first, references, ChrF())[1]
    assert ours.measure == "corpus"
    assert ours.a == pytest.approx(theirs[0].score, abs=1e-4)
    assert ours.b == pytest.approx(theirs[1].score, abs=1e-4)
    assert (ours.p_bootstrap if kind == "bs" else ours.p_randomisation) == pytest.approx(theirs[1].p_value, abs=2e-4)


def test_randomisation_of_eight_sentences_is_near_the_exact_test() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.6, 1, (8, 1)), rng.normal(0, 1, (8, 1))
    observed = abs(a.mean() - b.mean())
    signs = np.array(list(itertools.product([1, -1], repeat=8)))
    exact = np.mean(np.abs(signs @ (a - b)[:, 0]) / 8 >= observed - 1e-12)
    assert paired_tests(a, b, averages(8), seed=1).p_randomisation == pytest.approx(exact, abs=0.015)


def test_a_system_against_itself_is_never_different() -> None:
    a = np.random.default_rng(0).normal(size=(40, 1))
    found = paired_tests(a, a, averages(40))
    assert (found.difference, found.low, found.high, found.wins) == (0, 0, 0, 0)
    assert (found.p_bootstrap, found.p_randomisation) == (1, 1)


def test_where_one_sentence_of_four_differs_sacrebleu_is_sure_and_we_are_not() -> None:
    references = ["the cat sat on the mat", "a dog barks at night", "it rains in the city", "she reads a book"]
    a = ["a cat sat on a mat", "dogs bark at night", "it is raining in town", "she reads a book"]
    b = [a[0], references[1], *a[2:]]
    metric = CHRF(word_order=2, references=[references])
    _, scores = PairedTest([("a", a), ("b", b)], {"chrF": metric}, None, test_type="ar", n_samples=1000)()
    assert scores["chrF2++"][1].p_value == pytest.approx(0.001, abs=1e-5)
    assert [test.p_randomisation for test in compare(a, b, references, ChrF(), shuffles=1000)] == [1, 1]


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(6)
    over_sentences = over_trials = 0
    for seed in range(300):
        low, high = sentence_interval(rng.exponential(size=(100, 1)), resamples=400, seed=seed)
        over_sentences += low <= 1 <= high
        low, high = trial_interval(2 + rng.normal(size=(1, 10)))
        over_trials += low <= 2 <= high
    assert 0.90 <= over_sentences / 300 <= 0.98
    assert 0.92 <= over_trials / 300 <= 0.98


def test_one_sentence_that_differs_is_no_evidence(tmp_path: Path, capsys: Any) -> None:
    """The bootstrap's p is how often the sentence is drawn one time more than on average, or oftener."""
    a, b = np.zeros((48, 1)), np.zeros((48, 1))
    a[7] = 1.0
    found = paired_tests(a, b, averages(48))
    times = (np.random.default_rng(12345).choice(48, size=(1000, 48)) == 7).sum(axis=1)
    often = int((times >= 1 + times.mean()).sum())
    assert found.p_bootstrap == (often + 1) / 1001
    assert 0.05 < found.p_bootstrap < 0.3
    assert (found.p_randomisation, found.differ, found.few_differ) == (1.0, 1, True)
    texts = [f"line {number}" for number in range(48)]
    same = write_lines(tmp_path / "a", texts)
    for other, says in (
        (texts, "0 of 48 sentences differ\n"),
        ([*texts[:-1], "x"], "1 of 48 sentences differ; with so few, trust the randomisation\n"),
        (["x"] * 10 + texts[10:], "10 of 48 sentences differ\n"),
    ):
        files = [same, write_lines(tmp_path / "b", other)]
        assert main(["compare", *files, "--reference", same, "--shuffles", "100"]) == 0
        assert capsys.readouterr().out.count(f"  {says}") == 2  # the average and the corpus


def test_compare_reads_text_and_decoded_json(tmp_path: Path, systems: Any, capsys: Any) -> None:
    first, second, references = systems
    a = write_lines(tmp_path / "a.txt", first)
    files = [a, write_lines(tmp_path / "b.jsonl", (json.dumps({"text": text}) for text in second))]
    r = write_lines(tmp_path / "r.txt", references)
    assert main(["compare", *files, "--reference", r, "--shuffles", "500"]) == 0
    shown = capsys.readouterr().out
    expected = ChrF().pairs(first, references).mean(dtype="float64")
    assert f"A {expected:.4f}" in shown
    assert f"A {ChrF().corpus(first, references):.4f}" in shown
    assert main(["compare", a, a, "--reference", r, "--shuffles", "500"]) == 0
    assert re.findall(r"p = ([0-9.]+)", capsys.readouterr().out) == ["1.0000"] * 4  # two tests of two scores
    assert main(["compare", files[0], files[0], "--reference", files[1]]) == 2
    assert "b.jsonl:1: reference: missing" in capsys.readouterr().err


def write_lines(path: Path, lines: Iterable[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def write_rows(path: Path, field: str, texts: Any) -> str:
    return write_lines(path, (json.dumps({"id": identity, field: text}) for identity, text in texts))


def test_compare_pairs_by_id_whatever_the_order(tmp_path: Path, systems: Any, capsys: Any) -> None:
    first, _, references = systems
    numbered = list(enumerate(first, 1))
    a = write_rows(tmp_path / "a.jsonl", "text", numbered)
    b = write_rows(tmp_path / "b.jsonl", "text", numbered[::-1])
    r = write_rows(tmp_path / "r.json", "reference", [("left out", "x"), *enumerate(references, 1)])
    assert main(["compare", a, b, "--reference", r, "--shuffles", "500"]) == 0
    told = capsys.readouterr()
    assert re.findall(r"p = ([0-9.]+)", told.out) == ["1.0000"] * 4
    assert f"A {ChrF().corpus(first, references):.4f}" in told.out
    assert "warning" in told.err
    assert "r.json: paired by id, and 1 of its 49 records are not in" in told.err
    assert main(["compare", a, b, "--reference", write_lines(tmp_path / "r.txt", references)]) == 2
    assert "r.txt: has no ids, and" in capsys.readouterr().err


def test_an_interval_over_trials_ends_at_the_bounds_of_what_is_measured() -> None:
    accuracies = np.array([[1.0] * 9 + [0.0]] * 9 + [[1.0] * 10])  # nine trials of 1.0, one of 0.1
    low, high = trial_interval(accuracies)
    assert high > 1
    assert trial_interval(accuracies, least=0, most=1) == (low, 1.0)


def test_resamples_in_parts_are_those_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(0, 9, size=(37, 2)), rng.integers(0, 9, size=(37, 2))

    def ratio(totals: Any) -> Any:
        return totals[:, 0] / (1 + totals[:, 1])

    whole = paired_tests(a, b, ratio, resamples=203, shuffles=517)
    monkeypatch.setattr(significance, "PART_VALUES", 37 * 32)
    assert list(significance._parts(203, 37)) == [32] * 6 + [11]
    assert paired_tests(a, b, ratio, resamples=203, shuffles=517) == whole


def test_memory_does_not_grow_with_resamples_times_sentences() -> None:
    a = np.random.default_rng(1).normal(size=(50_000, 1))
    tracemalloc.start()
    paired_tests(a, a + 0.001, averages(len(a)), resamples=200, shuffles=200)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 150e6  # 200 resamples of 50,000 sentences at once are 80 MB for each of several arrays


def test_holm_is_his_worked_example() -> None:
    # Holm (1979) by hand: 0.005 x 4, 0.01 x 3, 0.03 x 2, then 0.04 x 1, which may not be less than the one before
    assert significance.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert significance.holm([0.5, 0.6]) == [1.0, 1.0]
    assert significance.holm([0.2]) == [0.2]


def test_several_references_are_scored_as_by_sacrebleu(tmp_path: Path, systems: Any, capsys: Any) -> None:
    first, second, references = systems
    others = [text.upper() if n % 3 else second[n] for n, text in enumerate(references)]
    texts_of = {"h": first, "r": references, "o": others, "b": second}
    paths = {name: write_lines(tmp_path / f"{name}.txt", texts) for name, texts in texts_of.items()}
    chrf = sacrebleu.CHRF(word_order=2)
    assert main(["score", paths["h"], paths["r"], paths["o"], "--per-line"]) == 0
    *lines, average, corpus = capsys.readouterr().out.splitlines()
    expected = [chrf.sentence_score(h, [r, o]).score for h, r, o in zip(first, references, others, strict=True)]
    assert [float(line) for line in lines] == pytest.approx(expected, abs=2e-4)
    assert "2 references" in average
    assert float(corpus.split()[1]) == pytest.approx(chrf.corpus_score(first, [references, others]).score, abs=2e-4)
    both = ["--reference", paths["r"], "--reference", paths["o"]]
    assert main(["compare", paths["h"], paths["b"], *both, "--json", "--shuffles", "200", "--resamples", "50"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["references"] == 2
    assert [test["measure"] for test in found["tests"]] == ["sentence average", "corpus"]
    assert found["tests"][1]["score_a"] == pytest.approx(chrf.corpus_score(first, [references, others]).score)
    assert main(["score", paths["h"], paths["r"], paths["o"], "--utility", "bleu"]) == 2
    assert "takes one reference per sentence" in capsys.readouterr().err


def test_more_systems_are_each_compared_with_the_first_and_corrected(tmp_path: Path, systems: Any, capsys: Any) -> None:
    first, second, references = systems
    texts_of = {"a": first, "b": second, "c": references, "r": references}
    paths = [write_lines(tmp_path / f"{name}.txt", texts) for name, texts in texts_of.items()]
    options = ["--reference", paths[3], "--shuffles", "300", "--resamples", "100"]
    assert main(["compare", *paths[:3], *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(test["a"], test["b"]) for test in found["tests"]] == [(paths[0], paths[1]), (paths[0], paths[2])] * 2
    alone = compare(first, second, references, ChrF(), shuffles=300, resamples=100)
    assert found["tests"][0]["p_randomisation"] == alone[0].p_randomisation
    for measure in (0, 2):
        raw = [test["p_randomisation"] for test in found["tests"][measure : measure + 2]]
        corrected = [test["p_randomisation_holm"] for test in found["tests"][measure : measure + 2]]
        assert corrected == significance.holm(raw)
    assert main(["compare", *paths[:3], *options]) == 0
    printed = capsys.readouterr().out
    assert f"  A = {paths[0]}" in printed
    assert f"  C = {paths[2]}" in printed
    assert printed.count("A - C") == 2
    assert printed.count(", Holm ") == 8
    assert main(["compare", paths[0], *options]) == 2
    assert "1 system: give 2 to 26 files" in capsys.readouterr().err


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 10, 499, 2998])
def test_students_t_is_scipys(degrees: int) -> None:
    for t in (-3.0, 0.0, 0.1, 2.0, 7.0):
        assert significance.student_tail(t, degrees) == pytest.approx(stats.t.sf(t, degrees), abs=1e-12)
    for probability in (0.5, 0.95, 0.975):
        expected = stats.t.ppf(probability, degrees)
        assert significance.student(probability, degrees) == pytest.approx(expected, rel=1e-9, abs=1e-9)
