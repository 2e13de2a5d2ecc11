"""What the rehearsed script must not do: write outside of its copy, reach the network, fill memory, disk or processes.

Called in the child before the script begins. Each wall is as good as the platform allows: on Linux Landlock, and
namespaces of network, processes and mounts; limits of resources everywhere, and a guard in Python's sockets.
Landlock alone lets a process change modes and times of files, and before version 6 kill other processes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MOST_FILE_BYTES = 2 * 2**30
MOST_PROCESSES = 256  # more than the user already has

_NEW_USER, _NEW_NETWORK, _NEW_MOUNTS, _NEW_PROCESSES, _NEW_IPC = (
    0x10000000, 0x40000000, 0x00020000, 0x20000000, 0x08000000
)  # fmt: skip
_PARENT_DEATH_SIGNAL, _NO_NEW_PRIVILEGES = 1, 38
_BIND, _NO_SUID_NO_DEVICES_NO_EXEC = 4096, 2 | 4 | 8
_SET_MOUNT_ATTRIBUTES, _READ_ONLY, _RECURSIVE, _HERE = 442, 1, 0x8000, -100
_CAPABILITIES_VERSION = 0x20080522
_SHARED_MEMORY = "size=2g,mode=1777"
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same number on every Linux
_WRITES = (1 << 1) | sum(1 << bit for bit in range(4, 13))  # write a file, remove, make anything
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # from version 2 and 3 of Landlock on
_NO_SIGNALS_OUT, _NO_ABSTRACT_SOCKETS_OUT = 2, 1  # from version 6 on
_LOCAL = ("127.", "::1", "localhost", "0.0.0.0", "::ffff:127.")


def limit_resources(memory: int) -> None:
    """`memory` in bytes."""
    _limit(resource.RLIMIT_DATA, memory)
    _limit(resource.RLIMIT_FSIZE, MOST_FILE_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    if hasattr(resource, "RLIMIT_NPROC"):
        _limit(resource.RLIMIT_NPROC, _threads_of_user() + MOST_PROCESSES)


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, hard))


def _threads_of_user() -> int:
    """The limit counts all of them, in and out of the sandbox."""
    count, mine = 0, os.getuid()
    for process in Path("/proc").glob("[0-9]*") if os.path.isdir("/proc/self") else ():
        try:
            if process.stat().st_uid == mine:
                count += len(os.listdir(process / "task"))
        except OSError:  # it has ended meanwhile
            continue
    return count or 4096


def end_with_parent() -> None:
    """If the process that waits for this one is killed, so is this one. Other platforms have no such thing."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def write_only_below(folders: Sequence[str]) -> bool:
    """Whether the kernel now refuses to write anywhere else (Landlock); devices such as /dev/null stay open."""
    if platform.system() != "Linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return False
    handled = _WRITES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    packed = struct.pack("=Q", handled)
    if version >= 6:
        packed = struct.pack("=QQQ", handled, 0, _NO_SIGNALS_OUT | _NO_ABSTRACT_SOCKETS_OUT)
    attributes = ctypes.create_string_buffer(packed, len(packed))
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(packed)), 0)
    if ruleset < 0:
        return False
    try:
        for folder in (*folders, "/dev", "/proc/self"):
            place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            rule = ctypes.create_string_buffer(struct.pack("=Qi", handled, place))
            libc.syscall(_ADD_RULE, ruleset, 1, rule, 0)
            os.close(place)
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def own_namespaces(folder: str) -> list[str]:
    """Puts this process into a network, processes and mounts of its own, of which only `folder` can be written, and
    returns in words what it got. Before any thread starts.

    The process that returns is a fork, the first of its process namespace: when it ends, the kernel ends all that it
    started. The original waits for it, passes signals on and ends as it does.
    """
    if platform.system() != "Linux":
        return []
    libc = ctypes.CDLL(None, use_errno=True)
    user, group, sockets = os.getuid(), os.getgid(), _named_sockets()
    if libc.unshare(_NEW_USER | _NEW_NETWORK) != 0:
        return []
    walls = ["a network of its own"]
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _switch_on_loopback()
    except OSError:  # a platform that maps no users: it is out of the network all the same
        return walls
    has_mounts = libc.unshare(_NEW_MOUNTS) == 0 and _make_read_only(libc, folder)
    if libc.unshare(_NEW_PROCESSES | _NEW_IPC) == 0:
        walls.append("processes of its own")
        _continue_in_fork()
    if has_mounts:
        walls.append("the rest of the file system read-only")
        _cover_mounts(libc, sockets)
    _drop_capabilities(libc)
    return walls


