"""The sizes that a config claims beside those of its weight files: a model that does not fit them is not built.

    config.json + the headers of the weight files --> counts (layers, experts) --> a model without memory --> its size

Building a model of 10,000,000 layers takes hours, and one of a billion columns all memory, before anybody could notice
that the weights are those of another model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from assay.config import ConfigError

Shapes = Mapping[str, tuple[int, ...]]

LAYERS = re.compile(r"(num_hidden_layers|num_layers|n_layers?|(en|de)coder_layers|block_count)$")
COUNTS = re.compile(r"layer|expert|head|block|depth|label|stage")  # in names of settings for which parts are made
EXTENTS = re.compile(r"size|dim|inner|embd|d_model|d_ff|positions|ctx|length")
FEW_LAYERS, FEW = 256, 4096  # parts that are made in a few seconds; some models use one layer's weights in many
LOOSE, LOOSE_IF_PACKED = 2, 16  # how many numbers a model may have for each one in its files: tied or packed weights
SMALL = 2**24  # numbers that are not worth a refusal: buffers of a small model may outnumber its weights


def check_counts(settings: Mapping[str, Any], shapes: Shapes, what: str, source: str) -> None:
    """Refuses a number of layers, or of other parts, that the weights cannot have. `source` is the file it is from."""
    layers = _layers(shapes)
    most = max(_widest(shapes), layers, FEW)
    for name, value in _numbers(settings):
        if LAYERS.search(name) and value > max(layers, FEW_LAYERS):
            raise ConfigError(
                f"{what} cannot be loaded: {source} says {name} = {value}, but the weights are those of {layers} "
                "layers; the two do not belong together"
            )
        if COUNTS.search(name) and value > most:
            raise ConfigError(
                f"{what} cannot be loaded: {source} says {name} = {value}, more than the weights can have; correct it"
            )


def check_total(model: Any, settings: Mapping[str, Any], shapes: Shapes, what: str, source: str) -> None:
    """Refuses a model, built without memory, that is far larger than its weights."""
    held = sum(math.prod(shape) for shape in shapes.values())
    total = sum(tensor.numel() for tensors in (model.parameters(), model.buffers()) for tensor in tensors)
    loose = LOOSE_IF_PACKED if settings.get("quantization_config") else LOOSE
    if total <= loose * held + SMALL:
        return
    widest = _widest(shapes)
    suspects = [f"{name} = {value}" for name, value in _numbers(settings) if EXTENTS.search(name) and value > widest]
    named = f" ({', '.join(suspects[:3])})" if suspects else ""
    raise ConfigError(
        f"{what} cannot be loaded: {source} describes a model of {total:,} numbers{named}, but its weights have "
        f"{held:,}; the two do not belong together"
    )


def _layers(shapes: Shapes) -> int:
    """One more than the largest number in the name of a tensor: model.layers.29.mlp.up_proj.weight."""
    numbers = [part for name in shapes for part in name.split(".") if part.isascii() and part.isdigit()]
    return 1 + max((int(number[:9]) for number in numbers), default=-1)


def _widest(shapes: Shapes) -> int:
    return max((size for shape in shapes.values() for size in shape), default=0)


def settings_in(settings: Mapping[str, Any], depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Each setting with its name; models of several parts (text_config, ...) have them in nested tables."""
    for name, value in settings.items():
        yield str(name), value
        if isinstance(value, Mapping) and depth:
            yield from settings_in(value, depth - 1)


def _numbers(settings: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [(name, value) for name, value in settings_in(settings) if isinstance(value, int)]
