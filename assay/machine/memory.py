"""How many bytes a process may still take on a device."""

from __future__ import annotations

import os
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
UNKNOWN = 2**62  # then something else must set the limit


def free_bytes(device: torch.device) -> int:
    """On a CPU within the limits of the container; on a GPU with what torch holds unused and could give back."""
    if device.type != "cuda":
        return min(_free_in_the_machine(), _free_in_the_container())
    held = torch.cuda.memory_stats(device)
    # free parts of blocks that are partly in use are left out: nothing large may fit into them
    unused: int = sum(
        sign * held.get(f"{name}_bytes.all.current", 0)
        for name, sign in (("reserved", 1), ("allocated", -1), ("inactive_split", -1))
    )
    return torch.cuda.mem_get_info(device)[0] + unused


def _free_in_the_machine() -> int:
    """Caches of files count as free where the system says so."""
    if MEMINFO.is_file():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return UNKNOWN


def _free_in_the_container() -> int:
    limit, used = CGROUP / "memory.max", CGROUP / "memory.current"
    if limit.is_file() and used.is_file() and (most := limit.read_text().strip()).isdigit():
        return int(most) - int(used.read_text())
    return UNKNOWN
