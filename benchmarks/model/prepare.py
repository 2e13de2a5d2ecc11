"""The machine of a benchmark, and its one model as every contender gets it: the same files and dtype, no end token.

The end token that all of them are given is one past the vocabulary: no model can sample it, so every completion has the
length that was asked for, and nobody pays for suppressing anything.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from assay.config import ConfigError
from assay.config.sections import ModelConfig
from assay.policy.load import model_directory
from benchmarks.model.device import measured_limits, memory_of, name_of
from benchmarks.model.floors import Sizes
from benchmarks.model.options import NO_GPU, check_room
from benchmarks.model.reading import Machine
from benchmarks.model.shapes import SHAPES
from benchmarks.model.workload import PAD_ID, Workload
from benchmarks.process import cpu_model

SEED = 20_261_115


def prepare(model: str, device: str, dtype: str, threads: int, place: Path, longest: Workload) -> Machine:
    """Which device, which dtype, where the model is, and what the device can do at best."""
    torch.set_num_threads(threads)
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(NO_GPU)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" else "float32"
    where, number = torch.device(device), getattr(torch, dtype)
    if model in SHAPES:
        directory = place / "model"
        write_random(model, directory, where, number)
    else:
        directory = model_directory(ModelConfig(path=model), lambda done, total: None, lambda sentence: None)
    sizes = sizes_of(directory, number)
    check_room(sizes.context, longest)
    return Machine(
        device=device,
        device_name=name_of(where, cpu_model()),
        dtype=dtype,
        directory=str(directory),
        sizes=sizes,
        limits=measured_limits(where, number, threads),
        memory_bytes=memory_of(where),
        threads=threads,
    )


def write_random(shape: str, directory: Path, device: torch.device, dtype: torch.dtype) -> None:
    """A model of a named shape with random weights, as a Hugging Face directory."""
    settings = dict(SHAPES[shape])
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(SEED)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(directory)


def load_model(machine: Machine, dtype: str = "") -> Any:
    """The model in eval mode on its device; in another dtype than the benchmark's where a contender asks for one."""
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        machine.directory, dtype=getattr(torch, dtype or machine.dtype), attn_implementation="sdpa"
    )
    model.to(machine.device)
    # whatever the files suggest about sampling is not part of the benchmark
    model.generation_config = type(model.generation_config)(
        eos_token_id=machine.sizes.vocabulary, pad_token_id=PAD_ID, bos_token_id=None
    )
    return model.eval()


def tokenizer_of(vocabulary: int) -> PreTrainedTokenizerFast:
    """Token i is the word "i": what the text of a prompt becomes is known in advance, for any model."""
    words = {"<pad>": PAD_ID} | {str(token): token for token in range(PAD_ID + 1, vocabulary)} | {"<end>": vocabulary}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<end>", unk_token="<pad>", padding_side="left"
    )


def sizes_of(directory: Path, dtype: torch.dtype) -> Sizes:
    config = AutoConfig.from_pretrained(directory)
    text = config.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config))
    head = model.get_output_embeddings().weight
    looked_up = model.get_input_embeddings().weight
    everything = sum(parameter.numel() for parameter in model.parameters())
    tied = head is looked_up
    return Sizes(
        body=everything - head.numel() - (0 if tied else looked_up.numel()),
        head=head.numel(),
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_size=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        vocabulary=head.shape[0],
        context=text.max_position_embeddings,
        bytes_a_number=dtype.itemsize,
    )


def weights_sum(model: nn.Module) -> float:
    """Tells models apart; in float64, so that the dtype a contender keeps the same weights in does not show."""
    with torch.no_grad():
        return sum(float(parameter.abs().sum(dtype=torch.float64)) for parameter in model.parameters())
