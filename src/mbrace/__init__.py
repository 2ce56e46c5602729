"""Minimum Bayes risk decoding that races: `decode` for a sentence, `decode_corpus` for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mbrace._native import Tally
from mbrace.decode import decode, decode_corpus
from mbrace.decoded import Candidate, Decoded, Phases, Step
from mbrace.errors import RecordError, ServiceError, UserError, require
from mbrace.methods import AggregateReferences, AggregateToFine, CentroidReferences, LowRank, Method
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
from mbrace.rerank import rerank, rerank_corpus
from mbrace.sampler import Drawer, Draws, Sampler, Want
from mbrace.schedule import Schedule, doubling
from mbrace.utilities.chrf import ChrF
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

if TYPE_CHECKING:
    from mbrace.jobs.decode import decode_file
    from mbrace.jobs.export import export_file
    from mbrace.jobs.generate import generate_file
    from mbrace.jobs.rerank import rerank_file
    from mbrace.jobs.run import Summary
    from mbrace.jobs.tables import TableDecoder, decode_table, table_records
    from mbrace.jobs.translate import translate_file
    from mbrace.models.causal import CausalLM
    from mbrace.models.hypotheses import CandidateModel
    from mbrace.models.mbr_generate import mbr_generate
    from mbrace.models.seq2seq import Seq2Seq
    from mbrace.servers.embeddings import EmbeddingServer
    from mbrace.servers.judge import Judge
    from mbrace.servers.server import Server
    from mbrace.utilities.bleu import BLEU
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

# Names outside the core: the module of each and the extra it needs. Imported when first used: the core stays light.
_EXTRAS: dict[str, tuple[str, str]] = {
    "BERTScore": ("mbrace.utilities.neural.bertscore", "neural"),
    "BLEU": ("mbrace.utilities.bleu", ""),
    "BLEURT": ("mbrace.utilities.cross.bleurt", "neural"),
    "CandidateModel": ("mbrace.models.hypotheses", ""),
    "CausalLM": ("mbrace.models.causal", "models"),
    "Comet": ("mbrace.utilities.neural.comet", "neural"),
    "EditDistance": ("mbrace.utilities.edit_distance", ""),
    "Embedding": ("mbrace.utilities.neural.embedding", "neural"),
    "EmbeddingServer": ("mbrace.servers.embeddings", "models"),
    "ExactMatch": ("mbrace.utilities.exact_match", ""),
    "Judge": ("mbrace.servers.judge", "models"),
    "Learned": ("mbrace.utilities.neural.learned", "minilm"),
    "MetricX": ("mbrace.utilities.cross.metricx", "neural"),
    "Mixture": ("mbrace.utilities.mixture", ""),
    "Referenceless": ("mbrace.utilities.neural.referenceless", "neural"),
    "Replay": ("mbrace.utilities.replay", ""),
    "RougeL": ("mbrace.utilities.rouge_l", ""),
    "Seq2Seq": ("mbrace.models.seq2seq", "models"),
    "Server": ("mbrace.servers.server", "models"),
    "StoredTable": ("mbrace.utilities.replay", ""),
    "Summary": ("mbrace.jobs.run", ""),
    "TableDecoder": ("mbrace.jobs.tables", "parquet"),
    "TER": ("mbrace.utilities.ter", ""),
    "Unified": ("mbrace.utilities.cross.unified", "neural"),
    "decode_file": ("mbrace.jobs.decode", ""),
    "decode_table": ("mbrace.jobs.tables", "parquet"),
    "export_file": ("mbrace.jobs.export", ""),
    "generate_file": ("mbrace.jobs.generate", ""),
    "load_function": ("mbrace.utilities.functions", ""),
    "mbr_generate": ("mbrace.models.mbr_generate", "models"),
    "rerank_file": ("mbrace.jobs.rerank", ""),
    "table_records": ("mbrace.jobs.tables", "parquet"),
    "translate_file": ("mbrace.jobs.translate", ""),
}


def __getattr__(name: str) -> Any:
    if name in _EXTRAS:
        module, extra = _EXTRAS[name]
        return getattr(require(module, extra=extra), name)
    raise AttributeError(f"module 'mbrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_EXTRAS]
