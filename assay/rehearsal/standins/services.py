"""Services without effect on training: boards, uploads, keys, questions at the terminal."""

from __future__ import annotations

import builtins
import functools
import os
import re
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.distributed import environment_asked
from assay.rehearsal.standins.missing import inert, provide

_SECRET = re.compile(r"(TOKEN|KEY|SECRET|ENTITY|PROJECT|USER|USERNAME|PASSWORD)$")
_BOARDS = ("wandb", "swanlab", "trackio", "aim")


def install(stage: Stage) -> None:
    for name in environment_asked(stage.script):
        if _SECRET.search(name) and name not in os.environ:
            os.environ[name] = "rehearsal"
            stage.replaced("service", f"the variable {name}", "the word `rehearsal`")
    for name in _BOARDS:
        provide(name, functools.partial(_board, stage))
    stage.when_imported("wandb", functools.partial(_wandb, stage))
    stage.when_imported("trackio", functools.partial(_silent, stage, ("init", "log", "finish")))
    stage.when_imported("huggingface_hub", functools.partial(_hub, stage))
    stage.when_imported("transformers.utils.hub", functools.partial(_uploads, stage))
    stage.when_imported("getpass", functools.partial(_silent, stage, ("getpass",)))
    _patch_input(stage)


class _Config(dict[str, Any]):
    """wandb.config: what the script gave to init, as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self:
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def update(self, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("allow_val_change", None)
        super().update(*(dict(part) if hasattr(part, "keys") else vars(part) for part in args), **kwargs)


def _board(stage: Stage, module: Any) -> None:
    """Keeps the configuration that it is given; everything else is dropped."""
    config = _Config()

    def nothing(*args: Any, **kwargs: Any) -> None:
        pass

    class Run:
        id = name = project = "rehearsal"
        url, step = "", 0
        dir = "."

        def __init__(self) -> None:
            self.config, self.summary = config, _Config()

        def __enter__(self) -> Run:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return nothing

    def init(*args: Any, config: Any = None, **kwargs: Any) -> Run:
        if config is not None:
            module.config.update(config)
        made = module.run = Run()
        return made

    def agent(sweep: Any = None, function: Callable[[], Any] | None = None, **kwargs: Any) -> None:
        if function is not None:
            function()

    module.config, module.init, module.run, module.agent = config, init, None, agent
    module.summary = _Config()
    for name in "log finish login watch save define_metric alert log_artifact setup unwatch mark_preempting".split():
        setattr(module, name, nothing)
    module.sweep = lambda *args, **kwargs: "rehearsal"
    for name in "Table Histogram Image Video Html Artifact Text Audio Settings Plotly".split():
        setattr(module, name, lambda *args, **kwargs: inert("a thing to show"))


def _wandb(stage: Stage, module: Any) -> None:
    if getattr(module, "__file__", None) is None:
        return  # the stand-in
    init = module.init

    @functools.wraps(init)
    def offline(*args: Any, **kwargs: Any) -> Any:
        stage.replaced("service", "wandb", "nothing")
        return init(*args, **{**kwargs, "mode": "disabled"})

    module.init = offline
    module.login = lambda *args, **kwargs: True


def _silent(stage: Stage, names: tuple[str, ...], module: Any) -> None:
    for name in names:
        if hasattr(module, name):
            setattr(module, name, _for_script(stage, getattr(module, name), ""))


def _for_script(stage: Stage, real: Callable[..., Any], answer: Any) -> Callable[..., Any]:
    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        return answer if stage.is_asked_by_script() else real(*args, **kwargs)

    return call


def _hub(stage: Stage, module: Any) -> None:
    for name in "create_repo upload_folder upload_file upload_large_folder delete_repo create_commit".split():
        if hasattr(module, name):
            setattr(module, name, _for_script(stage, getattr(module, name), None))
        if hasattr(module.HfApi, name):
            setattr(module.HfApi, name, _for_script(stage, getattr(module.HfApi, name), None))
    user = {"name": "rehearsal", "orgs": []}
    module.whoami = _for_script(stage, module.whoami, user)
    module.HfApi.whoami = _for_script(stage, module.HfApi.whoami, user)
    if not hasattr(module, "HfFolder"):
        module.HfFolder = SimpleNamespace(get_token=lambda: None, save_token=lambda token: None)


def _uploads(stage: Stage, module: ModuleType) -> None:
    def push_to_hub(self: Any, *args: Any, **kwargs: Any) -> None:
        stage.replaced("service", "push_to_hub", "nothing")

    module.PushToHubMixin.push_to_hub = push_to_hub


def _patch_input(stage: Stage) -> None:
    def answer(prompt: object = "", /) -> str:
        stage.replaced("service", f"the answer to {str(prompt).strip()!r}", "an empty line")
        return ""

    builtins.input = answer
