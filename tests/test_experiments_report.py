"""The whole command on tiny real candidates, offline, and what its page draws; test_report_browser.py looks at it."""

from __future__ import annotations

import base64
import csv
import gzip
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mbrace.cli import main
from mbrace.experiments import figures, report
from mbrace.experiments.summary import describe_utility, exhausted_notes, short_description
from mbrace.experiments.trials import Outcomes

FIGURES = ("tradeoff", "survivors", "false_pruning")  # in the order of RESULTS.md


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_command_writes_data_pictures_and_words(results: Path) -> None:
    out = results / "out"
    table = rows_of(out / "test_table.csv")
    assert {(row["pair"], row["utility"], row["split"]) for row in table} == {
        ("xx-en", "chrF++", "test"),
        ("yy-en", "chrF++", "all"),
        ("yy-en", "chrF", "all"),
    }
    standard = next(row for row in table if row["setting"] == "beta=0" and row["measure"] == "utility_calls")
    hypotheses = [
        len(set(json.loads(line)["hypotheses"])) for line in (results / "xx-en.test.jsonl").read_text().splitlines()
    ]
    assert float(standard["value"]) == pytest.approx(np.mean(hypotheses) * 40, rel=1e-5)  # half of R*
    assert {row["split"] for row in rows_of(out / "tradeoff.csv") if row["pair"] == "xx-en"} == {"valid"}
    assert len(rows_of(out / "tradeoff.csv")) == 3 * 25
    for figure in FIGURES:
        for utility in ("chrf++", "chrf"):
            assert "<svg" in (out / "figures" / f"{figure}.{utility}.svg").read_text(encoding="utf-8")
    assert "### xx-en, chrF++ (test, 3 sentences)" in (out / "RESULTS.md").read_text(encoding="utf-8")
    assert "figures/tradeoff.chrf.svg" in (out / "RESULTS.md").read_text(encoding="utf-8")


def test_a_finished_part_is_kept_and_a_broken_run_goes_on_to_the_same_numbers(results: Path, tmp_path: Path) -> None:
    first = results / "out" / "data" / "xx-en.test.chrf++.npz"
    again = tmp_path / "out"
    shutil.copytree(results / "out" / "tables", again / "tables")
    for number, path in enumerate(sorted((again / "tables").rglob("*.z"))):
        if number % 2:
            path.unlink()  # as if it had been interrupted
    files = [str(path) for path in sorted(results.glob("xx-en*.jsonl"))]
    options = ["-o", str(again), "--trials", "2", "--workers", "1", "--no-report"]
    assert main(["experiment", *files, *options]) == 0
    one, other = Outcomes.load(first), Outcomes.load(again / "data" / first.name)
    for name, values in one.measures.items():
        np.testing.assert_array_equal(values, other.measures[name])
    stamp = (again / "data" / first.name).stat().st_mtime_ns
    assert main(["experiment", *files, *options]) == 0
    assert (again / "data" / first.name).stat().st_mtime_ns == stamp


def test_a_run_reads_each_outcomes_file_once_and_reports_as_from_disk(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "out" / "data"
    shutil.copytree(results / "out" / "data", data)
    (data / "xx-en.test.chrf++.npz").unlink()  # computed again, the others are kept
    read: list[str] = []
    load = np.load
    monkeypatch.setattr(np, "load", lambda path, **options: (read.append(Path(path).name), load(path, **options))[1])
    files = [str(path) for path in sorted(results.glob("*.jsonl"))]
    options = ["-o", str(tmp_path / "out"), "--trials", "2", "--workers", "1"]
    assert main(["experiment", *files, *options]) == 0
    assert sorted(read) == ["xx-en.valid.chrf++.npz", "yy-en.all.chrf++.npz", "yy-en.all.chrf.npz"]
    names = ("test_table.csv", "claims.csv", "tradeoff.csv", "RESULTS.md", "report.html")
    of_run = [(tmp_path / "out" / name).read_bytes() for name in names]
    read.clear()
    assert main(["experiment", "-o", str(tmp_path / "merged"), "--report-only", str(tmp_path / "out")]) == 0
    assert sorted(read) == sorted(path.name for path in data.glob("*.npz"))
    assert [(tmp_path / "merged" / name).read_bytes() for name in names] == of_run


def test_the_terminal_shows_what_is_recommended_in_80_columns(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experiment", "-o", str(tmp_path), "--report-only", str(results / "out")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed[:-1])) <= 80
    assert printed[-1] == str(tmp_path / "report.html")
    saved = {(row["pair"], row["utility"], row["kind"]): row for row in rows_of(tmp_path / "recommended.csv")}
    at = printed.index("xx-en.valid.jsonl, chrF++, 4 sentences")
    default = saved["xx-en", "chrF++", "default"]
    assert printed[at + 1].split()[:2] == ["default", f"{float(default['saves']):.1f}x"]
    assert printed[at + 2].strip() == "Nothing is recommended from so few sentences: give at least 30."


def test_three_pseudo_references_are_too_few_for_one_chart_and_enough_for_the_others(
    tmp_path: Path, demo_rows: list[dict[str, Any]]
) -> None:
    rows = [r | {"hypotheses": r["hypotheses"][:9], "pseudo_references": r["pseudo_references"][:3]} for r in demo_rows]
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:3]), encoding="utf-8")
    options = ["-o", str(tmp_path / "out"), "--trials", "2", "--workers", "1"]
    assert main(["experiment", str(tmp_path / "few.jsonl"), *options]) == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert 'id="false-pruning"' not in page
    assert "#false-pruning" not in page  # in the list of contents
    assert '<section id="tradeoff">' in page


