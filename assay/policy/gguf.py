"""GGUF files: unpacked once into an ordinary Hugging Face directory, which loads in a second and can be saved again."""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay.config import ConfigError
from assay.policy.made import made_once


def unpacked(file: Path, say: Callable[[str], None]) -> Path:
    """The directory made of a GGUF file, from the cache if it was made before. Its weights are float32."""
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"{file.name} is a GGUF file, and reading it needs the package gguf; run: pip install gguf")
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()

    def make(directory: Path) -> None:
        say(f"unpacking {file.name}: once, about 20 s")
        try:
            with redirect_stderr(io.StringIO()):  # a progress bar of its own would tear ours
                tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
                model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        except (OSError, ValueError, LookupError, TypeError, RuntimeError, ArithmeticError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"{file} cannot be unpacked: {type(error).__name__}: {reason}") from error
        # the weights are plain numbers now; transformers still marks them as quantized and would refuse to save them
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)

    return made_once(f"gguf-{file.stem}-{digest[:12]}-{transformers.__version__}", make)
