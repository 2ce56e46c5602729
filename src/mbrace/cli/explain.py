"""`mbrace decode --explain ID`: the race of one record as text, step by step."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mbrace.cli.messages import show
from mbrace.errors import UserError, counted
from mbrace.prune import Bottom, Confidence, PruningFunction
from mbrace.records import Record
from mbrace.result import Decoded, RaceRecorder, RecordedStep

if TYPE_CHECKING:
    from mbrace.io.candidates import Item
    from mbrace.jobs.decode import DecodeJob

WIDTH = shutil.get_terminal_size().columns  # 80 where there is no terminal
SHOWN = 5  # hypotheses of each list; the others are only counted


def run_explain(job: DecodeJob, items: Iterable[Item], args: argparse.Namespace) -> int:
    """Race the record whose id is `args.explain` as the job would, and print how it went."""
    others = {
        "-o": args.output != "-",
        "--ray": args.ray is not None,
        "--save-utilities": args.save_utilities is not None,
        "--text": args.text,
        "--resume": args.resume,
        "--force": args.force,
    }
    for option, is_given in others.items():
        if is_given:
            raise UserError(f"{option}: not with --explain, which prints one race")
    if job.race.made_method() is not None:
        raise UserError(f"--explain: only valid without --method {args.method}, which is no race")
    record = find(items, args.explain)
    worker = job.start(args.threads)
    prune = job.race.pruning_function()
    worker.watch = recorder = RaceRecorder(prune)
    [answer] = worker.answers([record])
    worker.count(record, answer)
    standard, forecast = worker.summary.standard_calls, job.race.forecast > 0
    lines = explained(record, answer, recorder.steps, prune, standard=standard, forecast=forecast)
    show("\n".join(lines))
    return 0


def find(items: Iterable[Item], identity: str) -> Record:
    """The record with an id."""
    first = None
    for item in items:
        if str(item.id) == identity:
            if isinstance(item, Record):
                return item
            raise item.error()
        first = item if first is None else first
    others = "there are no records" if first is None else f"the first record's is {first.id}"
    raise UserError(f"--explain {identity}: no record has this id; {others}")


def explained(
    record: Record,
    answer: Decoded,
    steps: Sequence[RecordedStep],
    prune: PruningFunction | None,
    *,
    standard: int,
    forecast: bool = False,
) -> Iterator[str]:
    """The lines of an explanation; `standard` is the number of utility calls of standard MBR, `forecast` whether
    hypotheses may enter late, by a forecast."""
    distinct = len(set(record.hypotheses))
    repeated = f" ({distinct:,} distinct)" if distinct < len(record.hypotheses) else ""
    listed = record.listed()
    given = f", {counted(len(listed), 'pseudo-reference')}" if isinstance(listed, Sequence) else ""
    yield f"record {record.id}: {counted(len(record.hypotheses), 'hypothesis', 'hypotheses')}{repeated}{given}"
    for name in ("source", "reference"):
        if getattr(record, name) is not None:
            yield f"  {name}: {cut(getattr(record, name), WIDTH - len(name) - 4)}"
    entered = len(steps[0].alive) if forecast and steps else distinct
    if entered < distinct:
        yield f"{entered:,} of {distinct:,} hypotheses start; others enter once a forecast says they may win"
    if steps:
        share = "" if steps[0].win_rates is None else "share of resamples won, "
        yield f"columns: {share}expected utility, [index], text"
    else:
        yield "no race: only one hypothesis could win"
    for number, (step, cost) in enumerate(zip(steps, answer.steps, strict=True), 1):
        yield ""
        yield (
            f"step {number}: {counted(step.pseudo_references, 'pseudo-reference')}, "
            f"{counted(len(step.alive), 'hypothesis', 'hypotheses')}, {counted(cost.utility_calls, 'utility call')}"
        )
        if int(step.alive[-1]) >= entered:
            yield from _admit(step, entered)
            entered = int(step.alive[-1]) + 1
        yield from _step(step, prune)
    yield ""
    yield "answer:"
    for candidate in answer.nbest:
        utility = "" if candidate.utility is None else f"{candidate.utility:.4g}"
        index = "drawn" if candidate.index is None else candidate.index
        yield f"  [{index}] {utility}".rstrip()
        yield from wrapped(candidate.text)
    yield _cost(answer, standard)
    if entered < distinct:
        yield f"  {counted(distinct - entered, 'hypothesis', 'hypotheses')} never raced"


def _admit(step: RecordedStep, entered: int) -> Iterator[str]:
    """Hypotheses that the forecast admitted at this step, best first."""
    admitted = np.flatnonzero(step.alive >= entered)
    yield f"  admitted {len(admitted):,} by forecast"
    yield from _rows(step, admitted[np.argsort(-step.means[admitted], kind="stable")])


def _step(step: RecordedStep, prune: PruningFunction | None) -> Iterator[str]:
    """The leaders, what was dropped and why, and what is left."""
    yield "  leads:" if len(step.leaders) == 1 else f"  the {len(step.leaders)} best:"
    yield from _rows(step, step.leaders)
    ranking = np.argsort(-step.means, kind="stable")
    for reason, positions in reasons(step, prune):
        chosen = [position for position in ranking.tolist() if position in positions]
        yield f"  dropped {len(chosen):,}: {reason}"
        yield from _rows(step, chosen)
    left = [position for position in ranking.tolist() if step.kept[position] and position not in step.leaders]
    if left:
        yield f"  {counted(len(left), 'other')} kept:"
        yield from _rows(step, left)
    else:
        yield "  no other is left"


def reasons(step: RecordedStep, prune: PruningFunction | None) -> list[tuple[str, set[int]]]:
    """Why hypotheses were dropped, and their positions."""
    dropped = set(np.flatnonzero(~step.kept).tolist())
    found: list[tuple[str, set[int]]] = []
    if isinstance(prune, Confidence) and step.win_rates is not None:
        wins = np.rint(step.win_rates * prune.bootstraps)  # the whole numbers that the shares were made of
        losing = set(np.flatnonzero(wins <= prune.max_losing_wins).tolist()) & dropped
        rival = "the leader" if len(step.leaders) == 1 else f"number {len(step.leaders)}"
        found.append((f"equal or beat {rival} in at most 1 - alpha = {1 - prune.alpha:.3g} of resamples", losing))
        if step.expected_regret is not None:
            most = f"{prune.regret:g} sd ({prune.regret * step.spread:.3g})"
            found.append((f"expected regret {step.expected_regret:.3g} is at most {most}", dropped - losing))
    elif isinstance(prune, Bottom):
        found.append((f"the lowest {prune.beta:g} by expected utility", dropped))
    else:
        found.append(("by the pruning function", dropped))
    return [(reason, positions) for reason, positions in found if positions]


def _rows(step: RecordedStep, positions: Sequence[int] | NDArray[np.int64]) -> Iterator[str]:
    for position in positions[:SHOWN]:
        share = "" if step.win_rates is None else f"{step.win_rates[position]:.3f}"
        yield row(share, f"{step.means[position]:.4g}", int(step.indexes[position]), step.texts[position])
    if len(positions) > SHOWN:
        yield f"    ... and {len(positions) - SHOWN:,} more"


def row(share: str, utility: str, index: int, text: str) -> str:
    """A hypothesis: the share of resamples it wins, its expected utility, its index, and what fits of its text."""
    label = f"    {share:>5} {utility:>7} {'[drawn]' if index < 0 else f'[{index}]':>7} "
    return label + cut(text, WIDTH - len(label))


def cut(text: str, width: int) -> str:
    """As much of a text as fits into `width` columns of a terminal, on one line, without control characters."""
    from rich.cells import cell_len, set_cell_size

    shown = printable(text)
    return shown if cell_len(shown) <= width else set_cell_size(shown, width - 3).rstrip() + "..."


def wrapped(text: str) -> Iterator[str]:
    """A whole text in lines that fit the terminal, indented."""
    from rich.console import Console
    from rich.text import Text

    for line in Text(printable(text)).wrap(Console(width=WIDTH), WIDTH - 4):
        yield f"    {line.plain.rstrip()}"


def printable(text: str) -> str:
    """A text with control characters, which could do anything to a terminal, replaced by spaces."""
    return "".join(character if character.isprintable() else " " for character in text)


def _cost(answer: Decoded, standard: int) -> str:
    return f"  {counted(answer.utility_calls, 'utility call')}; standard MBR: {standard:,}"
