"""One training run: the loop, validation, checkpoints and their average, and taking up a run that was cut off."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mbrace.cores import cores
from mbrace.errors import UserError
from mbrace.io.atomic import replacing
from mbrace.models.vocabulary import Vocabulary
from mbrace.training.batches import Corpus, prefetch
from mbrace.training.sizes import SIZES, new_model
from mbrace.utilities.chrf import ChrF

Pairs = Sequence[tuple[str, str]]
SAVE_SECONDS = 180.0  # at least so long between two saved states


@dataclass(frozen=True)
class Training:
    """The options of a run. `minutes` counts from the start of `train`, reading and tokenising included."""

    size: str = "base"
    vocabulary: int | None = None
    minutes: float | None = None
    steps: int | None = None
    tokens: int = 16384
    rate: float | None = None
    warmup: int = 1000
    dropout: float | None = None
    clip: float = 1.0
    seed: int = 0
    validate_every: int | None = None  # steps; None: twelve times in the budget
    patience: int = 10
    average: int = 5
    chrf_sentences: int = 100
    longest: int = 200
    device: str | None = None
    bfloat16: bool | None = None  # None: on a GPU
    threads: int = field(default_factory=cores)

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise UserError(f"size {self.size!r} is not one of {', '.join(SIZES)}")
        counts = ("vocabulary", "steps", "tokens", "warmup", "validate_every", "patience", "average", "longest")
        for name in (*counts, "threads"):
            self._check(name, "1 or more", lambda value: value >= 1)
        for name in ("seed", "chrf_sentences"):
            self._check(name, "0 or more", lambda value: value >= 0)
        for name in ("minutes", "rate", "clip"):
            self._check(name, "more than 0", lambda value: 0 < value < math.inf)
        self._check("dropout", "0 or more and less than 1", lambda value: 0 <= value < 1)
        self._check("vocabulary", "65536 or less", lambda value: value <= 1 << 16)  # ids are kept in 16 bits

    def _check(self, name: str, wanted: str, is_right: Callable[[Any], bool]) -> None:
        value = getattr(self, name)
        if value is not None and not is_right(value):
            raise UserError(f"{name.replace('_', '-')} {value}: must be {wanted}")

    @property
    def has_budget(self) -> bool:
        """Whether the end of the run is known from the start."""
        return self.minutes is not None or self.steps is not None


class Run:
    """One training run: the model, its optimizer, and where it stands."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        corpus: Corpus,
        valid: Corpus,
        valid_text: Pairs,
        out: Path,
        options: Training,
        device: Any,
        started: float,
    ) -> None:
        import torch

        self.vocabulary, self.corpus, self.valid, self.valid_text = vocabulary, corpus, valid, valid_text
        self.out, self.options, self.device, self.started = out, options, device, started
        torch.manual_seed(options.seed)
        size = SIZES[options.size]
        self.model = new_model(size, vocabulary, dropout=options.dropout).to(device)
        self.rate = size.rate if options.rate is None else options.rate
        self.parameters = [weight for weight in self.model.parameters() if weight.requires_grad]
        # On a GPU all arithmetic is bfloat16, on a copy of the float32 weights that the optimizer keeps.
        self.low = options.bfloat16 if options.bfloat16 is not None else device.type == "cuda"
        self.working = copy.deepcopy(self.model).to(torch.bfloat16) if self.low else self.model
        self.working_parameters = [weight for weight in self.working.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=device.type == "cuda"
        )
        self.step, self.history, self.stale = 0, [], 0  # type: int, list[dict[str, Any]], int
        self.best: tuple[float, dict[str, Any]] | None = None
        self.recent: list[dict[str, Any]] = []

    def weights(self) -> int:
        return sum(weight.numel() for weight in self.parameters)

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def progress(self) -> float:
        """How much of the budget is spent, 0 to 1; 0 when there is none."""
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

    def train(self) -> dict[str, Any]:
        import torch

        self.resume()
        self.working.train()
        batches = prefetch(
            self.corpus,
            tokens=self.options.tokens,
            pad=self.vocabulary.pad,
            seed=self.options.seed,
            first=self.step,
            device=self.device,
        )
        total, count = torch.zeros((), device=self.device), 0
        mark, checked, saved = self.elapsed(), self.progress(), self.elapsed()
        self.refresh()
        with contextlib.closing(batches):
            while self.progress() < 1.0 and self.stale < self.options.patience:
                source, target, ids = next(batches)
                for group in self.optimizer.param_groups:
                    group["lr"] = self.learning_rate()
                loss = self.loss(source, target)
                (loss / ids).backward()
                self.update()
                total += loss.detach()  # stays on the device: reading it would stop the queue of kernels
                count += ids
                self.step += 1
                # the last tenth of a budget gives the checkpoints to average; without a budget, validations do
                if self.progress() >= 1.0 - 0.1 * (1.0 - len(self.recent) / self.options.average):
                    self.recent.append(self.snapshot())
                if self.due(checked) or self.progress() >= 1.0:
                    rate = count / (self.elapsed() - mark)
                    self.validate(float(total) / count, rate)
                    checked = self.progress()
                    if self.elapsed() - saved > SAVE_SECONDS:
                        self.save_state()
                        saved = self.elapsed()
                    total.zero_()
                    count, mark = 0, self.elapsed()
        return self.finish()

    def update(self) -> None:
        """One step of the optimizer on the float32 weights, by the gradients of the working copy."""
        import torch

        if self.low:
            for weight, working in zip(self.parameters, self.working_parameters, strict=True):
                weight.grad, working.grad = working.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.parameters, self.options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.refresh()

    def refresh(self) -> None:
        """Bring the working copy up to date."""
        import torch

        if self.low:
            with torch.no_grad():
                torch._foreach_copy_(self.working_parameters, self.parameters)

    def due(self, checked: float) -> bool:
        every = self.options.validate_every
        if every is None and self.options.has_budget:
            return self.progress() - checked >= 1 / 12
        return self.step % (1000 if every is None else every) == 0

    def loss(self, source: Any, target: Any) -> Any:
        """Sum of the negative log-likelihood of `target` (sentences, width) over its real ids."""
        import torch

        from mbrace.models.marian import forward

        pad = self.vocabulary.pad
        logits = forward(self.working, source, target, pad=pad)
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), target.flatten(), ignore_index=pad, reduction="sum"
        )

    def valid_loss(self) -> float:
        import torch

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
        from mbrace.models.seq2seq import Seq2Seq

        part = self.valid_text[: self.options.chrf_sentences]
        if not part:
            return 0.0
        self.model.eval()
        translator = Seq2Seq.of(self.model, self.vocabulary)
        texts = [beam.texts[0] for beam in translator.beam([source for source, _ in part], k=4)]
        self.model.train()
        return chrf(texts, [target for _, target in part])

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
        """Keep the better, by validation loss, of the best checkpoint and the average of the last ones."""
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
        self.model.save_pretrained(self.out)
        (self.out / "training.json").write_text(json.dumps(chosen, indent=1))
        for name in ("state.pt", "run.json"):
            (self.out / name).unlink(missing_ok=True)
        self.log(json.dumps({key: value for key, value in chosen.items() if key not in ("options", "history")}))
        return chosen

    def save_state(self) -> None:
        """Write all that a resumed run needs, at once or not at all."""
        import torch

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
        }
        with replacing(self.out / "state.pt") as temporary:
            torch.save(state, temporary)

    def resume(self) -> None:
        import torch

        path = self.out / "state.pt"
        if not path.exists():
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"].cpu())
        self.step, self.history, self.stale = state["step"], state["history"], state["stale"]
        self.best, self.recent = state["best"], state["recent"]
        self.started = time.monotonic() - state["seconds"]
        self.log(f"resumed at step {self.step}")

    def log(self, message: str) -> None:
        print(f"[{self.elapsed():7.1f} s] {message}", file=sys.stderr, flush=True)


def chrf(texts: Sequence[str], references: Sequence[str]) -> float:
    """Corpus chrF++."""
    return ChrF().corpus(list(texts), list(references))