def test_one_trial_shows_no_interval_over_trials(tmp_path: Path, demo_rows: list[dict[str, Any]]) -> None:
    rows = [r | {"hypotheses": r["hypotheses"][:9], "pseudo_references": r["pseudo_references"][:9]} for r in demo_rows]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:3]), encoding="utf-8")
    options = ["-o", str(tmp_path / "out"), "--trials", "1", "--workers", "1"]
    assert main(["experiment", str(tmp_path / "one.jsonl"), *options]) == 0
    words = (tmp_path / "out" / "RESULTS.md").read_text(encoding="utf-8")
    assert "| Accuracy | **" in words
    assert "over trials |" not in words
    assert "nan" not in words
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    table = page[page.index("<h2>Test results</h2>") : page.index("<h2>Survivors</h2>")]
    assert table.count("<small>") > 10
    assert "<small></small>" not in table
    assert "<small> to </small>" not in table


def test_records_with_too_few_pseudo_references_are_named(
    tmp_path: Path, demo_rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "id": f"s{n}", "hypotheses": row["hypotheses"][:5]} for n, row in enumerate(demo_rows[:3])]
    for row, count in zip(rows, (300, 9, 256), strict=True):  # chrF++'s schedule ends at 256
        row["pseudo_references"] = (row["pseudo_references"] * 300)[:count]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ["-o", str(tmp_path / "out"), "--trials", "2", "--workers", "1"]
    assert main(["experiment", str(tmp_path / "x.jsonl"), *options]) == 0
    warned = capsys.readouterr().err
    assert "2 of 3 sentences have no more than 256 pseudo-references: too few to hold any out" in warned
    assert warned.rstrip().endswith("s1, s2")
    words = (tmp_path / "out" / "RESULTS.md").read_text(encoding="utf-8")
    assert "2 of 3 sentences have no more than 256 pseudo-references" in words
    assert "(the paper has 1,024): s1, s2." in words
    assert "(the paper has 1,024): s1, s2." in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_of_thousands_of_such_records_a_few_are_named() -> None:
    about = {
        "file": "x.jsonl",
        "label": "chrF++",
        "sentences": 2998,
        "exhausted": list(range(1, 2999)),
        "schedule": [256],
    }
    [line] = exhausted_notes([about])
    assert line.endswith("(the paper has 1,024): " + ", ".join(map(str, range(1, 21))) + " and 2,978 more.")


@pytest.mark.parametrize("module", ["matplotlib", "jinja2", "markdown_it"])
def test_what_the_report_needs_is_looked_for_before_the_work(
    module: str, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["experiment", str(results / "yy-en.jsonl"), "-o", str(tmp_path / "out")]) == 2
    assert "pip install 'mbrace[experiments]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_report_asks_for_nothing_from_the_network(results: Path) -> None:
    page = (results / "out" / "report.html").read_text(encoding="utf-8")
    markup = page[: page.index('<script type="application/json"')]
    assert "http" not in markup
    assert page.count("<script") == page.count("</script>") == 3
    assert len(page) < 400_000  # without races worth mentioning


def test_the_results_in_the_repository_are_a_page_of_less_than_two_megabytes() -> None:
    assert (Path(__file__).parent.parent / "results" / "report.html").stat().st_size < 2_000_000


@pytest.mark.slow
def test_the_results_in_the_repository_are_what_their_data_give(tmp_path: Path) -> None:
    kept = Path(__file__).parent.parent / "results"
    shutil.copytree(kept / "data", tmp_path / "data")
    shutil.copy(kept / "notes.md", tmp_path)
    assert main(["experiment", "-o", str(tmp_path), "--report-only"]) == 0
    written = ["RESULTS.md", *(path.name for path in kept.glob("*.csv"))]
    assert [name for name in written if (kept / name).read_bytes() != (tmp_path / name).read_bytes()] == []
    assert sum(path.stat().st_size for path in kept.rglob("*") if path.suffix != ".png") < 12e6


