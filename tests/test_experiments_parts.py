"""Experiments in parts give what `mbrace experiment` gives, whoever takes up the jobs."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import overlap
from generating import block_jobs
from parts import CandidateSet, Job, JobFolder, Scored, collect, record_digest, score_beams

import mbrace
from mbrace.errors import UserError
from mbrace.experiments import experiment
from mbrace.experiments.claims import table_rows
from mbrace.experiments.tables import CandidateFile, compute
from mbrace.experiments.trials import Outcomes
from mbrace.records import Record
from mbrace.sampler import Draws

UTILITY = mbrace.Pairwise(overlap, name="overlap|words", schedule=(4, 8))


@pytest.fixture
def records(tmp_path: Path, demo_rows: list[dict[str, Any]]) -> list[Record]:
    rows = [
        row | {"hypotheses": row["hypotheses"][:12], "pseudo_references": row["pseudo_references"][:24]}
        for row in demo_rows[:5]
    ]
    for split in ("valid", "test"):
        path = tmp_path / f"x.{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return CandidateFile.from_path(str(path)).records()


def put(folder: JobFolder, records: list[Record], split: str) -> None:
    chosen = CandidateSet("x", split, len(records), trials=2)
    for first in (0, 2, 4):
        some = records[first : first + 2]
        beams = {"beam 5": [record.hypotheses[1] for record in some]}
        own = compute(some, UTILITY), score_beams(beams, some, UTILITY)
        scored = Scored("words", "pair", "", UTILITY.name, UTILITY.schedule, *own)
        folder.add(Job(chosen, first, some, [scored], beams))


@pytest.mark.parametrize("split", ["valid", "test"])
def test_parts_joined_are_the_outcomes_of_the_experiment(
    tmp_path: Path, records: list[Record], split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "schedule_for", lambda schedule, records: tuple(schedule))  # few draws are enough
    files = [str(tmp_path / f"x.{s}.jsonl") for s in ("valid", "test")]
    options = {"trials": 2, "report": False, "progress": lambda *_: contextlib.nullcontext(lambda n: None)}
    for label, utility in (("chrF++", mbrace.ChrF()), ("words", UTILITY)):
        kind = "string" if label == "chrF++" else "pair"
        experiment.run(files, tmp_path / "whole", utility, label=label, kind=kind, **options)
    folder = JobFolder(tmp_path / "jobs")
    put(folder, records, split)
    done = [folder.work() for _ in range(4)]
    assert done == [f"x.{split}.0000{first}" for first in (0, 2, 4)] + [None]
    assert folder.open() == 0
    found = collect(folder, "x", split, tmp_path / "parts", {"candidates": "ours"})
    assert (found["sentences"], found["of"], len(found["records"])) == (5, 5, 5)
    for label in ("chrf++", "words"):
        name = f"x.{split}.{label}.npz"
        one, other = (Outcomes.load(tmp_path / home / "data" / name) for home in ("whole", "parts"))
        assert one.settings == other.settings
        for measure, values in one.measures.items():
            np.testing.assert_array_equal(values, other.measures[measure])
        np.testing.assert_array_equal(one.survivors, other.survivors)
        np.testing.assert_array_equal(one.pruned, other.pruned)
        for metric, scores in one.other_scores.items():
            np.testing.assert_array_equal(scores, other.other_scores[metric])
        told = (
            "name",
            "split",
            "utility",
            "label",
            "schedule",
            "sentences",
            "hypotheses",
            "pseudo_references",
            "scale",
        )
        assert {k: one.about[k] for k in told} == {k: other.about[k] for k in told}
        assert other.about["candidates"] == "ours"
        if split == "valid":
            races = [
                json.loads(gzip.decompress((tmp_path / home / "data" / f"x.valid.{label}.races.json.gz").read_bytes()))
                for home in ("whole", "parts")
            ]
            assert races[0] == races[1]
    lexical = Outcomes.load(tmp_path / "parts" / "data" / f"x.{split}.chrf++.npz")
    assert sorted(lexical.other_scores) == ["BLEU", "chrF2", "words"]
    searched = [record.hypotheses[1] for record in records]
    for metric, measure in ((mbrace.ChrF(), "score"), (mbrace.BLEU(), "score by BLEU"), (UTILITY, "score by words")):
        scores = metric.pairs(searched, [record.reference for record in records])
        np.testing.assert_allclose(lexical.baselines["beam 5"][measure], scores, rtol=1e-6)


def test_a_job_is_claimed_once_and_given_back_when_its_worker_is_gone(tmp_path: Path, records: list[Record]) -> None:
    folder, other = JobFolder(tmp_path), JobFolder(tmp_path)
    put(folder, records, "test")
    claimed = [folder.claim(), other.claim(), folder.claim(), other.claim()]
    assert claimed[3] is None
    assert len({path.name for path in claimed if path}) == 3
    assert (folder.waiting(), folder.open()) == (0, 3)
    assert folder.known("x.test.00002")
    folder.release()
    assert (folder.waiting(), folder.open()) == (3, 3)


def test_a_job_that_fails_is_kept_and_the_others_go_on(tmp_path: Path, records: list[Record]) -> None:
    folder = JobFolder(tmp_path)
    put(folder, records, "test")
    (folder.jobs / "x.test.00000.job").write_bytes(b"no job")
    assert "FAILED" in str(folder.work())
    assert (folder.jobs / "x.test.00000.failed").exists()
    assert (folder.jobs / "x.test.00000.error").read_text()
    assert [folder.work(), folder.work(), folder.work()] == ["x.test.00002", "x.test.00004", None]
    found = collect(folder, "x", "test", tmp_path / "out", {})
    assert (found["sentences"], found["of"]) == (3, 5)
    with pytest.raises(UserError, match=r"x\.valid: no parts"):
        collect(folder, "x", "valid", tmp_path / "out", {})


def test_validation_jobs_which_are_long_come_first(tmp_path: Path, records: list[Record]) -> None:
    folder = JobFolder(tmp_path)
    put(folder, records, "test")
    put(folder, records, "valid")
    assert [path.stem.split(".")[1] for _ in range(6) if (path := folder.claim())] == ["valid"] * 3 + ["test"] * 3


def test_a_digest_tells_records_apart() -> None:
    one = Record(["a", "b"], ["c", "d"], id=1, source="s", reference="r")
    assert record_digest(one) == record_digest(Record(["a", "b"], ["c", "d"], id=1, source="s", reference="r"))
    for other in (
        Record(["a", "b"], ["d", "c"], id=1, source="s", reference="r"),
        Record(["a", "b"], ["c", "d"], id=1),
    ):
        assert record_digest(one) != record_digest(other)


class FakeTranslator:
    """A "model" whose beams and samples are the source's words, turned round by their number."""

    def beam(self, sources: list[str], k: int) -> list[Draws]:
        return [Draws([" ".join(s.split()[n:] + s.split()[:n]) + f" {n}" for n in range(k)]) for s in sources]

    def sample(self, sources: list[str], n: int, **options: Any) -> list[Draws]:
        return self.beam(sources, n)


