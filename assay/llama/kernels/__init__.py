"""Triton kernels for CUDA devices. Nothing here is imported unless such a device computes (or a test interprets)."""
