"""One training run: batches of similar lengths, the loop, validation, checkpoints and their average, and resuming."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from mbrace.errors import FORCE, UserError, counted
from mbrace.io.atomic import replacing
from mbrace.metrics.chrf import ChrF
from mbrace.models.marian_network import forward, read_network
from mbrace.models.seq2seq import Seq2Seq
from mbrace.models.tokenizers import Vocabulary
from mbrace.neural.device import prefetched
from mbrace.training.options import POSITIONS, SIZES, TrainingOptions, new_model

SentencePairs = Sequence[tuple[str, str]]
SAVE_SECONDS = 180.0  # the least time between two saved states


Ids = NDArray[np.uint16]
# Other ids of the pairs with these indices: sources, targets.
Resample: TypeAlias = Callable[[NDArray[np.int64]], tuple[Sequence[Ids], Sequence[Ids]]]


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs as ids: per side, one flat array and the offsets of its sentences."""

    sides: tuple[tuple[Ids, NDArray[np.int64]], tuple[Ids, NDArray[np.int64]]]
    kept: NDArray[np.int64]  # (pairs,): their indices among those given

    @staticmethod
    def of(sources: Sequence[Ids], targets: Sequence[Ids], *, longest: int | None = None) -> Corpus:
        """Drop pairs with a side of more than `longest` ids (the model has no positions for them)."""
        sizes = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
        kept = [index for index, size in enumerate(sizes) if longest is None or size <= longest]
        sides = (_flat([side[index] for index in kept]) for side in (sources, targets))
        return Corpus((next(sides), next(sides)), np.array(kept, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.sides[0][1]) - 1

    def lengths(self) -> NDArray[np.int64]:
        """Ids per side, (pairs, 2)."""
        return np.stack([np.diff(offsets) for _, offsets in self.sides], axis=1)

    def plan(self, tokens: int, rng: np.random.Generator | None) -> list[NDArray[np.int64]]:
        """One epoch in batches (indices) of at most `tokens` padded ids per side; without `rng`, in order of length."""
        lengths = self.lengths()
        widths = -(-lengths // 8) * 8  # padded to multiples of 8, for which the GPU's matrix units are made
        widest = widths.max(axis=1)
        noise = rng.random(len(self)) if rng is not None else np.zeros(len(self))
        order = np.lexsort((noise, widths[:, 1], widths[:, 0], widest))
        batches, first = [], 0
        while first < len(order):
            # pairs are in order of width, so a batch is as wide as its last pair
            count = max(1, tokens // int(widest[order[first]]))
            last = min(first + count, len(order)) - 1
            count = max(1, tokens // int(widest[order[last]]))
            batches.append(order[first : first + count])
            first += count
        if rng is not None:
            batches = [batches[number] for number in rng.permutation(len(batches))]
        return batches

    def padded(self, batch: NDArray[np.int64], pad: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Source and target ids, each (sentences, width), and the number of real target ids."""
        source, _ = _pad(*self.sides[0], batch, pad)
        target, count = _pad(*self.sides[1], batch, pad)
        return source, target, count


def prefetch(
    corpus: Corpus, *, tokens: int, pad: int, seed: int, first: int, device: Any, resample: Resample | None = None
) -> Generator[tuple[Any, Any, int], None, None]:
    """Padded batches without end, from number `first` of a sequence that depends on `seed` only. With `resample`, the
    pairs of a batch are segmented again.

    A thread pads (and pins) up to 16 batches ahead, so that the training loop never waits for them.
    """
    pin = device.type == "cuda"

    def padded() -> Iterator[tuple[Any, Any, int]]:
        number = 0
        for epoch in itertools.count():
            plan = corpus.plan(tokens, np.random.default_rng([seed, epoch]))
            for batch in plan[max(0, first - number) :]:
                part, rows = corpus, batch
                if resample is not None:  # random segmentations may be too long for the model: those are left out
                    part = Corpus.of(*resample(corpus.kept[batch]), longest=POSITIONS)
                    rows = np.arange(len(part))
                if not len(rows):
                    continue
                source, target, count = part.padded(rows, pad)
                ids = torch.from_numpy(source), torch.from_numpy(target)
                yield (ids[0].pin_memory(), ids[1].pin_memory(), count) if pin else (*ids, count)
            number += len(plan)

    with contextlib.closing(prefetched(padded(), most=16)) as batches:
        for source, target, count in batches:
            yield source.to(device, non_blocking=True), target.to(device, non_blocking=True), count


def _flat(rows: Sequence[Ids]) -> tuple[Ids, NDArray[np.int64]]:
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return (np.concatenate(rows) if rows else np.zeros(0, np.uint16)), offsets


def _pad(flat: Ids, offsets: NDArray[np.int64], batch: NDArray[np.int64], pad: int) -> tuple[NDArray[np.int64], int]:
    starts = offsets[batch]
    lengths = offsets[batch + 1] - starts
    columns = np.arange(-(-int(lengths.max()) // 8) * 8)
    real = columns[None, :] < lengths[:, None]
    out = np.full(real.shape, pad, dtype=np.int64)
    out[real] = flat[(starts[:, None] + columns[None, :])[real]]
    return out, int(lengths.sum())


class TrainingRun:
    """One training run: the model, its optimizer, and its progress."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        corpus: Corpus,
        valid: Corpus,
        valid_text: SentencePairs,
        out: Path,
        options: TrainingOptions,
        device: Any,
        started: float,
        say: Callable[[str], None],
        resample: Resample | None = None,
    ) -> None:
        self.resample = resample
        self.vocabulary, self.corpus, self.valid, self.valid_text = vocabulary, corpus, valid, valid_text
        self.out, self.options, self.device, self.started, self.say = out, options, device, started, say
        torch.manual_seed(options.seed)
        size = SIZES[options.size]
        self.model = new_model(size, vocabulary, dropout=options.dropout)
        if options.initial is not None:  # the weights alone, with a fresh optimizer
            self.model.load_like(read_network(Path(options.initial)), options.initial)
        self.model = self.model.to(device)
        self.rate = size.rate if options.rate is None else options.rate
        self.parameters = trainable(self.model)
        # On a GPU all arithmetic is in bfloat16, on a working copy of the optimizer's float32 weights.
        self.low_precision = options.bfloat16 if options.bfloat16 is not None else device.type == "cuda"
        self.working = copy.deepcopy(self.model).to(torch.bfloat16) if self.low_precision else self.model
        self.working_parameters = trainable(self.working)
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=device.type == "cuda"
        )
        self.step, self.history, self.stale = 0, [], 0  # type: int, list[dict[str, Any]], int
        self.best: tuple[float, dict[str, Any]] | None = None
        self.recent: list[dict[str, Any]] = []
        # since the last validation: the sum of losses, the ids and the seconds; and the progress at that validation
        self.total, self.count, self.seconds, self.checked = torch.zeros((), device=device), 0, 0.0, self.progress()

    def weights(self) -> int:
        return sum(weight.numel() for weight in self.parameters)

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def progress(self) -> float:
        """The share of the budget that has been spent, 0 to 1; 0 if there is no budget."""
        spent = [0.0]
        if self.options.minutes is not None:
            spent.append(self.elapsed() / (60 * self.options.minutes))
        if self.options.steps is not None:
            spent.append(self.step / self.options.steps)
        return min(1.0, max(spent))

    def learning_rate(self) -> float:
        warmth = min(1.0, (self.step + 1) / self.options.warmup)
        if self.options.has_budget:
            return self.rate * warmth * (1.0 - self.progress())
        return self.rate * warmth * math.sqrt(self.options.warmup / max(self.step + 1, self.options.warmup))

    def train(self, interrupted: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """Train to the end, or until `interrupted` says so: the state is saved then, and None is returned."""
        self.resume()
        self.working.train()
        batches = prefetch(
            self.corpus,
            tokens=self.options.tokens,
            pad=self.vocabulary.pad,
            seed=self.options.seed,
            first=self.step,
            device=self.device,
            resample=self.resample,
        )
        saved = self.elapsed()
        self.refresh()
        with contextlib.closing(batches):
            while self.progress() < 1.0 and self.stale < self.options.patience:
                if interrupted():
                    self.save_state()
                    self.log(f"interrupted; step {self.step} is saved: run the same command to continue")
                    return None
                began = self.elapsed()
                source, target, ids = next(batches)
                for group in self.optimizer.param_groups:
                    group["lr"] = self.learning_rate()
                loss = self.loss(source, target)
                (loss / ids).backward()
                self.update()
                self.total += loss.detach()  # stays on the device: reading it would make the GPU wait
                self.count += ids
                self.step += 1
                self.seconds += self.elapsed() - began
                # with a budget, the checkpoints to average are from its last tenth; without, from the validations
                if self.progress() >= 1.0 - 0.1 * (1.0 - len(self.recent) / self.options.average):
                    self.recent.append(self.snapshot())
                if self.due() or self.progress() >= 1.0:
                    self.validate(float(self.total) / self.count, self.count / self.seconds)
                    self.total.zero_()
                    self.count, self.seconds, self.checked = 0, 0.0, self.progress()
                if self.elapsed() - saved > SAVE_SECONDS:
                    self.save_state()
                    saved = self.elapsed()
        return self.finish()

    def update(self) -> None:
        """One step of the optimizer on the float32 weights, with the gradients of the working copy."""
        if self.low_precision:
            for weight, working in zip(self.parameters, self.working_parameters, strict=True):
                weight.grad, working.grad = None if working.grad is None else working.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.parameters, self.options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.refresh()

    def refresh(self) -> None:
        """Copy the weights to the working copy."""
        if self.low_precision:
            with torch.no_grad():
                for working, parameter in zip(self.working_parameters, self.parameters, strict=True):
                    working.copy_(parameter)

    def due(self) -> bool:
        """Whether it is time to validate."""
        every = self.options.validate_every
        if every is None and self.options.has_budget:
            return self.progress() - self.checked >= 1 / 12
        return self.step % (1000 if every is None else every) == 0

    def loss(self, source: Any, target: Any) -> Any:
        """The negative log-likelihood of `target` (sentences, width), summed over its real ids."""
        pad = self.vocabulary.pad
        logits = forward(self.working, source, target, pad=pad)
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), target.flatten(), ignore_index=pad, reduction="sum"
        )

    def valid_loss(self) -> float:
        self.refresh()
        self.working.eval()
        total, count = torch.zeros((), device=self.device), 0
        with torch.inference_mode():
            for batch in self.valid.plan(self.options.tokens, None):
                source, target, ids = self.valid.padded(batch, self.vocabulary.pad)
                total += self.loss(torch.from_numpy(source).to(self.device), torch.from_numpy(target).to(self.device))
                count += ids
        self.working.train()
        return float(total) / count

    def valid_chrf(self) -> float:
        """chrF++ of beam-4 translations of the first validation sentences."""
        part = self.valid_text[: self.options.chrf_sentences]
        if not part:
            return 0.0
        self.model.eval()
        translator = Seq2Seq.of(self.model, self.vocabulary)
        texts = [beam.texts[0] for beam in translator.beam([source for source, _ in part], k=4)]
        self.model.train()
        return ChrF().corpus(texts, [target for _, target in part])

    def snapshot(self) -> dict[str, Any]:
        return {name: weight.detach().clone() for name, weight in self.model.state_dict().items()}

    def validate(self, train_loss: float, rate: float) -> None:
        loss = self.valid_loss()
        state = self.snapshot()
        if not self.options.has_budget:
            self.recent = [*self.recent, state][-self.options.average :]
        self.stale = 0 if self.best is None or loss < self.best[0] else self.stale + 1
        if self.stale == 0:
            self.best = loss, state
        entry = {
            "step": self.step,
            "seconds": round(self.elapsed(), 1),
            "learning_rate": self.learning_rate(),
            "train_loss": round(train_loss, 4),
            "valid_loss": round(loss, 4),
            "chrf": round(self.valid_chrf(), 2),
            "ids_per_second": round(rate),
        }
        self.history.append(entry)
        self.log(json.dumps(entry))

    def finish(self) -> dict[str, Any]:
        """Save the best checkpoint or the average of the last ones, whichever has the lower validation loss."""
        if self.best is None:
            self.validate(float("nan"), 0.0)
        assert self.best is not None
        self.recent = self.recent or [self.best[1]]
        average = {name: sum(state[name] for state in self.recent) / len(self.recent) for name in self.recent[-1]}
        self.model.load_state_dict(average)
        averaged = self.valid_loss()
        if averaged >= self.best[0]:
            self.model.load_state_dict(self.best[1])
        chosen = {
            "best_loss": round(self.best[0], 4),
            "averaged_loss": round(averaged, 4),
            "kept": "average" if averaged < self.best[0] else "best",
            "chrf": round(self.valid_chrf(), 2),
            "steps": self.step,
            "seconds": round(self.elapsed(), 1),
            "weights": self.weights(),
            "pairs": len(self.corpus),
            "options": asdict(self.options),
            "history": self.history,
        }
        self.model.save(self.out, half=self.options.half)
        (self.out / "training.json").write_text(json.dumps(chosen, indent=1))
        for name in ("state.pt", "run.json"):
            (self.out / name).unlink(missing_ok=True)
        self.log(json.dumps({key: value for key, value in chosen.items() if key not in ("options", "history")}))
        return chosen

    def save_state(self) -> None:
        """Write all that a resumed run needs; the file is replaced in one step."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.elapsed(),
            "history": self.history,
            "stale": self.stale,
            "best": self.best,
            "recent": self.recent,
            "rng": torch.get_rng_state(),
            "interval": (float(self.total), self.count, self.seconds, self.checked),
        }
        with replacing(self.out / "state.pt") as temporary:
            torch.save(state, temporary)

    def resume(self) -> None:
        """Continue from the saved state, if there is one."""
        path = self.out / "state.pt"
        if not path.exists():
            return
        remedy = f"use {FORCE} to start over"
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:
            raise UserError(f"{path}: cannot be read: damaged, or not written by mbrace; {remedy}") from error
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["rng"].cpu())
            self.step, self.history, self.stale = state["step"], state["history"], state["stale"]
            self.best, self.recent = state["best"], state["recent"]
            self.started = time.monotonic() - state["seconds"]
            total, self.count, self.seconds, self.checked = state["interval"]
            self.total.fill_(total)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"{path}: not the state of this run ({type(error).__name__}); {remedy}") from error
        loss = "" if self.best is None else f", lowest validation loss {self.best[0]:.4f}"
        self.log(f"resumed from {path}: step {self.step}, {counted(len(self.history), 'validation')}{loss}")

    def log(self, message: str) -> None:
        self.say(f"[{self.elapsed():7.1f} s] {message}")


def trainable(model: torch.nn.Module) -> list[torch.Tensor]:
    """The weights that training changes."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def print_on_stderr(message: str) -> None:
    """Print a message and flush."""
    print(message, file=sys.stderr, flush=True)
