"""Speed of live models: sampling against transformers' generate, and whole translations against the paper's way.

    python bench/models.py [--model FOLDER] [--utility learned] [--sentences 100] [--trials 3]

models.md and models.json go to bench/results (or `--out`). "The paper's way" is its appendix on run times: one sentence
at a time, beam search and sampling by `generate`, equal strings merged, every string embedded, all pairs
scored by the plain head. All methods use the same model, precision, limits and tokenizer. `--tiny` rehearses on a CPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import mbrace
from mbrace.experiments.claims import TABLE_2
from mbrace.io.candidates import read_records
from mbrace.models.hypotheses import HypothesisMaker, beam_hypotheses
from mbrace.result import Phases
from mbrace.utility import Ask, Sentence

PHASES = ("generate H", "generate R", "embed", "utilities", "pruning")
PAPER = {"Prune MBR": "racing", "Std. MBR": "standard", "Beam 10": "beam"}  # the paper's names of its methods


class Bench:
    """The same model twice: in our decoder and in transformers."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.ours = mbrace.Seq2Seq(args.model, device=args.device)
        self.peer = peer_model(args.model).to(self.ours.device, self.ours.dtype).eval()
        self.utility = utility_named(args.utility, args.device)
        records = list(read_records(args.candidates))
        chosen = sorted(random.Random(0).sample(range(len(records)), min(args.sentences, len(records))))
        self.records = [records[number] for number in chosen]
        self.sources = [record.source or "" for record in self.records]
        self.rows = dict(zip(self.sources, self.ours.codec.encode(self.sources), strict=True))

    # transformers' generate

    def generate(self, sources: Sequence[str], **options: Any) -> list[list[str]]:
        """Texts for each source, from one call."""
        rows = [self.rows[source] for source in sources]
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), int(self.peer.config.pad_token_id))
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
        ids = ids.to(self.ours.device)
        mask = (ids != self.peer.config.pad_token_id).long()
        with torch.inference_mode():
            out = self.peer.generate(ids, attention_mask=mask, max_length=2 * width + 32, **options)
        texts = self.ours.codec.decode(out.tolist())
        each = len(texts) // len(sources)
        return [texts[each * index : each * (index + 1)] for index in range(len(sources))]

    def sampled(self, sources: Sequence[str], n: int) -> list[list[str]]:
        return self.generate(sources, do_sample=True, epsilon_cutoff=0.02, top_k=0, num_beams=1, num_return_sequences=n)

    def searched(self, sources: Sequence[str], k: int) -> list[list[str]]:
        return self.generate(sources, do_sample=False, num_beams=k, num_return_sequences=k, length_penalty=1.0)

    # the methods of translating

    def paper(self, sources: Sequence[str]) -> tuple[list[str], dict[str, float]]:
        """Standard MBR, one sentence at a time."""
        clock, answers = Clock(), []
        for source in sources:
            hypotheses = list(
                dict.fromkeys(clock("generate H", lambda s=source: self.searched([s], self.args.beam)[0]))
            )
            draws = clock("generate R", lambda s=source: self.sampled([s], self.args.references)[0])
            counts = Counter(draws)
            table = self.table(clock, source, hypotheses, list(counts))
            means = table @ (np.array(list(counts.values())) / len(draws))
            answers.append(hypotheses[int(means.argmax())])
        return answers, clock.seconds

    def table(self, clock: Clock, source: str, hypotheses: list[str], references: list[str]) -> Any:
        """Utilities (hypotheses, references): the plain head over all pairs, or chrF++."""
        if not hasattr(self.utility, "head"):
            scorer = self.utility.start([Sentence(0, source, hypotheses)])
            ask = Ask(0, np.arange(len(hypotheses)), references)
            return clock("utilities", lambda: scorer.score([ask])[0])
        strings = list(dict.fromkeys([*hypotheses, *references, *([source] if self.utility.needs_source else [])]))
        row_of = {text: row for row, text in enumerate(strings)}
        with torch.inference_mode():
            vectors = clock("embed", lambda: self.utility.encoder.embed(strings))

            def plain() -> Any:
                h = vectors[[row_of[text] for text in hypotheses]]
                r = vectors[[row_of[text] for text in references]]
                s = vectors[row_of[source]] if self.utility.needs_source else None
                rows = max(1, self.args.pairs // len(r))
                parts = []
                for first in range(0, len(h), rows):
                    some = h[first : first + rows]
                    left, right = some.repeat_interleave(len(r), dim=0), r.repeat(len(some), 1)
                    third = None if s is None else s.expand(len(left), -1)
                    parts.append(self.utility.head.aligned(left, right, third).view(len(some), -1))
                return torch.cat(parts).float().cpu().numpy()

            return clock("utilities", plain)

    def racing(self, sources: Sequence[str], *, ahead: bool, prune: Any) -> tuple[list[str], dict[str, float]]:
        """Our pipeline: windows of sentences; pseudo-references drawn all at once, or while the race is open."""
        phases = Phases()
        maker = HypothesisMaker(beam_hypotheses(self.ours, self.args.beam), window=self.args.window)
        sampler = self.ours.sampler(ahead=self.args.references if ahead else 0)
        schedule = [size for size in self.utility.schedule if size <= self.args.references]
        records = maker.records(sources)
        options = {"utility": self.utility, "prune": prune, "schedule": schedule, "window": self.args.window}
        answers = list(mbrace.decode_corpus(records, sampler=sampler, phases=phases, **options))
        seconds = {"generate H": maker.seconds, "generate R": phases.draw, "embed": phases.encode}
        seconds |= {"utilities": phases.score, "pruning": phases.prune}
        self.drawn = sampler.drawn / len(answers)
        self.calls = sum(answer.utility_calls for answer in answers) / len(answers)
        return [answer.text for answer in answers], seconds

    def beam(self, sources: Sequence[str]) -> tuple[list[str], dict[str, float]]:
        """Beam search of width 10, one sentence at a time, as in the paper's table."""
        clock = Clock()
        return [clock("generate H", lambda s=source: self.searched([s], 10)[0][0]) for source in sources], clock.seconds

    def our_beam(self, sources: Sequence[str]) -> tuple[list[str], dict[str, float]]:
        clock = Clock()
        found = clock("generate H", lambda: self.ours.beam(sources, k=10))
        return [beams.texts[0] for beams in found], clock.seconds


class Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    def __call__(self, phase: str, function: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        out = function()
        synchronize()
        self.seconds[phase] += time.perf_counter() - started
        return out


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peer_model(name: str) -> Any:
    if name == "bundled":
        from mbrace.models.marian_network import load_bundled

        return load_bundled()[0]
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(name)


def utility_named(name: str, device: str | None) -> Any:
    if name == "chrf++":
        return mbrace.ChrF()
    return mbrace.Learned(device=device) if name == "learned" else mbrace.Comet(name, device=device)


def sampling_speed(bench: Bench) -> dict[str, float]:
    """Pseudo-references per second, the best of the trials after a warm-up."""
    n, many = bench.args.references, bench.sources[: 4 if bench.args.tiny else 32]
    few = many[: len(many) // 4]
    ways: dict[str, tuple[Callable[[Sequence[str]], Any], list[str]]] = {
        "mbrace sample": (lambda sources: bench.ours.sample(sources, n), many),
        "generate, one source per call": (lambda sources: [bench.sampled([source], n) for source in sources], few),
        "generate, 8 sources per call": (
            lambda sources: [bench.sampled(sources[i : i + 8], n) for i in range(0, len(sources), 8)],
            many,
        ),
        "generate, 32 sources per call": (lambda sources: bench.sampled(sources, n), many),
    }
    out = {}
    for name, (method, sources) in ways.items():
        method(sources[:2])
        rates = []
        for _ in range(bench.args.trials):
            synchronize()
            started = time.perf_counter()
            method(sources)
            synchronize()
            rates.append(n * len(sources) / (time.perf_counter() - started))
        out[name] = max(rates)
        print(f"{name}: {out[name]:.0f} per second", flush=True)
    return out


def translations(bench: Bench) -> dict[str, Any]:
    """Seconds by phase of each method, mean of the trials; and the scores of its translations."""
    alpha = mbrace.Confidence(0.99)
    ways: dict[str, Callable[[Sequence[str]], tuple[list[str], dict[str, float]]]] = {
        "racing, ahead": lambda s: bench.racing(s, ahead=True, prune=alpha),
        "racing, lazy": lambda s: bench.racing(s, ahead=False, prune=alpha),
        "standard, ours": lambda s: bench.racing(s, ahead=True, prune=None),
        "standard, the paper's way": bench.paper,
        "beam 10, ours": bench.our_beam,
        "beam 10, generate": bench.beam,
    }
    out: dict[str, Any] = {}
    references = [record.reference or "" for record in bench.records]
    for name, method in ways.items():
        method(bench.sources[:2])
        totals, parts = [], []
        trials = (
            min(bench.args.trials, bench.args.slow_trials) if name == "standard, the paper's way" else bench.args.trials
        )
        for _ in range(trials):
            synchronize()
            started = time.perf_counter()
            texts, seconds = method(bench.sources)
            synchronize()
            totals.append(time.perf_counter() - started)
            parts.append(seconds)
            print(f"{name}: {totals[-1]:.2f} s", flush=True)
        row: dict[str, Any] = {phase: statistics.mean(part[phase] for part in parts) for phase in PHASES}
        row |= {"total": statistics.mean(totals), "trials": totals}
        row["utility"] = float(bench.utility.pairs(texts, references, bench.sources).mean())
        row["chrF++"] = float(mbrace.ChrF().pairs(texts, references).mean())
        if "beam" not in name and "paper" not in name:
            row |= {"drawn": bench.drawn, "calls": bench.calls}
        out[name] = row
    return out


def cell(value: float | None) -> str:
    return "" if not value else f"{value:.2f}"


def report(bench: Bench, sampling: dict[str, float], found: dict[str, Any]) -> str:
    args, device = bench.args, bench.ours.device
    machine = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    name = "the bundled translator (14.6M weights)" if args.model == "bundled" else Path(args.model).name
    standard = found["standard, the paper's way"]["total"]
    best = max(rate for way, rate in sampling.items() if way != "mbrace sample")
    lines = [
        "# Speed of live models",
        "",
        f"{machine}, {str(bench.ours.dtype).removeprefix('torch.')}, Python {platform.python_version()}, torch "
        f"{torch.__version__.split('+')[0]}, transformers {transformers.__version__}; {name}; written by "
        "`python bench/models.py`.",
        "",
        "## Sampling",
        "",
        f"{args.references} epsilon samples (0.02) of each source, decoded to text; best of {args.trials}.",
        "",
        "| | pseudo-references per second | mbrace is |",
        "|---|---:|---:|",
    ]
    ours = sampling["mbrace sample"]
    for way, rate in sampling.items():
        lines.append(f"| {way} | {rate:,.0f} | {'' if way == 'mbrace sample' else f'{ours / rate:.1f}x faster'} |")
    lines += [
        "",
        f"Against the fastest use of generate: {ours / best:.1f}x.",
        "",
        "## Translating",
        "",
        f"{len(bench.sources)} sentences of newstest2018 (de-en), up to {args.beam} hypotheses by beam search, up to "
        f"{args.references} pseudo-references, utility `{bench.utility.name}`; seconds, mean of {args.trials} trials "
        f"(the paper's way: {min(args.trials, args.slow_trials)}). Drawing ahead embeds only what a race asks for.",
        "",
        "| | generate H | generate R | embed | utilities | pruning | total | faster than the paper's way "
        "| drawn | utility calls | utility | chrF++ |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for way, row in found.items():
        cells = [cell(row[phase]) for phase in PHASES]
        counts = [f"{row['drawn']:.0f}", f"{row['calls']:,.0f}"] if "drawn" in row else ["", ""]
        scores = [f"{row['utility']:.4f}" if row["utility"] < 2 else f"{row['utility']:.2f}", f"{row['chrF++']:.2f}"]
        ratio = f"{standard / row['total']:.1f}x"
        lines.append(f"| {way} | {' | '.join([*cells, cell(row['total']), ratio, *counts, *scores])} |")
    lines += ["", "The paper's Table 2 (one Quadro RTX 8000, transformer-base, COMET-22, 100 sentences):", ""]
    lines += ["| | generate H | generate R | embed | utilities | pruning | total | |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|---:|"]
    for way, method in PAPER.items():
        seconds = TABLE_2[method]
        cells = [cell(seconds.get(phase)) for phase in (*PHASES, "total")]
        ratio = f"{TABLE_2['standard']['total'] / seconds['total']:.1f}x"
        lines.append(f"| {way} | {' | '.join([*cells, ratio])} |")
    lines += [
        "",
        "`utility` and chrF++ are means over sentences against the human reference. Generation of hypotheses and of "
        "pseudo-references is the same model in the same precision everywhere; what differs is how many sentences "
        "share a batch, which decoder runs, and which pairs are scored.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--utility", default="learned", help="learned, chrf++, or a COMET checkpoint")
    parser.add_argument(
        "--candidates",
        default="experiments/candidates/de-en.test.jsonl.xz",
        help="candidate file whose sources to translate",
    )
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--beam", type=int, default=256)
    parser.add_argument("--references", type=int, default=256)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--slow-trials", type=int, default=3, help="trials of the paper's way")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=65536, help="pairs in a batch of the plain head")
    parser.add_argument("--device")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: 4 sentences, 16 of everything")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    args = parser.parse_args()
    if args.tiny:
        args.sentences, args.beam, args.references, args.trials, args.pairs = 4, 16, 16, 1, 1024
    transformers.utils.logging.set_verbosity_error()
    bench = Bench(args)
    sampling = sampling_speed(bench)
    found = translations(bench)
    args.out.mkdir(parents=True, exist_ok=True)
    text = report(bench, sampling, found)
    suffix = "" if args.utility == "learned" else "-" + "".join(c for c in args.utility if c.isalnum())
    (args.out / f"models{suffix}.md").write_text(text, encoding="utf-8")
    (args.out / f"models{suffix}.json").write_text(json.dumps({"sampling": sampling, "translating": found}, indent=1))
    print(text)


if __name__ == "__main__":
    main()
