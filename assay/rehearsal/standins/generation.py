"""generate() makes few tokens; everything else about it stays as the script asked.

A loop of the script's own cannot be cut from here: its model was trained to end after few tokens.
"""

from __future__ import annotations

import copy
import functools
from types import ModuleType
from typing import Any

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.models import is_for_fifth

_DEFAULT_LENGTH = 20  # of a generation config that says nothing


def install(stage: Stage) -> None:
    stage.when_imported("transformers.generation.utils", functools.partial(_install, stage))


def _install(stage: Stage, module: ModuleType) -> None:
    mixin = module.GenerationMixin
    original = mixin.generate

    @functools.wraps(original)
    def generate(self: Any, inputs: Any = None, generation_config: Any = None, *args: Any, **settings: Any) -> Any:
        is_own = generation_config is not None and generation_config is not getattr(self, "generation_config", None)
        if is_own and stage.is_asked_by_script() and not is_for_fifth(stage):
            generation_config = with_old_defaults(generation_config)
        width = prompt_width(inputs, settings)
        generation_config, settings = cut(
            generation_config, settings, getattr(self, "generation_config", None), width, stage
        )
        if generation_config is not None:
            settings["generation_config"] = generation_config
        made = original(self, inputs, *args, **settings) if inputs is not None else original(self, *args, **settings)
        stage.reached("sampled")
        return made

    mixin.generate = generate


# of a configuration of transformers 4: what it does not say is this, and not what the model's configuration says
_OLD_DEFAULTS = {
    "do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0, "num_beams": 1,
}  # fmt: skip


def with_old_defaults(config: Any) -> Any:
    config = copy.deepcopy(config)
    for name, value in _OLD_DEFAULTS.items():
        if getattr(config, name, None) is None:
            setattr(config, name, value)
    return config


def prompt_width(inputs: Any, settings: dict[str, Any]) -> int:
    ids = inputs if inputs is not None else settings.get("input_ids", settings.get("inputs_embeds"))
    shape: Any = getattr(ids, "shape", ())
    return int(shape[1]) if len(shape) >= 2 else 0


def cut(own: Any, settings: dict[str, Any], models: Any, width: int, stage: Stage) -> tuple[Any, dict[str, Any]]:
    """The generation config and the keywords with a shorter completion. `models` is the config of the model: it is in
    effect where neither of the two says anything."""
    settings = dict(settings)
    config = own if own is not None else models
    new, length = settings.get("max_new_tokens"), settings.get("max_length")
    if new is None and length is None and config is not None:
        new, length = getattr(config, "max_new_tokens", None), getattr(config, "max_length", None)
        if new is None and length is None and own is not None and models is not None:
            new, length = getattr(models, "max_new_tokens", None), getattr(models, "max_length", None)
    asked = int(new) if new is not None else int(length if length is not None else _DEFAULT_LENGTH) - width
    if asked <= stage.most_tokens:
        return own, settings
    stage.replaced("sizes", f"{asked} new tokens", f"{stage.most_tokens}")
    settings.pop("max_length", None)
    settings["max_new_tokens"] = stage.most_tokens
    if own is not None:
        own = copy.deepcopy(own)
        own.max_length, own.max_new_tokens = None, None
    for name, most in (("min_new_tokens", stage.most_tokens), ("min_length", width + stage.most_tokens)):
        least = settings.get(name)
        if least is not None and least > most:
            settings[name] = most
        least = getattr(own, name, None)
        if least is not None and least > most:
            setattr(own, name, most)
    return own, settings