def _named_sockets() -> list[str]:
    """Files that other programs listen at, as Docker and SSH agents do: they would act for the script outside."""
    try:
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]
    except OSError:
        return []
    places = {line.split(maxsplit=7)[7] for line in lines if len(line.split(maxsplit=7)) == 8}
    return sorted(place for place in places if place.startswith("/"))


def _make_read_only(libc: Any, folder: str) -> bool:
    """Every mount but that of the folder. Modes and times of files cannot be changed then, either."""
    place = os.fsencode(folder)
    if libc.mount(place, place, None, _BIND, None) != 0:
        return False
    forbid, allow = struct.pack("=QQQQ", _READ_ONLY, 0, 0, 0), struct.pack("=QQQQ", 0, _READ_ONLY, 0, 0)
    size = ctypes.c_size_t(len(forbid))
    if libc.syscall(_SET_MOUNT_ATTRIBUTES, _HERE, b"/", _RECURSIVE, forbid, size) != 0:
        return False
    if libc.syscall(_SET_MOUNT_ATTRIBUTES, _HERE, place, 0, allow, size) != 0:
        raise OSError(ctypes.get_errno(), f"{folder} cannot be made writable again")
    os.chdir(os.getcwd())  # into the new mount, where this is below the folder
    return True


def _cover_mounts(libc: Any, sockets: Sequence[str]) -> None:
    """What is mounted over: the list of processes, shared memory, and sockets of other programs. Each may fail, as in a
    container that hides parts of /proc: then the script sees it, and still cannot write there."""
    libc.mount(b"proc", b"/proc", b"proc", _NO_SUID_NO_DEVICES_NO_EXEC, None)
    libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", _NO_SUID_NO_DEVICES_NO_EXEC, _SHARED_MEMORY.encode())
    for place in sockets:
        libc.mount(b"/dev/null", os.fsencode(place), None, _BIND, None)


def _continue_in_fork() -> None:
    """Returns in the fork; this process becomes the one that waits for it."""
    fork = os.fork()
    if fork == 0:
        return
    end_with_parent()
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(fork, number))
    code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def _drop_capabilities(libc: Any) -> None:
    """A process that made its namespaces may change them: not the script."""
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.capset(header, bytes(24))


def _switch_on_loopback() -> None:
    """A new network has one that is off; servers and clients of one script meet there."""
    import fcntl

    get_flags, set_flags, is_up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(control, get_flags, asked))[1]
        fcntl.ioctl(control, set_flags, struct.pack("16sH14x", b"lo", flags | is_up))


def guard_sockets() -> None:
    """Connections to other machines, and questions for their names, are refused at once and in words."""
    connect, connect_ex, look_up = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def is_local(address: Any) -> bool:
        return not isinstance(address, tuple) or str(address[0]).startswith(_LOCAL) or address[0] in ("", None)

    def guarded(self: socket.socket, address: Any) -> None:
        if not is_local(address):
            raise OSError(errno.ENETUNREACH, f"a rehearsal has no network: {address[0]}")
        connect(self, address)

    def guarded_ex(self: socket.socket, address: Any) -> int:
        return connect_ex(self, address) if is_local(address) else errno.ENETUNREACH

    def guarded_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        if name and not str(name).startswith(_LOCAL) and name != socket.gethostname():
            raise socket.gaierror(socket.EAI_NONAME, f"a rehearsal has no network: {name}")
        return look_up("127.0.0.1" if name and name == socket.gethostname() else host, *args, **kwargs)

    socket.socket.connect = guarded  # type: ignore[method-assign, assignment]
    socket.socket.connect_ex = guarded_ex  # type: ignore[method-assign, assignment]
    socket.getaddrinfo = guarded_look_up
