"""The whole command on tiny real candidates, offline, and its report in a headless Chromium."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mbrace.cli import main
from mbrace.experiments.trials import Outcomes

FIGURES = ("false_pruning", "tradeoff", "survivors", "schedules")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, demo_rows: list[dict[str, Any]]) -> Path:
    """`mbrace experiment` on two pairs, one with both splits, for two utilities, into one folder."""
    home = tmp_path_factory.mktemp("experiment")
    for name, rows in (("xx-en.valid", demo_rows[:4]), ("xx-en.test", demo_rows[4:7]), ("yy-en", demo_rows[7:10])):
        cut = [r | {"hypotheses": r["hypotheses"][:30], "pseudo_references": r["pseudo_references"][:80]} for r in rows]
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in cut), encoding="utf-8")
    files = [str(path) for path in sorted(home.glob("*.jsonl"))]
    options = ["-o", str(home / "out"), "--trials", "2", "--workers", "1", "--races", "3"]
    assert main(["experiment", *files, *options, "--no-report"]) == 0
    assert main(["experiment", files[2], *options, "--utility", "chrf"]) == 0
    return home


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
    assert float(standard["value"]) == pytest.approx(np.mean(hypotheses) * 80, rel=1e-5)
    assert {row["split"] for row in rows_of(out / "tradeoff.csv") if row["pair"] == "xx-en"} == {"valid"}
    assert len(rows_of(out / "tradeoff.csv")) == 3 * 25
    for figure in FIGURES:
        for utility in ("chrf++", "chrf"):
            assert (out / "figures" / f"{figure}.{utility}.png").read_bytes().startswith(b"\x89PNG")
            assert "<svg" in (out / "figures" / f"{figure}.{utility}.svg").read_text(encoding="utf-8")
    assert "### xx-en, chrF++ (test, 3 sentences)" in (out / "RESULTS.md").read_text(encoding="utf-8")
    assert json.loads((out / "results.json").read_text())["about"][0]["trials"] == 2


def test_a_finished_part_is_kept_and_a_broken_run_goes_on_to_the_same_numbers(results: Path, tmp_path: Path) -> None:
    first = results / "out" / "data" / "xx-en.test.chrf++.npz"
    again = tmp_path / "out"
    shutil.copytree(results / "out" / "tables", again / "tables")
    for number, path in enumerate(sorted((again / "tables").rglob("*.z"))):
        if number % 2:
            path.unlink()  # as if it had been interrupted
    files = [str(path) for path in sorted(results.glob("xx-en*.jsonl"))]
    options = ["-o", str(again), "--trials", "2", "--workers", "1", "--races", "3", "--no-report"]
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
    options = ["-o", str(tmp_path / "out"), "--trials", "2", "--workers", "1", "--races", "3"]
    assert main(["experiment", *files, *options]) == 0
    assert sorted(read) == ["xx-en.valid.chrf++.npz", "yy-en.all.chrf++.npz", "yy-en.all.chrf.npz"]
    names = ("test_table.csv", "claims.csv", "tradeoff.csv", "results.json", "RESULTS.md")
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
    assert printed[at + 2].split()[:2] == ["default", f"{float(default['saves']):.1f}x"]
    assert printed[at + 3].split()[0] == "recommended"
    assert printed[at + 4].strip().startswith("--")


def test_runs_of_several_machines_merge_into_one_report(results: Path, tmp_path: Path) -> None:
    assert main(["experiment", "-o", str(tmp_path), "--report-only", str(results / "out")]) == 0
    assert (tmp_path / "test_table.csv").read_text() == (results / "out" / "test_table.csv").read_text()


def test_three_pseudo_references_are_too_few_for_one_chart_and_enough_for_the_others(
    tmp_path: Path, demo_rows: list[dict[str, Any]]
) -> None:
    rows = [r | {"hypotheses": r["hypotheses"][:9], "pseudo_references": r["pseudo_references"][:3]} for r in demo_rows]
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:3]), encoding="utf-8")
    options = ["-o", str(tmp_path / "out"), "--trials", "2", "--workers", "1", "--races", "1"]
    assert main(["experiment", str(tmp_path / "few.jsonl"), *options]) == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert '<div class="chart" id="false_pruning">' not in page
    assert '<div class="chart" id="tradeoff">' in page


def test_one_trial_shows_no_interval_over_trials(tmp_path: Path, demo_rows: list[dict[str, Any]]) -> None:
    rows = [r | {"hypotheses": r["hypotheses"][:9], "pseudo_references": r["pseudo_references"][:9]} for r in demo_rows]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:3]), encoding="utf-8")
    options = ["-o", str(tmp_path / "out"), "--trials", "1", "--workers", "1", "--races", "1"]
    assert main(["experiment", str(tmp_path / "one.jsonl"), *options]) == 0
    words = (tmp_path / "out" / "RESULTS.md").read_text(encoding="utf-8")
    assert "| Accuracy | **" in words
    assert "over trials |" not in words
    assert "nan" not in words
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    table = page[page.index("<h2>Test results</h2>") : page.index("<h2>False pruning</h2>")]
    assert "<small></small>" not in table
    assert "<small> to </small>" not in table


def test_records_that_make_standard_mbr_right_by_definition_are_named(
    tmp_path: Path, demo_rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "id": f"s{n}", "hypotheses": row["hypotheses"][:5]} for n, row in enumerate(demo_rows[:3])]
    for row, count in zip(rows, (300, 9, 256), strict=True):  # chrF++'s schedule ends at 256
        row["pseudo_references"] = (row["pseudo_references"] * 300)[:count]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ["-o", str(tmp_path / "out"), "--trials", "2", "--workers", "1", "--races", "1"]
    assert main(["experiment", str(tmp_path / "x.jsonl"), *options]) == 0
    warned = capsys.readouterr().err
    assert "2 of 3 records have no more than 256 pseudo-references, so that R is R*" in warned
    assert warned.rstrip().endswith("'s1', 's2'")
    words = (tmp_path / "out" / "RESULTS.md").read_text(encoding="utf-8")
    assert "2 of 3 sentences have no more pseudo-references than the schedule uses" in words
    assert "right by definition: s1, s2." in words


@pytest.mark.parametrize("module", ["matplotlib", "altair", "vl_convert", "jinja2", "markdown_it"])
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


@pytest.fixture
def page(results: Path, browser: Any) -> Iterator[Any]:
    context = browser.new_context(offline=True, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("requestfailed", lambda request: page.complaints.append(request.url))
    page.goto((results / "out" / "report.html").as_uri())
    page.wait_for_selector("html[data-ready]", timeout=30000)
    yield page
    context.close()


@pytest.mark.browser
def test_the_report_loads_its_controls_change_the_pictures_and_the_race_steps(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # nothing sticks out on a phone

    def picture(name: str) -> str:
        return str(page.inner_html(f"#{name} svg"))

    def changed(name: str, control: str, value: str) -> None:
        before = picture(name)
        page.select_option(f"#{control}", value)
        page.wait_for_function(f"(before) => document.querySelector('#{name} svg').innerHTML !== before", arg=before)

    changed("tradeoff", "measure", "rr")
    changed("survivors", "pair", "yy-en")
    changed("false_pruning", "alpha", "0.9")
    changed("schedules", "utility", "chrF")
    assert page.locator("#pair option:disabled").all_inner_texts() == ["xx-en"]  # chrF was run on yy-en alone
    assert page.locator(".choice:visible").count() == 1
    assert "yy-en, chrF" in page.inner_text(".choice:visible caption")

    page.select_option("#race-alpha", "0.99")
    page.wait_for_function("document.querySelector('#state').textContent.startsWith('step 1 of')")
    before, listed = picture("race"), page.inner_text("#field tbody")
    page.click("#forward")
    page.wait_for_function("document.querySelector('#state').textContent.startsWith('step 2 of')")
    page.wait_for_function("(before) => document.querySelector('#race svg').innerHTML !== before", arg=before)
    assert page.inner_text("#field tbody") != listed
    page.select_option("#sentence", "1")
    page.wait_for_function("document.querySelector('#state').textContent.startsWith('step 1 of')")
    assert page.complaints == []
