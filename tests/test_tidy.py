"""The house rules that a machine can check: size, direction of imports, no torch where records are read, no pickle."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("assay", "proof", "benchmarks")
SOURCES = [
    path for room in OURS for path in sorted((ROOT / room).rglob("*.py")) if "proof/scripts" not in path.as_posix()
]  # scripts of the corpus are written as the public writes

# what each part may import of the others; everything may import types, config, grpo, sampling, machine and verdict
ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "verdict": set(),
    "grpo": set(),
    "sampling": set(),
    "machine": set(),
    "config": set(),
    "record": set(),
    "tasks": set(),
    "foreign": set(),
    "rewards": {"tasks", "foreign"},
    "llama": set(),
    "policy": {"tasks", "llama", "foreign"},
    "engine": {"policy", "llama"},
    "examine": {"policy", "record"},
    "train": {"engine", "policy", "llama", "tasks", "rewards", "record", "foreign", "examine"},
    "programs": {"record", "policy", "examine"},
    "doctor": {"record", "programs"},
    "watch": {"programs", "record", "doctor"},
    "observation": {"record", "doctor", "policy"},
    "adapters": {"record", "doctor", "policy", "examine"},
    "cli": {"train", "record", "tasks", "rewards", "doctor", "observation", "programs", "watch", "benchmarks", "proof"},
    "__init__": {"train", "observation"},
    "__main__": {"cli"},
    "benchmarks": {"train", "policy", "tasks", "rewards", "engine", "record", "llama", "proof"},
    "proof": {"train", "doctor", "record", "policy", "tasks", "rewards", "engine", "programs", "watch"},
}
COMMON = {"types", "config", "grpo", "sampling", "verdict", "machine"}
# what may be caught broadly: the boundary to code that users hand in, whose error travels on as it is; in guard.py the
# boundary between our faults and a script that is watched; a chat template is a program too
BOUNDARIES = {
    "call.py", "failures.py", "guard.py", "inputs.py", "process.py", "sinks.py", "template_worker.py", "turn.py",
    "worker.py",
}  # fmt: skip
WITHOUT_TORCH = [
    "assay", "assay.types", "assay.config", "assay.grpo", "assay.record", "assay.cli", "assay.tasks", "assay.rewards",
    "assay.verdict", "assay.doctor.catalogue", "assay.doctor.diagnosis", "assay.doctor.command",
]  # fmt: skip


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def part_of(path: Path) -> str:
    """The room of a file: the first folder below assay/, or proof or benchmarks."""
    inside = path.relative_to(ROOT).parts
    return (inside[1] if inside[0] == "assay" else inside[0]).removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """The parts of assay that a file imports, at the top or inside a function, except for type checking."""
    names: list[str] = []
    waiting: list[ast.AST] = [parsed(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        for_types_only = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        waiting += node.orelse if for_types_only else ast.iter_child_nodes(node)
    return {name.split(".")[1] if name.startswith("assay.") else name.split(".")[0] for name in names if _is_ours(name)}


def _is_ours(name: str) -> bool:
    return name.split(".")[0] in OURS and name not in ("assay", "assay.__version__")


def test_imports_point_one_way():
    new = {part_of(path) for path in SOURCES} - set(ALLOWED)
    assert new == set(), "say in tests/test_tidy.py what these new parts may import"
    strangers = {
        name_of(path): imported_parts(path) - ALLOWED[part_of(path)] - COMMON - {part_of(path)} for path in SOURCES
    }
    assert {name: parts for name, parts in strangers.items() if parts} == {}


def test_the_import_rule_can_fail(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("def f():\n    from assay.train import loop\n    import assay.cli\n")
    assert imported_parts(file) == {"train", "cli"}


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_records_are_read_without_torch(module):
    code = f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_files_are_short_and_ascii():
    texts = {name_of(path): path.read_text() for path in [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]}
    assert {name: lines for name, text in texts.items() if (lines := len(text.splitlines())) > 400} == {}
    assert [name for name, text in texts.items() if not text.isascii()] == []


def test_the_loop_fits_on_a_page():
    assert len((ROOT / "assay/train/loop.py").read_text().splitlines()) <= 60


def forbidden(path: Path) -> set[str]:
    """Calls that evaluate text or unpickle, and imports of what pickles."""
    nodes = list(ast.walk(parsed(path)))
    calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    imports = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return calls & {"eval", "exec", "torch.load", "torch.save", "yaml.load"} | imports & {
        "pickle", "dill", "shelve", "marshal",
    }  # fmt: skip


def test_nothing_is_pickled_and_no_text_is_evaluated():
    assert {name_of(path): found for path in SOURCES if (found := forbidden(path))} == {}


def test_the_rule_on_pickles_can_fail(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("import pickle\ntorch.load(path)\neval(text)\nmodel.eval()\n")
    assert forbidden(file) == {"pickle", "torch.load", "eval"}


def broad_excepts(path: Path) -> list[int]:
    """Lines that catch everything and do not raise it again."""
    return [
        node.lineno
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or {"Exception", "BaseException"} & set(re.findall(r"\w+", ast.unparse(node.type))))
        and not any(isinstance(inner, ast.Raise) and inner.exc is None for inner in node.body)
    ]


def test_broad_excepts_stand_only_at_the_boundary_to_user_code():
    assert {path.name for path in SOURCES if broad_excepts(path)} <= BOUNDARIES


def test_the_rule_on_broad_excepts_can_fail(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(
        "try:\n    f()\nexcept (ValueError, Exception):\n    pass\ntry:\n    g()\nexcept KeyError:\n    pass\n"
    )
    assert broad_excepts(file) == [3]
