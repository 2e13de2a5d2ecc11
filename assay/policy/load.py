"""model.path -> CausalPolicy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from assay.config import Config, ConfigError
from assay.policy.causal import CausalPolicy, TokenizerCodec
from assay.policy.embedded import embedded_directory


def load_policy(config: Config, on_warm_step: Callable[[int, int], None]) -> CausalPolicy:
    """The policy of the [model] section; the embedded one is made first if need be."""
    if config.run.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("run.device = 'cuda', but torch sees no GPU; set run.device = 'cpu'")
    transformers_logging.disable_progress_bar()  # it would tear the stage log
    if config.model.path == "embedded":
        directory = embedded_directory(config.model.warm_steps, on_warm_step)
    else:
        directory = Path(config.model.path)
        if not (directory / "config.json").is_file():
            raise ConfigError(
                f"model.path = {config.model.path!r} is not a Hugging Face model directory (no config.json)"
            )
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, config.model.dtype))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer in {directory} names no EOS token, so no completion could ever end")
    model.to(config.run.device)
    return CausalPolicy(model, TokenizerCodec(tokenizer), tokenizer.eos_token_id, config.rollout.temperature)
