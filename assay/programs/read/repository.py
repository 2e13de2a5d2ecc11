"""Where a script stands: the files that an import may mean, and the file that calls one that holds definitions only."""

from __future__ import annotations

import ast
import os
import re
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from assay.programs.read.text import decoded, scripts_in

MOST_LEVELS = 6  # folders above a script that may be the root of its repository
MOST_SEARCHED = 400  # files of a repository that are searched for callers
LARGEST_SEARCHED = 200_000  # bytes of such a file
DEEPEST_CALLER = 4  # files between a script and what it is made of
_INSTALLED = ("site-packages", "dist-packages")
_ROOTS = (".git", ".hg")
_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", ".gitignore", "LICENSE", "README.md")
_TRIALS = ("test", "tests", "conftest")  # files that try a part out, not those that train
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+([^\n#]*))", re.MULTILINE
)
_WORD = re.compile(r"[\w.]+")
_RUNS = (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)
_NEVER_OWN = frozenset("torch numpy scipy pandas jax tensorflow mlx".split())  # whatever a folder is called
# packages that a folder of a repository may be named after
LIBRARIES = frozenset(
    "transformers datasets tokenizers trl peft accelerate deepspeed vllm evaluate wandb verl ray gym gymnasium "
    "sklearn einops flax tqdm yaml omegaconf hydra openai".split()
)


def candidates(name: str, script: Path, importer: Path) -> Iterator[Path]:
    """The files that an import may mean, in the order in which they are tried."""
    level = len(name) - len(name.lstrip("."))
    parts = [part for part in name.lstrip(".").split(".") if part]
    if not level and (not parts or parts[0] in _NEVER_OWN):
        return
    for folder in dict.fromkeys(_folders(level, parts, script, importer)):
        if folder.name in _INSTALLED and not level and not script.is_relative_to(folder / parts[0]):
            continue  # a script within an installed package: the other packages are libraries
        target = folder.joinpath(*parts)
        for candidate in (target.with_name(target.name + ".py") if parts else None, target / "__init__.py"):
            if candidate is not None and os.path.isfile(candidate):  # False where the name is too long for a file
                yield candidate


def _folders(level: int, parts: list[str], script: Path, importer: Path) -> Iterator[Path]:
    if level:
        base = importer.parent
        for _ in range(level - 1):
            base = base.parent
        yield base
        return
    folder = script.parent
    yield from (folder, importer.parent, folder.parent, folder.parent.parent)
    root = root_of(script)
    if root is None:
        return
    above = [base for base in script.absolute().parents if base == root or base.is_relative_to(root)]
    for base in above:
        yield base
        yield base / "src"
    if parts[0] in LIBRARIES or parts[0] in sys.stdlib_module_names:
        return
    inside = [base for base in _subfolders(root) if any((base / f"{parts[0]}{end}").exists() for end in ("", ".py"))]
    if len(inside) == 1:  # as sys.path or PYTHONPATH may say
        yield inside[0]


@lru_cache(maxsize=64)
def root_of(script: Path) -> Path | None:
    """The root of the repository of a script: where it is under version control, else the highest folder that looks so.

    None where nothing looks like one.
    """
    found: Path | None = None
    for folder in script.absolute().parents[:MOST_LEVELS]:
        if folder == Path.home() or folder.parent == folder or folder.name in _INSTALLED:
            break
        if any((folder / name).exists() for name in _ROOTS):
            return folder
        if any((folder / name).exists() for name in _MARKS):
            found = folder
    return found


def _subfolders(root: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []


# callers


def is_definitions_only(tree: ast.Module) -> bool:
    """Whether a file does nothing by itself: it holds functions and classes that another file calls."""
    is_any = any(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for part in tree.body)
    return is_any and not _runs(tree)


def _runs(tree: ast.Module) -> bool:
    for part in tree.body:
        if isinstance(part, _RUNS):
            return True
        if isinstance(part, ast.If) and any(getattr(node, "id", "") == "__name__" for node in ast.walk(part.test)):
            return True
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call | ast.Await) and not _is_setup(part.value):
            return True
    return False


def _is_setup(node: ast.expr) -> bool:
    """sys.path.append(...), warnings.filterwarnings(...), load_dotenv(): what every module may do."""
    function = node.func if isinstance(node, ast.Call) else node
    words = ast.unparse(function).lower()
    return any(word in words for word in ("path", "warn", "log", "seed", "dotenv", "environ", "set_", "register"))


def caller_of(path: Path) -> Path | None:
    """The script of the repository that uses a file, by way of others if need be; None where there is none."""
    root = root_of(path) or path.absolute().parent
    files = _searched(root)
    waiting, seen = [path.resolve()], {path.resolve()}
    for _ in range(DEEPEST_CALLER):
        importers = [file for file in files if file not in seen and any(_imports(file, target) for target in waiting)]
        scripts = [file for file in importers if _runs(_tree(file))]
        if scripts:
            return min(scripts, key=lambda file: _distance(file, path))
        seen.update(importers)
        waiting = importers
    return None


def _searched(root: Path) -> list[Path]:
    found: list[Path] = []
    for number, file in enumerate(scripts_in(root)):
        if number >= MOST_SEARCHED:
            break
        within = file.relative_to(root).parts
        is_trial = any(part.partition(".")[0].partition("_")[0] in _TRIALS for part in within)
        if file.suffix == ".py" and not is_trial and os.path.isfile(file):
            found.append(file.resolve())
    return found


@lru_cache(maxsize=MOST_SEARCHED)
def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(LARGEST_SEARCHED + 1)
    except OSError:
        return ""
    return decoded(raw)[0] if len(raw) <= LARGEST_SEARCHED else ""


def _tree(file: Path) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(_text(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _imports(file: Path, target: Path) -> bool:
    """Whether a file imports another one; a file that is a package is imported by what it passes on."""
    stem = target.parent.name if target.name == "__init__.py" else target.stem
    if stem not in _text(file) and target.name != "__init__.py":
        return False
    return any(
        found.resolve() == target
        for name in _imported(file)
        if name.rpartition(".")[2] == stem or not name.strip(".")
        for found in candidates(name, file, file)
    )


@lru_cache(maxsize=MOST_SEARCHED)
def _imported(file: Path) -> tuple[str, ...]:
    """The names of the modules that a file may import, as its text has them."""
    names: dict[str, None] = {}
    for path, parts, plain in _IMPORT.findall(_text(file)):
        for part in _WORD.findall(parts or plain):
            names[f"{path}{'' if path.endswith('.') or not path else '.'}{part}"] = None
        if path:
            names[path] = None
    return tuple(names)


def _distance(file: Path, path: Path) -> tuple[int, int, str]:
    """How far a caller is from a file: the folders between, then the words that their names do not share."""
    steps = len(Path(os.path.relpath(file, path.resolve().parent)).parts)
    words, own = set(file.stem.lower().split("_")), set(path.stem.lower().split("_"))
    return steps - 2 * len(words & own), "train" not in file.stem.lower(), str(file)
