"""Draws that are made beside a beam search."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tiny_models as tiny

import mbrace
from mbrace.errors import UserError
from mbrace.io.candidates import Bad
from mbrace.models.hypotheses import HypothesisMaker
from mbrace.records import Location, Record
from mbrace.sampler import Want

SOURCES = ["a b c", "b c", "c", "a a b"]
IDS = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def translator() -> mbrace.Seq2Seq:
    return mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer())


def hypotheses(sources: Sequence[str], ids: Sequence[str | int]) -> list[list[str]]:
    return [[f"{source} {letter}" for letter in "abcd"] for source in sources]


def test_draws_made_beside_a_search_are_those_made_after_it(translator: mbrace.Seq2Seq) -> None:
    found = []
    for beside in (False, True):
        sampler = translator.sampler(seed=2, ahead=(4, 16))
        maker = HypothesisMaker(hypotheses, window=3, prefetch=sampler.prefetch if beside else None)
        answers = list(mbrace.decode_corpus(maker.records(SOURCES), sampler=sampler, schedule=[2, 4, 8, 16], window=3))
        found.append((answers, sampler.drawn))
    assert found[1] == found[0]


def test_a_bad_line_does_not_part_groups_from_windows(translator: mbrace.Seq2Seq) -> None:
    record = [Record((), id=name, source=source) for name, source in zip(IDS, SOURCES, strict=True)]
    bad = Bad(Location("s.txt", 2), None, "not UTF-8")
    drawn = []
    for items in (record, [record[0], bad, *record[1:]]):
        sampler = translator.sampler(seed=2, ahead=8)
        maker = HypothesisMaker(hypotheses, window=2, prefetch=sampler.prefetch)
        made = (item for item in maker.items(items) if isinstance(item, Record))
        assert len(list(mbrace.decode_corpus(made, sampler=sampler, schedule=[4, 8], window=2))) == 4
        drawn.append(sampler.drawn)
    assert drawn == [32, 32]


def test_a_window_of_some_of_the_sources_gets_its_own_draws(translator: mbrace.Seq2Seq) -> None:
    wants = [Want(0, 0, 4), Want(1, 0, 9)]
    records = [Record((), id=name, source=SOURCES[name - 1]) for name in (3, 1)]
    plain = translator.sampler(seed=2, ahead=4).start(records).draw(wants)
    sampler = translator.sampler(seed=2, ahead=4)
    sampler.prefetch(SOURCES, IDS)
    drawer = sampler.start(records)
    assert drawer.draw(wants) == plain
    assert sampler.drawn == 4 * len(SOURCES) + 5
    # another window is drawn for anew, and so is a source with another id
    assert sampler.start(records).draw(wants) == plain
    sampler.prefetch(SOURCES, [5, 6, 7, 8])
    assert sampler.start(records).draw(wants) == plain


def test_a_source_that_cannot_be_drawn_for_costs_the_others_nothing(translator: mbrace.Seq2Seq) -> None:
    sampler = translator.sampler(seed=2, ahead=4)
    sampler.prefetch([*SOURCES, "a " * 5000], [*IDS, 5])
    records = [Record((), id=name, source=source) for name, source in zip(IDS, SOURCES, strict=True)]
    wants = [Want(i, 0, 4) for i in range(4)]
    assert sampler.start(records).draw(wants) == translator.sampler(seed=2).start(records).draw(wants)
    long = translator.sampler(seed=2, ahead=4)
    long.prefetch(["a " * 5000], [5])
    with pytest.raises(UserError, match="split it into sentences"):
        long.start([Record((), id=5, source="a " * 5000)]).draw([Want(0, 0, 4)])
