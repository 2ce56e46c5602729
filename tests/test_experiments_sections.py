"""Sections that other studies add to the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mbrace.cli import main
from mbrace.errors import UserError
from mbrace.experiments.points import Figure, Point
from mbrace.experiments.sections import Section, load

PANELS = {
    "de-en": [Point(9000, 0.7, "race", "0.99", y_low=0.6, y_high=0.8), Point(5000, 0.6, "race", "0.9")],
    "tr-en": [Point(70, 0.5, "other")],
}
FIGURE = Figure(x="calls", y="accuracy", describes="Accuracy against calls", panels=PANELS, log_x=True, joined=True)


def example(**changes: object) -> Section:
    given = {
        "name": "methods",
        "title": "Other ways",
        "text": "A **bold** finding, `code` and <b>no markup</b>.",
        "headings": ("method", "calls"),
        "rows": [("race", "9,000")],
        "figure": FIGURE,
    }
    return Section(**{**given, **changes})  # type: ignore[arg-type]


def test_a_section_comes_back_from_its_file_in_its_order(tmp_path: Path) -> None:
    example().save(tmp_path)
    example(name="first", order=10, figure=None).save(tmp_path)
    found = load(tmp_path)
    assert [section.name for section in found] == ["first", "methods"]
    assert found[1].figure == FIGURE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Two Words"}, "lower-case letters"),
        ({"rows": [("one cell",)]}, "each must have 2 cells"),
        ({"picture": "figures/own.svg"}, "either a figure or a picture"),
    ],
)
def test_a_section_that_cannot_be_shown_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        example(**changes)


@pytest.mark.parametrize("stored", ["{", '{"name": "x"}', '{"name": "x", "title": "", "text": "", "colour": 1}', "[]"])
def test_a_damaged_section_is_named(stored: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.section.json").write_text(stored)
    with pytest.raises(UserError, match=r"x\.section\.json: not a section of a report"):
        load(tmp_path)


def test_a_missing_picture_is_named(tmp_path: Path) -> None:
    example(figure=None, picture="figures/own.svg").save(tmp_path)
    with pytest.raises(UserError, match=r"own\.svg is missing"):
        load(tmp_path)


@pytest.fixture
def tiny_results(tmp_path_factory: pytest.TempPathFactory, demo_rows: list[dict[str, Any]]) -> Path:
    """An experiment on two sentences, without its report."""
    home = tmp_path_factory.mktemp("tiny")
    rows = [row | {name: row[name][:9] for name in ("hypotheses", "pseudo_references")} for row in demo_rows[:2]]
    (home / "de-en.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ["-o", str(home / "out"), "--trials", "1", "--workers", "1", "--races", "1", "--no-report"]
    assert main(["experiment", str(home / "de-en.jsonl"), *options]) == 0
    return home / "out"


def test_report_and_results_show_the_section_with_its_table_and_figure(tiny_results: Path, tmp_path: Path) -> None:
    example().save(tmp_path)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "own.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    own = {"figure": None, "picture": "figures/own.svg", "picture_describes": "An own picture"}
    example(name="own", title="Another study", **own).save(tmp_path)
    assert main(["experiment", "-o", str(tmp_path), "--report-only", str(tiny_results)]) == 0
    words = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert "## Other ways\n\nA **bold** finding" in words
    assert "| method | calls |\n| :-- | --: |\n| race | 9,000 |" in words
    assert "![Accuracy against calls](figures/methods.png)" in words
    assert "![An own picture](figures/own.svg)" in words
    assert (tmp_path / "figures" / "methods.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    section = page[page.index('<section id="methods">') :]
    assert "<p>A <strong>bold</strong> finding, <code>code</code> and &lt;b&gt;no markup&lt;/b&gt;.</p>" in section
    assert 'id="methods-0"' in section
    assert 'id="methods-1"' in section
    assert 'alt="An own picture"' in page
    assert json.loads((tmp_path / "data" / "own.section.json").read_text())["title"] == "Another study"
