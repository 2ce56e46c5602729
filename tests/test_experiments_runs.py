"""`mbrace experiment` as a command: what it writes, resuming, adding to a folder, mistakes, and times of Table 2."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from experiment_files import SCHEDULE, cut, rows_of, run, write_candidates

import mbrace
from mbrace.cli import main
from mbrace.errors import UserError
from mbrace.experiments import claims, experiment, runtimes
from mbrace.experiments.tables import exhausted_note, slug
from mbrace.experiments.trials import Outcomes, Setting
from mbrace.sampler import Draws, Want

KEPT = Path(__file__).parent.parent / "results"
FIGURES = ("tradeoff", "survivors", "false_pruning")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_the_command_writes_data_pictures_and_words(results: Path) -> None:
    out = results / "out"
    table = rows_of(out / "test_table.csv")
    assert {(row["pair"], row["utility"], row["split"], row["sentences"]) for row in table} == {
        ("xx-en", "chrF++", "test", "3"),
        ("yy-en", "chrF++", "all", "3"),
        ("yy-en", "chrF", "all", "3"),
    }
    standard = next(row for row in table if row["setting"] == "beta=0" and row["measure"] == "utility_calls")
    hypotheses = [len(set(json.loads(line)["hypotheses"])) for line in read(results / "xx-en.test.jsonl").splitlines()]
    assert float(standard["value"]) == pytest.approx(np.mean(hypotheses) * 40, rel=1e-5)  # half of R*
    assert {row["split"] for row in rows_of(out / "tradeoff.csv") if row["pair"] == "xx-en"} == {"valid"}
    assert len(rows_of(out / "tradeoff.csv")) == 3 * 25
    words = read(out / "RESULTS.md")
    for name in (f"{figure}.{utility}.svg" for figure in FIGURES for utility in ("chrf++", "chrf")):
        assert "<svg" in read(out / "figures" / name)
        assert f"figures/{name}" in words
    assert "| beta=0, R=32 |" in words  # races use 40 of 80 pseudo-references
    assert "| beta=0, R=64 |" not in words
    assert "by chrF (decoding metric)" in words  # a claim, with a margin from the spread of chrF++
    assert "no margin" not in words
    assert "with up to 40 of 80 pseudo-references each" in read(out / "report.html")
    found = {}
    for decoded, measured in (("chrF++", "BLEU"), ("chrF", "chrF++")):
        found[decoded] = words.split(f"### yy-en.jsonl (the only file), {decoded}, 3 sentences\n")[1].split("###")[0]
        assert f"| Score by {decoded} (decoding metric) | **" in found[decoded]
        assert f"| Score by {measured} (another metric) | **" in found[decoded]
    assert "chrF++ (another metric)" not in found["chrF++"]


def test_a_finished_part_is_kept_and_a_broken_run_goes_on_to_the_same_numbers(results: Path, tmp_path: Path) -> None:
    first = results / "out" / "data" / "xx-en.test.chrf++.npz"
    again = tmp_path / "out"
    shutil.copytree(results / "out" / "tables", again / "tables")
    for number, path in enumerate(sorted((again / "tables").rglob("*.z"))):
        if number % 2:
            path.unlink()  # as if it had been interrupted
    run(again, results / "xx-en.*.jsonl", "--no-report")  # a quoted glob is expanded
    assert {path.name for path in (again / "data").glob("*.npz")} == {"xx-en.valid.chrf++.npz", first.name}
    one, other = Outcomes.load(first), Outcomes.load(again / "data" / first.name)
    for name, values in one.measures.items():
        np.testing.assert_array_equal(values, other.measures[name])
    stamp = (again / "data" / first.name).stat().st_mtime_ns
    run(again, results / "xx-en.*.jsonl", "--no-report")
    assert (again / "data" / first.name).stat().st_mtime_ns == stamp
    assert not (again / "report.html").exists()


def test_merged_results_are_those_of_the_run_and_the_terminal_says_what_is_recommended(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "out", results / "*.jsonl")
    names = ("test_table.csv", "claims.csv", "tradeoff.csv", "RESULTS.md", "report.html")
    printed = []
    for merged, folder in ((tmp_path / "one", tmp_path / "out"), (tmp_path / "both", results / "out")):
        capsys.readouterr()
        assert main(["experiment", "-o", str(merged), "--report-only", str(folder)]) == 0
        printed = capsys.readouterr().out.splitlines()
    assert [(tmp_path / "one" / name).read_bytes() for name in names] == [
        (tmp_path / "out" / name).read_bytes() for name in names
    ]
    assert max(map(len, printed[:-1])) <= 80
    assert printed[-1] == str(tmp_path / "both" / "report.html")
    saved = {(row["pair"], row["utility"], row["kind"]): row for row in rows_of(tmp_path / "both" / "recommended.csv")}
    at = printed.index("xx-en.valid.jsonl, chrF++, 4 sentences")
    default = saved["xx-en", "chrF++", "default"]
    assert printed[at + 1].split()[:2] == ["default", f"{float(default['saves']):.1f}x"]
    assert printed[at + 2].strip() == "Nothing is recommended from so few sentences: give at least 30."


def test_the_recommended_command_uses_all_pseudo_references_where_half_of_them_were_measured(
    tmp_path: Path,
    demo_rows: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [*cut(demo_rows[:30], 8, 60), *cut(demo_rows[30:31], 8, 20)]
    run(tmp_path / "out", write_candidates(tmp_path / "few.jsonl", rows), trials=1)
    printed = capsys.readouterr().out.splitlines()
    [command] = [line.strip() for line in printed if "mbrace decode" in line]
    sizes = list(map(int, command.split("--schedule ")[1].split()[0].split(",")))
    assert sizes[-2] >= 30
    assert sizes[-1] == 60
    assert sum(line.endswith("fewer utility calls than standard MBR with 30") for line in printed) == 2
    assert "  Measured with 30 pseudo-references, as all judge; the command uses all." in printed
    assert main(shlex.split(command)[1:]) == 0
    answers = [json.loads(line) for line in read(tmp_path / "decoded.jsonl").splitlines()]
    assert max(answer["pseudo_references"] for answer in answers) == 60
    page, words = read(tmp_path / "out" / "report.html"), read(tmp_path / "out" / "RESULTS.md")
    assert "with up to 30 of 60 pseudo-references each (all of them judge the answers; the command uses all 60)" in page
    assert "`few.jsonl`, chrF++: measured with 30 pseudo-references, as all 60 judge" in words


def test_what_cannot_be_measured_is_left_out(tmp_path: Path, demo_rows: list[dict[str, Any]]) -> None:
    out = tmp_path / "out"
    run(out, write_candidates(tmp_path / "few.jsonl", cut(demo_rows[:3], 9, 3)), trials=1)
    words, page = read(out / "RESULTS.md"), read(out / "report.html")
    assert 'id="false-pruning"' not in page  # its smallest number of pseudo-references is four
    assert "#false-pruning" not in page  # in the list of contents
    assert '<section id="tradeoff">' in page
    assert "| few, chrF++ | none: fewer than 30 sentences; the default is `--alpha 0.99 " in words
    assert "Nothing is recommended from 3 sentences" in page
    assert "| Accuracy | **" in words
    table = page[page.index("<h2>Test results</h2>") : page.index("<h2>Survivors</h2>")]
    assert table.count("<small>") > 10
    assert "nan" not in words + table
    assert re.search(r"\| Accuracy \| \*\*[\d.]+\*\*<br>[\d.]+ to [\d.]+ \|", words)  # no interval over a single trial
    assert not re.search("<small>( to )?</small>|<br>( to )?<br>", words + table)


def test_without_references_and_without_a_race_the_rest_is_measured(
    tmp_path: Path, five_rows: list[dict[str, Any]]
) -> None:
    rows = [{name: row[name] for name in ("id", "hypotheses", "pseudo_references")} for row in five_rows[:2]]
    rows.append({"id": "all equal", "hypotheses": ["a b"] * 3, "pseudo_references": ["a b", "c"] * 4})
    run(tmp_path / "out", write_candidates(tmp_path / "x.jsonl", rows), "--no-report")
    found = experiment.gather(tmp_path / "out")
    made = experiment.rows_of(found)
    assert {row["measure"] for row in made["test_table"]} == {*claims.TABLE, "same", "tied"} - {"score"}
    racing = found[0].measures_of(Setting("alpha", 0.99))
    assert racing["utility_calls"][2].tolist() == [0, 0]
    assert racing["accuracy"][2].tolist() == [1, 1]


def test_records_with_too_few_pseudo_references_are_named(
    tmp_path: Path, demo_rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "id": f"s{n}", "hypotheses": row["hypotheses"][:5]} for n, row in enumerate(demo_rows[:3])]
    for row, count in zip(rows, (300, 9, 256), strict=True):  # chrF++'s schedule ends at 256
        row["pseudo_references"] = (row["pseudo_references"] * 300)[:count]
    run(tmp_path / "out", write_candidates(tmp_path / "x.jsonl", rows))
    warned = capsys.readouterr().err
    assert "2 of 3 sentences have no more than 256 pseudo-references: too few to hold any out" in warned
    assert warned.rstrip().endswith("s1, s2")
    for name in ("RESULTS.md", "report.html"):
        assert "(the paper has 1,024): s1, s2." in read(tmp_path / "out" / name)
    many = {"exhausted": list(range(1, 2999)), "schedule": [256], "sentences": 2998}
    assert exhausted_note(many, 4).endswith("(the paper has 1,024): 1, 2, 3, 4 and 2,994 more")


@pytest.mark.parametrize("module", ["matplotlib", "jinja2", "markdown_it"])
def test_what_the_report_needs_is_looked_for_before_the_work(
    module: str, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["experiment", str(results / "yy-en.jsonl"), "-o", str(tmp_path / "out")]) == 2
    assert "pip install 'mbrace[experiments]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_any_name_of_a_file_is_shown_and_no_cell_is_a_formula(tmp_path: Path, five_rows: list[dict[str, Any]]) -> None:
    file = os.fsdecode(os.fsencode(tmp_path) + b"/=a$\\frac$b|\xff.jsonl")
    run(tmp_path / "out", write_candidates(Path(file), cut(five_rows, 5, 9)), trials=1)
    name = "=a$\\frac$b|\\xff"
    assert f"<code>{name}.jsonl</code>" in read(tmp_path / "out" / "report.html")
    assert name.replace("|", "\\|") in read(tmp_path / "out" / "RESULTS.md")
    for path in (tmp_path / "out").glob("*.csv"):
        for row in rows_of(path):
            assert row["pair"] == "'" + name
            formulas = [cell for cell in row.values() if cell and cell[0] in "=+-@"]
            assert all(re.fullmatch(r"-[\d.e-]+|-?inf", cell) for cell in formulas), formulas  # numbers only


def tiny_experiment(folder: Path, *, label: str, signature: str) -> None:
    """One sentence, for a utility of this signature, into folder/out."""
    folder.mkdir(exist_ok=True)
    rows = [{"id": 1, "hypotheses": ["a", "b c"], "pseudo_references": ["a", "b", "b c", "c"]}]
    file = write_candidates(folder / "x.jsonl", rows)
    utility = mbrace.Pairwise(lambda h, r: float(h == r), name=signature, schedule=SCHEDULE)
    experiment.run([str(file)], folder / "out", utility, label=label, trials=2, report=False)


def test_outcomes_of_another_model_are_added_and_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    signed = mbrace.Pairwise(lambda h, r: 0.0, name="cosine|multilingual-e5-small-q4|pooling:mean", schedule=SCHEDULE)
    monkeypatch.setattr("mbrace.cli.evaluate.utility_from", lambda args: signed)
    monkeypatch.setattr(experiment, "run", lambda *_, label, **__: asked.append(label))
    for options in (["embedding"], ["embedding", "--metric-model", "m"], ["chrf", "--metric-model", "m"]):
        assert main(["experiment", "x.jsonl", "-o", str(tmp_path / "out"), "--utility", *options]) == 0
    monkeypatch.undo()
    assert asked == ["embedding", "embedding multilingual-e5-small-q4", "chrF"]
    for label in asked[:2]:
        tiny_experiment(tmp_path, label=label, signature=f"cosine|{label}")
    data = tmp_path / "out" / "data"
    names = {path.name for path in data.glob("*.npz")}
    assert names == {"x.all.embedding.npz", "x.all.embedding-multilingual-e5-small-q4.npz"}
    assert {outcomes.about["label"] for outcomes in experiment.gather(tmp_path / "out")} == set(asked[:2])
    before = (data / "x.all.embedding.npz").read_bytes()
    message = r"x\.all\.embedding\.npz: was made with utility 'cosine\|embedding', not 'cosine\|another'"
    with pytest.raises(UserError, match=message):
        tiny_experiment(tmp_path, label="embedding", signature="cosine|another")
    tiny_experiment(tmp_path / "other", label="embedding", signature="cosine|another")
    with pytest.raises(UserError, match=message):
        experiment.gather(tmp_path / "out", [tmp_path / "other" / "out"])
    assert (data / "x.all.embedding.npz").read_bytes() == before


@pytest.mark.parametrize(
    ("longest", "expected"),
    [(1024, (16, 64, 256)), (257, (16, 64, 256)), (256, (16, 64, 128)), (64, (16, 32)), (9, (4,))],
)
def test_a_race_leaves_half_of_the_pseudo_references_to_judge_by(longest: int, expected: tuple[int, ...]) -> None:
    assert experiment.schedule_for((16, 64, 256), longest) == expected


# The committed results


def test_the_committed_results_are_small_and_named_as_a_run_looks_for_them() -> None:
    assert (KEPT / "report.html").stat().st_size < 2_000_000
    assert sum(path.stat().st_size for path in KEPT.rglob("*")) < 12e6
    for path in (KEPT / "data").glob("*.npz"):
        about = Outcomes.load(path).about
        assert path.name == f"{about['name']}.{about['split']}.{slug(about['label'])}.npz"
        # as the command calls them; the first runs had a metric of its own for en-et
        first = ("learned multilingual",) if about["name"] == "en-et" else ()
        assert about["label"] in ("chrF++", "learned", *first)


@pytest.mark.slow
def test_the_committed_results_are_what_their_data_give(tmp_path: Path) -> None:
    shutil.copytree(KEPT / "data", tmp_path / "data")
    shutil.copy(KEPT / "notes.md", tmp_path)
    assert main(["experiment", "-o", str(tmp_path), "--report-only"]) == 0
    written = ["RESULTS.md", *(path.name for path in KEPT.glob("*.csv"))]
    assert [name for name in written if (KEPT / name).read_bytes() != (tmp_path / name).read_bytes()] == []


# Run times


class FakeModel:
    """A "model" whose beam and samples are made of the source's words."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = SimpleNamespace(type=device)
        self.drawn = 0
        self.searched: list[tuple[int, list[str]]] = []

    def beam(self, sources: Sequence[str], k: int, *, alpha: float = 1.0) -> list[Draws]:
        self.searched.append((k, list(sources)))
        return [Draws([f"{source} {i}" for i in range(k)]) for source in sources]

    def sampler(self, *, seed: int, ahead: Sequence[int] = (), **options: Any) -> FakeModel:
        self.asked = {"ahead": tuple(ahead), **options}
        return self

    def start(self, records: Sequence[mbrace.Record]) -> FakeModel:
        self.records = records
        return self

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        numbers = [(self.records[want.sentence].source, range(want.first, want.first + want.count)) for want in wants]
        return [Draws([f"{source} {n}" for n in own], [-1.0] * len(own)) for source, own in numbers]


