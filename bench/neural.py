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
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

import mbrace
from mbrace.decoded import Phases
from mbrace.io.candidates import read_records
from mbrace.utilities.neural.encoder import Encoder, Readout
from mbrace.utilities.neural.head import Estimator
from mbrace.utilities.neural.pairs import PairBlock, to_device
from mbrace.utilities.neural.scorer import NeuralUtility, RaceScorer
from mbrace.utility import Ask, Sentence

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
        texts = [text for record in self.records for text in (*record.hypotheses, *_references(record))]
        self.tokenizer = make_tokenizer(texts)
        self.config = make_config(self.tiny)
        self.models: dict[str, Any] = {}
        lengths = [len(ids) for ids in self.tokenizer(texts)["input_ids"]]
        about = {
            "device": torch.cuda.get_device_name() if not self.tiny else f"CPU rehearsal ({platform.machine()})",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "sentences": len(self.records),
            "hypotheses and pseudo-references a sentence": size,
            "strings": len(texts),
            "distinct strings, summed over sentences": sum(
                len({*record.hypotheses, *_references(record)}) for record in self.records
            ),
            "tokens a string, mean": round(float(np.mean(lengths)), 1),
            "parameters of the encoder": sum(p.numel() for p in self.model("float32").parameters()),
        }
        started = time.perf_counter()
        self.tables = [Table(record) for record in self.records]
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

    def utility(self, dtype: str) -> SpeedOnly:
        """mbrace's own path over the random weights."""
        layers = self.config.num_hidden_layers + 1
        readout = Readout("avg", tuple([1 / layers] * layers))
        limit = self.config.max_position_embeddings - 4
        encoder = Encoder(
            self.model(dtype), self.tokenizer, readout, max_length=limit, device=self.device, dtype=DTYPES[dtype]
        )
        return SpeedOnly(encoder, self.estimator(), self.tables, self.records)

    # Sections

    def embedding(self) -> None:
        """Strings per second through the encoder: comet-mbr's loop in each precision, then mbrace's stream."""
        few = self.records[: self.slice]
        for dtype, matmul in (("float16", "high"), ("float32", "high"), ("float32", "highest")):
            torch.set_float32_matmul_precision(matmul)
            texts = [text for record in few for text in (*record.hypotheses, *_references(record))]
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
            texts = [text for record in some for text in (*record.hypotheses, *_references(record))]
            encoder = self.utility(dtype).encoder
            seconds = self.timed(lambda encoder=encoder, texts=texts: encoder.embed(texts), repeats=2)
            self.results.add(
                "embedding", f"mbrace's stream, {_precision(dtype, matmul)}", len(texts), seconds, "strings/s"
            )
        torch.set_float32_matmul_precision("highest")

    def head(self) -> None:
        """Pairs per second through the head, vectors given, every pair of a sentence counted.

        `estimate` on one sentence of size x size; ours on the same, on a list against itself (comet-mbr's own setting:
        candidates are their own references), and on sentences with their real duplicates, which are scored once.
        """
        size, units = len(self.records[0].hypotheses), self.config.hidden_size
        few = self.records[: 2 * self.slice]
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
            apart, same = np.arange(2 * size).reshape(2, size), np.arange(size)[None].repeat(2, axis=0)

            def ours(blocks: Sequence[Any], head: Any = head, vectors: Any = vectors, s: Any = s) -> list[torch.Tensor]:
                sides = [to_device(np.concatenate(side), self.device) for side in zip(*blocks, strict=True)]
                hypotheses, references = (vectors[side] for side in sides)
                heights, widths = ([len(side) for side in names] for names in zip(*blocks, strict=True))
                parts = [x.split(heights) for x in (hypotheses, head.prepare(hypotheses, s))]
                whole = zip(*parts, references.split(widths), blocks, strict=True)
                return head.score([PairBlock(h, prepared, r, (names[0], names[1])) for h, prepared, r, names in whole])

            h, r = vectors[:size], vectors[size:]
            runs: list[tuple[str, Callable[[], list[torch.Tensor]], int]] = [
                ("estimate, a batch a hypothesis (comet-mbr)", partial(in_batches, head, h, r, s, 1), 1),
                ("estimate, batches of 16,384 pairs", partial(in_batches, head, h, r, s, max(1, 16384 // size)), 1),
                ("mbrace, one sentence, no string twice", partial(ours, [apart]), 1),
                ("mbrace, one sentence, a list against itself", partial(ours, [same]), 1),
                (f"mbrace, {len(few)} sentences, real duplicates", partial(ours, list(map(_names, few))), len(few)),
                (f"mbrace, {len(few)} sentences, lists against themselves", partial(ours, [same] * len(few)), len(few)),
            ]
            exact = in_batches(head, h, r, s, 1, torch.float64)[0]
            for label, run, sentences in runs:
                seconds = self.timed(run, repeats=5)
                note = ""
                if "itself" not in label and sentences == 1:
                    error = (torch.cat([table.flatten() for table in run()]).double() - exact.flatten()).abs().max()
                    note = f"largest error {error:.1e} against float64"
                self.results.add("head", f"{label}, {name}", sentences * size * size, seconds, "pairs/s", note)
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
                embedded = utility.encoder.embedded
                answers: list[Any] = []
                run = partial(self.race, some, utility, prune, window, phases, answers)
                seconds = self.timed(run, repeats=1)
                calls = sum(answer.utility_calls for answer in answers)
                standard = sum(len(record.hypotheses) * len(_references(record)) for record in some)
                runs = 2  # timed() warms up once
                spent = phases.encode + phases.score + phases.prune  # of both runs
                note = (
                    f"{len(some)} sentences; {1 - calls / standard:.1%} of calls saved; "
                    f"{(utility.encoder.embedded - embedded) / runs / len(some):.0f} strings embedded per sentence; "
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
        self, records: Any, utility: SpeedOnly, prune: Any, window: int, phases: Phases, answers: list[Any]
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
            references = _references(record)
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


class Table:
    """One sentence's hypotheses against its pseudo-references, by chrF++ or another utility: the real utility behind
    the decisions. With `pool`, pseudo-references are scored as hypotheses too."""

    def __init__(self, record: mbrace.Record, utility: Any = None, *, pool: bool = False) -> None:
        references = list(dict.fromkeys(_references(record)))
        hypotheses = list(dict.fromkeys([*record.hypotheses, *(references if pool else ())]))
        self.column = {text: column for column, text in enumerate(references)}
        self.row = {text: row for row, text in enumerate(hypotheses)}
        scorer = (utility or mbrace.ChrF()).start([Sentence(record.id, record.source, hypotheses)])
        self.scores = scorer.score([Ask(0, np.arange(len(hypotheses)), references)])[0]


class SpeedOnly(NeuralUtility):
    """Runs mbrace's encoder and head in full, but returns the scores of the tables."""

    name, needs_source = "speed only", True

    def __init__(self, encoder: Encoder, head: Estimator, tables: list[Table], records: list[mbrace.Record]) -> None:
        self.encoder, self.head = encoder, head
        self._tables = {record.id: table for record, table in zip(records, tables, strict=True)}

    def start(self, sentences: Sequence[Sentence]) -> RaceScorer:
        """The usual scorer, whose scores are replaced by those of the tables."""
        scorer = super().start(sentences)
        compute, tables = scorer.score, [self._tables[sentence.id] for sentence in sentences]

        def score(asks: Sequence[Ask]) -> list[Any]:
            compute(asks)
            chosen = []
            for ask in asks:
                table, texts = tables[ask.sentence], sentences[ask.sentence].hypotheses
                rows = [table.row[texts[index]] for index in ask.hypotheses.tolist()]
                columns = [table.column[text] for text in ask.references]
                chosen.append(table.scores[np.ix_(rows, columns)])
            return chosen

        scorer.score = score  # type: ignore[method-assign]
        return scorer


def estimate(head: Estimator, src: torch.Tensor, mt: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """comet/models/regression/regression_metric.py `estimate`, unchanged."""
    diff_ref, diff_src = torch.abs(mt - ref), torch.abs(mt - src)
    prod_ref, prod_src = mt * ref, mt * src
    hidden = torch.cat((mt, ref, prod_ref, diff_ref, prod_src, diff_src), dim=1)
    for position, (weight, bias) in enumerate(head.layers):
        hidden = torch.nn.functional.linear(hidden, weight, bias)
        if position < len(head.layers) - 1:
            hidden = torch.tanh(hidden)
    return hidden.view(-1)


def in_batches(
    head: Estimator,
    h: torch.Tensor,
    r: torch.Tensor,
    s: torch.Tensor,
    at_a_time: int,
    dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """All pairs through `estimate`: comet/cli/mbr.py gives it one hypothesis at a time, larger batches do better."""
    if dtype is not None:
        layers = [(weight.to(dtype), bias.to(dtype)) for weight, bias in head.layers]
        head, (h, r, s) = Estimator(layers, head.units, head.activation), (x.to(dtype) for x in (h, r, s))
    scores = []
    for part in h.split(at_a_time):
        mt, ref = part.repeat_interleave(len(r), 0), r.repeat(len(part), 1)
        scores.append(estimate(head, s.expand(len(mt), -1), mt, ref))
    return [torch.cat(scores)]


def _names(record: mbrace.Record) -> tuple[np.ndarray, np.ndarray]:
    """Numbers for the distinct hypotheses and pseudo-references of a sentence; equal strings have equal numbers."""
    numbers: dict[str, int] = {}
    sides = (dict.fromkeys(record.hypotheses), dict.fromkeys(_references(record)))
    found = [np.array([numbers.setdefault(text, len(numbers)) for text in side]) for side in sides]
    return found[0], found[1]


def make_tokenizer(texts: Sequence[str]) -> Any:
    """A unigram tokenizer trained here on the candidates, with XLM-R's special tokens: realistic token counts."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=2000, special_tokens=specials, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(texts[:: max(1, len(texts) // 5000)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def make_config(tiny: bool) -> Any:
    """XLM-R-large's shape, or a rehearsal's."""
    shape = {"vocab_size": 250002, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    if tiny:
        shape = {"vocab_size": 3000, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = 4 if tiny else 16
    return transformers.XLMRobertaConfig(
        **shape, num_attention_heads=heads, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
    )


def _references(record: mbrace.Record) -> Sequence[str]:
    assert isinstance(record.pseudo_references, Sequence)
    return record.pseudo_references


def _precision(dtype: str, matmul: str) -> str:
    return f"{dtype}, TF32" if dtype == "float32" and matmul == "high" else dtype


if __name__ == "__main__":
    main()
