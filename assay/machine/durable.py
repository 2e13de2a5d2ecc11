"""Writing so that a kill, a power cut or a full disk leaves the old bytes or the new ones, never a mixture.

A whole file is written aside, synced and renamed; a line is appended in one write and synced. What a killed writer
leaves behind is a name that starts with `.tmp-`, or a last line without its newline: both are recognised and removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import uuid
from pathlib import Path

ASIDE = ".tmp-"  # what starts with this was never finished
ASIDE_DIRECTORY = r"(trash-)?[0-9a-f]{32}"  # of a directory: what stands behind ASIDE

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
_LINK = errno.ELOOP  # where links are not followed


def replace_file(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """The file with these bytes, on disk when this returns. A failure leaves what stood there before.

    `mode` are its permissions; None: those of a new file."""
    aside = path.with_name(ASIDE + path.name)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)  # a leftover may be a link or a pipe: never write through it
        write_file(aside, data)
        if mode is not None:
            os.chmod(aside, mode)
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


def append_line(path: Path, line: bytes, *, sync: bool = True) -> int:
    """One more line at the end of an existing file, with `sync` on disk when this returns. A torn last line is cut off
    first.

    Returns the offset of the line. A link is not followed: what it leads to may be somebody's file."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _require_regular(descriptor, path)
        end = _end_of_whole_lines(descriptor)
        os.ftruncate(descriptor, end)
        try:
            _write_all(descriptor, line)
        except OSError:
            os.ftruncate(descriptor, end)
            raise
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return end


def open_regular(path: Path) -> int:
    """A descriptor to read a regular file from. A pipe would wait for ever, a device might never end: OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _not_regular(path) from error
        raise
    try:
        _require_regular(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path) -> bytes:
    with open(open_regular(path), "rb") as stream:
        return stream.read()


def require_regular(path: Path) -> None:
    """For a reader that opens the file itself."""
    os.close(open_regular(path))


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


def new_aside(target: Path) -> Path:
    """A name beside `target` under which a directory is written before it is renamed."""
    return target.with_name(f"{ASIDE}{uuid.uuid4().hex}")


def remove_directory(path: Path) -> None:
    """Removes a directory under another name, so that a kill leaves no half of it under its own. Of a link only the
    link goes."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    trash = path.with_name(f"{ASIDE}trash-{uuid.uuid4().hex}")
    os.rename(path, trash)
    shutil.rmtree(trash)


def remove_asides(directory: Path, names: str) -> None:
    """Removes what a killed writer left unfinished of the names that match the pattern `names`; what else is hidden
    there is not ours. Call it only while nobody writes there."""
    for path in sorted(directory.glob(ASIDE + "*")):
        if not re.fullmatch(names, path.name.removeprefix(ASIDE)):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def encodable(text: str) -> str:
    r"""Text that every UTF-8 reader accepts: a lone surrogate becomes its escape, everything else stays, NUL included.

    >>> encodable("a\ud800b")
    'a\\ud800b'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def reason(error: OSError) -> str:
    """What went wrong, and the fix where the error number gives it away."""
    text = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return f"{text}; free some disk space or raise the quota"
    if error.errno in _NO_PERMISSION:
        return f"{text}; choose a directory you may write to"
    if error.errno == _LINK:
        return "it is a link, which is not written through; put the file itself in its place"
    return text


def reason_unread(error: OSError) -> str:
    """As `reason`, of what was to be read."""
    text = error.strerror or str(error)
    return f"{text}; make it readable for this user" if error.errno in _NO_PERMISSION else text


def _require_regular(descriptor: int, path: Path) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    if not stat.S_ISREG(mode):
        raise _not_regular(path)


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a regular file", str(path))


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _end_of_whole_lines(descriptor: int) -> int:
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    return os.pread(descriptor, size, 0).rfind(b"\n") + 1
