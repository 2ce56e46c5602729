"""Minimum Bayes risk decoding that races: `decode` for a sentence, `decode_corpus` for many."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as `_NAMES` below, for type checkers and editors
    from mbrace.answers import Answer as Answer, Prompt as Prompt
    from mbrace.api import (
        decode as decode,
        decode_corpus as decode_corpus,
        rerank as rerank,
        rerank_corpus as rerank_corpus,
    )
    from mbrace.cross.bleurt import BLEURT as BLEURT
    from mbrace.cross.metricx import MetricX as MetricX
    from mbrace.cross.xcomet import XCOMET as XCOMET
    from mbrace.errors import (
        RecordError as RecordError,
        ServiceError as ServiceError,
        SettingError as SettingError,
        UserError as UserError,
    )
    from mbrace.jobs.decode import decode_file as decode_file, rerank_file as rerank_file
    from mbrace.jobs.export import export_file as export_file
    from mbrace.jobs.generate import generate_file as generate_file
    from mbrace.jobs.tables import decode_table as decode_table, table_records as table_records
    from mbrace.jobs.translate import translate_file as translate_file
    from mbrace.methods.aggregate import AggregateReferences as AggregateReferences
    from mbrace.methods.centroid import CentroidReferences as CentroidReferences
    from mbrace.methods.diverse import Diverse as Diverse
    from mbrace.methods.low_rank import LowRank as LowRank
    from mbrace.metrics.bleu import BLEU as BLEU
    from mbrace.metrics.chrf import ChrF as ChrF
    from mbrace.metrics.edit_distance import EditDistance as EditDistance
    from mbrace.metrics.exact_match import ExactMatch as ExactMatch
    from mbrace.metrics.rouge_l import RougeL as RougeL
    from mbrace.metrics.ter import TER as TER
    from mbrace.models.causal import CausalLM as CausalLM
    from mbrace.models.mbr_generate import mbr_generate as mbr_generate
    from mbrace.models.seq2seq import Seq2Seq as Seq2Seq
    from mbrace.neural.bertscore import BERTScore as BERTScore
    from mbrace.neural.comet import Comet as Comet, Learned as Learned, Referenceless as Referenceless
    from mbrace.neural.embedding import Embedding as Embedding
    from mbrace.prune import Bottom as Bottom, Confidence as Confidence, Halving as Halving
    from mbrace.records import Record as Record
    from mbrace.result import Decoded as Decoded, Phases as Phases
    from mbrace.sampler import Draws as Draws, Sampler as Sampler, Want as Want, doubling as doubling
    from mbrace.servers.embeddings import EmbeddingServer as EmbeddingServer
    from mbrace.servers.judge import Judge as Judge
    from mbrace.servers.server import Server as Server
    from mbrace.settings import Race as Race, Sampling as Sampling
    from mbrace.utilities.mixture import Mixture as Mixture
    from mbrace.utilities.replay import Replay as Replay
    from mbrace.utility import Pairwise as Pairwise, QualityUtility as QualityUtility, Utility as Utility

__version__ = "0.1.0"

# The public names by module. A module is imported when one of its names is first used, so `import mbrace` takes almost
# no time, and the optional dependencies of unused modules need not be installed.
_NAMES = {
    "mbrace.answers": "Answer Prompt",
    "mbrace.api": "decode decode_corpus rerank rerank_corpus",
    "mbrace.cross.bleurt": "BLEURT",
    "mbrace.cross.metricx": "MetricX",
    "mbrace.cross.xcomet": "XCOMET",
    "mbrace.errors": "RecordError ServiceError SettingError UserError",
    "mbrace.jobs.decode": "decode_file rerank_file",
    "mbrace.jobs.export": "export_file",
    "mbrace.jobs.generate": "generate_file",
    "mbrace.jobs.tables": "decode_table table_records",
    "mbrace.jobs.translate": "translate_file",
    "mbrace.methods.aggregate": "AggregateReferences",
    "mbrace.methods.centroid": "CentroidReferences",
    "mbrace.methods.diverse": "Diverse",
    "mbrace.methods.low_rank": "LowRank",
    "mbrace.metrics.bleu": "BLEU",
    "mbrace.metrics.chrf": "ChrF",
    "mbrace.metrics.edit_distance": "EditDistance",
    "mbrace.metrics.exact_match": "ExactMatch",
    "mbrace.metrics.rouge_l": "RougeL",
    "mbrace.metrics.ter": "TER",
    "mbrace.models.causal": "CausalLM",
    "mbrace.models.mbr_generate": "mbr_generate",
    "mbrace.models.seq2seq": "Seq2Seq",
    "mbrace.neural.bertscore": "BERTScore",
    "mbrace.neural.comet": "Comet Learned Referenceless",
    "mbrace.neural.embedding": "Embedding",
    "mbrace.prune": "Bottom Confidence Halving",
    "mbrace.records": "Record",
    "mbrace.result": "Decoded Phases",
    "mbrace.sampler": "Draws Sampler Want doubling",
    "mbrace.servers.embeddings": "EmbeddingServer",
    "mbrace.servers.judge": "Judge",
    "mbrace.servers.server": "Server",
    "mbrace.settings": "Race Sampling",
    "mbrace.utilities.mixture": "Mixture",
    "mbrace.utilities.replay": "Replay",
    "mbrace.utility": "Pairwise QualityUtility Utility",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)
# The extra of mbrace that each module needs.
_EXTRAS = {
    "mbrace.jobs.tables": "parquet",
    "mbrace.models.causal": "models",
    "mbrace.models.mbr_generate": "models",
    "mbrace.models.seq2seq": "models",
    "mbrace.servers.embeddings": "neural,serve",
    "mbrace.servers.judge": "serve",
    "mbrace.servers.server": "serve",
    "mbrace.cross.bleurt": "neural",
    "mbrace.cross.metricx": "neural",
    "mbrace.cross.xcomet": "neural",
    "mbrace.neural.bertscore": "neural",
    "mbrace.neural.comet": "neural",
    "mbrace.neural.embedding": "neural",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        return _submodule(name)
    from mbrace.errors import require

    module = _MODULES[name]
    value = globals()[name] = getattr(require(module, extra=_EXTRAS.get(module, "")), name)
    return value


def _submodule(name: str) -> Any:
    """Import a submodule on first use: `mbrace.prune` works without `import mbrace.prune`."""
    from importlib import import_module
    from importlib.util import find_spec

    if name.startswith("__") or find_spec(f"mbrace.{name}") is None:
        renamed = "; it is called XCOMET now" if name == "Unified" else ""
        raise AttributeError(
            f"module 'mbrace' has no attribute {name!r}{renamed}", name=name, obj=sys.modules[__name__]
        )
    return import_module(f"mbrace.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
