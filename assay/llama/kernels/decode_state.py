"""Where the decoding kernels find a slot's numbers and the memory of a run.

Both are tensors on the device, so that a captured CUDA graph stays valid when slots change and when the caches lie
elsewhere than last time: a slot's numbers are a row of state_LF (int32), the addresses and sizes are places (int64).

Shape legend: L slots, F fields of a slot.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton.language as tl

# fields of a slot
FIELDS = tl.constexpr(8)
TOKEN = tl.constexpr(0)  # the next input
DONE = tl.constexpr(1)  # tokens sampled so far, which is also where the next input goes in the slot's own cache
BEFORE = tl.constexpr(2)  # tokens of the prompt without its last one
PROMPT_ROW = tl.constexpr(3)
OWN_ROW = tl.constexpr(4)
ROLLOUT = tl.constexpr(5)  # row in the table of random numbers; -1: the slot is idle
COLUMN = tl.constexpr(6)  # where the next sampled token is written down

# numbers of a run; caches are [layer, keys or values, row, key head, token, width]
PLACES = tl.constexpr(16)
OWN_CACHE = tl.constexpr(0)  # address
OWN_ROWS = tl.constexpr(1)
OWN_TOKENS = tl.constexpr(2)  # the limit of sampled tokens
PROMPT_CACHE = tl.constexpr(3)  # address
PROMPT_ROWS = tl.constexpr(4)
PROMPT_TOKENS = tl.constexpr(5)
ROTATIONS = tl.constexpr(6)  # address of float32 [position, cosines then sines]
UNIFORMS = tl.constexpr(7)  # address of float32 [rollout, token]
UNIFORMS_TOKENS = tl.constexpr(8)
WRITTEN_TOKENS = tl.constexpr(9)  # address of int32 [column, 2, slot]: sampled tokens, and their log-probs as float32
WRITTEN_SLOTS = tl.constexpr(10)


@cache
def launch(device: torch.device, warps: int, stages: int = 1) -> dict[str, Any]:
    """How a kernel is launched: from Hopper on while the one before still runs, which it then waits for by itself."""
    dependent = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    options = {"DEPENDENT": dependent, "num_warps": warps, "num_stages": stages}
    return options | {"launch_pdl": True} if dependent else options
