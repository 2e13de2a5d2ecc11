"""Writing so that a kill, a power cut or a full disk leaves the old bytes or the new ones, never a mixture.

A whole file is written aside, synced and renamed; a line is appended in one write and synced. What a killed writer
leaves behind is a name that starts with `.tmp-`, or a last line without its newline: both are recognised and removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

ASIDE = ".tmp-"  # what starts with this was never finished

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


def replace_file(path: Path, data: bytes) -> None:
    """The file with these bytes, on disk when this returns. A failure leaves what stood there before."""
    aside = path.with_name(ASIDE + path.name)
    try:
        write_file(aside, data)
        os.rename(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
    sync_directory(path.parent)


def write_file(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, line: bytes) -> None:
    """One more line at the end of an existing file, on disk when this returns. A torn last line is cut off first."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        end = _end_of_whole_lines(descriptor)
        os.ftruncate(descriptor, end)
        try:
            _write_all(descriptor, line)
        except OSError:
            os.ftruncate(descriptor, end)
            raise
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def usual_mode() -> int:
    """The permissions that a new file gets from the umask. safetensors writes for the owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable: a rename is not on disk before its directory is."""
    sync_file(path)


def remove_asides(directory: Path) -> None:
    """Removes what a killed writer left unfinished. Call it only while nobody writes there."""
    for path in sorted(directory.glob(ASIDE + "*")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def reason(error: OSError) -> str:
    """What went wrong, and the fix where the error number gives it away."""
    text = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return f"{text}; free some disk space or raise the quota"
    if error.errno in _NO_PERMISSION:
        return f"{text}; choose a directory you may write to"
    return text


def reason_unread(error: OSError) -> str:
    """As `reason`, of what was to be read."""
    text = error.strerror or str(error)
    return f"{text}; make it readable for this user" if error.errno in _NO_PERMISSION else text


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _end_of_whole_lines(descriptor: int) -> int:
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    return os.pread(descriptor, size, 0).rfind(b"\n") + 1
