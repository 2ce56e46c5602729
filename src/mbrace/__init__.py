"""Minimum Bayes risk decoding that races: `decode` for a sentence, `decode_corpus` for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mbrace._native import Tally
    from mbrace.decoded import Candidate, Decoded, Phases, Step
    from mbrace.decoding import decode, decode_corpus
    from mbrace.errors import RecordError, ServiceError, UserError
    from mbrace.jobs.decode import decode_file
    from mbrace.jobs.export import export_file
    from mbrace.jobs.generate import generate_file
    from mbrace.jobs.rerank import rerank_file
    from mbrace.jobs.run import Summary
    from mbrace.jobs.tables import TableDecoder, decode_table, table_records
    from mbrace.jobs.translate import translate_file
    from mbrace.method_names import Method
    from mbrace.methods import AggregateReferences, AggregateToFine, CentroidReferences, LowRank
    from mbrace.models.causal import CausalLM
    from mbrace.models.hypotheses import CandidateModel
    from mbrace.models.mbr_generate import mbr_generate
    from mbrace.models.seq2seq import Seq2Seq
    from mbrace.pairwise import BatchFunction, PairFunction, Pairwise
    from mbrace.prune import (
        Bottom,
        Confidence,
        Halving,
        PruningFunction,
        RaceState,
        SelfScheduled,
        Standings,
        WindowPruning,
        WindowStandings,
    )
    from mbrace.race import Watch
    from mbrace.records import Location, Record
    from mbrace.reranking import rerank, rerank_corpus
    from mbrace.sampler import Drawer, Draws, Sampler, Want
    from mbrace.schedule import Schedule, doubling
    from mbrace.servers.embeddings import EmbeddingServer
    from mbrace.servers.judge import Judge
    from mbrace.servers.server import Server
    from mbrace.utilities.bleu import BLEU
    from mbrace.utilities.chrf import ChrF
    from mbrace.utilities.cross.bleurt import BLEURT
    from mbrace.utilities.cross.metricx import MetricX
    from mbrace.utilities.cross.unified import Unified
    from mbrace.utilities.edit_distance import EditDistance
    from mbrace.utilities.exact_match import ExactMatch
    from mbrace.utilities.functions import load_function
    from mbrace.utilities.mixture import Mixture
    from mbrace.utilities.neural.bertscore import BERTScore
    from mbrace.utilities.neural.comet import Comet
    from mbrace.utilities.neural.embedding import Embedding
    from mbrace.utilities.neural.learned import Learned
    from mbrace.utilities.neural.referenceless import Referenceless
    from mbrace.utilities.replay import Replay, StoredTable
    from mbrace.utilities.rouge_l import RougeL
    from mbrace.utilities.ter import TER
    from mbrace.utility import (
        AggregatingUtility,
        Ask,
        CentroidUtility,
        CorpusUtility,
        Cost,
        EncodingUtility,
        MeteredUtility,
        ParallelUtility,
        QualityUtility,
        Scorer,
        SelfScaledUtility,
        Sentence,
        TruncatingUtility,
        Utility,
    )
    from mbrace.utility_table import UtilityTable

__version__ = "0.1.0"

__all__ = [
    "BLEU",
    "BLEURT",
    "TER",
    "AggregateReferences",
    "AggregateToFine",
    "AggregatingUtility",
    "Ask",
    "BERTScore",
    "BatchFunction",
    "Bottom",
    "Candidate",
    "CandidateModel",
    "CausalLM",
    "CentroidReferences",
    "CentroidUtility",
    "ChrF",
    "Comet",
    "Confidence",
    "CorpusUtility",
    "Cost",
    "Decoded",
    "Drawer",
    "Draws",
    "EditDistance",
    "Embedding",
    "EmbeddingServer",
    "EncodingUtility",
    "ExactMatch",
    "Halving",
    "Judge",
    "Learned",
    "Location",
    "LowRank",
    "MeteredUtility",
    "Method",
    "MetricX",
    "Mixture",
    "PairFunction",
    "Pairwise",
    "ParallelUtility",
    "Phases",
    "PruningFunction",
    "QualityUtility",
    "RaceState",
    "Record",
    "RecordError",
    "Referenceless",
    "Replay",
    "RougeL",
    "Sampler",
    "Schedule",
    "Scorer",
    "SelfScaledUtility",
    "SelfScheduled",
    "Sentence",
    "Seq2Seq",
    "Server",
    "ServiceError",
    "Standings",
    "Step",
    "StoredTable",
    "Summary",
    "TableDecoder",
    "Tally",
    "TruncatingUtility",
    "Unified",
    "UserError",
    "Utility",
    "UtilityTable",
    "Want",
    "Watch",
    "WindowPruning",
    "WindowStandings",
    "decode",
    "decode_corpus",
    "decode_file",
    "decode_table",
    "doubling",
    "export_file",
    "generate_file",
    "load_function",
    "mbr_generate",
    "rerank",
    "rerank_corpus",
    "rerank_file",
    "table_records",
    "translate_file",
]

# The module of each of them. It is imported when a name is first used: `import mbrace` takes next to no time, and what
# is not used need not be installed.
_NAMES = {
    "mbrace._native": "Tally",
    "mbrace.decoded": "Candidate Decoded Phases Step",
    "mbrace.decoding": "decode decode_corpus",
    "mbrace.errors": "RecordError ServiceError UserError",
    "mbrace.jobs.decode": "decode_file",
    "mbrace.jobs.export": "export_file",
    "mbrace.jobs.generate": "generate_file",
    "mbrace.jobs.rerank": "rerank_file",
    "mbrace.jobs.run": "Summary",
    "mbrace.jobs.tables": "TableDecoder decode_table table_records",
    "mbrace.jobs.translate": "translate_file",
    "mbrace.method_names": "Method",
    "mbrace.methods": "AggregateReferences AggregateToFine CentroidReferences LowRank",
    "mbrace.models.causal": "CausalLM",
    "mbrace.models.hypotheses": "CandidateModel",
    "mbrace.models.mbr_generate": "mbr_generate",
    "mbrace.models.seq2seq": "Seq2Seq",
    "mbrace.pairwise": "BatchFunction PairFunction Pairwise",
    "mbrace.prune": (
        "Bottom Confidence Halving PruningFunction RaceState SelfScheduled Standings WindowPruning WindowStandings"
    ),
    "mbrace.race": "Watch",
    "mbrace.records": "Location Record",
    "mbrace.reranking": "rerank rerank_corpus",
    "mbrace.sampler": "Drawer Draws Sampler Want",
    "mbrace.schedule": "Schedule doubling",
    "mbrace.servers.embeddings": "EmbeddingServer",
    "mbrace.servers.judge": "Judge",
    "mbrace.servers.server": "Server",
    "mbrace.utilities.bleu": "BLEU",
    "mbrace.utilities.chrf": "ChrF",
    "mbrace.utilities.cross.bleurt": "BLEURT",
    "mbrace.utilities.cross.metricx": "MetricX",
    "mbrace.utilities.cross.unified": "Unified",
    "mbrace.utilities.edit_distance": "EditDistance",
    "mbrace.utilities.exact_match": "ExactMatch",
    "mbrace.utilities.functions": "load_function",
    "mbrace.utilities.mixture": "Mixture",
    "mbrace.utilities.neural.bertscore": "BERTScore",
    "mbrace.utilities.neural.comet": "Comet",
    "mbrace.utilities.neural.embedding": "Embedding",
    "mbrace.utilities.neural.learned": "Learned",
    "mbrace.utilities.neural.referenceless": "Referenceless",
    "mbrace.utilities.replay": "Replay StoredTable",
    "mbrace.utilities.rouge_l": "RougeL",
    "mbrace.utilities.ter": "TER",
    "mbrace.utility": (
        "AggregatingUtility Ask CentroidUtility CorpusUtility Cost EncodingUtility MeteredUtility ParallelUtility "
        "QualityUtility Scorer SelfScaledUtility Sentence TruncatingUtility Utility"
    ),
    "mbrace.utility_table": "UtilityTable",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
# The extra of mbrace that a module needs.
_EXTRAS = {
    "mbrace.jobs.tables": "parquet",
    "mbrace.models.causal": "models",
    "mbrace.models.mbr_generate": "models",
    "mbrace.models.seq2seq": "models",
    "mbrace.servers.embeddings": "models",
    "mbrace.servers.judge": "models",
    "mbrace.servers.server": "models",
    "mbrace.utilities.cross.bleurt": "neural",
    "mbrace.utilities.cross.metricx": "neural",
    "mbrace.utilities.cross.unified": "neural",
    "mbrace.utilities.neural.bertscore": "neural",
    "mbrace.utilities.neural.comet": "neural",
    "mbrace.utilities.neural.embedding": "neural",
    "mbrace.utilities.neural.learned": "minilm",
    "mbrace.utilities.neural.referenceless": "neural",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        return _submodule(name)
    from mbrace.errors import require

    module = _MODULES[name]
    value = globals()[name] = getattr(require(module, extra=_EXTRAS.get(module, "")), name)
    return value


def _submodule(name: str) -> Any:
    """`mbrace.prune`, say, without an import of it."""
    from importlib import import_module
    from importlib.util import find_spec

    if name.startswith("__") or find_spec(f"mbrace.{name}") is None:
        raise AttributeError(f"module 'mbrace' has no attribute {name!r}")
    return import_module(f"mbrace.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
