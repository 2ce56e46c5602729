"""Independent and arithmetic draws for the same sentences in one table of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mbrace.experiments.methods import EARLIER, WAYS, Way

ARITHMETIC = ", arithmetic draws"  # after the name of a way on samples that were drawn so
BY_NAME = {way.name: way for way in (*WAYS, EARLIER)}


def joined(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each table with independent draws, and after its ways those of a table of the same sentences, utility and device
    with arithmetic draws, by names that say so. Tables that find no partner stay alone."""
    tables = {_key(stored): dict(stored) for stored in found if not _drawn_evenly(stored)}
    alone = []
    for stored in filter(_drawn_evenly, found):
        partner = tables.get(_key(stored))
        if partner is None:
            alone.append(stored)
            continue
        for part in ("rows", "times"):
            partner[part] = [*partner[part], *({**row, "way": row["way"] + ARITHMETIC} for row in stored[part])]
    return [*tables.values(), *alone]


def way_of(row: Mapping[str, Any]) -> Way:
    """The way of a row, whatever its draws."""
    return BY_NAME[row["way"].removesuffix(ARITHMETIC)]


def is_arithmetic(row: Mapping[str, Any]) -> bool:
    """Whether the samples of a row were drawn evenly."""
    return str(row["way"]).endswith(ARITHMETIC) or row["sampling"] == "arithmetic"


def _drawn_evenly(stored: Mapping[str, Any]) -> bool:
    return bool(stored["about"]["sampling"] == "arithmetic")


def _key(stored: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two tables must share to be compared sentence by sentence, the order of sentences included."""
    about = [stored["about"][name] for name in ("pair", "split", "utility", "device")]
    return (*about, *dict.fromkeys(row["id"] for row in stored["rows"]))
