"""Settings of what chooses the hypotheses that race: estimated quality, a cheaper utility, both or neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mbrace.jobs.settings import (
    AnyQuality,
    AnyUtility,
    RaceSettings,
    describe_quality,
    describe_utility,
    load_quality,
    load_utility,
)


@dataclass(frozen=True)
class ShortlistSettings:
    """Only the `qe_top` best hypotheses by `qe` race; of those, only the `coarse_top` best by `coarse`, or all that it
    cannot rule out."""

    qe: AnyQuality | None = None
    qe_top: int | None = None
    coarse: AnyUtility | None = None
    coarse_top: int | None = None

    def describe(self) -> dict[str, Any]:
        """What answers depend on; nothing where nothing chooses, as in older descriptions."""
        settings: dict[str, Any] = {}
        if self.qe is not None:
            settings |= {**describe_quality(self.qe), "qe_top": self.qe_top}
        if self.coarse is not None:
            coarse = describe_utility(self.coarse)
            settings |= {"coarse": coarse["utility"], "coarse_model": coarse["metric_model"]}
            settings |= {"coarse_dtype": coarse["dtype"], "coarse_top": self.coarse_top}
        return settings

    def check(self, race: RaceSettings) -> None:
        """Refuse settings that do not go together, before anything is loaded."""
        if self == ShortlistSettings():
            return
        from mbrace.shortlist import check_shortlists

        check_shortlists(**vars(self), prune=race.pruning_function(), nbest=race.nbest, pool=race.pool)

    def load(self, threads: int) -> dict[str, Any]:
        """The options of `decode_corpus`, with utilities that run with `threads` threads (0: all cores)."""
        qe = None if self.qe is None else load_quality(self.qe, threads)
        if qe is not None:
            from mbrace.ranking import check_quality

            check_quality(qe)
        coarse = None if self.coarse is None else load_utility(self.coarse, threads)
        return {"qe": qe, "qe_top": self.qe_top, "coarse": coarse, "coarse_top": self.coarse_top}