def test_what_is_generated_has_rows_for_beam_search_by_every_metric(tmp_path: Path) -> None:
    args = argparse.Namespace(out=tmp_path / "jobs", small=True)
    pairs = [("ein kleiner Hund", "ein Hund 0"), ("zwei Katzen im Haus", "Katzen im Haus zwei")]
    chosen = CandidateSet("x", "test", len(pairs), trials=2)
    metric = mbrace.Pairwise(overlap, name="overlap|words", schedule=(4, 8))
    block_jobs(args, FakeTranslator(), metric, chosen, 0, pairs)
    folder = JobFolder(args.out)
    assert [folder.work(), folder.work()] == ["x.test.00000", None]
    collect(folder, "x", "test", tmp_path / "out", {})
    found = Outcomes.load(tmp_path / "out" / "data" / "x.test.learned.npz")
    assert (found.about["kind"], found.about["options"]) == ("encoder", "--utility learned")
    assert sorted(found.baselines) == ["beam 10", "beam 5"]
    names = {"score", "score by chrF++", "score by chrF2", "score by BLEU"}
    assert all(set(scores) == names for scores in found.baselines.values())
    texts, references = ["ein kleiner Hund 0", "zwei Katzen im Haus 0"], [reference for _, reference in pairs]
    expected = mbrace.ChrF(word_order=0).pairs(texts, references)
    np.testing.assert_allclose(found.baselines["beam 5"]["score by chrF2"], expected, rtol=1e-6)
    rows = table_rows(found, {})
    assert {row["setting"] for row in rows} >= {"beam 5", "beam 10", "alpha=0.99, regret=0.04, forecast=0.0005, cover"}
