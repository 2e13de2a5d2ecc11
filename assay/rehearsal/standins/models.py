"""Models and tokenizers by name: a small checkpoint of the same family on disk, loaded by the real from_pretrained.

Everything else stays real: configurations, tokenizers, dtypes, generation settings, the script's own readers of files.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from assay.rehearsal.checkpoint import ASKED, ask_for, copied, get
from assay.rehearsal.problems import Formats, formats_of
from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.families import family_of, is_known
from assay.rehearsal.standins.own_code import add_scores, scoring_methods

_FILES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "adapter_config.json", "generation_config.json",
    "preprocessor_config.json", "vocab.json", "tokenizer.model",
)  # fmt: skip
_ON_A_DEVICE = ("device_map", "max_memory", "offload_folder", "offload_state_dict")
_QUANTIZED = ("quantization_config", "load_in_4bit", "load_in_8bit")
_AT_THE_HUB = (
    "token",
    "use_auth_token",
    "resume_download",
    "revision",
    "cache_dir",
    "force_download",
    "local_files_only",
)
_FLASH = ("flash_attention_2", "flash_attention_3")
_MOST_SOURCES = 60
_MOST_EARLY = 2
_MOST_COPIED = 12 * 768**2  # the small GPT-2
_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # of a model at the hub
_FIFTH = re.compile(r"transformers\s*(?:[=~>]=|=|@\D*)\s*[\"'^v]*5")


def install(stage: Stage) -> None:
    os.environ.setdefault(
        "ONEDNN_MAX_CPU_ISA", "AVX2"
    )  # bfloat16 is right everywhere; wider kernels crash on some CPUs
    models = Checkpoints(stage)
    models.begin()
    stage.when_imported("transformers.configuration_utils", lambda module: _wrap(module, "PretrainedConfig", models))
    stage.when_imported("transformers.modeling_utils", functools.partial(_install_models, models))
    stage.when_imported("transformers.tokenization_utils_base", functools.partial(_install_tokenizers, models))
    stage.when_imported("transformers.models.auto.auto_factory", functools.partial(_install_auto_models, models))
    for module, name in (
        ("transformers.models.auto.configuration_auto", "AutoConfig"),
        ("transformers.models.auto.tokenization_auto", "AutoTokenizer"),
        ("transformers.models.auto.processing_auto", "AutoProcessor"),
        ("transformers.generation.configuration_utils", "GenerationConfig"),
    ):
        stage.when_imported(module, functools.partial(_wrap, name=name, models=models))
    stage.when_imported("transformers", _add_optimizer_of_old)
    stage.when_imported("huggingface_hub", functools.partial(_install_hub, models))


class Checkpoints:
    """Which folder stands in for a name."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._formats: Formats | None = None
        self._scoring: set[str] | None = None

    def scoring(self) -> set[str]:
        if self._scoring is None:
            self._scoring = scoring_methods(sources_of(self.stage))
        return self._scoring

    def formats(self) -> Formats:
        if self._formats is None:
            self._formats = formats_of(constants_of(sources_of(self.stage)))
        return self._formats

    def begin(self) -> None:
        """Has the models that the script names made while it imports its libraries."""
        if not (self.stage.home / ASKED).is_dir() or not self.stage.script.is_file():
            return
        try:
            tree = ast.parse(self.stage.script.read_text(errors="replace"))
        except (SyntaxError, ValueError):
            return
        named = (text for text in constants_of(iter([tree])) if _NAME.fullmatch(text) and is_known(text))
        for name in list(dict.fromkeys(named))[:_MOST_EARLY]:
            ask_for(name, self.formats(), self.stage.home)

    def folder(self, name: object) -> Any:
        """What from_pretrained is given: the same, if it is there; else a stand-in."""
        if not isinstance(name, (str, os.PathLike)) or is_checkpoint(path := Path(name).expanduser()) or path.is_file():
            return name
        return str(self.made(os.fspath(name)))

    def made(self, name: str, folder: Path | None = None) -> Path:
        checkpoint = get(name, self.formats(), self.stage.home)
        inside = re.sub(r"[^\w.-]+", "/", name).strip("/.") or "model"
        family = family_of(name)
        what = f"{family.model_type} of 0.1 M parameters"
        by = f"a random {what} that scores texts" if family.labels else f"a {what}, trained for seconds on sums"
        self.stage.replaced("weights", name, by)
        self.stage.replaced("sizes", name, by)
        return copied(checkpoint, folder or self.stage.home / "models" / inside)


