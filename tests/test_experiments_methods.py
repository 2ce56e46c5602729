"""The study of methods: what it counts by hand, its rule, and its table, file and section."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mbrace
from mbrace.cli import main
from mbrace.experiments import methods, methods_rule, methods_section, report
from mbrace.experiments.points import COLOURS, MARKERS, Figure, Point, draw
from mbrace.experiments.strings import MARGIN
from mbrace.records import Record

WORDS = ["one", "two", "three", "four", "five"]


def record(number: int, drawn: int = 300) -> Record:
    rng = np.random.default_rng(number)
    texts = [" ".join(rng.choice(WORDS, 4)) for _ in range(drawn + 8)]
    return Record(texts[:8], texts[8:], id=number, source="eins", reference="one two three four")


@pytest.fixture(scope="module")
def study() -> methods.Study:
    return methods.Study(mbrace.ChrF(threads=1))


def test_ways_that_cannot_be_done_are_left_out(study: methods.Study) -> None:
    names = [way.name for way in study.ways([record(0)])]
    assert "standard MBR" in names
    assert "low rank, 1/8 of the pairs" in names
    for absent in ("aggregate", "centroids, 64", "chrF++ to fine, 32", "quality shortlist, 32", "model-based weights"):
        assert absent not in names
    weighted = Record(["a", "b"], ["a"] * 300, logprobs=[-1.0] * 300)
    assert "model-based weights" in [way.name for way in study.ways([weighted])]
    many = Record([str(n) for n in range(3000)], ["a"] * 300)
    assert "halving, 2,048 calls" not in [way.name for way in study.ways([many])]


def test_a_choice_is_judged_on_what_it_did_not_see(study: methods.Study) -> None:
    given, utility = record(0), study.utility
    ways = study.ways([given])
    rows = methods.quality_rows(study, [given], {"chrF++": utility}, ways)
    assert [row["way"] for row in rows] == [way.name for way in ways]
    draws = list(given.pseudo_references or ())  # type: ignore[arg-type]
    raced, held_out = draws[:256], draws[256:]

    def expected(text: str, against: list[str]) -> float:
        return float(np.mean(utility.pairs([text] * len(against), against)))

    best = max(expected(text, draws) for text in given.hypotheses)
    for row, way in zip(rows, ways, strict=True):
        assert row["worth"] == pytest.approx(expected(row["text"], held_out))
        assert row["human chrF++"] == pytest.approx(utility.pairs([row["text"]], [given.reference or ""])[0])
        assert row["agrees"] == (expected(row["text"], draws) >= best - 1e-6)
        options: dict[str, Any] = {"prune": way.prune, "method": way.method, "pool": way.pool, "start": way.start}
        options |= {"forecast": way.forecast} | ({"cover": True} if way.cover else {"shuffle": False})
        alone = mbrace.decode(given.hypotheses, raced[: way.references], **options)
        assert (row["text"], row["utility_calls"], row["strings"]) == (alone.text, alone.utility_calls, alone.strings)
    assert rows[0]["drawn"] == 8 + 256


def test_every_way_is_timed_on_the_same_records(study: methods.Study) -> None:
    records = [record(n) for n in range(11)]
    ways = study.ways(records)[:3]
    times = list(methods.timed_rows(study, records, ways))
    assert [(row["way"], row["group"], row["sentences"]) for row in times] == [
        (way.name, group, size) for group, size in enumerate((2, 2, 2, 2, 2, 1)) for way in ways
    ]
    assert all(row["seconds"] > 0 for row in times)
    rows = methods.quality_rows(study, records, {}, ways)
    judged = {(row["way"], row["id"]): row["text"] for row in rows}
    for row in times:
        first = row["group"] * 2
        assert row["texts"] == [judged[row["way"], n] for n in range(first, first + row["sentences"])]


def stored(**changes: dict[str, float]) -> dict[str, Any]:
    """Made-up measurements: each way as standard MBR, but for `changes` by the first word of its name."""
    rows, times = [], []
    for way in methods.WAYS:
        own = {"worth": 1.0, "seconds": 1.0, "utility_calls": 1000.0, "drawn": 512.0, "human BLEU": 30.0}
        own |= changes.get(way.name.split()[0].strip(","), {})
        for number in range(50):
            counts = {
                "agrees": 1.0,
                "strings": 400,
                "pairs_scored": 9,
                "other_calls": 0,
                "spread": 1.0,
                "human chrF++": 50.0,
            }
            rows.append({"way": way.name, "id": number, **counts, **own})
        for group in range(2):
            seconds = own["seconds"] * (25 + 2 * group)
            times.append({"way": way.name, "group": group, "sentences": 25, "seconds": seconds, "differ": 0})
    about = {"pair": "de-en", "split": "test", "utility": "chrF++", "sampling": "independent", "device": "a processor"}
    return {"about": about | {"where": "one core", "embeds": False}, "rows": rows, "times": times}


def test_the_rule_takes_the_cheapest_that_loses_nothing() -> None:
    found = methods_section.summarise(
        stored(
            standard={"seconds": 2.0},
            prune_beta={"worth": 1.0 - 0.9 * MARGIN, "seconds": 0.5},
            aggregate={"worth": 1.0 - 1.1 * MARGIN, "seconds": 0.1, "utility_calls": 1.0},
            halving={"seconds": 0.2, "human BLEU": 29.9},  # a metric that was not decoded with has fallen
            low={"utility_calls": 300.0},
            centroids={"utility_calls": 10.0},
            regret={"drawn": 300.0},
        )
    )
    by_name = {row["way"]: row for row in found}
    assert by_name["prune_beta 0.5"]["utility lost"] == pytest.approx(-0.9 * MARGIN)
    assert by_name["standard MBR"]["seconds"] == pytest.approx(2.0 * 52 / 50)
    best = {s.name: methods_rule.recommended(found, s) for s in (methods_rule.CHEAP, methods_rule.CROSS)}
    assert best["cheap utility"] is not None
    assert best["cheap utility"]["way"] == "prune_beta 0.5"
    cross = best["cross-encoder or judge"]
    assert cross is not None
    assert cross["way"].startswith("low rank")
    said = methods_rule.recommendation(found)
    assert said[0] == (
        "cheap utility: prune_beta 0.5 (`--prune bottom --beta 0.5`), 520 ms per sentence instead of 2,080"
    )
    assert said[2].startswith("generating is dear: regret")


def test_intervals_are_over_sentences_and_groups() -> None:
    one = stored()
    for row in one["rows"]:
        if row["way"] == "aggregate":
            row["worth"] = 1.0 + (0.2 if row["id"] % 2 else -0.2)
    row = next(row for row in methods_section.summarise(one) if row["way"] == "aggregate")
    half = 1.96 * 0.2 / 50**0.5
    assert (row["utility lost low"], row["utility lost high"]) == pytest.approx((-half, half), abs=0.01)
    # two groups of 1.00 and 1.08 seconds per sentence: the mean and Student's t with one degree of freedom
    assert row["seconds high"] - row["seconds"] == pytest.approx(12.706 * 0.04, rel=1e-3)


def test_the_command_writes_a_table_a_file_and_a_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, out = tmp_path / "de-en.test.jsonl", tmp_path / "out"
    rows = [
        {"id": r.id, "source": r.source, "reference": r.reference, "hypotheses": r.hypotheses,
         "pseudo_references": r.pseudo_references}
        for r in map(record, range(4))
    ]  # fmt: skip
    given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["experiment", "--methods", str(given), "-o", str(out), "--timed", "3", "--seed", "1"]) == 0
    told = capsys.readouterr().out
    assert all(len(line) <= 80 for line in told.splitlines() if line.startswith("  ") and ":" not in line), told
    with open(out / "methods.csv", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    ways = [way.name for way in methods.Study(mbrace.ChrF()).ways([record(0)])]
    assert [row["way"] for row in table] == ways
    assert all(name in table[0] for name in ("utility lost low", "agrees high", "human BLEU change", "seconds low"))
    assert {row["timed"] for row in table} == {"3"}
    assert {row["timed choices that differ"] for row in table} == {"0"}
    found = methods_section.load(out / "data")
    section = methods_section.section(found)
    assert len(section.rows) == len(ways)
    assert section.figure is not None
    assert "de-en, chrF++, one core" in section.figure.panels
    (out / "data" / "x.methods.json.gz").write_bytes(b"no")
    assert main(["experiment", "--methods", str(given), "-o", str(out)]) == 2
    assert "x.methods.json.gz: not what `mbrace experiment --methods` writes" in capsys.readouterr().err


def test_arithmetic_draws_stand_beside_independent_ones() -> None:
    """In one table, all against standard MBR with independent draws; the advice says how to draw so."""
    even = stored(standard={"worth": 1.01}, prune_beta={"worth": 1.2, "seconds": 0.1}, regret={"worth": 0.5})
    even["about"]["sampling"] = "arithmetic"
    found = methods_section.joined([even, stored(prune_beta={"worth": 0.0})])
    assert len(found) == 1
    rows = {row["way"]: row for row in methods_section.summarise(found[0])}
    assert len(rows) == 2 * len(methods.WAYS)
    assert rows["prune_beta 0.5"]["utility lost"] == pytest.approx(-1)
    assert rows["prune_beta 0.5, arithmetic draws"]["utility lost"] == pytest.approx(0.2)
    assert rows["standard MBR, arithmetic draws"]["utility lost"] == pytest.approx(0.01)
    assert {row["sampling"] for name, row in rows.items() if name.endswith("draws")} == {"arithmetic"}
    said = methods_rule.recommendation(list(rows.values()))[0]
    assert said.startswith(
        "cheap utility: prune_beta 0.5, arithmetic draws (`--sampling arithmetic --prune bottom --beta 0.5`), 104 ms"
    )
    section = methods_section.section(found)
    assert section.figure is not None
    panels = {title: len(points) for title, points in section.figure.panels.items()}
    own = "de-en, chrF++, one core"
    assert panels == {own: len(methods.WAYS), f"{own}, arithmetic draws": len(methods.WAYS)}
    assert "*Arithmetic draws*: samples that cover the model's distribution evenly" in section.text
    lines = methods_section.terminal(list(rows.values()))
    assert sum(line.startswith("  prune_beta 0.5 ") for line in lines) == 2
    even["rows"][0]["id"] = "another sentence"
    apart = methods_section.joined([even, stored()])
    assert [table["about"]["sampling"] for table in apart] == ["independent", "arithmetic"]


def test_times_are_compared_within_a_run() -> None:
    """The run with arithmetic draws had the machine to itself: all its times are a tenth, and nothing is gained."""
    even = stored(**{way.name.split()[0].strip(","): {"seconds": 0.1} for way in methods.WAYS})
    even["about"]["sampling"] = "arithmetic"
    rows = methods_section.summarise(methods_section.joined([even, stored(prune_beta={"seconds": 0.5})])[0])
    assert methods_rule.recommendation(rows)[0] == (
        "cheap utility: prune_beta 0.5 (`--prune bottom --beta 0.5`), 520 ms per sentence instead of 1,040"
    )
    even["times"] = [row | ({"seconds": 0.5} if row["way"] == "prune_beta 0.5" else {}) for row in even["times"]]
    rows = methods_section.summarise(methods_section.joined([even, stored(prune_beta={"seconds": 0.5})])[0])
    assert methods_rule.recommendation(rows)[0].endswith("--beta 0.5`), 20 ms per sentence instead of 104")


def test_few_sentences_recommend_nothing() -> None:
    table = stored(prune_beta={"seconds": 0.5})
    for number in (29, 1):
        few = table | {"rows": [row for row in table["rows"] if row["id"] < number]}
        said = methods_section.terminal(methods_section.summarise(few))
        assert said[-1] == f"  no recommendation: {number} sentence{'s' * (number > 1)}, and it takes 30 or more"
        assert ("(+0.000..+0.000)" in "".join(said)) == (number > 1)  # one sentence has no interval
    enough = table | {"rows": [row for row in table["rows"] if row["id"] < 30]}
    assert len(methods_rule.recommendation(methods_section.summarise(enough))) == 3


def test_hypotheses_of_equal_worth_leave_nothing_to_measure() -> None:
    table = stored()
    for row in table["rows"]:
        row["spread"] = 0.0
    with pytest.raises(mbrace.UserError, match=r"c.jsonl: hypotheses: all of a record have the same utility"):
        methods.check_spread(table["rows"], "c.jsonl")
    few = table | {"rows": [row | {"spread": float(row["id"] == 0)} for row in table["rows"] if row["id"] < 2]}
    assert all(np.isfinite(row["utility lost low"]) for row in methods_section.summarise(few))


def test_a_second_file_of_the_same_pair_does_not_replace_the_first(tmp_path: Path) -> None:
    paths = [
        methods_section.save([], [], tmp_path, stored()["about"] | {"sampling": kind})
        for kind in ("independent", "arithmetic")
    ]
    assert paths[0] != paths[1]


def test_series_of_the_figure_can_be_told_apart() -> None:
    families = {way.family for way in methods.WAYS}
    assert len(families) <= len(COLOURS) == len(MARKERS) == len(set(COLOURS)) == len(set(MARKERS))
    page = Path(report.__file__).parent / "page"
    shapes = re.findall(r'\bs(\d): "(\w+)"', (page / "charts.js").read_text(encoding="utf-8"))
    assert [int(number) for number, _ in shapes] == list(range(len(COLOURS)))
    assert len({shape for _, shape in shapes}) == len(COLOURS)
    colours = re.findall(r"--s(\d): (#\w+)", (page / "report.css").read_text(encoding="utf-8"))
    assert len(set(colours)) == len(colours) == 2 * len(COLOURS)  # light and dark


def test_labels_do_not_collide() -> None:
    """Points in a heap: each label goes where it hides nothing, as long as there is room."""
    plt = pytest.importorskip("matplotlib.pyplot")
    heap = [Point(100.0 + 9 * n, 100.0 + (n % 3), "a", "0.99") for n in range(8)]
    figure = draw(plt, Figure(x="x", y="y", describes="A heap", panels={"heap": heap}))
    axis = figure.axes[0]
    boxes = [text.get_window_extent().extents for text in axis.texts]
    assert len(boxes) == 8
    points = axis.transData.transform([(point.x, point.y) for point in heap])
    for number, box in enumerate(boxes):
        assert not any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in points)
        for other in boxes[number + 1 :]:
            assert not (min(box[2], other[2]) > max(box[0], other[0]) and min(box[3], other[3]) > max(box[1], other[1]))
    plt.close(figure)
