"""Triton's kernels without a GPU: interpreted. To be imported before triton is."""

import importlib
import importlib.util
import os
import sys

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("on a GPU, python -m benchmarks.gpu_decode checks the kernels", allow_module_level=True)
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)
already = "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1"
assert not already, "triton was imported before it was told to interpret: set TRITON_INTERPRET=1"
os.environ["TRITON_INTERPRET"] = "1"

interpreter = importlib.import_module("triton.runtime.interpreter")

_patch = interpreter._patch_lang_tensor


def _patch_tensor(tensor, scope):
    """numpy 2.4 makes no integer of an array of one element any more, which the interpreter needs for loops."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_tensor
