"""Where the time goes when text is translated: beam search, standard MBR, racing, and racing with fewer strings.

    python bench/translating.py [--model bundled | base | FOLDER] [--sentences 100] [--device cuda] [--utility chrf++]

`base` is the bundled translator in the shape of a base model: the same function with twice the units and heads, six
decoder layers (four of which change nothing) and 16,000 ids, so that outputs are real and nothing has to be trained.
translating.md and translating.json go to bench/results (or `--out`). `--tiny` rehearses on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from base_model import base_model
from clocks import Clock, clocked

import mbrace
from mbrace.api import decode_corpus
from mbrace.io.candidates import read_records
from mbrace.models import gpu
from mbrace.models.hypotheses import live_candidates
from mbrace.neural.device import choose_device
from mbrace.result import Phases
from mbrace.settings import Race, Sampling, with_preset

SMALL_STEPS = (8, 12, 18, 27, 40, 60, 90, 135, 200, 256)  # each half as large again
CANDIDATES = Path(__file__).parent.parent / "experiments" / "candidates" / "de-en.test.jsonl.xz"


@dataclass
class Way:
    """One way to translate, and what it took."""

    name: str
    beam: int
    prune: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    size: int | None = None  # draws, in a rehearsal

    def __call__(self, model: Any, utility: Any, sources: Sequence[str]) -> dict[str, Any]:
        options = dict(self.options)
        schedule = options.pop("schedule", None)
        if self.size is not None:
            schedule = (self.size,)
        if utility is None or self.prune is False:
            started = time.perf_counter()
            model.beam(sources, k=self.beam)
            synchronize()
            return {"beam": time.perf_counter() - started}
        phases = Phases()
        candidates = Sampling(beam=self.beam, sampling=options.pop("sampling", "independent"))
        race = Race(prune=self.prune, schedule=schedule, window=len(sources), **options)
        hypotheses, sampler = live_candidates(model, candidates, utility, race)
        records = hypotheses.records(sources)
        answers = list(decode_corpus(records, utility=utility, race=race, sampler=sampler, phases=phases))
        synchronize()
        count = len(answers)
        return {
            "beam": hypotheses.seconds,
            **{name: seconds for name, seconds in asdict(phases).items() if name != "quality"},
            "strings": sum(answer.strings for answer in answers) / count,
            "drawn": sampler.drawn / count,
            "pseudo_references": sum(answer.pseudo_references for answer in answers) / count,
            "calls": sum(answer.utility_calls for answer in answers) / count,
        }


def ways(size: int, *, kind: str) -> list[Way]:
    race, sampling = with_preset("fast", "translate", kind, {})
    preset = race | sampling
    even, regret = {"sampling": "arithmetic"}, mbrace.Confidence(0.99, regret=0.04)
    forecast = even | {"forecast": 0.0005, "schedule": SMALL_STEPS}
    return [  # what is compared most first
        Way("beam 10", 10, False),
        Way(f"standard MBR, {size} + {size}", size),
        Way("fast", size, mbrace.Confidence(0.99, regret=preset.pop("regret")), preset),
        Way("forecast 0.0005, regret 0.03, small steps", size, mbrace.Confidence(0.99, regret=0.03), forecast),
        Way(f"beam {size}, regret 0.04", size, regret, even),
        Way(f"beam {size}, 64 draws", size, regret, even | {"schedule": (64,)}),
        Way("racing, alpha 0.99", size, mbrace.Confidence(0.99)),
        Way(f"beam {size}", size, False),
    ]


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(way: Way, model: Any, utility: Any, sources: list[str], before: dict[str, Any] | None) -> dict[str, Any]:
    """One more trial of a way: the better of it and those `before`."""
    clock = Clock()
    with clocked(clock):
        synchronize()
        started = time.perf_counter()
        found = way(model, utility, sources)
        seconds = time.perf_counter() - started
    trials = [*(before["trials"] if before else []), seconds]
    best = found | {"within": clock.seconds, "numbers": clock.calls}
    if before and min(trials) < seconds:
        best = before
    return best | {"seconds": min(trials), "trials": trials}


def recorded_agreement(model: Any, sources: list[str]) -> str:
    """How many outputs are the same with recorded steps and without."""

    def outputs() -> list[Any]:
        drawn = [draws.texts for draws in model.sample(sources, 32, sampling="arithmetic")]
        return [text for texts in [*drawn, *(beam.texts for beam in model.beam(sources, k=32))] for text in texts]

    replayed = outputs()
    with mock.patch.object(gpu, "can_record", return_value=False):
        plain = outputs()
        again = outputs()
    same, base = (sum(a == b for a, b in zip(plain, other, strict=True)) for other in (replayed, again))
    return (
        f"{same} of {len(plain)} outputs are those of plain steps ({base} are when plain steps are run twice); "
        f"recording {'failed' if gpu._failed else 'worked'}"
    )


COLUMNS = {
    "beam": "beam",
    "draw": "draw",
    "encode": "encode",
    "score": "pairs",
    "prune": "prune",
    "forecast": "forecast",
}


def table(found: dict[str, dict[str, Any]], standard: str) -> list[str]:
    lines = [
        f"| | seconds | against standard | against beam 10 | {' | '.join(COLUMNS.values())} | rest | drawn | strings |",
        "|---|" + "---:|" * (len(COLUMNS) + 6),
    ]
    for name, row in found.items():
        parts = [row.get(key, 0.0) for key in COLUMNS]
        cells = [f"{row['seconds']:.2f}", f"{row['seconds'] / found[standard]['seconds']:.2f}x"]
        cells += [f"{row['seconds'] / found['beam 10']['seconds']:.1f}x"]
        cells += [f"{part:.2f}" for part in parts] + [f"{row['seconds'] - sum(parts):.2f}"]
        cells += [f"{row[key]:.0f}" if key in row else "" for key in ("drawn", "strings")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "| | searches | steps | in steps | in searches | ids to texts | texts to tokens |",
        "|---|" + "---:|" * 6,
    ]
    for name, row in found.items():
        within, numbers = row["within"], row["numbers"]
        searches = numbers.get("sample", 0) + numbers.get("beam", 0)
        inside = within.get("sample", 0.0) + within.get("beam", 0.0)
        cells = [str(searches), str(numbers.get("step", 0)), f"{within.get('step', 0.0):.2f}", f"{inside:.2f}"]
        cells += [f"{within.get(key, 0.0):.2f}" for key in ("texts", "tokenise")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--device")
    parser.add_argument("--utility", choices=["learned", "chrf++"], default="learned")
    parser.add_argument("--dtype", help="of the metric's encoder and, unless it is `base`, of the model")
    parser.add_argument("--only", nargs="*", help="ways whose name begins so")
    parser.add_argument("--plain", action="store_true", help="also without recorded steps")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    device = choose_device(args.device)
    if args.tiny:
        args.sentences, args.trials = 3, 1
    model = (
        base_model(device) if args.model == "base" else mbrace.Seq2Seq(args.model, device=args.device, dtype=args.dtype)
    )
    lexical = args.utility == "chrf++"
    utility = mbrace.ChrF() if lexical else mbrace.Learned(device=args.device, dtype=args.dtype)
    records = [record for record, _ in zip(read_records(str(CANDIDATES)), range(args.sentences + 20), strict=False)]
    sources = [record.source or "" for record in records]
    sources, warm = sources[: args.sentences], sources[args.sentences :][: 20 if device.type == "cuda" else 1]
    size = 8 if args.tiny else 256
    agreement = recorded_agreement(model, warm) if gpu.can_record(device) else "no steps are recorded here"
    print(agreement, flush=True)
    machine = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "CPU"
    about = {"machine": machine, "utility": utility.name, "recorded": agreement}
    found: dict[str, Any] = {}
    chosen = [
        way
        for way in ways(size, kind="string" if lexical else "encoder")
        if not args.only or way.name.startswith((*args.only, "beam 10", "standard"))
    ]
    for way in chosen:
        way.size = 8 if args.tiny else None
        way(model, utility, warm)
    # Interleaved, each round starting with another way: what one way warms up must not help the others.
    for trial in range(args.trials):
        first = trial % len(chosen)
        for way in [*chosen[first:], *chosen[:first]]:
            found[way.name] = measure(way, model, utility, sources, found.get(way.name))
            if args.plain:
                with mock.patch.object(gpu, "can_record", return_value=False):
                    name = f"{way.name}, without recorded steps"
                    found[name] = measure(way, model, utility, sources, found.get(name))
            print(way.name, json.dumps(found[way.name]), flush=True)
            write(args, found, about, size, device)
    print("\n".join(table(found, f"standard MBR, {size} + {size}")))


def write(args: Any, found: dict[str, Any], about: dict[str, str], size: int, device: torch.device) -> None:
    """What was measured so far, once there is something to compare with."""
    standard = f"standard MBR, {size} + {size}"
    if standard not in found:
        return
    one_thread = "tokenizers on one thread; " if os.environ.get("TOKENIZERS_PARALLELISM") == "false" else ""
    lines = [
        "# Where the time goes in translating",
        "",
        f"{about['machine']}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}; "
        f"{args.sentences} sentences of newstest2018 de-en, model `{args.model}`"
        f"{'' if args.dtype is None else f' in {args.dtype}'}, utility "
        f"{about['utility']}; {one_thread}seconds, best of {args.trials} rounds, interleaved; written by "
        "`python bench/translating.py`. "
        "A GPU may work on while Python goes on: where Python waits for it, its time is counted. There, the first "
        "draws are made during the beam search: its column has the time of both, and in the second table the times of "
        "both add up.",
        "",
        *table(found, standard),
        "",
        f"Recorded steps (CUDA graphs): {about['recorded']}.",
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    name = "translating" if device.type == "cuda" else "translating-cpu"
    name += "-chrf" if args.utility == "chrf++" else ""
    name += "" if args.dtype is None else f"-{args.dtype}"
    (args.out / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    whole = {"machine": about["machine"], "model": args.model, "ways": found}
    (args.out / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