def test_any_name_of_a_file_is_shown_and_no_cell_is_a_formula(tmp_path: Path, five_rows: list[dict[str, Any]]) -> None:
    cut = [
        row | {"hypotheses": row["hypotheses"][:5], "pseudo_references": row["pseudo_references"][:9]}
        for row in five_rows
    ]
    file = os.fsdecode(os.fsencode(tmp_path) + b"/=a$\\frac$b|\xff.jsonl")
    Path(file).write_text("".join(json.dumps(row) + "\n" for row in cut), encoding="utf-8")
    assert main(["experiment", file, "-o", str(tmp_path / "out"), "--trials", "1", "--workers", "1"]) == 0
    name = "=a$\\frac$b|\\xff"
    assert f"<code>{name}.jsonl</code>" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert name.replace("|", "\\|") in (tmp_path / "out" / "RESULTS.md").read_text(encoding="utf-8")
    for path in (tmp_path / "out").glob("*.csv"):
        for row in rows_of(path):
            assert row["pair"] == "'" + name
            formulas = [cell for cell in row.values() if cell and cell[0] in "=+-@"]
            assert all(re.fullmatch(r"-[\d.e-]+|-?inf", cell) for cell in formulas), formulas  # numbers only


# What the page draws and says: points of charts, packed races, notes, names

SHARED = {"pair": "de-en", "utility": "chrF++", "split": "valid"}


def tradeoff_row(rule: str, value: float, calls: float, accuracy: float, low: float, high: float) -> dict[str, Any]:
    ends = {"accuracy_minus_standard_low": low, "accuracy_minus_standard_high": high}
    row = {"rule": rule, "value": value, "utility_calls": calls, "accuracy": accuracy, "pseudo_references": 200.4}
    return SHARED | row | ends


TRADEOFF = [
    tradeoff_row("beta", 0.0, 65000, 0.75, 0, 0),
    tradeoff_row("alpha", 0.9, 5000, 0.65, -0.12, -0.08),
    tradeoff_row("alpha", 0.99, 10000, 0.74, -0.02, 0.005),
    tradeoff_row("beta", 0.5, 15900, 0.75, -0.01, 0.01),
    tradeoff_row("beta", 0.4, 16100, 0.75, -0.01, 0.01),
]


def test_a_trade_off_ends_where_it_is_cut_and_has_intervals_of_the_difference() -> None:
    chart = figures.tradeoff(TRADEOFF, "accuracy")
    assert chart["x"]["high"] == 1.6 * 10000
    alpha, beta = chart["series"]
    assert [point["label"] for point in alpha["points"]] == ["0.9", "0.99"]
    assert [point["label"] for point in beta["points"]] == ["0.5"]  # 0.4 makes more calls than 16,000
    assert alpha["points"][0] == {
        "x": 5000.0, "y": 0.65, "low": 0.63, "high": 0.67, "label": "0.9", "more": "200 pseudo-references",
    }  # fmt: skip
    assert chart["lines"] == [{"y": 0.75, "name": "standard MBR, 65,000 calls"}]


def race(text: str) -> dict[str, Any]:
    return {"source": text, "reference": None, "hypotheses": [text], "winner": 0, "races": {"0.99": {"steps": []}}}


def test_packed_races_come_back_whole_and_fewer_where_they_would_be_too_large() -> None:
    random = np.random.default_rng(0)
    sentences = [race("".join(random.choice(list("abcdefgh"), 400))) for _ in range(20)]
    files = [
        {"pair": "a", "sentences": sentences},
        {"pair": "b", "sentences": sentences[:3]},
        {"pair": "c", "sentences": []},
    ]
    packed, count = report.pack_races(files)
    assert count == 23
    found = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert [file["pair"] for file in found] == ["a", "b"]
    assert [one["source"] for one in found[0]["sentences"]] == [one["source"] for one in sentences]
    smaller, fewer = report.pack_races(files, limit=len(packed) // 2)
    assert len(smaller) <= len(packed) // 2
    assert 3 < fewer < 23
    assert report.pack_races(files, limit=10) == ("", 0)
    assert report.pack_races([]) == ("", 0)


@pytest.mark.parametrize(
    ("notes", "title", "text"),
    [
        ("## What it says\n\nA **word**.\n", "What it says", "<p>A <strong>word</strong>.</p>\n"),
        ("Only words <b>.\n", "Notes", "<p>Only words &lt;b&gt;.</p>\n"),
    ],
)
def test_notes_are_shown_under_their_own_title(notes: str, title: str, text: str) -> None:
    assert report.shown_notes(notes) == {"title": title, "text": text}


@pytest.mark.parametrize("notes", ["", " \n", "## A title alone\n"])
def test_empty_notes_are_not_shown(notes: str) -> None:
    assert report.shown_notes(notes) is None


def test_what_learned_means_is_said_and_what_needs_no_words_gets_none() -> None:
    assert describe_utility("chrF++") == short_description("chrF++") == "chrF++"
    assert describe_utility("learned").startswith("learned, a small neural metric")
    assert describe_utility("learned multi").endswith("(multi)")
    assert short_description("learned multi") == "learned multi (a small neural metric)"
