"""The house rules that a machine can check: size, direction of imports, no torch where records are read, no pickle, and
plain words."""

import ast
import functools
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from setuptools import find_namespace_packages

from assay.programs.graph import OPERATIONS, OPERATIONS_OF_RUNS, SIGNATURES
from assay.programs.read.library import KNOWN_METHODS

ROOT = Path(__file__).parent.parent
OURS = ("assay", "proof", "benchmarks")
SOURCES = [
    path
    for room in OURS
    for path in sorted((ROOT / room).rglob("*.py"))
    if not any(folder in path.as_posix() for folder in ("proof/scripts", "proof/blind/specimens"))
]  # scripts of the corpus are written as the public writes

# what each part may import of the others; everything may import types, config, grpo, sampling, machine and verdict
ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "verdict": set(),
    "grpo": set(),
    "sampling": set(),
    "calibration": set(),
    "machine": set(),
    "config": set(),
    "record": set(),
    "tasks": set(),
    "foreign": set(),
    "rewards": {"tasks", "foreign"},
    "reward_check": {"rewards", "tasks", "doctor"},
    "llama": set(),
    "policy": {"tasks", "llama", "foreign"},
    "engine": {"policy", "llama"},
    "examine": {"policy", "record"},
    "train": {"engine", "policy", "tasks", "rewards", "record", "foreign", "examine"},
    "programs": {"record", "policy", "examine"},
    "doctor": {"record", "programs"},
    "watch": {"programs", "record", "doctor", "adapters"},
    "rehearsal": {"watch", "programs", "record", "doctor"},
    "observation": {"record", "doctor", "policy", "examine"},
    "adapters": {"record", "doctor", "policy", "examine"},
    "report": {"doctor", "record", "policy", "foreign"},
    "cli": set("train record tasks rewards reward_check doctor observation programs watch rehearsal report".split()),
    "__init__": {"train", "observation", "report"},
    "__main__": {"cli"},
    "benchmarks": {"adapters", "report", "train", "policy", "tasks", "rewards", "engine", "record", "llama", "proof"},
    "proof": {"train", "doctor", "record", "policy", "tasks", "rewards", "engine", "programs", "watch", "rehearsal"},
}
PACKAGE_LINES = 97_200
COMMON = {"types", "config", "grpo", "sampling", "calibration", "verdict", "machine"}
# what may be caught broadly: the boundary to code that users hand in, whose error travels on as it is; in guard.py the
# boundary between our faults and a script that is watched; a chat template is a program too
BOUNDARIES = {
    "call.py", "failures.py", "guard.py", "inputs.py", "process.py", "reward_functions.py", "sinks.py",
    "template_worker.py", "worker.py",
}  # fmt: skip
WITHOUT_TORCH = [
    "assay", "assay.types", "assay.config", "assay.grpo", "assay.record", "assay.cli", "assay.tasks", "assay.rewards",
    "assay.verdict", "assay.doctor.catalogue", "assay.doctor.diagnosis", "assay.doctor.command",
    "assay.report.write", "assay.report.notebook", "assay.report.live", "assay.report.doctor_page",
    "assay.report.pieces",
]  # fmt: skip

_COUNTED = (
    "answers|bytes|completions|groups|lanes|lines?|nats|numbers?|one|pass(?:es)?|prompts|rollouts|rows?|samples|seconds|"
    "steps|tokens|updates"
)
_UNITS = (
    "answer|batch|completion|device|event|file|finding|group|layer|line|metric|note|pass|position|process|prompt|rollout|"
    "row|run|second|sequence|step|token|trial|update"
)
# Old words and the better ones (CONTRIBUTING.md, "Words"). Neither docs nor code have them, in names either.
OLD_WORDS: dict[str, str] = {
    r"(told|tells?|telling)(?!( \w+){0,5} apart)": "report, say, show",
    r"anew": "again",
    r"but for": "except for",
    r"company": "batch-mates",
    r"contests?": "benchmark",
    r"dear(er)?": "expensive",
    r"for one in": "name what the loop runs over",
    r"half-way": "after it has started; in the middle",
    r"hears?": "gets, is called with",
    r"(is|are) said": "is reported",
    r"mended": "fixed",
    r"patients?": "input",
    r"plainly": "row by row; plain log-probs",
    r"seats?": "slot",
    r"shelf": "healthy runs",
    r"so many": "that many",
    r"(?<!there )(is|are|was|were) no(?! longer)": "is not a",
    rf"(?<!many )(?<!what )(?<!the )({_COUNTED}) an? ({_UNITS})": "per token, per step",
}
PAGES = [path for name in ("*.md", "docs/*.md", "configs/*.toml", "examples/*.py") for path in sorted(ROOT.glob(name))]


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


def test_records_are_read_without_torch():
    """One process imports them in turn, and all illnesses: the first line names who imports torch."""
    code = (
        "import importlib, sys\n"
        "for module in sys.argv[1:]:\n"
        "    found = importlib.import_module(module)\n"
        "    if module == 'assay.doctor.catalogue': found.catalogue()\n"
        "    for name in {'torch', 'transformers'} & set(sys.modules): print(module, 'imports', name)\n"
    )
    command = [sys.executable, "-c", code, *WITHOUT_TORCH]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == []


