"""Packed output: a sequence of gzip members or xz streams with a fixed number of lines each, whatever the window.

The bytes are the same whenever and wherever they are made, and a file can be continued after its last complete member.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from mbrace.errors import UserError

LINES_PER_MEMBER = 64
SUFFIXES = (".gz", ".xz", ".bz2", ".zst", ".zip")
FIRST_BYTES = {"gz": b"\x1f\x8b", "xz": b"\xfd7zXZ\0"}


def pack(lines: Sequence[bytes], packing: str) -> bytes:
    """Lines as one gzip member ("gz") or xz stream ("xz")."""
    if packing == "xz":
        return lzma.compress(b"".join(lines))
    packer = zlib.compressobj(6, wbits=31)
    return packer.compress(b"".join(lines)) + packer.flush()


def pop_full_members(lines: list[bytes], packing: str) -> Iterator[bytes]:
    """Complete members packed from the first of `lines`, which are removed from there."""
    while len(lines) >= LINES_PER_MEMBER:
        yield pack(lines[:LINES_PER_MEMBER], packing)
        del lines[:LINES_PER_MEMBER]


def pack_all(lines: Sequence[bytes], packing: str) -> bytes:
    """A whole packed file: all members; an empty one if there are no lines."""
    rest = list(lines)
    packed = b"".join(pop_full_members(rest, packing))
    return packed + pack(rest, packing) if rest or not packed else packed


def unpacker(packing: str) -> Any:
    """Unpacks one gzip member or one xz stream, in pieces."""
    return zlib.decompressobj(wbits=31) if packing == "gz" else lzma.LZMADecompressor(lzma.FORMAT_XZ)


def check_packing(output: str, known: Sequence[str]) -> None:
    """Refuse an output name whose suffix promises a packing that is not one of the `known` suffixes."""
    if output.endswith(SUFFIXES) and not output.endswith(tuple(known)):
        names = f"{', '.join(known[:-1])} or {known[-1]}"
        raise UserError(
            f"{output}: this packing is not supported; give a name that ends in {names}, or in none of them"
        )
