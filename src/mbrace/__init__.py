"""Minimum Bayes risk decoding that races: `decode` for a sentence, `decode_corpus` for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as `_NAMES` below, for type checkers and editors
    from mbrace._native import Tally as Tally
    from mbrace.result import Candidate as Candidate, Decoded as Decoded, Phases as Phases, Step as Step
    from mbrace.answers import Answer as Answer, Prompt as Prompt
    from mbrace.api import decode as decode, decode_corpus as decode_corpus
    from mbrace.errors import RecordError as RecordError, ServiceError as ServiceError, UserError as UserError
    from mbrace.jobs.answer import answer_file as answer_file
    from mbrace.jobs.decode import decode_file as decode_file
    from mbrace.jobs.export import export_file as export_file
    from mbrace.jobs.generate import generate_file as generate_file
    from mbrace.jobs.rerank import rerank_file as rerank_file
    from mbrace.jobs.run import Summary as Summary
    from mbrace.jobs.tables import (
        TableDecoder as TableDecoder,
        decode_table as decode_table,
        table_records as table_records,
    )
    from mbrace.jobs.translate import translate_file as translate_file
    from mbrace.method_names import Method as Method
    from mbrace.methods import (
        AggregateReferences as AggregateReferences,
        CentroidReferences as CentroidReferences,
        LowRank as LowRank,
    )
    from mbrace.models.causal import CausalLM as CausalLM
    from mbrace.models.hypotheses import CandidateModel as CandidateModel
    from mbrace.models.mbr_generate import mbr_generate as mbr_generate
    from mbrace.models.seq2seq import Seq2Seq as Seq2Seq
    from mbrace.pairwise import BatchFunction as BatchFunction, PairFunction as PairFunction, Pairwise as Pairwise
    from mbrace.prune import (
        Bottom as Bottom,
        Confidence as Confidence,
        Halving as Halving,
        PruningFunction as PruningFunction,
        RaceState as RaceState,
        SelfScheduled as SelfScheduled,
        Standings as Standings,
        WindowPruning as WindowPruning,
        WindowStandings as WindowStandings,
    )
    from mbrace.race import Watch as Watch
    from mbrace.records import Location as Location, Record as Record
    from mbrace.reranking import rerank as rerank, rerank_corpus as rerank_corpus
    from mbrace.sampler import Drawer as Drawer, Draws as Draws, Sampler as Sampler, Want as Want
    from mbrace.schedule import Schedule as Schedule, doubling as doubling
    from mbrace.servers.embeddings import EmbeddingServer as EmbeddingServer
    from mbrace.servers.judge import Judge as Judge
    from mbrace.servers.server import Server as Server
    from mbrace.metrics.bleu import BLEU as BLEU
    from mbrace.metrics.chrf import ChrF as ChrF
    from mbrace.cross.bleurt import BLEURT as BLEURT
    from mbrace.cross.metricx import MetricX as MetricX
    from mbrace.cross.xcomet import XCOMET as XCOMET
    from mbrace.metrics.edit_distance import EditDistance as EditDistance
    from mbrace.metrics.exact_match import ExactMatch as ExactMatch
    from mbrace.utilities.functions import load_function as load_function
    from mbrace.utilities.mixture import Mixture as Mixture
    from mbrace.neural.bertscore import BERTScore as BERTScore
    from mbrace.neural.comet import Comet as Comet, Learned as Learned, Referenceless as Referenceless
    from mbrace.neural.embedding import Embedding as Embedding
    from mbrace.utilities.replay import Replay as Replay, StoredTable as StoredTable
    from mbrace.metrics.rouge_l import RougeL as RougeL
    from mbrace.metrics.ter import TER as TER
    from mbrace.utility import (
        AggregatingUtility as AggregatingUtility,
        Ask as Ask,
        CentroidUtility as CentroidUtility,
        CorpusUtility as CorpusUtility,
        Cost as Cost,
        MeteredUtility as MeteredUtility,
        ParallelUtility as ParallelUtility,
        QualityUtility as QualityUtility,
        Scorer as Scorer,
        SelfScaledUtility as SelfScaledUtility,
        Sentence as Sentence,
        TruncatingUtility as TruncatingUtility,
        Utility as Utility,
    )
    from mbrace.utility_table import UtilityTable as UtilityTable

__version__ = "0.1.0"

# The public names by module. A module is imported when one of its names is first used, so `import mbrace` takes almost
# no time, and the optional dependencies of unused modules need not be installed.
_NAMES = {
    "mbrace._native": "Tally",
    "mbrace.result": "Candidate Decoded Phases Step",
    "mbrace.answers": "Answer Prompt",
    "mbrace.api": "decode decode_corpus",
    "mbrace.errors": "RecordError ServiceError UserError",
    "mbrace.jobs.answer": "answer_file",
    "mbrace.jobs.decode": "decode_file",
    "mbrace.jobs.export": "export_file",
    "mbrace.jobs.generate": "generate_file",
    "mbrace.jobs.rerank": "rerank_file",
    "mbrace.jobs.run": "Summary",
    "mbrace.jobs.tables": "TableDecoder decode_table table_records",
    "mbrace.jobs.translate": "translate_file",
    "mbrace.method_names": "Method",
    "mbrace.methods": "AggregateReferences CentroidReferences LowRank",
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
    "mbrace.metrics.bleu": "BLEU",
    "mbrace.metrics.chrf": "ChrF",
    "mbrace.cross.bleurt": "BLEURT",
    "mbrace.cross.metricx": "MetricX",
    "mbrace.cross.xcomet": "XCOMET",
    "mbrace.metrics.edit_distance": "EditDistance",
    "mbrace.metrics.exact_match": "ExactMatch",
    "mbrace.utilities.functions": "load_function",
    "mbrace.utilities.mixture": "Mixture",
    "mbrace.neural.bertscore": "BERTScore",
    "mbrace.neural.comet": "Comet Learned Referenceless",
    "mbrace.neural.embedding": "Embedding",
    "mbrace.utilities.replay": "Replay StoredTable",
    "mbrace.metrics.rouge_l": "RougeL",
    "mbrace.metrics.ter": "TER",
    "mbrace.utility": (
        "AggregatingUtility Ask CentroidUtility CorpusUtility Cost MeteredUtility ParallelUtility "
        "QualityUtility Scorer SelfScaledUtility Sentence TruncatingUtility Utility"
    ),
    "mbrace.utility_table": "UtilityTable",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)
# The extra of mbrace that each module needs.
_EXTRAS = {
    "mbrace.jobs.tables": "parquet",
    "mbrace.models.causal": "models",
    "mbrace.models.mbr_generate": "models",
    "mbrace.models.seq2seq": "models",
    "mbrace.servers.embeddings": "models",
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
        raise AttributeError(f"module 'mbrace' has no attribute {name!r}")
    return import_module(f"mbrace.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