def test_files_are_short_and_ascii():
    texts = {name_of(path): path.read_text() for path in [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]}
    assert {name: lines for name, text in texts.items() if (lines := len(text.splitlines())) > 600} == {}
    assert [name for name, text in texts.items() if not text.isascii()] == []


def test_tests_are_named_by_subject():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert [name for name in names if re.search(r"_more\.py|test_(review|general|misc)_", name)] == []


def test_the_package_stays_within_its_budget():
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "assay").rglob("*.py"))
    assert lines <= PACKAGE_LINES, "delete something, or say in the commit why the package has to grow"


def test_the_wheel_holds_the_package_alone():
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert {name.split(".")[0] for name in find_namespace_packages(str(ROOT), **found)} == {"assay"}
    assert {"assay", "proof", "benchmarks"} <= set(find_namespace_packages(str(ROOT)))
    strangers = {name_of(path): imported_parts(path) & {"proof", "benchmarks"} for path in SOURCES}
    assert {name: parts for name, parts in strangers.items() if parts and name.startswith("assay/")} == {}


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


def old_words(text: str) -> dict[str, int]:
    """How often each of OLD_WORDS occurs in a text."""
    patterns = {words: re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for words in OLD_WORDS}
    flat = " ".join(text.split())
    return {words: len(pattern.findall(flat)) for words, pattern in patterns.items()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_use_plain_words(page):
    found = {words: f"write: {OLD_WORDS[words]}" for words, count in old_words(page.read_text()).items() if count}
    assert found == {}


def test_the_code_uses_plain_words():
    counts = {path: old_words(path.read_text()) for path in SOURCES}
    found = [
        f"{name_of(path)}: write {OLD_WORDS[words]} ({words})"
        for path, of_file in counts.items()
        for words, count in of_file.items()
        if count
    ]
    assert found == []


def test_the_rule_on_words_can_fail():
    found = old_words("There is no loss. It is no loss: one number a\ntoken, told anew. It tells them apart.")
    assert {words for words, count in found.items() if count} == {
        words for words in OLD_WORDS if words.startswith(("(told", "anew", "(?<!there", "(?<!many"))
    }
    assert sum(found.values()) == 4


def operations_named(path: Path, names: dict[str, object]) -> dict[str, int]:
    """What a file compares with the `op` of a value, asks a graph for or makes, and in which line.

    `names` are those of its module: `value.op in _SHELLS` names what _SHELLS holds.
    """

    def words(node: ast.expr) -> set[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return {node.value}
        if isinstance(node, ast.Name):
            held = names.get(node.id, ())
            return {held} if isinstance(held, str) else {word for word in held if isinstance(word, str)}
        if isinstance(node, ast.Starred | ast.Tuple | ast.List | ast.Set | ast.BinOp):
            return {
                word for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr) for word in words(child)
            }
        return set()

    def asked_in(node: ast.AST) -> list[ast.expr]:
        if isinstance(node, ast.Compare) and any(is_op(side) for side in (node.left, *node.comparators)):
            return [node.left, *node.comparators]
        if isinstance(node, ast.Subscript) and is_op(node.slice):
            return [node.value]
        if not isinstance(node, ast.Call):
            return []
        called, _, function = ast.unparse(node.func).rpartition(".")
        if function == "of" and called.split(".")[-1] in ("program", "graph"):
            return node.args
        if function == "get" and node.args and is_op(node.args[0]):
            return [node.func.value]
        if function == "new" and called.split(".")[-1] in ("interpreter", "self", "graph"):
            return node.args[:1]
        return node.args[1:2] if function == "peel" else []

    def is_op(node: ast.expr) -> bool:
        return isinstance(node, ast.Attribute) and node.attr == "op"

    return {
        word: node.lineno
        for node in ast.walk(parsed(path))
        for expression in asked_in(node)
        for word in words(expression)
    }


def test_every_operation_that_is_asked_for_exists():
    of_texts = {*SIGNATURES, *KNOWN_METHODS, *OPERATIONS}
    strangers: list[str] = []
    for path in SOURCES:
        if part_of(path) not in ("programs", "doctor"):
            continue
        name = name_of(path)
        module = importlib.import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        reads_texts = name.startswith(("assay/programs/read/", "assay/programs/facts/"))
        known = of_texts if reads_texts else {*of_texts, *OPERATIONS_OF_RUNS}
        asked = operations_named(path, vars(module))
        strangers += [f"{name}:{line} {word}" for word, line in asked.items() if word not in known]
    assert strangers == [], "add them to OPERATIONS in assay/programs/graph.py, or delete what never happens"


def test_the_rule_on_operations_can_fail(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(
        'a = value.op == "one"\nb = value.op in (*SHELLS, "two")\nc = program.of("three")\nd = kinds.of("four")\n'
        'e = TURNS[value.op]\nf = peel(value, SHELLS | {"five"})\ng = graph.new("six", {})\n'
    )
    assert operations_named(file, {"SHELLS": ("shell",), "TURNS": {"turn": 1}}) == {
        "one": 1, "shell": 6, "two": 2, "three": 3, "turn": 5, "five": 6, "six": 7,
    }  # fmt: skip
