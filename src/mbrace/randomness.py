"""Random numbers that depend on (seed, record id, purpose) alone: not on batches, threads, workers or corpus order."""

from __future__ import annotations

import hashlib

import numpy as np


def key(seed: int, record_id: str | int, purpose: str) -> int:
    """A 64-bit number for this seed, record and purpose. Ids 7 and "7" are different records."""
    name = f"{seed}\0{type(record_id).__name__}\0{record_id}\0{purpose}"
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def generator(seed: int, record_id: str | int, purpose: str) -> np.random.Generator:
    """A NumPy generator seeded with `key`."""
    return np.random.Generator(np.random.PCG64(key(seed, record_id, purpose)))
