"""What the page draws and says, before a browser sees it: points of charts, labels, packed races, notes, names."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np
import pytest

from mbrace.experiments import figures, report
from mbrace.experiments.summary import describe_utility, short_description

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
