"""Speed of neural MBR decoding at COMET-22's size on a GPU: embedding, the head, and whole races.

    python bench/neural.py CANDIDATES.jsonl.gz --out bench/results

The weights are random (XLM-R-large's shape, COMET-22's head), so this is SPEED ONLY. Pruning decisions come from a real
utility: tables of chrF++ between the same strings, computed beforehand. Baselines are written here in plain
transformers and torch, after the loops of unbabel-comet 2.2.7 (comet/cli/mbr.py and comet/models/base.py), because that
package needs numpy<2 and transformers<5. `--tiny` rehearses every section on a CPU; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from neural_table import Results
from random_comet import SpeedOnlyComet, estimate, in_batches, make_config, make_tokenizer
from speed_only import Table, references_of

import mbrace
from mbrace.io.candidates import read_records
from mbrace.neural.encoder import Encoder, Readout
from mbrace.neural.head import Estimator, PairBlock
from mbrace.result import Phases

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--size", type=int, default=256, help="hypotheses and pseudo-references per sentence")
    parser.add_argument("--slice", type=int, default=10, help="sentences on which the slow baselines are measured")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on the CPU")
    sections = ("embedding", "head", "races")
    parser.add_argument("--sections", nargs="+", choices=sections, default=sections, help="what to measure")
    args = parser.parse_args()
    if args.tiny:
        args.sentences, args.size, args.slice = 4, 24, 2
    bench = Bench(args)
    for section in args.sections:
        getattr(bench, section)()
        bench.results.write(args.out)


class Bench:
    """The model, the candidates, and the rows measured so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.tiny, self.slice = args.tiny, args.slice
        self.device = torch.device("cpu" if args.tiny else "cuda")
        found = [record for record, _ in zip(read_records(args.candidates), range(args.sentences), strict=False)]
        size = args.size
        self.records = [
            mbrace.Record(
                record.hypotheses[:size],
                list(record.pseudo_references or ())[:size],  # type: ignore[arg-type]
                id=record.id,
                source=record.source,
            )
            for record in found
        ]
        texts = [text for record in self.records for text in (*record.hypotheses, *references_of(record))]
        self.tokenizer = make_tokenizer(texts)
        self.config = make_config(self.tiny)
        self.models: dict[str, Any] = {}
        lengths = [len(ids) for ids in self.tokenizer(texts)["input_ids"]]
        about = {
            "device": torch.cuda.get_device_name() if not self.tiny else f"CPU rehearsal ({platform.machine()})",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "sentences": len(self.records),
            "hypotheses and pseudo-references per sentence": size,
            "strings": len(texts),
            "distinct strings, summed over sentences": sum(
                len({*record.hypotheses, *references_of(record)}) for record in self.records
            ),
            "tokens per string, mean": round(float(np.mean(lengths)), 1),
            "parameters of the encoder": sum(p.numel() for p in self.model("float32").parameters()),
        }
        started = time.perf_counter()
        self.tables = {record.id: Table.of(record, mbrace.ChrF()) for record in self.records}
        about["chrF++ tables beforehand, s"] = round(time.perf_counter() - started, 2)
        self.about = about
        self.results = Results(about)

    def model(self, dtype: str) -> Any:
        """One set of random weights in the precision asked for."""
        if "float32" not in self.models:
            torch.manual_seed(0)
            with self.device:
                network = transformers.XLMRobertaModel(self.config, add_pooling_layer=False)
            self.models["float32"] = network.to(self.device).eval()
        if dtype not in self.models:
            with self.device:
                copy = transformers.XLMRobertaModel(self.config, add_pooling_layer=False)
            copy.load_state_dict(self.models["float32"].state_dict())
            self.models[dtype] = copy.to(device=self.device, dtype=DTYPES[dtype]).eval()
        return self.models[dtype]

    def estimator(self, dtype: torch.dtype = torch.float32) -> Estimator:
        """COMET-22's head (6 features, 3072 and 1024 hidden units, Tanh), random."""
        units = self.config.hidden_size
        generator = torch.Generator().manual_seed(0)
        widths = [6 * units, 3 * units, units, 1]
        layers = [
            (torch.randn(b, a, generator=generator) / a**0.5, torch.randn(b, generator=generator))
            for a, b in itertools.pairwise(widths)
        ]
        moved = [(weight.to(self.device, dtype), bias.to(self.device, dtype)) for weight, bias in layers]
        return Estimator(moved, units, torch.nn.Tanh())

    def utility(self, dtype: str) -> SpeedOnlyComet:
        """mbrace's own path over the random weights."""
        layers = self.config.num_hidden_layers + 1
        readout = Readout("avg", tuple([1 / layers] * layers))
        limit = self.config.max_position_embeddings - 4
        encoder = Encoder(
            self.model(dtype), self.tokenizer, readout, max_length=limit, device=self.device, dtype=DTYPES[dtype]
        )
        return SpeedOnlyComet(encoder, self.estimator(), self.tables)

    # Sections

    def embedding(self) -> None:
        """Strings per second through the encoder: comet-mbr's loop in each precision, then mbrace's stream."""
        few = self.records[: self.slice]
        for dtype, matmul in (("float16", "high"), ("float32", "high"), ("float32", "highest")):
            torch.set_float32_matmul_precision(matmul)
            texts = [text for record in few for text in (*record.hypotheses, *references_of(record))]
            seconds = self.timed(lambda dtype=dtype, texts=texts: self.comet_mbr_embeddings(texts, dtype), repeats=2)
            self.results.add(
                "embedding",
                f"comet-mbr's loop, batch 32, {_precision(dtype, matmul)}",
                len(texts),
                seconds,
                "strings/s",
            )
        for dtype, matmul in (
            ("bfloat16", "highest"),
            ("float16", "highest"),
            ("float32", "high"),
            ("float32", "highest"),
        ):
            torch.set_float32_matmul_precision(matmul)
            some = self.records if dtype != "float32" else self.records[: 2 * self.slice]
            texts = [text for record in some for text in (*record.hypotheses, *references_of(record))]
            encoder = self.utility(dtype).encoder
            seconds = self.timed(lambda encoder=encoder, texts=texts: encoder.embed(texts), repeats=2)
            self.results.add(
                "embedding", f"mbrace's stream, {_precision(dtype, matmul)}", len(texts), seconds, "strings/s"
            )
        torch.set_float32_matmul_precision("highest")

    def head(self) -> None:
        """Pairs per second through the head, vectors given, every pair of a sentence counted.

        `estimate` on one sentence of size x size; ours on the same, and on several such sentences at once.
        """
        size, units = len(self.records[0].hypotheses), self.config.hidden_size
        sentences = min(len(self.records), 2 * self.slice)
        for name, dtype, matmul in (
            ("float32", torch.float32, "highest"),
            ("float32, TF32", torch.float32, "high"),
            ("bfloat16", torch.bfloat16, "highest"),
            ("float16", torch.float16, "highest"),
        ):
            torch.set_float32_matmul_precision(matmul)
            head = self.estimator(dtype)
            generator = torch.Generator().manual_seed(1)
            vectors = torch.randn(2 * size, units, generator=generator).to(self.device, dtype)
            s = torch.randn(1, units, generator=generator).to(self.device, dtype)
            h, r = vectors[:size], vectors[size:]

            def ours(count: int, head: Any = head, h: Any = h, r: Any = r, s: Any = s) -> list[torch.Tensor]:
                return head.score([PairBlock(h, r, s)] * count)

            runs: list[tuple[str, Callable[[], list[torch.Tensor]], int]] = [
                ("estimate, a batch a hypothesis (comet-mbr)", partial(in_batches, head, h, r, s, 1), 1),
                ("estimate, batches of 16,384 pairs", partial(in_batches, head, h, r, s, max(1, 16384 // size)), 1),
                ("mbrace, one sentence", partial(ours, 1), 1),
                (f"mbrace, {sentences} sentences", partial(ours, sentences), sentences),
            ]
            exact = in_batches(head, h, r, s, 1, torch.float64)[0]
            for label, run, count in runs:
                seconds = self.timed(run, repeats=5)
                note = ""
                if count == 1:
                    error = (torch.cat([table.flatten() for table in run()]).double() - exact.flatten()).abs().max()
                    note = f"largest error {error:.1e} against float64"
                self.results.add("head", f"{label}, {name}", count * size * size, seconds, "pairs/s", note)
        torch.set_float32_matmul_precision("highest")

    def races(self) -> None:
        """Seconds per sentence from strings to decision."""
        for dtype, matmul in (("float32", "highest"), ("float32", "high"), ("bfloat16", "highest")):
            torch.set_float32_matmul_precision(matmul)
            few = self.records[: self.slice]
            head = self.estimator(torch.float32 if dtype == "float32" else DTYPES[dtype])
            seconds = self.timed(lambda few=few, dtype=dtype, head=head: self.standard(few, dtype, head), repeats=1)
            label = f"standard MBR, one sentence at a time, {_precision(dtype, matmul)}"
            self.results.add("races", label, len(few), seconds, "sentences/s", note=f"{len(few)} sentences, scaled")
        for dtype, matmul in (("bfloat16", "highest"), ("float32", "high"), ("float32", "highest")):
            torch.set_float32_matmul_precision(matmul)
            utility = self.utility(dtype)
            rules: list[tuple[str, Any, int]] = [("confidence pruning, 64 sentences racing", mbrace.Confidence(), 64)]
            if dtype == "bfloat16":
                rules.append(("confidence pruning, all sentences racing", mbrace.Confidence(), len(self.records)))
                rules.append(("confidence pruning, one sentence at a time", mbrace.Confidence(), 1))
                rules.append(("no pruning, 64 sentences racing", None, 64))
            for label, prune, window in rules:
                some = self.records if dtype == "bfloat16" and window > 1 else self.records[: 4 * self.slice]
                phases = Phases()
                stream = utility.encoder.stream
                embedded = stream.strings
                answers: list[Any] = []
                run = partial(self.race, some, utility, prune, window, phases, answers)
                seconds = self.timed(run, repeats=1)
                calls = sum(answer.utility_calls for answer in answers)
                standard = sum(len(record.hypotheses) * len(references_of(record)) for record in some)
                runs = 2  # timed() warms up once
                spent = phases.encode + phases.score + phases.prune  # of both runs
                note = (
                    f"{len(some)} sentences; {1 - calls / standard:.1%} of calls saved; "
                    f"{(stream.strings - embedded) / runs / len(some):.0f} strings embedded per sentence; "
                    f"embedding {phases.encode / spent:.0%}, scoring {phases.score / spent:.0%}, "
                    f"pruning {phases.prune / spent:.0%} of the time"
                )
                self.results.add(
                    "races",
                    f"mbrace, {label}, {_precision(dtype, matmul)}",
                    len(some),
                    seconds,
                    "sentences/s",
                    note=note,
                )
        torch.set_float32_matmul_precision("highest")

    def race(
        self, records: Any, utility: SpeedOnlyComet, prune: Any, window: int, phases: Phases, answers: list[Any]
    ) -> None:
        """One run over `records`; the answers are put into `answers`."""
        decoded = mbrace.decode_corpus(
            records, utility=utility, prune=prune, window=window, phases=phases, shuffle=False
        )
        answers[:] = decoded

    # Baselines, after unbabel-comet 2.2.7

    @torch.no_grad()
    def comet_mbr_embeddings(self, texts: Sequence[str], dtype: str, batch_size: int = 32) -> torch.Tensor:
        """comet/cli/mbr.py build_embeddings: batches in the given order, padded, every layer mixed over every token."""
        model, layers = self.model(dtype), self.config.num_hidden_layers + 1
        parts = [texts[i : i + batch_size] for i in range(0, len(texts), batch_size)]
        limit = self.config.max_position_embeddings - 4
        inputs = [
            self.tokenizer(list(part), return_tensors="pt", padding=True, truncation=True, max_length=limit)
            for part in parts
        ]
        weights = torch.full((layers,), 1 / layers, device=self.device, dtype=DTYPES[dtype]).split(1)
        vectors = []
        for batch in inputs:
            ids, mask = batch["input_ids"].to(self.device), batch["attention_mask"].to(self.device)
            _, states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True, return_dict=False)[-2:]
            mixed = sum(weight * state for weight, state in zip(weights, states, strict=True))
            padding = ids.eq(self.tokenizer.pad_token_id).unsqueeze(-1)
            kept = mixed.float().masked_fill_(padding, 0.0).type_as(mixed)
            vectors.append(kept.sum(1) / mask.unsqueeze(-1).expand(mixed.size()).float().sum(1))
        return torch.vstack(vectors).to(DTYPES[dtype])

    @torch.no_grad()
    def standard(self, records: Sequence[mbrace.Record], dtype: str, head: Estimator) -> None:
        """The paper's way, one sentence at a time: its strings embedded (256 per batch), every pair estimated."""
        for record in records:
            references = references_of(record)
            texts = [record.source or "", *record.hypotheses, *references]
            vectors = self.comet_mbr_embeddings(texts, dtype, batch_size=256)
            s, h, r = vectors[:1], vectors[1 : 1 + len(record.hypotheses)], vectors[1 + len(record.hypotheses) :]
            means = [estimate(head, s.repeat(len(r), 1), one.repeat(len(r), 1), r).mean() for one in h]
            int(torch.stack(means).argmax())

    # Measuring and writing

    def timed(self, run: Callable[[], Any], *, repeats: int) -> float:
        """Median seconds of `repeats` runs after one to warm up."""
        seconds = []
        for _ in range(repeats + 1):
            self.wait()
            started = time.perf_counter()
            run()
            self.wait()
            seconds.append(time.perf_counter() - started)
        gc.collect()
        return statistics.median(seconds[1:])

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _precision(dtype: str, matmul: str) -> str:
    return f"{dtype}, TF32" if dtype == "float32" and matmul == "high" else dtype


if __name__ == "__main__":
    main()
