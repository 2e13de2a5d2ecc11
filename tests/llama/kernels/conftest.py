"""Without a CUDA device the kernels are interpreted, which must be said before any test file imports triton."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