def is_checkpoint(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in _FILES)


def sources_of(stage: Stage) -> Iterator[ast.Module]:
    """The script and the Python files beside and below it."""
    beside = sorted(stage.script.parent.rglob("*.py"))[:_MOST_SOURCES]
    for path in dict.fromkeys([stage.script, *beside]):
        try:
            yield ast.parse(path.read_text(errors="replace"))
        except (SyntaxError, ValueError, OSError):
            continue


def constants_of(sources: Iterator[ast.Module]) -> Iterator[str]:
    for tree in sources:
        notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
                yield node.value


def _wrap(module: ModuleType, name: str, models: Checkpoints) -> None:
    _replace(getattr(module, name), models, lambda given: None)


def _replace(owner: Any, models: Checkpoints, adapt: Callable[[dict[str, Any]], None]) -> None:
    """owner.from_pretrained gets a folder in place of a name, and `adapt` changes its settings."""
    original = owner.__dict__["from_pretrained"]
    function = original.__func__

    @functools.wraps(function)
    def from_pretrained(*args: Any, **settings: Any) -> Any:
        first = 1 if isinstance(original, classmethod) else 0
        given = list(args)
        if given and (expected := _expected_sizes(sys._getframe(1), getattr(given[0], "__name__", ""))):
            return _of_sizes(models.stage, given, expected)
        named = next(
            (key for key in ("pretrained_model_name_or_path", "pretrained_model_name") if key in settings), None
        )
        if len(given) > first:
            given[first] = models.folder(given[first])
        elif named is not None:
            settings[named] = models.folder(settings[named])
        for setting in _AT_THE_HUB:
            settings.pop(setting, None)
        adapt(settings)
        has_own_code = bool(settings.get("trust_remote_code"))
        made = function(*given, **settings)
        if has_own_code:
            add_scores(models.stage, made, models.scoring())
        return made

    owner.from_pretrained = type(original)(from_pretrained)


def _expected_sizes(frame: FrameType | None, kind: str) -> dict[str, int] | None:
    """Of a GPT-2 whose weights the calling function copies into a network of its own: it holds the sizes of that."""
    if frame is None or not kind.startswith("GPT2"):
        return None
    wanted = ("n_layer", "n_head", "n_embd", "vocab_size", "block_size")
    for held in frame.f_locals.values():
        found = held if isinstance(held, dict) else getattr(held, "__dict__", {})
        sizes = {name: found[name] for name in wanted if isinstance(found.get(name), int)}
        if len(sizes) == len(wanted) and sizes["n_layer"] * sizes["n_embd"] ** 2 <= _MOST_COPIED:
            return sizes
    return None


def _of_sizes(stage: Stage, given: list[Any], sizes: dict[str, int]) -> Any:
    kind, name = given[0], given[1] if len(given) > 1 else "gpt2"
    settings = {key: sizes[key] for key in ("n_layer", "n_head", "n_embd", "vocab_size")}
    with stage.unseen():
        model = kind(kind.config_class(**settings, n_positions=sizes["block_size"]))
    stage.replaced("weights", name, "random weights of the sizes that the script copies")
    return model.eval()


def _install_models(models: Checkpoints, module: ModuleType) -> None:
    _replace(module.PreTrainedModel, models, functools.partial(_fit, models.stage))


def _install_auto_models(models: Checkpoints, module: ModuleType) -> None:
    _replace(module._BaseAutoModelClass, models, functools.partial(_fit, models.stage))


def _fit(stage: Stage, settings: dict[str, Any]) -> None:
    """Settings of a model that need a GPU or a library; and the default dtype that the script was written for."""
    for name in _ON_A_DEVICE:
        if settings.pop(name, None) is not None:
            stage.replaced("device", name, "the CPU")
    for name in _QUANTIZED:
        if settings.pop(name, None):
            stage.replaced("weights", name, "weights that are not quantized")
    for name in ("attn_implementation", "_attn_implementation"):
        if settings.get(name) in _FLASH:
            stage.replaced("device", settings.pop(name), "scaled_dot_product_attention")
    settings.pop("use_flash_attention_2", None)
    if "torch_dtype" in settings and "dtype" not in settings:
        settings["dtype"] = settings.pop("torch_dtype")
    if "dtype" not in settings and stage.is_asked_by_script() and not is_for_fifth(stage):
        settings["dtype"] = "float32"


