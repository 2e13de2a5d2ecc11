"""The fast path of the Llama family: its layers read as plain parameters, packed forward, decoders, kernels."""
