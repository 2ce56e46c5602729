"""Hypotheses from a beam search that does less work, against those of plain beam search.

    python experiments/recombined.py run DATA OUT PAIR [--beams tenth] [--model bundled | FOLDER] [--minutes 4]
    python experiments/recombined.py page OUT

DATA has test.PAIR.* and valid.PAIR.* (source, reference). For every sentence a live model makes 256 hypotheses by plain
beam search, and others by each of BEAMS of a run; 256 draws race, independent or arithmetic, and the independent ones
that race in no trial are held out, of 1,024. Every way of choosing runs over stored utilities
(mbrace.experiments.strings). OUT gets the rows of every sentence, as many of the first as `--minutes` allow; `page`
writes OUT/RECOMBINED.md, where a sentence counts by the mean of its trials. `--small` rehearses on a CPU.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from shared_stages import log, one
from strings import equality_lines, learned_margin
from strings_study import of_raced

from mbrace.experiments.strings import (
    RACED,
    SMALL_STEPS,
    STANDARD,
    StringsTable,
    Way,
    human_scores,
    strings_rows,
    strings_tables,
)
from mbrace.experiments.study_files import read_packed, write_packed
from mbrace.io.texts import read_pairs
from mbrace.records import Record

REGRET = Way("regret 0.04", beam=512, alpha=0.99, regret=0.04)
FORECAST = Way("forecast 0.0005, regret 0.04", beam=512, alpha=0.99, regret=0.04, forecast=0.0005)
SMALL = Way("forecast 0.0005, regret 0.03, small steps", beam=512, alpha=0.99, regret=0.03, forecast=0.0005,
            schedule=SMALL_STEPS)  # fmt: skip
ALL = replace(STANDARD, name="all hypotheses + 256", beam=512)
FEW = replace(ALL, name="all hypotheses + 64", references=64)
TWO_STEPS = Way("regret 0.12, steps 64 and 256", beam=512, alpha=0.99, regret=0.12, schedule=(64, 256))
LESS_SMALL = Way("forecast 0.0003, regret 0.03, small steps", beam=512, alpha=0.99, regret=0.03, forecast=0.0003,
                 schedule=SMALL_STEPS)  # fmt: skip
LESS = Way("forecast 0.0003, regret 0.03", beam=512, alpha=0.99, regret=0.03, forecast=0.0003)
HALF = replace(ALL, name="all hypotheses + 128", references=128)
CAREFUL = Way("forecast 0.0003, regret 0.02, small steps", beam=512, alpha=0.99, regret=0.02, forecast=0.0003,
              schedule=SMALL_STEPS)  # fmt: skip
FEWER = replace(ALL, name="all hypotheses + 48", references=48)
REGRET_SMALL = Way("regret 0.06, small steps", beam=512, alpha=0.99, regret=0.06, schedule=SMALL_STEPS)


@dataclass(frozen=True)
class Beam:
    """`paths` hypotheses in at most `states` states of the decoder, or by `recombine` ids in common; None: each in its
    own. Those more than `max_behind` behind the best are given up. They race by these ways, with the learned metric and
    with chrF++."""

    paths: int = 256
    states: int | None = None
    arithmetic: bool = True
    learned: tuple[Way, ...] = (ALL, REGRET, FORECAST, SMALL)
    lexical: tuple[Way, ...] = (ALL, REGRET, FORECAST, SMALL)
    recombine: int | None = None
    max_behind: float | None = None

    @property
    def name(self) -> str:
        """What rows are called after."""
        made = f"beam {self.paths}" if self.states is None else f"beam {self.paths} in {self.states} states"
        made += f" by {self.recombine} ids" if self.recombine is not None else ""
        made += f" at most {self.max_behind:g} behind" if self.max_behind is not None else ""
        return f"{made}, {'arithmetic' if self.arithmetic else 'independent'}"


BASE = Beam(arithmetic=False, learned=(STANDARD,), lexical=(STANDARD,))
BEAMS = {  # by run
    "fifth": (
        BASE,
        Beam(learned=(ALL, REGRET), lexical=(ALL, REGRET)),
        Beam(384, 96),
        Beam(384, 64, learned=(FORECAST, SMALL), lexical=(FORECAST, SMALL)),
    ),
    "sixth": (
        BASE,
        Beam(320, 48, learned=(ALL, FEW, TWO_STEPS, LESS_SMALL, REGRET_SMALL), lexical=()),
        Beam(384, 96, learned=(), lexical=(ALL, REGRET, FORECAST)),
    ),
    "seventh": (replace(BASE, lexical=()), Beam(256, 128, learned=(ALL, FEW, LESS, SMALL), lexical=())),
    "eighth": (
        replace(BASE, lexical=()),
        Beam(learned=(FEW, SMALL), lexical=()),
        Beam(recombine=4, learned=(ALL, HALF, FEW, SMALL, CAREFUL), lexical=()),
    ),
    "behind": (  # on validation data
        replace(BASE, lexical=()),
        Beam(learned=(FEW, FEWER, SMALL), lexical=()),
        *(
            Beam(paths, max_behind=behind, learned=(FEW, FEWER, SMALL), lexical=())
            for paths, behind in ((256, 6.0), (224, 6.0), (192, 6.0), (160, 6.0), (224, 5.0), (192, 7.0), (288, 5.0))
        ),
    ),
    "ninth": (
        replace(BASE, lexical=()),
        *(Beam(paths, max_behind=5.0, learned=(FEW, FEWER, SMALL), lexical=()) for paths in (256, 288)),
    ),
    "tenth": (
        replace(BASE, lexical=()),
        Beam(learned=(FEW, SMALL), lexical=()),
        Beam(max_behind=6.0, learned=(FEW, FEWER, SMALL, CAREFUL), lexical=()),
        Beam(288, max_behind=5.0, learned=(FEW, FEWER, SMALL), lexical=()),
    ),
}
TRIALS = {"eighth": 2, "behind": 2, "ninth": 2, "tenth": 2}  # with other draws each; one in other runs
BLOCK, JOB = 64, 8  # sentences generated at a time, and raced in one process
Rows = list[dict[str, Any]]


def run(args: argparse.Namespace) -> None:
    """Generate, score and race, block by block."""
    import mbrace

    until = time.time() + 60 * args.minutes
    pairs = read_pairs(one(args.data, f"{args.split}.{args.pair}.*"))[: 4 if args.small else args.sentences]
    model = mbrace.Seq2Seq(args.model)
    metric = mbrace.Learned("en")
    pool = ProcessPoolExecutor(1 if args.small else args.workers, mp_context=get_context("spawn"))
    waiting: list[Future[Rows]] = []
    for start in range(args.start, len(pairs), BLOCK):
        while sum(not future.done() for future in waiting) > 40 and time.time() < until:
            time.sleep(0.1)
        if time.time() > until:
            log(f"{args.pair}: out of time at {start}")
            break
        block = candidates(args, model, start, pairs[start : start + BLOCK])
        remembering = metric.remembering()
        raced = 8 if args.small else RACED
        for first in range(0, len(block[0]), JOB):
            some = [records[first : first + JOB] for records in block]
            tables = [
                strings_tables(records, remembering, {"learned": metric}, raced=raced, pool=False) for records in some
            ]
            tables = [[of_raced(table) for table in each] for each in tables]
            beams = len(BEAMS[args.beams])
            for trial in range(0, len(tables), beams):
                mine = tables[trial : trial + beams]
                waiting.append(pool.submit(race_some, args.beams, mine, metric.name, metric.schedule, raced))
        log(f"{args.pair}: {start + len(block[0])} sentences")
    rows = [row for future in waiting for row in future.result()]
    pool.shutdown()
    about = {
        "pair": args.pair,
        "split": args.split,
        "model": Path(args.model).name,
        "beams": [beam.name for beam in BEAMS[args.beams]],
    }
    part = f".{args.start}" if args.start else ""
    write_packed(args.out / f"{args.pair}.{args.split}{part}.json.gz", {"about": about, "rows": rows})
    log(f"{args.pair}: {len({row['id'] for row in rows})} sentences raced")


def candidates(args: argparse.Namespace, model: Any, start: int, pairs: list[tuple[str, str]]) -> list[list[Record]]:
    """The records of some sentences: for each trial, those of each beam of the run."""
    sources, ids = [source for source, _ in pairs], [f"{args.split}.{start + i}" for i in range(len(pairs))]
    samples, raced = (48, 8) if args.small else (1024, RACED)
    trials = TRIALS.get(args.beams, 1)
    drawn = model.sample(sources, samples, epsilon=0.02, ids=ids, seed=1)
    found: dict[tuple[Any, ...], list[Any]] = {}
    block = []
    for trial in range(trials):
        even = model.sample(sources, raced, epsilon=0.02, ids=ids, seed=2 + trial, sampling="arithmetic")
        for beam in BEAMS[args.beams]:
            paths, states = (16 if args.small else beam.paths), beam.states and (4 if args.small else beam.states)
            key = paths, states, beam.recombine, beam.max_behind
            if key not in found:
                found[key] = model.beam(
                    sources, k=paths, states=states, recombine=beam.recombine, max_behind=beam.max_behind
                )
            block.append(
                [
                    Record(
                        list(dict.fromkeys(made.texts)),
                        [*(arithmetic if beam.arithmetic else own)[:raced], *rest[(trials - 1) * raced :]],
                        id=name,
                        source=source,
                        reference=reference,
                    )
                    for made, arithmetic, own, rest, name, (source, reference) in zip(
                        found[key],
                        [draws.texts for draws in even],
                        [draws.texts[trial * raced :] for draws in drawn],
                        [draws.texts[raced:] for draws in drawn],
                        ids,
                        pairs,
                        strict=True,
                    )
                ]
            )
    return block


def race_some(run: str, tables: list[list[StringsTable]], name: str, schedule: tuple[int, ...], raced: int) -> Rows:
    """Rows of some sentences, by every beam and way of a run, for the learned metric and for chrF++."""
    import mbrace

    lexical = mbrace.ChrF(threads=1)
    stored = mbrace.Pairwise(lambda h, r: 0.0, name=name, schedule=schedule)  # only its name and schedule are used
    rows: Rows = []
    for beam, learned in zip(BEAMS[run], tables, strict=True):
        records = [table.record for table in learned]
        if beam.lexical:
            ours = strings_tables(records, lexical, {"chrF++": lexical}, raced=raced, pool=False)
            scores = [table.human["chrF++"] for table in ours]
        else:
            ours, scores = learned, human_scores(records, [table.texts for table in learned], lexical)
        for mine, own, score in zip(learned, ours, scores, strict=True):
            human = {**mine.human, "chrF++": score}
            for kind, table, utility, ways in (
                ("learned", mine, stored, beam.learned),
                ("chrF++", own, lexical, beam.lexical),
            ):
                for row in strings_rows(replace(table, human=human), utility, ways):
                    rows.append({"utility": kind, "beam": beam.name, **row})
    return rows


ABOUT = """# A beam that does less work

