"""Sample size schedules r_1 < r_2 < ... < r_T (section 4 of the paper)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from mbrace.errors import SettingError, UserError

Schedule: TypeAlias = "Iterable[int] | Literal['all'] | None"


def doubling(first: int, last: int) -> tuple[int, ...]:
    """Sizes that double from `first` and end with `last`: doubling(8, 256) = (8, 16, 32, 64, 128, 256)."""
    if not 1 <= first <= last:
        raise UserError(f"schedule doubling({first}, {last}): needs 1 <= first <= last")
    sizes = list(itertools.takewhile(lambda size: size < last, (first << step for step in itertools.count())))
    return (*sizes, last)


def is_all(schedule: Schedule) -> bool:
    """Whether a schedule uses all pseudo-references."""
    return isinstance(schedule, str) and schedule == "all"  # comparing an array gives an array


def check(sizes: Iterable[int] | str) -> tuple[int, ...]:
    """`sizes` as a tuple, refused unless they are whole numbers that increase from at least 1."""
    if isinstance(sizes, str) or not isinstance(sizes, Iterable):
        raise SettingError("schedule", sizes, 'give growing whole numbers, or "all"')
    sizes = tuple(sizes)
    if set(map(type, sizes)) != {int} and not (sizes and all(map(_is_whole, sizes))):
        raise SettingError("schedule", list(sizes), "give whole numbers, such as 16,32,64,128,256")
    if sizes[0] < 1 or sorted(set(sizes)) != list(sizes):
        raise SettingError("schedule", list(sizes), "sizes must increase and start at 1 or more")
    return tuple(map(int, sizes))


def _is_whole(size: object) -> bool:
    try:
        return not isinstance(size, (bool, str)) and int(size) == size  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return False


def steps(schedule: Schedule, default: tuple[int, ...], *, growing: bool) -> Iterator[int]:
    """The sample sizes of a race's time steps. "all" doubles without end: a race stops when its references run out.

    Without pruning the steps in between do not change the answer, so unless `growing` there is only the last one.
    """
    if schedule == "all":
        return (default[0] << step for step in itertools.count()) if growing else iter([1 << 62])
    sizes = check(default if schedule is None else schedule)
    return iter(sizes if growing else sizes[-1:])


def largest(schedule: Schedule, default: tuple[int, ...]) -> int | None:
    """The largest number of pseudo-references that a schedule draws; None if there is no limit."""
    return None if schedule == "all" else check(default if schedule is None else schedule)[-1]
