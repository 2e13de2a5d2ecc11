"""Files that the script reads and that are missing: rows, checkpoints and folders of models are made where they can be.

A file that is there is read as it is. Folders that the script writes into are made.
"""

from __future__ import annotations

import ast
import builtins
import functools
import glob
import io
import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.downloads import is_of_weights

_OF_MODELS = (
    "config.json tokenizer.json tokenizer_config.json generation_config.json model.safetensors vocab.json merges.txt "
    "model.safetensors.index.json special_tokens_map.json"
).split()
_OF_ROWS = ("json", "jsonl", "csv", "tsv", "txt", "parquet")
_ENDS = ("raise", "exit", "quit", "error", "_exit", "abort")
_SETTINGS = re.compile(r"config|setting|param|hyper|args|meta|adapter|state", re.IGNORECASE)
_UNKNOWN = '{"made by": "assay rehearse"}'  # the text of a file of settings that is missing
_ADDED = re.compile(r"lora|adapter", re.IGNORECASE)  # weights beside those of a network, and their files
_OTHERS = re.compile(r"arg|conf|setting|hyper|meta|opt|sched|scaler|rng|tokenizer", re.IGNORECASE)  # beside weights
_INNER = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")  # parts of a function
_TOKENS = 20_000  # of a file of token ids
# settings that a checkpoint of an own format keeps beside its weights, by name
_KEPT: tuple[tuple[str, Any], ...] = (
    (r"rank|^r$", 8), (r"alpha", 16), (r"^scale", 2.0), (r"dropout", 0.0), (r"iter|step|epoch|round", 0),
    (r"loss|best", 1.0),
    (r"n_layer|num_(hidden_)?layers|depth", 2), (r"n_(kv_)?heads?|num_.*heads", 4), (r"n_embd|hidden|d_model|dim", 64),
    (r"block_size|max_(seq|pos|len)|context", 512), (r"vocab", 768), (r"^bias$", False),
)  # fmt: skip


def install(stage: Stage) -> None:
    files = Files(stage)
    _patch_open(files)
    _patch_questions(files)
    _patch_json()
    stage.when_imported("torch", functools.partial(_torch, files))
    stage.when_imported("safetensors.torch", functools.partial(_safetensors, files))
    stage.when_imported("tokenizers", functools.partial(_tokenizers, files))
    stage.when_imported("pickle", functools.partial(_pickle, files))


class Files:
    """Makes what is missing."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._pass = (sysconfig.get_paths()["stdlib"], str(Path(__file__).resolve().parents[2]), "<frozen")
        self._is_making = False
        self.as_json: set[str] = set()  # files whose ending says that they are pickled
        self.checkpoints = 0  # handed out for files that are not there

    def is_asked_by_script(self) -> bool:
        """As the stage's, but what pathlib or numpy opens for the script is the script's."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            is_between = file.startswith(self._pass) or f"{os.sep}numpy{os.sep}" in file
            if not is_between or "site-packages" in file.replace(f"{os.sep}numpy{os.sep}", ""):
                return self.stage.is_own(file)
            frame = frame.f_back
        return False

    def supply(self, path: Any) -> bool:
        """Whether the file is there now."""
        if self._is_making or not isinstance(path, (str, os.PathLike)):
            return False
        self._is_making = True
        try:
            return self._supply(Path(os.fspath(path)))
        finally:
            self._is_making = False

    def _supply(self, path: Path) -> bool:
        kind = path.suffix.lower().lstrip(".")
        if path.name in _OF_MODELS or kind == "safetensors":
            return self.supply_model(path.parent) and path.exists()
        if kind == "json" and "tokenizer" in path.stem.lower():
            return self._supply_tokenizer(path)
        if kind == "json" and _SETTINGS.search(path.stem):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_UNKNOWN, encoding="utf-8")
            self.stage.replaced("files", path.name, "settings that are guessed by their names")
            return True
        if kind in _OF_ROWS:
            from assay.rehearsal.standins.data import write_rows

            path.parent.mkdir(parents=True, exist_ok=True)
            return write_rows(self.stage, path, str(path))
        if kind in ("pkl", "pickle"):
            from assay.rehearsal.standins.data import rows_of

            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(rows_of(self.stage, str(path))), encoding="utf-8")
            self.as_json.add(str(path.resolve()))
            return True
        if kind == "bin":
            import numpy

            path.parent.mkdir(parents=True, exist_ok=True)
            numpy.random.default_rng(0).integers(0, 256, _TOKENS).astype(numpy.uint16).tofile(path)
            self.stage.replaced("data", path.name, "random token ids")
            return True
        return False

    def supply_model(self, folder: Path) -> bool:
        """The files of a checkpoint of the family that the folder's name says; those that are there stay."""
        from assay.rehearsal.standins.models import Checkpoints

        name = next((part for part in reversed(folder.resolve().parts) if re.search(r"[A-Za-z]{3}", part)), "model")
        made = Checkpoints(self.stage).made(name)
        folder.mkdir(parents=True, exist_ok=True)
        for file in made.iterdir():
            if not (folder / file.name).exists():
                shutil.copy(file, folder / file.name)
        self.stage.replaced("files", folder.name, "a folder with a stand-in of the model")
        return True

    def _supply_tokenizer(self, path: Path) -> bool:
        """The vocabulary of the model that the folder or the file is named after, under a name of the script's own."""
        from assay.rehearsal.standins.models import Checkpoints

        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Checkpoints(self.stage).made(path.resolve().parent.name) / "tokenizer.json", path)
        return True

    def checkpoint(self, path: Any) -> Checkpoint:
        self.checkpoints += 1
        self.stage.replaced("weights", f"the checkpoint {os.path.basename(os.fspath(path))}", "the weights as they are")
        return Checkpoint(os.path.basename(os.fspath(path)))


