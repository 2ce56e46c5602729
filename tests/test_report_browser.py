"""report.html in a headless Chromium: controls, races, links, keyboard, both widths, both colour schemes."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accessibility import WIDTHS, findings_of
from experiment_files import cut, rows_of, run, write_candidates

pytestmark = pytest.mark.browser
Open = Callable[..., Any]
EMPTY = "parts => parts.filter(part => part.innerText.trim().split('\\n').length < 2).map(part => part.id)"


@pytest.fixture
def opened(results: Path, browser: Any) -> Iterator[Open]:
    """Open the report at an address; afterwards, that the browser complained of nothing."""
    complaints: list[str] = []
    contexts = []

    def open_page(address: str = "", *, width: int = 390, scheme: str = "light", file: Path | None = None) -> Any:
        context = browser.new_context(
            offline=True, viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.goto((file or results / "out" / "report.html").as_uri() + address)
        page.wait_for_selector("html[data-ready]", timeout=120_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def picture(page: Any, name: str) -> str:
    return str(page.inner_html(f"[data-chart={name}] .plot svg" if name != "race" else "#race .plot svg"))


def test_controls_change_the_pictures_and_each_other(opened: Open) -> None:
    page = opened()
    drawn = page.locator("figure.chart:visible")
    assert [drawn.nth(n).locator("svg .marker").count() > 3 for n in range(drawn.count())] == [True] * 4

    def changes(name: str, control: str, value: str) -> None:
        before = picture(page, name)
        page.select_option(f"#{control}", value)
        assert picture(page, name) != before

    changes("tradeoff", "measure", "rr")
    changes("survivors", "pair", "yy-en")
    changes("false_pruning", "utility", "chrF")
    page.select_option("#pair", "xx-en")  # chrF was run on yy-en alone
    assert page.input_value("#utility") == "chrF++"
    page.select_option("#utility", "chrF")
    assert page.input_value("#pair") == "yy-en"
    assert page.locator("#test .choice:visible").count() == 1
    assert page.inner_text("#test .choice:visible .caption").startswith(
        "yy-en.jsonl (the only file), chrF, 3 sentences"
    )
    assert page.inner_text("#recommended h2:visible") == "On your file yy-en.jsonl"


def test_the_answer_is_told_at_the_end_of_a_race_and_not_before(opened: Open) -> None:
    page = opened("#sentence=2&alpha=0.99")
    assert page.input_value("#sentence") == "2"
    assert page.input_value("#alpha") == "0.99"
    steps = int(page.get_attribute("#step", "max")) + 1
    assert steps > 1
    for step in range(1, steps):
        assert page.inner_text("#state").startswith(f"Step {step} of {steps}")
        assert page.locator("#verdict").is_hidden()
        assert page.locator("#viewer .tag.answer, #viewer .tag.winner, #race .answer, #race .winner").count() == 0
        before = picture(page, "race")
        page.click("#forward")
        assert picture(page, "race") != before
    assert page.inner_text("#state").startswith(f"Step {steps} of {steps}")
    assert page.inner_text("#answer") in page.inner_text("#field tbody tr:has(.tag.answer)")
    assert "utility calls" in page.inner_text("#told")
    assert page.is_disabled("#forward")


def test_an_address_opens_a_race_at_its_step_and_follows_what_is_chosen(opened: Open, results: Path) -> None:
    recorded = json.loads(gzip.decompress((results / "out" / "data" / "yy-en.all.chrf.races.json.gz").read_bytes()))
    steps = [len(sentence["races"]["0.99"]["steps"]) for sentence in recorded["sentences"]]
    assert max(steps) > 2
    longest = steps.index(max(steps)) + 1
    page = opened(f"#pair=yy-en&utility=chrF&sentence={longest}&alpha=0.99&step={max(steps) - 1}")
    assert [page.input_value(f"#{name}") for name in ("pair", "utility", "sentence", "alpha", "step")] == [
        "yy-en", "chrF", str(longest), "0.99", str(max(steps) - 2),
    ]  # fmt: skip
    page.select_option("#alpha", "0.8")
    page.select_option("#sentence", "1")
    assert set(re.split("[#&]", page.url)[1:]) == {"pair=yy-en", "utility=chrF", "alpha=0.8", "sentence=1"}
    again = opened("#" + page.url.split("#")[1])
    assert [again.input_value(f"#{name}") for name in ("pair", "sentence", "alpha")] == ["yy-en", "1", "0.8"]
    playing = opened("#sentence=1&alpha=0.99&play=1")
    assert playing.inner_text("#play") == "Pause"
    playing.wait_for_selector("#verdict:visible")
    assert playing.inner_text("#play") == "Play"


def test_contents_lead_to_every_section_and_open_what_is_folded(opened: Open) -> None:
    page = opened(width=1280)
    links = page.locator("#contents a").evaluate_all("links => links.map(link => link.getAttribute('href').slice(1))")
    assert links == page.locator("main > section").evaluate_all("parts => parts.map(part => part.id)")
    assert links[:2] == ["recommended", "viewer"]
    assert page.locator("main > section").evaluate_all(EMPTY) == []
    assert page.locator("#paper .claims").is_hidden()
    page.click("#contents a[href='#paper']")
    page.wait_for_selector("#paper .claims:visible")
    folded = opened("#paper")
    assert folded.locator("#paper .claims").is_visible()
    assert "xx-en.test.jsonl" in folded.inner_text("#paper .claims")


def test_charts_terms_and_races_are_used_by_keyboard_alone(opened: Open) -> None:
    page = opened()
    page.focus("[data-chart=tradeoff] .plot")
    page.keyboard.press("ArrowRight")
    first = page.inner_text("[data-chart=tradeoff] .tip")
    assert first.startswith("prune alpha 0.8")
    assert "95% interval" in first
    page.keyboard.press("ArrowRight")
    assert page.inner_text("[data-chart=tradeoff] .tip").startswith("prune alpha 0.9")
    assert "exact accuracy" in page.text_content("[data-chart=tradeoff] [role=status]")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("[data-chart=tradeoff] .tip").startswith("prune beta")
    page.keyboard.press("Escape")
    assert page.locator("[data-chart=tradeoff] .tip").is_hidden()
    for name, words in (
        ("rr", "1 divided by the rank"),
        ("rstar", "All pseudo-references"),
        ("beta", "the worst share"),
    ):
        page.locator(f"#tradeoff .term[aria-describedby=term-{name}]").first.focus()
        assert words in page.inner_text("#explained")
    page.keyboard.press("Escape")
    assert page.locator("#explained").is_hidden()
    page.locator("#test .choice:visible .term", has_text="RR").focus()
    assert "1 divided by the rank" in page.inner_text("#explained")
    page.locator("#recommended .term:visible", has_text="reciprocal rank").focus()
    assert "1 divided by the rank" in page.inner_text("#explained")
    page.hover("#tradeoff .term[aria-describedby=term-alpha]")
    assert "Confidence pruning" in page.inner_text("#explained")
    page.focus("#play")
    page.keyboard.press("Enter")
    assert page.inner_text("#play") == "Pause"
    page.focus("#step")
    page.keyboard.press("End")
    assert page.locator("#verdict").is_visible()


def test_the_numbers_of_a_chart_are_a_table(opened: Open, results: Path) -> None:
    page = opened(width=1280)
    page.click("[data-chart=survivors] summary")
    page.locator("[data-chart=survivors] tbody tr").first.wait_for()  # rows are made after the click
    shown = page.locator("[data-chart=survivors] tbody tr").all_inner_texts()
    rows = rows_of(results / "out" / "survivors.csv")
    own = [row for row in rows if (row["pair"], row["utility"]) == ("xx-en", "chrF++")]
    numbers = [[float(number) for number in re.findall(r"[\d.]+", line)] for line in shown]
    wanted = [[float(row[name]) for name in ("alpha", "pseudo_references", "mean", "q25", "q75")] for row in own]
    np.testing.assert_allclose(numbers, wanted, rtol=0, atol=0.0501)  # shown with one digit


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing(opened: Open, width: str, scheme: str) -> None:
    page = opened("#sentence=1&alpha=0.9&step=99", width=WIDTHS[width], scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    page.evaluate("document.querySelector('#utility').add(new Option('a utility with a long name'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width]  # nothing sticks out
    cut = "parts => parts.filter(part => part.scrollWidth > part.clientWidth).map(part => part.textContent)"
    assert page.locator(".caption:visible, h2:visible, h3:visible").evaluate_all(cut) == []
    assert findings_of(page) == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_axe_would_find_a_control_without_a_name(opened: Open) -> None:
    page = opened()
    page.evaluate("document.querySelector('#step').removeAttribute('aria-label')")
    [finding] = findings_of(page)
    assert finding.startswith("critical: Form elements must have labels")


def test_one_file_without_references_has_no_empty_part(
    opened: Open, demo_rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    names = ("id", "hypotheses", "pseudo_references")
    rows = [{name: row[name] for name in names} for row in cut(demo_rows[:3], 20, 20)]
    run(tmp_path / "out", write_candidates(tmp_path / "mine.jsonl", rows), trials=1)
    page = opened(file=tmp_path / "out" / "report.html")
    assert page.inner_text("h1") == "Settings for mine"
    assert page.locator("#controls select:visible").count() == 0  # one file and one utility are no choice
    assert page.locator("#source, #reference").evaluate_all("parts => parts.every(part => part.hidden)")
    assert page.locator("#measure option").all_inner_texts() == ["exact accuracy", "reciprocal rank"]
    assert page.locator("main > section").evaluate_all(EMPTY) == []
    assert findings_of(page) == []
