"""What POSIX and Windows do differently with files: flags, locks, and reading at a position."""

from __future__ import annotations

import os
import sys

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# For every os.open: the file is not inherited by processes that we start, and on Windows is not opened as text.
OPEN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Up to `length` bytes from `offset` on; the file's position does not change."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, offset, os.SEEK_SET)
    try:
        return os.read(descriptor, length)
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)


def open_folder(path: str | os.PathLike[str]) -> int:
    """A descriptor for locking a folder: the folder's own or, on Windows, which cannot open folders, a file's in it."""
    if os.name == "nt":
        return os.open(os.path.join(path, ".lock"), os.O_RDWR | os.O_CREAT | OPEN, 0o666)
    return os.open(path, os.O_RDONLY | OPEN)


def lock_exclusively(descriptor: int) -> None:
    """Take a lock that ends with the process; OSError if another process has it, or there are no locks here."""
    if sys.platform == "win32":
        far = 1 << 40  # beyond the end of any file of ours: on Windows nobody can read a locked byte
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, far, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(descriptor, before, os.SEEK_SET)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