Beam search of width 256 runs the decoder for 256 paths at every time step. Paths that end in the same three ids go on
much alike, so they can share one state of the decoder (`--states`): a row says how many paths are in at most how many
states per sentence, or how many ids they must have in common (`--recombine`). And most paths far behind the best one
lead to no hypothesis, so they can be given up (`--max-behind`). Does MBR over these hypotheses choose as well?

{sentences} 256 draws race, {held_out} independent ones are held out. What counts as equal, and which rows count for
our aims, was [written down before](../rules.md). Made by `python experiments/recombined.py run DATA OUT PAIR`, this
page by `python experiments/recombined.py page OUT`; columns are those of [STRINGS.md](../STRINGS.md). *As good*: by
expected utility and by both metrics the lower end of the interval is above minus the margin (a higher score is no
failure).

{said}"""


def page(args: argparse.Namespace) -> None:
    """Write OUT/RECOMBINED.md."""
    counts, sections, trials = [], [], 1
    for first in sorted(args.out.glob("*.test.json.gz")):
        stored = read_packed(first)
        pair, rows = stored["about"]["pair"], stored["rows"]
        for more in sorted(args.out.glob(f"{pair}.test.*.json.gz")):  # from --start on
            rows += read_packed(more)["rows"]
        counts.append(f"{pair}: {len({row['id'] for row in rows}):,} sentences, model `{stored['about']['model']}`.")
        every_trial, rows = rows, mean_of_trials(rows)
        trials = len(every_trial) // len(rows)
        margin = learned_margin(args.out.parent / "data", pair)
        for utility, other in (("learned", "chrF++"), ("chrF++", "learned")):
            own = [row for row in rows if row["utility"] == utility]
            base = [row for row in own if row["beam"] == BASE.name]
            named = [{**row, "way": f"{row['beam']}: {row['way']}"} for row in own if row["beam"] != BASE.name]
            if not named:
                continue
            sections += [f"\n## {pair}, decoded with {utility}\n"]
            sections += equality_lines(base + named, base, utility, other, margin, as_good=True)
    notes = args.out / "notes.md"
    said = notes.read_text(encoding="utf-8") if notes.exists() else ""
    text = ABOUT.format(sentences=" ".join(counts), said=said, held_out=1024 - trials * RACED)
    (args.out / "RECOMBINED.md").write_text("\n".join([text, *sections]) + "\n", encoding="utf-8")


def mean_of_trials(rows: Rows) -> Rows:
    """One row per sentence, beam and way: its numbers are means over trials."""
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in ("utility", "beam", "way", "id")), []).append(row)
    return [
        {
            name: value if isinstance(value, str) else sum(row[name] for row in group) / len(group)
            for name, value in group[0].items()
        }
        for group in groups.values()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    made = commands.add_parser("run")
    made.add_argument("data", type=Path)
    made.add_argument("out", type=Path)
    made.add_argument("pair")
    made.add_argument("--beams", choices=list(BEAMS), default="tenth", help="those of a run (the tenth)")
    made.add_argument("--model", default="bundled")
    made.add_argument("--split", default="test")
    made.add_argument("--sentences", type=int, help="of the set (all)")
    made.add_argument("--start", type=int, default=0, help="the first sentence: those before it were run earlier (0)")
    made.add_argument("--minutes", type=float, default=4.0)
    made.add_argument("--workers", type=int, default=14)
    made.add_argument("--small", action="store_true")
    made.set_defaults(run=run)
    written = commands.add_parser("page")
    written.add_argument("out", type=Path)
    written.set_defaults(run=page)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
