"""GGUF files: unpacked once into an ordinary Hugging Face directory, which loads in a second and can be saved again."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from assay.config import ConfigError
from assay.foreign.faults import reason, translate_faults
from assay.foreign.gguf_header import read_header
from assay.foreign.sizes import check_counts, check_total
from assay.policy.made import make_once


def unpack_gguf(file: Path, say: Callable[[str], None]) -> Path:
    """The directory made of a GGUF file, from the cache if it was made before. Its weights are float32."""
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"{file.name} is a GGUF file, and reading it needs the package gguf; run: pip install gguf")
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()

    def make(directory: Path) -> None:
        say(f"unpacking {file.name}: once, about 20 s")
        with translate_faults(lambda error: f"{file} cannot be unpacked: {reason(error)}"):
            model, tokenizer = _read(file)
        # the weights are plain numbers now; transformers still marks them as quantized and would refuse to save them
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)

    return make_once(f"gguf-{file.stem}-{digest[:12]}-{transformers.__version__}", make)


def _read(file: Path) -> tuple[Any, Any]:
    header, source = read_header(file), "its metadata"
    check_counts(header.numbers, header.shapes, str(file), source)
    with tempfile.TemporaryDirectory() as place, redirect_stderr(io.StringIO()):  # a progress bar would tear ours
        (Path(place) / "model.gguf").symlink_to(file.resolve())  # alone: other files beside it would be read as well
        how = {"gguf_file": "model.gguf", "local_files_only": True}
        config = AutoConfig.from_pretrained(place, **how)
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(config)
        check_total(built, config.to_dict(), header.shapes, str(file), source)
        tokenizer = AutoTokenizer.from_pretrained(place, **how)
        return AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **how), tokenizer
