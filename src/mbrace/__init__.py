"""Minimum Bayes risk decoding that races: `decode` for a sentence, `decode_corpus` for many."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mbrace.chrf import ChrF
from mbrace.decode import decode, decode_corpus
from mbrace.errors import UserError
from mbrace.prune import Bottom, Confidence, Standings
from mbrace.race import Candidate, Decoded, Step
from mbrace.records import Record
from mbrace.schedule import doubling
from mbrace.utility import Pairwise, Utility

if TYPE_CHECKING:
    from mbrace.models.causal import CausalLM as CausalLM
    from mbrace.models.seq2seq import Seq2Seq as Seq2Seq
    from mbrace.models.server import Server as Server

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

# Names that need an extra, and the module each is in: imported when first used, so the core stays light.
_EXTRAS: dict[str, str] = {
    "CausalLM": "mbrace.models.causal",
    "Comet": "mbrace.neural.comet",
    "Embedding": "mbrace.neural.embedding",
    "Learned": "mbrace.neural.learned",
    "Seq2Seq": "mbrace.models.seq2seq",
    "Server": "mbrace.models.server",
}


def __getattr__(name: str) -> Any:
    if name in _EXTRAS:
        try:
            return getattr(importlib.import_module(_EXTRAS[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] == "mbrace":
                raise
            raise UserError(f"{name} needs {error.name}; install it with: pip install 'mbrace[models]'") from error
    raise AttributeError(f"module 'mbrace' has no attribute {name!r}")
