"""Reranking candidate files by estimated quality: `RerankJob`, its worker, and `rerank_file` for a caller in Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mbrace.api import rerank_corpus
from mbrace.errors import LARGEST, check_whole
from mbrace.io.candidates import Item, Paths, checked_input, expand, item_from, read_items
from mbrace.io.output import answer_line, best_candidates_line, check_lines
from mbrace.jobs.run import ErrorPolicy, Outcome, Progress, Summary, answer_items, run_job
from mbrace.records import Record
from mbrace.result import Decoded
from mbrace.settings import Network
from mbrace.utility import QualityUtility, truncated_texts
from mbrace.windows import OnError


def rerank_file(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    qe: QualityUtility | str,
    nbest: int = 1,
    window: int = 64,
    top: int | None = None,
    text: bool = False,
    threads: int = 0,
    resume: bool = False,
    force: bool = False,
    on_error: ErrorPolicy = "stop",
    progress: Progress = False,
) -> Summary:
    """Choose the best hypothesis of each record by estimated quality, as `mbrace rerank` does.

    `qe` is a quality utility, or the folder or hub name of a checkpoint; the rest is as for `decode_file`. With `top`,
    `output` is candidate records for `decode_file`: the `top` best hypotheses, and all pseudo-references.
    """
    job = RerankJob(qe, nbest=nbest, window=window, text=text, top=top)
    paths, out = expand(inputs), os.fspath(output)
    return run_job(
        job,
        checked_input(lambda: read_items(paths), paths, output=out),
        out,
        threads=threads,
        resume=resume,
        force=force,
        on_error=on_error,
        progress=progress,
    )


@dataclass(frozen=True)
class RerankJob:
    """A choice among the hypotheses of records that come with their sources."""

    qe: Network | QualityUtility | str
    nbest: int = 1
    window: int = 64
    text: bool = False
    top: int | None = None  # write candidate records with this many of the best hypotheses
    reads_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("window", "nbest"):
            check_whole(name, getattr(self, name), least=1, most=LARGEST)
        check_lines(self.top, nbest=self.nbest, text=self.text)

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        name = self.qe if isinstance(self.qe, str) else "" if isinstance(self.qe, Network) else self.qe.name
        qe = self.qe if isinstance(self.qe, Network) else Network(model=name)
        lines = {"nbest": self.nbest, "text": self.text, "top": self.top}
        return {"command": "rerank", "qe": qe.model, "qe_dtype": qe.dtype, **lines}

    def start(self, threads: int) -> RerankWorker:
        """Load the quality utility."""
        qe = Network(model=self.qe) if isinstance(self.qe, str) else self.qe
        if isinstance(qe, Network):
            from mbrace.utilities.named import load_quality

            options = {name: value for name, value in vars(qe).items() if name != "model"}
            qe = load_quality(qe.model or "", threads=threads, **options)
        return RerankWorker(self, qe)

    item = staticmethod(item_from)


@dataclass
class RerankWorker:
    """Ranks the hypotheses of records and turns the answers into lines."""

    job: RerankJob
    qe: QualityUtility
    summary: Summary = field(default_factory=Summary)

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        """One outcome per item."""
        return answer_items(items, self._answers, self._line, skip=skip, text=self.job.text)

    def _answers(self, records: Iterable[Record], on_error: OnError) -> Iterator[Decoded]:
        return rerank_corpus(
            records,
            qe=self.qe,
            nbest=self.job.top or self.job.nbest,
            window=self.job.window,
            phases=self.summary.phases,
            on_error=on_error,
        )

    def _line(self, record: Record, answer: Decoded) -> bytes:
        self.summary.sentences += 1
        self.summary.strings += answer.strings
        self.summary.quality_calls += answer.quality_calls or 0
        self.summary.truncated = truncated_texts(self.qe)
        if self.job.top is not None:
            return best_candidates_line(record, answer)
        return answer_line(answer, text=self.job.text, nbest=self.job.nbest)
