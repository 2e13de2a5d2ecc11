"""A model directory -> (model, tokenizer), or one sentence that names the file, the field where it is found, a fix.

    check_directory --> check_counts --> config --> generation config --> tokenizer --> check_total --> weights

The libraries fail over a wrong value wherever they first use it. So the parts are read one after the other, each error
is that of one file, and the field of it that is at fault is found by leaving fields out.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from assay.config import ConfigError
from assay.foreign.directory import CONFIG, GENERATION, TOKENIZER, ModelFiles, check_directory, read_object
from assay.foreign.faults import is_fault, is_memory, reason, translate_faults
from assay.foreign.sizes import check_counts, check_total, settings_in

MOST_FIELDS = 100  # that are left out by turns
TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")


def read_model(
    directory: Path, kind: Any, *, dtype: torch.dtype, what: str, trust_remote_code: bool, **how: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """(model, tokenizer, what transformers says about missing weights). `kind` is a class such as AutoModelForCausalLM.

    Weights are never unpickled, and a model's own code is run only if that was asked for. `how` goes to transformers.
    """
    transformers_logging.disable_progress_bar()  # it would tear the stage log
    with translate_faults(lambda error: f"{what} cannot be loaded: {reason(error)}"):
        files = check_directory(directory, what)
    check_counts(files.config, files.shapes, what, CONFIG)
    if not trust_remote_code:
        _refuse_kernels(files)
    how["trust_remote_code"] = trust_remote_code

    def read_config(place: Path) -> Any:
        return AutoConfig.from_pretrained(place, **how)

    def build(place: Path) -> Any:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            return kind.from_config(read_config(place), trust_remote_code=trust_remote_code)

    def read_tokenizer(place: Path) -> Any:
        tokenizer = AutoTokenizer.from_pretrained(place, **how)
        for special in (False, True):  # some settings are looked at when a text is
            tokenizer.decode(tokenizer.encode("Assay", add_special_tokens=special), skip_special_tokens=False)
        return tokenizer

    _part(files, (CONFIG,), read_config)
    if (directory / GENERATION).is_file():
        _part(files, (GENERATION,), GenerationConfig.from_pretrained)
    tokenizer = _part(files, TOKENIZER_SETTINGS, read_tokenizer)
    check_total(_part(files, (CONFIG,), build), files.config, files.shapes, what, CONFIG)
    with translate_faults(lambda error: _unfit_weights(files, build, error)):
        model, loading = kind.from_pretrained(
            directory, dtype=dtype, use_safetensors=True, output_loading_info=True, **how
        )
    return model, tokenizer, loading


def trial_of(model: Any) -> Callable[[Path], None]:
    """What `explain_fault` repeats to find the setting with which such a model cannot compute: a forward pass."""

    def attempt(place: Path) -> None:
        with torch.device("meta"), torch.random.fork_rng(devices=[]), torch.no_grad():
            built = type(model)(AutoConfig.from_pretrained(place, local_files_only=True))
            built(torch.zeros(2, 2, dtype=torch.long))

    return attempt


def explain_fault(
    directory: Path, names: Sequence[str], attempt: Callable[[Path], object], error: BaseException
) -> str:
    """The error as a part of a sentence: the file, the field without which `attempt` succeeds, and the fix."""
    if is_memory(error):
        return reason(error)
    if "trust_remote_code" in str(error):  # in whatever sentence transformers asks for it
        return (
            f"{names[0]} names Python code of its own (auto_map), which is not run; a policy's code is run with "
            "model.trust_remote_code = true, if you have read it, and a judge's never"
        )
    fix = "correct it, or put the model's own file back"
    if TOKENIZER_SETTINGS[0] in names and (fault := _fault_of_tokenizer(directory / TOKENIZER)):
        return f"{TOKENIZER}: {fault}; {fix}"
    for name in names:
        settings = read_object(directory / name, "") if (directory / name).is_file() else {}
        field = "" if "auto_map" in settings else _field_at_fault(directory, name, settings, attempt)
        if field:
            value = json.dumps(settings[field])
            shown = value if len(value) <= 60 else f"{value[:60]}..."
            return f"{name}: {field} = {shown}: {reason(error)}; {fix}"
    numbers = read_object(directory / names[0], "").items() if (directory / names[0]).is_file() else ()
    below = [
        f"{field} = {value}" for field, value in numbers if isinstance(value, int) and value is not False and value < 1
    ]
    return f"{names[0]}{f' ({below[0]})' if below else ''}: {reason(error)}; {fix}"


def _part(files: ModelFiles, names: Sequence[str], attempt: Callable[[Path], Any]) -> Any:
    """What `attempt` reads of the directory, out of the files `names`."""

    def sentence(error: BaseException) -> str:
        return f"{files.what} cannot be loaded: {explain_fault(files.directory, names, attempt, error)}"

    with translate_faults(sentence):
        return attempt(files.directory)


def _fault_of_tokenizer(file: Path) -> str:
    """What is wrong with tokenizer.json by itself; "" if nothing is, or there is none."""
    if file.is_file():
        try:
            Tokenizer.from_file(str(file))
        except BaseException as error:
            if is_fault(error):
                return reason(error)
            raise
    return ""


def _field_at_fault(directory: Path, name: str, settings: dict[str, Any], attempt: Callable[[Path], object]) -> str:
    with tempfile.TemporaryDirectory() as copy:
        place = Path(copy)
        for entry in directory.iterdir():
            if entry.name != name:
                (place / entry.name).symlink_to(entry.resolve())
        for field in list(settings)[:MOST_FIELDS]:
            (place / name).write_text(json.dumps({key: value for key, value in settings.items() if key != field}))
            if _succeeds(attempt, place):
                return field
    return ""


def _succeeds(attempt: Callable[[Path], object], place: Path) -> bool:
    try:
        attempt(place)
    except BaseException as error:
        if is_fault(error):
            return False
        raise
    return True


def _refuse_kernels(files: ModelFiles) -> None:
    """A name with a slash is a repository on the hub, whose code would be fetched and run."""
    for name, value in settings_in(files.config):
        if name in KERNELS and "/" in str(value):
            raise ConfigError(
                f"{files.what} cannot be loaded: {CONFIG} asks for {name} = {str(value)[:60]!r}, code from the hub; "
                "remove the field, or set model.trust_remote_code = true if you have read that code"
            )


def _unfit_weights(files: ModelFiles, build: Callable[[Path], Any], error: BaseException) -> str:
    """Names the first tensor whose shape is not the one that the config asks for, if that is the reason."""
    if is_memory(error):
        return f"{files.what} cannot be loaded: {reason(error)}"
    expected = build(files.directory).state_dict()
    for name, shape in files.shapes.items():
        if name in expected and tuple(expected[name].shape) != shape:
            return (
                f"{files.what} cannot be loaded: {name} has shape {list(shape)} in the weights, but {CONFIG} asks for "
                f"{list(expected[name].shape)}; the two do not belong together"
            )
    source = f"{CONFIG}: quantization_config: " if files.config.get("quantization_config") is not None else ""
    return f"{files.what} cannot be loaded: {source}{reason(error)}"