@pytest.mark.parametrize(("device", "ahead", "shown"), [("cpu", (), "step by step"), ("cuda", (256,), "ahead")])
def test_run_times_are_of_the_same_sources_decoded_as_translate_does(
    device: str, ahead: tuple[int, ...], shown: str, tmp_path: Path
) -> None:
    model, sources = FakeModel(device), [f"a b {n}" for n in range(70)]
    rows = runtimes.run_times(model, mbrace.ChrF(), sources, pair="x-y", label="chrF++", trials=1, hypotheses=3)
    wide = [texts for k, texts in model.searched if k == 3][2:]  # the first run, of all sources, is the warm-up
    assert [len(texts) for texts in wide] == [64, 6] * 2  # windows of 64, for racing and for standard MBR
    assert [texts for k, texts in model.searched if k == 10][1:] == [sources]
    assert [*wide[0], *wide[1]] == [*wide[2], *wide[3]] == sources
    assert model.asked == {"ahead": ahead, "epsilon": 0.02, "temperature": 1.0, "sampling": "independent"}
    assert {row["draw"] for row in rows} == {shown}
    phases = {(row["method"], row["phase"]): row["seconds"] for row in rows}
    for method in ("racing", "standard", "beam"):  # every phase of the paper's table
        own = {phase: seconds for (m, phase), seconds in phases.items() if m == method}
        assert own.keys() == claims.TABLE_2[method].keys()
        assert sum(own.values()) - own["total"] <= own["total"] + 1e-6
    assert json.loads(runtimes.save(rows, tmp_path).read_text()) == rows


