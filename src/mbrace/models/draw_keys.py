"""Random numbers that depend only on (seed, sentence, draw, time step), so that a draw is the same in any batch."""

from __future__ import annotations

from typing import Any

from mbrace.randomness import digest

# SplitMix64's constants, as signed 64-bit integers
GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15
FIRST = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
SECOND = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


def sentence_key(seed: int, sentence: str | int) -> int:
    """A signed 64-bit key for one sentence."""
    value = digest(sentence, seed=seed)
    return value - 2**64 if value >= 2**63 else value


def draw_keys(sentences: Any, draws: Any) -> Any:
    """Keys of the draws: int64 tensors of sentence keys and draw numbers, broadcast against each other."""
    return _mix(sentences + _mix(draws * GOLDEN + FIRST))


def uniforms(keys: Any, step: Any) -> Any:
    """One float64 in (0, 1) per key, for time step `step`, a number or an int64 tensor."""
    offset = (step + 1) * GOLDEN
    if isinstance(offset, int):
        offset = (offset + 2**63) % 2**64 - 2**63  # wraps around, as int64 products do
    bits = _mix(keys + offset)
    return (_shift(bits, 11).double() + 0.5) * 2.0**-53


def even_points(sentences: Any, draws: Any) -> Any:
    """One float64 in [0, 1) per draw, each alone uniform, the first n of a sentence spread evenly whatever n is.

    Point `draw` of van der Corput's sequence (the bits of its number, reversed), shifted by one random number per
    sentence.
    """
    reversed_bits = draws
    for bits, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        reversed_bits = ((reversed_bits & mask) << bits) | ((reversed_bits >> bits) & mask)
    return (reversed_bits.double() * 2.0**-32 + uniforms(sentences, -2)) % 1.0


def _mix(x: Any) -> Any:
    """SplitMix64's finaliser (Steele, Lea & Flood 2014) on int64 tensors, whose products wrap around."""
    x = (x ^ _shift(x, 30)) * FIRST
    x = (x ^ _shift(x, 27)) * SECOND
    return x ^ _shift(x, 31)


def _shift(x: Any, bits: int) -> Any:
    """Logical shift to the right; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
