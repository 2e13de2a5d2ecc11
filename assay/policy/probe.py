"""A first look at a model: does it give finite logits of the next token, without looking ahead?"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.policy.causal import CausalPolicy


def vocabulary_of(policy: CausalPolicy) -> int:
    """The size of the vocabulary, from a look at two rows that differ in their second token."""
    with torch.no_grad():
        output = policy.model(torch.tensor([[0, 0], [0, 1]], device=policy.device))
    logits_22V = getattr(output, "logits", output)
    if not isinstance(logits_22V, Tensor) or logits_22V.dim() != 3 or logits_22V.shape[:2] != (2, 2):
        got = list(logits_22V.shape) if isinstance(logits_22V, Tensor) else f"a {type(logits_22V).__name__}"
        raise ValueError(
            f"for token ids [2, 2] the model returned {got}; it must return logits [2, 2, vocabulary], or an object "
            "with .logits"
        )
    if not logits_22V.isfinite().all():
        raise ValueError("the model's logits are not finite before any training; look for NaN in its weights")
    # rounding may differ between rows, a look ahead changes much more
    tolerance = torch.finfo(logits_22V.dtype).eps ** 0.5 * float(logits_22V.abs().max())
    if float((logits_22V[0, 0] - logits_22V[1, 0]).abs().max()) > tolerance:
        raise ValueError(
            "the model is not causal: its output at one token depends on the next one, so it would be trained to "
            "predict what it can see; give it a causal mask"
        )
    vocabulary = logits_22V.shape[2]
    if not 0 <= policy.eos_id < vocabulary:
        raise ValueError(f"eos_id = {policy.eos_id} can never be sampled: the model knows tokens 0 to {vocabulary - 1}")
    return vocabulary
