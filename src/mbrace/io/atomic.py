"""Files that are written whole or not at all, even after a crash; locks; what POSIX and Windows do differently."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import TypeAlias

from mbrace.errors import UserError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

AnyPath: TypeAlias = "str | os.PathLike[str]"
TEMPORARY = ".mbrace-tmp"  # the suffix of incomplete files, which users' files do not have
# For every os.open: the file is not inherited by processes that we start, and on Windows is not opened as text.
OPEN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
OPEN_OWN = OPEN | getattr(os, "O_NOFOLLOW", 0)  # for a file whose name we made: a link there is somebody else's


@contextlib.contextmanager
def replacing(path: AnyPath, *, shared: bool = False, durable: bool = True) -> Iterator[str]:
    """A temporary path to write to; at the end of the block, what is there becomes `path` in one step.

    After an error the temporary file is deleted, and `path` is as before. A symbolic link is replaced itself: where a
    user named the path, give what it leads to. `shared` allows several processes to write the same path at once: each
    has a temporary file of its own. What is not `durable` is whole when the process is killed, but perhaps not when the
    power fails.
    """
    temporary = f"{os.fspath(path)}{f'.{os.getpid()}' if shared else ''}{TEMPORARY}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # of a run that was killed, or a link
    try:
        yield temporary
        if durable:
            with open(temporary, "rb+") as file:  # Windows syncs only files that are open for writing
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def replace_file(path: AnyPath, data: bytes, *, shared: bool = False, durable: bool = True) -> None:
    """Write `data` as the whole file."""
    with replacing(path, shared=shared, durable=durable) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | OPEN_OWN, 0o666)
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)


def give_usual_mode(path: AnyPath) -> None:
    """Give a file that a library made readable for its owner only the mode that the umask allows."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)


def write_file(path: str, data: bytes) -> None:
    """Write a file whole or not at all, or a device such as /dev/stdout; an error names it."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as device:
                device.write(data)
        else:
            replace_file(os.path.realpath(path), data)
    except OSError as error:
        remedy = (
            "free disk space, or give another file"
            if error.errno == errno.ENOSPC
            else "give a file that can be written"
        )
        raise UserError(f"{path}: {error.strerror}; {remedy}") from error


def make_folder(path: AnyPath) -> None:
    """Make a folder for output if it does not exist; refuse one that cannot be made or written."""
    try:
        os.makedirs(path, exist_ok=True)
        reason = None if os.access(path, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)
    except FileExistsError:
        reason = os.strerror(errno.ENOTDIR)
    except OSError as error:
        reason = error.strerror
    if reason:
        raise UserError(f"{path}: {reason}; give an output folder that can be written")


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte (a system call may take fewer)."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


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


def lock(descriptor: int, path: str) -> None:
    """Refuse a second run on the same output. The system releases the lock when the process ends, however it ends."""
    try:
        lock_exclusively(descriptor)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise UserError(f"{path}: another mbrace run is writing it; wait for it, or give another output") from None
        # a file system without locks: continue without one


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


def open_folder(path: AnyPath) -> int:
    """A descriptor for locking a folder: the folder's own or, on Windows, which cannot open folders, a file's in it."""
    if os.name == "nt":
        return os.open(os.path.join(path, ".lock"), os.O_RDWR | os.O_CREAT | OPEN_OWN, 0o666)
    return os.open(path, os.O_RDONLY | OPEN)
