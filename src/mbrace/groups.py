"""Processing in groups: items are taken a group at a time, and if a group fails its items are run one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from mbrace.errors import ServiceError, warn
from mbrace.wording import counted

Item = TypeVar("Item")
Result = TypeVar("Result")


def take(source: Iterator[Item], count: int) -> tuple[list[Item], Exception | None]:
    """The next `count` items of a source (fewer at its end), and the error if reading failed after them."""
    group: list[Item] = []
    try:
        while len(group) < count:
            group.append(next(source))
    except StopIteration:
        pass
    except Exception as error:
        return group, error
    return group, None


def in_groups(
    items: Iterable[Item], size: int, counts: Callable[[Item], bool] = lambda item: True
) -> Iterator[list[Item]]:
    """The items, `size` of those that count at a time, and the others among them. If reading fails, the items read
    before the error are given first."""
    source = iter(items)
    failure: Exception | None = None
    ended = False
    while not ended:
        group: list[Item] = []
        missing = size
        while missing and not ended:
            some, failure = take(source, missing)
            ended = len(some) < missing
            group += some
            missing -= sum(map(counts, some))
        if group:
            yield group
    if failure is not None:
        raise failure


def run_group(items: Sequence[Item], run: Callable[[Sequence[Item]], Iterable[Result]]) -> Iterator[Result | Exception]:
    """The result of `run` for each item, in order. If it fails for the group, the items that have no result yet are run
    one by one, so that only an item that fails by itself gets an exception instead of a result. A ServiceError is not
    an item's fault, so it is raised."""
    if not items:
        return
    done = 0
    try:
        for result in run(items):
            done += 1
            yield result
        return
    except ServiceError:
        raise
    except Exception as error:
        failure = error
    if len(items) == 1:
        yield failure
        return
    fault_found = False
    for item in items[done:]:
        try:
            (result,) = run([item])
        except ServiceError:
            raise
        except Exception as error:
            fault_found = True
            yield error
        else:
            yield result
    if not fault_found:  # most likely out of memory; the results are good, but took longer
        warn(f"{counted(len(items), 'sentence')} together failed ({failure!r}), one by one did not")
