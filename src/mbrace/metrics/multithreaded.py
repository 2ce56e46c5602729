"""What string metrics that count on several threads share."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, TypeVar

from mbrace.cores import cores

Metric = TypeVar("Metric", bound="Multithreaded")


class Multithreaded:
    """A string metric, a dataclass, with a number of `threads` that changes no score; None is all cores."""

    threads: int | None
    group_size: ClassVar[int] = 8  # sentences of a window that race at a time: their indexes stay in the caches

    @property
    def workers(self) -> int:
        """The threads that count and, in a race, prune."""
        return cores() if self.threads is None else self.threads

    def single_threaded(self: Metric) -> Metric:
        """The same metric on one thread, for races on several threads at once."""
        return replace(self, threads=1)  # type: ignore[type-var]
