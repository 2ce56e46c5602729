"""Work in groups: things are taken a group at a time, and a group that fails is worked through one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from mbrace.errors import ServiceError, warn
from mbrace.wording import counted

Thing = TypeVar("Thing")
Result = TypeVar("Result")


def take(source: Iterator[Thing], count: int) -> tuple[list[Thing], Exception | None]:
    """The next `count` things of a source, or those before its end, or those before reading failed and why."""
    group: list[Thing] = []
    try:
        while len(group) < count:
            group.append(next(source))
    except StopIteration:
        pass
    except Exception as error:
        return group, error
    return group, None


def in_groups(things: Iterable[Thing], size: int) -> Iterator[list[Thing]]:
    """The things, `size` at a time. Where reading fails, those read before come first, then the error."""
    source = iter(things)
    failure: Exception | None = None
    while failure is None:
        group, failure = take(source, size)
        if not group:
            break
        yield group
    if failure is not None:
        raise failure


def run_group(
    things: Sequence[Thing], run: Callable[[Sequence[Thing]], Iterable[Result]]
) -> Iterator[Result | Exception]:
    """What `run` makes of each thing, in order. If it fails for the group, the things without a result are run one by
    one, so that only one that fails by itself has no result but its exception. A ServiceError is no thing's fault: it
    is raised."""
    if not things:
        return
    done = 0
    try:
        for result in run(things):
            done += 1
            yield result
        return
    except ServiceError:
        raise
    except Exception as error:
        failure = error
    if len(things) == 1:
        yield failure
        return
    fault_found = False
    for thing in things[done:]:
        try:
            (result,) = run([thing])
        except ServiceError:
            raise
        except Exception as error:
            fault_found = True
            yield error
        else:
            yield result
    if not fault_found:  # memory, most likely; the results stand, but such a group costs time
        warn(f"{counted(len(things), 'sentence')} together failed ({failure!r}), one by one did not")
