"""Minimum Bayes risk decoding that races: `decode` for a sentence, `decode_corpus` for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mbrace._native import Tally
from mbrace.decode import decode, decode_corpus
from mbrace.errors import RecordError, UserError, require
from mbrace.prune import (
    Bottom,
    Confidence,
    PruningFunction,
    Standings,
    WindowPruning,
    WindowStandings,
)
from mbrace.race import Candidate, Decoded, Phases, Step, Watch
from mbrace.records import Location, Record
from mbrace.sampler import Drawer, Draws, Sampler, Want
from mbrace.schedule import Schedule, doubling
from mbrace.utilities.chrf import ChrF
from mbrace.utility import (
    Ask,
    BatchFunction,
    CorpusUtility,
    PairFunction,
    Pairwise,
    ParallelUtility,
    Scorer,
    Sentence,
    TruncatingUtility,
    Utility,
)

if TYPE_CHECKING:
    from mbrace.models.causal import CausalLM
    from mbrace.models.seq2seq import Seq2Seq
    from mbrace.servers.server import Server
    from mbrace.utilities.neural.comet import Comet
    from mbrace.utilities.neural.embedding import Embedding
    from mbrace.utilities.neural.learned import Learned

__version__ = "0.1.0"

__all__ = [
    "Ask",
    "BatchFunction",
    "Bottom",
    "Candidate",
    "CausalLM",
    "ChrF",
    "Comet",
    "Confidence",
    "CorpusUtility",
    "Decoded",
    "Drawer",
    "Draws",
    "Embedding",
    "Learned",
    "Location",
    "PairFunction",
    "Pairwise",
    "ParallelUtility",
    "Phases",
    "PruningFunction",
    "Record",
    "RecordError",
    "Sampler",
    "Schedule",
    "Scorer",
    "Sentence",
    "Seq2Seq",
    "Server",
    "Standings",
    "Step",
    "Tally",
    "TruncatingUtility",
    "UserError",
    "Utility",
    "Want",
    "Watch",
    "WindowPruning",
    "WindowStandings",
    "decode",
    "decode_corpus",
    "doubling",
]

# Names that need an extra: the module and the extra of each. Imported when first used, so the core stays light.
_EXTRAS: dict[str, tuple[str, str]] = {
    "CausalLM": ("mbrace.models.causal", "models"),
    "Comet": ("mbrace.utilities.neural.comet", "neural"),
    "Embedding": ("mbrace.utilities.neural.embedding", "neural"),
    "Learned": ("mbrace.utilities.neural.learned", "minilm"),
    "Seq2Seq": ("mbrace.models.seq2seq", "models"),
    "Server": ("mbrace.servers.server", "models"),
}


def __getattr__(name: str) -> Any:
    if name in _EXTRAS:
        module, extra = _EXTRAS[name]
        return getattr(require(module, extra=extra), name)
    raise AttributeError(f"module 'mbrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_EXTRAS]