def test_racing_and_standard_mbr_take_turns_in_going_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(runtimes, "_race", lambda *given: ran.append(given[3]) or {"total": 1.0})
    runtimes.run_times(FakeModel(), mbrace.ChrF(), ["a"], pair="x", label="chrF++", trials=3, hypotheses=3)
    racing, standard = True, False
    order = [racing, standard, standard, racing, racing, standard]
    assert [prune is not None for prune in ran] == [standard, *order]  # after a warm-up


def test_sources_are_lines_columns_or_a_field_and_others_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "x.json.tsv"  # says nothing of the files in it
    folder.mkdir()
    (folder / "a.txt").write_text("\ufeffone\tx\n[1]\n", encoding="utf-8")
    (folder / "b.tsv").write_text("one\tx\ntwo\ty\n")
    (folder / "c.test.jsonl").write_text('{"source": "one"}\n{"source": "two"}\n')
    (folder / "d.jsonl").write_text('{"source": "one"}\n[1]\n')
    expected = {
        "a.txt": (["one\tx", "[1]"], "a.txt"),
        "b.tsv": (["one", "two"], "b.tsv"),
        "c.test.jsonl": (["one", "two"], "c"),
    }
    assert {name: runtimes.read_sources(str(folder / name), 9) for name in expected} == expected
    with pytest.raises(UserError, match=r"d\.jsonl:2: no `source` in this line of JSON"):
        runtimes.read_sources(str(folder / "d.jsonl"), 9)