class Checkpoint(dict[Any, Any]):
    """A checkpoint that is not there: it has every key, and loading it changes nothing. Where the script goes through
    its keys, they are those of the network that the calling function holds, with its weights as they are."""

    def __init__(self, name: str = "", holds_weights: bool = True) -> None:
        super().__init__()
        self._name, self._holds_weights = name, holds_weights

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, str) and "." in key and key in (held := _held_weights()):
            return held[key]
        for pattern, value in _KEPT:
            if isinstance(key, str) and re.search(pattern, key):
                return value
        return Checkpoint(self._name, self._holds_weights and not _OTHERS.search(str(key)))

    def _weights(self) -> dict[str, Any]:
        held = _held_weights() if self._holds_weights else {}
        added = {key: value for key, value in held.items() if _ADDED.search(key)}
        return added if added and _ADDED.search(self._name) else held

    def __iter__(self) -> Iterator[Any]:
        return iter(self._weights())

    def keys(self) -> Any:
        return self._weights().keys()

    def values(self) -> Any:
        return self._weights().values()

    def items(self) -> Any:
        return self._weights().items()

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if default is None else default

    def pop(self, key: Any, default: Any = None) -> Any:
        return default

    def __contains__(self, key: Any) -> bool:
        return True


def _held_weights() -> dict[str, Any]:
    """Of the network that the function of the script holds in a variable; {} if it holds none, or several."""
    torch = sys.modules.get("torch")
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (frame.f_code.co_filename == __file__ or frame.f_code.co_name in _INNER):
        frame = frame.f_back
    if torch is None or frame is None:
        return {}
    held = {id(value): value for value in frame.f_locals.values() if isinstance(value, torch.nn.Module)}
    inner = {id(part) for value in held.values() for part in value.modules() if part is not value}
    networks = [value for number, value in held.items() if number not in inner]
    if len(networks) != 1:
        return {}
    return {key: value.detach().clone() for key, value in networks[0].state_dict().items()}


def _patch_open(files: Files) -> None:
    real = io.open

    @functools.wraps(real)
    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        try:
            return real(file, mode, *args, **kwargs)
        except FileNotFoundError:
            if not isinstance(file, (str, os.PathLike)) or not files.is_asked_by_script():
                raise
            if set(mode) & set("wax"):
                Path(os.fspath(file)).parent.mkdir(parents=True, exist_ok=True)
            elif not files.supply(file):
                raise
            return real(file, mode, *args, **kwargs)

    builtins.open = io.open = open_


def _patch_json() -> None:
    real = json.loads

    @functools.wraps(real)
    def loads(text: Any, *args: Any, **kwargs: Any) -> Any:
        return Checkpoint() if text == _UNKNOWN else real(text, *args, **kwargs)

    json.loads = loads  # type: ignore[assignment]


