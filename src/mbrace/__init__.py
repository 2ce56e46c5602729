"""Minimum Bayes risk decoding that races: `decode` for a sentence, `decode_corpus` for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mbrace.decode import decode, decode_corpus
from mbrace.errors import UserError, require
from mbrace.prune import Bottom, Confidence, Standings
from mbrace.race import Candidate, Decoded, Step
from mbrace.records import Record
from mbrace.schedule import doubling
from mbrace.utilities.chrf import ChrF
from mbrace.utility import Pairwise, Utility

if TYPE_CHECKING:
    from mbrace.models.causal import CausalLM as CausalLM
    from mbrace.models.seq2seq import Seq2Seq as Seq2Seq
    from mbrace.servers.server import Server as Server
    from mbrace.utilities.neural.comet import Comet as Comet
    from mbrace.utilities.neural.embedding import Embedding as Embedding
    from mbrace.utilities.neural.learned import Learned as Learned

__version__ = "0.1.0"

__all__ = [
    "Bottom",
    "Candidate",
    "ChrF",
    "Confidence",
    "Decoded",
    "Pairwise",
    "Record",
    "Standings",
    "Step",
    "UserError",
    "Utility",
    "decode",
    "decode_corpus",
    "doubling",
]

# Names that need an extra: the module each is in, and the extra. Imported when first used, so the core stays light.
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