def is_for_fifth(stage: Stage) -> bool:
    """Whether the script's project asks for transformers 5, whose defaults differ."""
    return _asks_for_fifth(stage.script)


@functools.cache
def _asks_for_fifth(script: Path) -> bool:
    for folder in list(script.resolve().parents)[:4]:
        for name in ("requirements.txt", "pyproject.toml", "setup.py", "environment.yml"):
            path = folder / name
            if path.is_file() and _FIFTH.search(path.read_text(errors="replace")):
                return True
        if (folder / ".git").exists():
            break
    return False


def _install_tokenizers(models: Checkpoints, module: ModuleType) -> None:
    base = module.PreTrainedTokenizerBase
    _replace(base, models, lambda given: None)
    stage = models.stage
    if is_for_fifth(stage):
        return
    apply = base.apply_chat_template

    @functools.wraps(apply)
    def apply_chat_template(self: Any, *args: Any, **settings: Any) -> Any:
        if settings.get("tokenize", True) and "return_dict" not in settings and stage.is_asked_by_script():
            settings["return_dict"] = False
        return apply(self, *args, **settings)

    base.apply_chat_template = apply_chat_template
    for name in ("batch_encode_plus", "encode_plus"):
        if not hasattr(base, name):
            setattr(base, name, _encode_plus)


def _encode_plus(self: Any, *texts: Any, **settings: Any) -> Any:
    if settings.pop("pad_to_max_length", False):
        settings["padding"] = "max_length"
    pairs = settings.pop("batch_text_or_text_pairs", None)
    return self(*texts, **settings) if pairs is None else self(pairs, **settings)


def _add_optimizer_of_old(module: ModuleType) -> None:
    """transformers 4 had an AdamW."""
    module = sys.modules[module.__name__]  # transformers puts another in its place
    if hasattr(module, "AdamW"):
        return
    from torch.optim import AdamW

    def make(params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-6, **settings: Any) -> AdamW:
        return AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=settings.get("weight_decay", 0.0))

    module.AdamW = make  # type: ignore[attr-defined]


def _install_hub(models: Checkpoints, module: ModuleType) -> None:
    """Downloads of models are copies of a stand-in; files that it has not are not there."""
    stage = models.stage

    def snapshot_download(
        repo_id: str, *args: Any, local_dir: Any = None, repo_type: Any = None, **settings: Any
    ) -> str:
        if repo_type == "dataset":
            raise FileNotFoundError(f"{repo_id}: a rehearsal has no network")
        return str(models.made(repo_id, Path(local_dir) if local_dir else None))

    def hf_hub_download(repo_id: str, filename: str, *args: Any, local_dir: Any = None, **settings: Any) -> str:
        if settings.get("repo_type") == "dataset":
            from assay.rehearsal.standins.data import write_rows

            path = (Path(local_dir) if local_dir else stage.home / "data" / repo_id) / filename
            write_rows(stage, path, f"{repo_id}/{filename}")
            return str(path)
        path = models.made(repo_id, Path(local_dir) if local_dir else None) / filename
        if not path.exists():
            raise module.errors.EntryNotFoundError(f"{filename} is not among the files of the stand-in of {repo_id}")
        return str(path)

    for name, stand_in in (("snapshot_download", snapshot_download), ("hf_hub_download", hf_hub_download)):
        setattr(module, name, _for_script(stage, getattr(module, name), stand_in))
    for name in ("login", "notebook_login"):
        setattr(module, name, _without_effect(stage, f"huggingface_hub.{name}"))


def _for_script(stage: Stage, original: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **settings: Any) -> Any:
        return (stand_in if stage.is_asked_by_script() else original)(*args, **settings)

    return call


def _without_effect(stage: Stage, name: str) -> Callable[..., None]:
    def call(*args: Any, **settings: Any) -> None:
        stage.replaced("service", name, "nothing")

    return call
