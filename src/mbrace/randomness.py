"""Random numbers that depend on (seed, record id, purpose) alone: not on batches, threads, workers or corpus order."""

from __future__ import annotations

import hashlib

import numpy as np


def digest(record_id: str | int, *, seed: int | None = None, purpose: str | None = None) -> int:
    """A 64-bit hash of an id and, where given, a seed and a purpose; the same on every machine. 7 and "7" differ."""
    name = f"{type(record_id).__name__}\0{record_id}"
    if seed is not None:
        name = f"{seed}\0{name}"
    if purpose is not None:
        name = f"{name}\0{purpose}"
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def key(seed: int, record_id: str | int, purpose: str) -> int:
    """A 64-bit number for this seed, record and purpose."""
    return digest(record_id, seed=seed, purpose=purpose)


def generator(seed: int, record_id: str | int, purpose: str) -> np.random.Generator:
    """A NumPy generator seeded with `key`."""
    # Faster than PCG64(number), which makes the same SeedSequence
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key(seed, record_id, purpose))))
