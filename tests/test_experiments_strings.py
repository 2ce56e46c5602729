"""The study of strings: what it counts by hand, and its section of the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mbrace
from mbrace._native import covering_order
from mbrace.cli import main
from mbrace.experiments import strings, strings_section
from mbrace.experiments.strings import Way
from mbrace.records import Record

WORDS = ["one", "two", "three", "four", "five"]
ABOUT = {"pair": "de-en", "split": "test", "utility": "chrF++", "sampling": "independent"}


def record(number: int, drawn: int = 300) -> Record:
    rng = np.random.default_rng(number)
    texts = [" ".join(rng.choice(WORDS, 4)) for _ in range(drawn + 8)]
    return Record(texts[:8], texts[8:], id=number, source="eins", reference="one two three four")


def test_what_a_way_chose_is_worth_its_mean_over_the_draws_held_out() -> None:
    given = record(0)
    utility = mbrace.ChrF(threads=1)
    ways = (strings.STANDARD, Way("regret 0.04", alpha=0.99, regret=0.04), Way("pool", beam=4, alpha=0.99, pool=True))
    rows = strings.run_strings([given], utility, {"chrF++": utility}, ways=ways)
    assert [row["way"] for row in rows] == [way.name for way in ways]
    raced, held_out = given.pseudo_references[:256], given.pseudo_references[256:]  # type: ignore[index]
    standard = mbrace.decode(given.hypotheses, raced, utility=utility, prune=None, shuffle=False)
    means = utility.pairs([standard.text] * len(held_out), held_out)
    assert rows[0]["worth"] == pytest.approx(np.mean(means))
    assert rows[0]["human chrF++"] == pytest.approx(utility.pairs([standard.text], [given.reference or ""])[0])
    assert rows[0]["strings"] == len({*given.hypotheses, *raced})
    assert rows[2]["strings"] <= rows[0]["strings"]


def test_a_way_that_covers_races_over_the_first_of_a_covering_order() -> None:
    given, utility = record(1), mbrace.ChrF(threads=1)
    ways = (strings.STANDARD, Way("few", references=24), Way("few, cover", references=24, cover=True))
    rows = strings.run_strings([given], utility, {}, ways=ways)
    raced = list(given.pseudo_references[:256])  # type: ignore[index]
    covering = [raced[position] for position in covering_order(raced)]
    assert covering != raced
    for found, drawn in zip(rows[1:], (raced[:24], covering[:24]), strict=True):
        answer = mbrace.decode(given.hypotheses, drawn, utility=utility, prune=None, shuffle=False)
        held_out = given.pseudo_references[256:]  # type: ignore[index]
        assert found["worth"] == pytest.approx(np.mean(utility.pairs([answer.text] * len(held_out), held_out)))
        assert found["strings"] == len({*given.hypotheses, *drawn})


def test_a_way_may_have_a_schedule_of_its_own() -> None:
    way = Way("small steps", alpha=0.99, schedule=strings.SMALL_STEPS)
    found = strings.run_strings([record(2)], mbrace.ChrF(threads=1), {}, ways=(strings.STANDARD, way))[1]
    assert found["pseudo_references"] in strings.SMALL_STEPS
    own = Record(record(2).hypotheses, record(2).pseudo_references[:256], id=2)  # type: ignore[index]
    race = next(mbrace.decode_corpus([own], schedule=strings.SMALL_STEPS, shuffle=False))
    assert (found["utility_calls"], found["strings"]) == (race.utility_calls, race.strings)
    assert len(race.steps) > 1


def test_every_way_of_rows_that_were_saved_before_is_known() -> None:
    names = {way.name for way in (*strings.WAYS, *strings.EARLIER)}
    assert len(names) == len(strings.WAYS) + len(strings.EARLIER)
    shown = {*strings_section.SHOWN, *strings_section.SHOWN_EVEN}
    assert shown <= names
    rows = [{**each, **ABOUT} for each in rows_of(30.0)]
    one = [each for each in rows if each["way"] == "regret 0.04"]
    rows += [{**each, "way": name} for name in sorted(shown - {each["way"] for each in rows}) for each in one]
    panel = strings_section.section(rows).figure.panels["de-en, chrF++"]  # type: ignore[union-attr]
    assert {point.series for point in panel} >= {strings_section.FORECAST, strings_section.COVERED}


def test_a_table_does_not_change_when_it_is_used() -> None:
    # a thread pickles tables for other processes while this one goes on
    table = strings.strings_tables([record(0)], mbrace.ChrF(), {})[0]
    before = dict(vars(table))
    assert table.rows[table.texts[3]] == 3
    list(strings.strings_rows(table, mbrace.ChrF()))
    assert vars(table) == before


def row(way: str, number: int, *, worth: float, strings: int, human: float, other: float) -> dict[str, object]:
    counts = {"strings": strings, "utility_calls": 10 * strings, "pseudo_references": strings // 2, "drawn": strings}
    scores = {"human chrF++": human, "human BLEU": other}
    return {"way": way, "id": number, "worth": worth, "spread": 1.0, **scores, **counts}


def rows_of(pool_other: float) -> list[dict[str, object]]:
    found = []
    for number in range(40):
        found.append(row("standard 256 + 256", number, worth=1.0, strings=400, human=50.0, other=30.0))
        found.append(row("standard 64 + 64", number, worth=0.8, strings=100, human=49.0, other=30.0))
        found.append(row("regret 0.04", number, worth=0.99, strings=300, human=50.0, other=30.0))
        found.append(
            row("pool from beam 64, regret 0.04", number, worth=1.0, strings=120, human=50.0, other=pool_other)
        )
    return found


@pytest.mark.parametrize(
    ("pool_other", "says"),
    [
        (30.0, "`--regret 0.04 --pool --beam 64` is as good as standard MBR with 0.30x the strings."),
        (
            29.0,
            "`--regret 0.04` is as good as standard MBR with 0.75x the strings. `--regret 0.04 --pool --beam 64` needs "
            "0.30x at no lower expected utility, but scores lower against the human reference by BLEU.",
        ),
    ],
)
def test_what_loses_by_a_metric_that_was_not_decoded_with_is_not_recommended(pool_other: float, says: str) -> None:
    rows = [{**each, **ABOUT} for each in rows_of(pool_other)]
    own = strings_section.summaries(rows)["de-en", "chrF++"]
    assert strings_section.recommendation(own) == says


def test_even_draws_are_compared_with_standard_mbr_with_independent_draws(tmp_path: Path) -> None:
    strings_section.save_rows(rows_of(30.0), tmp_path, ABOUT)
    shifted = [{**each, "worth": float(each["worth"]) + 0.5} for each in rows_of(30.0)]  # type: ignore[arg-type]
    strings_section.save_rows(shifted, tmp_path, {**ABOUT, "sampling": "arithmetic"})
    own = strings_section.summaries(strings_section.load_rows(tmp_path))["de-en", "chrF++"]
    by_way = {each["way"]: each["utility"] for each in own}
    assert by_way["regret 0.04"] == pytest.approx(-0.01)
    assert by_way["regret 0.04, even draws"] == pytest.approx(0.49)


def test_the_command_adds_its_section_to_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "de-en.test.jsonl"
    lines = []
    for number in range(3):
        made = record(number)
        fields = {"id": made.id, "source": made.source, "reference": made.reference}
        lines.append(json.dumps({**fields, "hypotheses": made.hypotheses, "pseudo_references": made.pseudo_references}))
    path.write_text("\n".join(lines) + "\n")
    out = tmp_path / "out"
    assert main(["experiment", str(path), "-o", str(out), "--strings", "--threads", "1"]) == 0
    assert "de-en, chrF++: " in capsys.readouterr().out
    assert main(["experiment", str(path), "-o", str(out), "--trials", "1", "--workers", "1", "--threads", "1"]) == 0
    results = (out / "RESULTS.md").read_text()
    assert "## Fewer strings" in results
    assert "de-en, chrF++, standard 256 + 256 | 264 |" in results
    assert (out / "figures" / "strings.svg").stat().st_size > 1000
    assert 'id="strings"' in (out / "report.html").read_text()


def test_damaged_rows_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.strings.json.gz").write_bytes(b"x")
    with pytest.raises(mbrace.UserError, match=r"x\.strings\.json\.gz: not what `mbrace experiment --strings` writes"):
        strings_section.load_rows(tmp_path)
