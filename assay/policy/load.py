"""model.path -> CausalPolicy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from assay.config import Config, ConfigError
from assay.policy.causal import CausalPolicy, TokenizerCodec
from assay.policy.embedded import embedded_directory
from assay.policy.probe import vocabulary_of


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
                f"model.path = {config.model.path!r} is not a Hugging Face model directory on this machine (no "
                "config.json in it); nothing is downloaded"
            )
    try:
        # a model's own code is never run, and weights are never unpickled
        model, loading = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=getattr(torch, config.model.dtype),
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"the model in {directory} cannot be loaded: {type(error).__name__}: {reason}") from error
    if loading["missing_keys"]:
        missing = ", ".join(sorted(loading["missing_keys"])[:3])
        raise ConfigError(f"the model in {directory} lacks weights ({missing}): they would start at random")
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer in {directory} names no EOS token, so no completion could ever end")
    model.to(config.run.device)
    policy = CausalPolicy(model, TokenizerCodec(tokenizer), tokenizer.eos_token_id, config.rollout.temperature)
    try:
        vocabulary = vocabulary_of(policy)
    except ValueError as error:
        raise ConfigError(f"the model in {directory} cannot be trained: {error}") from error
    if len(tokenizer) > vocabulary:
        raise ConfigError(
            f"the tokenizer in {directory} has {len(tokenizer)} tokens, but the model knows only {vocabulary}; they do "
            "not belong together"
        )
    return policy