@functools.cache
def _lines_that_need(file: str) -> frozenset[int]:
    """Lines that ask whether a file is there and end the script if it is not."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and _is_denied(node.test) and _ends(node.body)):
            found |= set(range(node.lineno, (node.test.end_lineno or node.lineno) + 1))
    return frozenset(found)


def _is_denied(test: ast.expr) -> bool:
    return any(isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) for part in ast.walk(test))


def _ends(body: list[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.Raise):
        return True
    called = last.value.func if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) else None
    return called is not None and ast.unparse(called).rpartition(".")[2] in _ENDS


def _patch_questions(files: Files) -> None:
    """`if not os.path.exists(file): raise ...` gets the file; a search for files of a model or of rows finds some."""

    def asking(real: Callable[..., bool]) -> Callable[..., bool]:
        @functools.wraps(real)
        def ask(path: Any, *args: Any, **kwargs: Any) -> bool:
            is_there = real(path, *args, **kwargs)
            frame = sys._getframe(1)
            if is_there or files._is_making or not files.stage.is_own(frame.f_code.co_filename):
                return is_there
            if frame.f_lineno not in _lines_that_need(frame.f_code.co_filename):
                return is_there
            if not Path(os.fspath(path)).suffix:
                return files.supply_model(Path(os.fspath(path)))
            return files.supply(path)

        return ask

    for name in ("exists", "isfile", "isdir"):
        setattr(os.path, name, asking(getattr(os.path, name)))
    for name in ("exists", "is_file", "is_dir"):
        setattr(Path, name, asking(getattr(Path, name)))
    search, below = glob.glob, Path.glob

    def glob_(pattern: Any, *args: Any, **kwargs: Any) -> list[str]:
        found = search(pattern, *args, **kwargs)
        if not found and files.is_asked_by_script() and _fill(files, Path(os.fspath(pattern))):
            found = search(pattern, *args, **kwargs)
        return found

    def path_glob(self: Path, pattern: str, *args: Any, **kwargs: Any) -> Iterator[Path]:
        found = list(below(self, pattern, *args, **kwargs))
        if not found and files.is_asked_by_script() and _fill(files, self / pattern):
            found = list(below(self, pattern, *args, **kwargs))
        return iter(found)

    glob.glob = glob_  # type: ignore[assignment]
    Path.glob = path_glob  # type: ignore[assignment,method-assign]


def _fill(files: Files, pattern: Path) -> bool:
    """A folder that is searched in vain for *.safetensors, *.jsonl and the like."""
    kind = pattern.suffix.lower().lstrip(".")
    if "*" in str(pattern.parent) or pattern.name.startswith(("checkpoint", "step", "epoch", "ckpt")):
        return False
    if kind == "safetensors":
        return files.supply_model(pattern.parent)
    is_of_model = any(word in pattern.name for word in ("safetensors", "config", "index"))
    if kind in ("jsonl", "parquet", "json", "csv") and "*" in pattern.name and not is_of_model:
        return files.supply(pattern.with_name(pattern.name.replace("*", "part0")))
    return False


def _torch(files: Files, torch: Any) -> None:
    load = torch.load

    @functools.wraps(load)
    def load_or_stand_in(file: Any, *args: Any, **kwargs: Any) -> Any:
        is_path = isinstance(file, (str, os.PathLike))
        is_missing = is_path and (not os.path.exists(file) or is_of_weights(Path(file)))
        if is_missing and files.stage.is_asked_by_script():
            return files.checkpoint(file)
        return load(file, *args, **kwargs)

    torch.load = load_or_stand_in
    module, optimizer, scheduler = torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler
    nothing = torch.nn.modules.module._IncompatibleKeys([], [])
    for owner, answer in ((module, nothing), (optimizer, None), (scheduler, None)):
        owner.load_state_dict = _unchanged(files, owner.load_state_dict, answer)


def _unchanged(files: Files, real: Callable[..., Any], answer: Any) -> Callable[..., Any]:
    @functools.wraps(real)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(state_dict, Checkpoint) or (not state_dict and files.checkpoints):
            return answer
        return real(self, state_dict, *args, **kwargs)

    return load_state_dict


def _safetensors(files: Files, module: ModuleType) -> None:
    load = module.load_file

    @functools.wraps(load)
    def load_file(filename: Any, *args: Any, **kwargs: Any) -> Any:
        is_missing = not os.path.exists(filename) or is_of_weights(Path(filename))
        if is_missing and files.stage.is_asked_by_script():
            return files.checkpoint(filename)
        return load(filename, *args, **kwargs)

    module.load_file = load_file  # type: ignore[attr-defined]


def _tokenizers(files: Files, module: Any) -> None:
    """tokenizers.Tokenizer cannot be changed: what takes its place passes everything on."""
    real = module.Tokenizer

    class Kind(type):
        def __instancecheck__(cls, given: Any) -> bool:
            return isinstance(given, real)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return real(*args, **kwargs)

        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

    class Tokenizer(metaclass=Kind):
        @staticmethod
        def from_file(path: Any) -> Any:
            if not os.path.exists(path) and files.stage.is_asked_by_script():
                files.supply(path)
            return real.from_file(str(path))

        @staticmethod
        def from_pretrained(name: str, *args: Any, **kwargs: Any) -> Any:
            from assay.rehearsal.standins.models import Checkpoints

            return real.from_file(str(Checkpoints(files.stage).made(name) / "tokenizer.json"))

    module.Tokenizer = Tokenizer


def _pickle(files: Files, module: Any) -> None:
    load = module.load

    def load_rows(file: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(file, "name", None)
        if isinstance(name, str) and os.path.realpath(name) in files.as_json:
            return json.loads(Path(name).read_text(encoding="utf-8"))
        return load(file, *args, **kwargs)

    module.load = load_rows
