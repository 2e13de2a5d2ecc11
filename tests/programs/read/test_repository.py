"""Which files belong to a script: what it imports from anywhere in its repository, and who calls it."""

import pytest

from assay.programs.read.repository import caller_of, root_of
from assay.programs.read.script import read_program

LOSS = """
import torch

def update(model, optimizer, ids, rewards):
    logprobs = torch.log_softmax(model(ids).logits, -1).gather(-1, ids[..., None]).squeeze(-1)
    loss = -(logprobs * rewards[:, None]).mean()
    loss.backward()
    optimizer.step()
"""
CALLER = """
import torch
from transformers import AutoModelForCausalLM
from {module} import update

model = AutoModelForCausalLM.from_pretrained("small")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for ids, rewards in batches:
    update(model, optimizer, ids, rewards)
"""


def lay(folder, **files):
    """Files of a repository; "__" in a name stands for a folder."""
    (folder / "README.md").write_text("")
    for name, text in files.items():
        path = folder / (name.replace("__", "/").replace("INIT", "__init__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("script", "other", "text"),
    [
        ("scripts__deep__train", "package__part", "from package.part import x\ny = x"),
        ("scripts__train", "src__package__part", "from package.part import x\ny = x"),
        ("scripts__train", "lib__part", "import sys\nsys.path.append('lib')\nfrom part import x\ny = x"),
        ("train", "package__part", "import package.part\ny = package.part.x"),
        ("train", "package__part", "import package.part as p\ny = p.x"),
    ],
)
def test_an_import_is_found_in_the_whole_repository(tmp_path, script, other, text):
    lay(tmp_path, **{script: text, other: "x = 5"})
    program = read_program(tmp_path / (script.replace("__", "/") + ".py"))
    assert [value.constant for value in program.values if "y" in value.names] == [5]


def test_of_two_files_of_a_name_the_one_that_holds_the_part_is_meant(tmp_path):
    lay(tmp_path, inner__train="from tools import x\ny = x", inner__tools="z = 1", tools="x = 5")
    program = read_program(tmp_path / "inner" / "train.py")
    assert [value.constant for value in program.values if "y" in value.names] == [5]


def test_a_folder_that_is_called_torch_is_not_torch(tmp_path):
    lay(tmp_path, train="import torch\ny = torch.exp(x)", torch__INIT="def exp(x): return 5")
    assert [value.op for value in read_program(tmp_path / "train.py").values if "y" in value.names] == ["exp"]


def test_a_folder_that_is_called_like_a_library_is_not_searched_for_it(tmp_path):
    lay(tmp_path, scripts__train="from datasets import x\ny = x", more__datasets="x = 5")
    program = read_program(tmp_path / "scripts" / "train.py")
    assert [value.op for value in program.values if "y" in value.names] == ["library"]


@pytest.mark.parametrize(
    ("file", "files"),
    [
        ("grpo", {"grpo": LOSS, "train": CALLER.format(module="grpo")}),
        ("src/own/grpo", {"src__own__grpo": LOSS, "scripts__train": CALLER.format(module="own.grpo")}),
        (
            "own/grpo",
            {"own__grpo": LOSS, "own__INIT": "from .grpo import update", "train": CALLER.format(module="own")},
        ),
        (
            "own/grpo",
            {
                "own__grpo": LOSS,
                "middle": "from own.grpo import update as step\ndef update(*given): step(*given)",
                "train": CALLER.format(module="middle"),
            },
        ),
    ],
)
def test_definitions_are_read_from_the_script_that_calls_them(tmp_path, file, files):
    lay(tmp_path, **files)
    program = read_program(tmp_path / f"{file}.py")
    ((loss, terms),) = program.losses
    assert program.path == program.files[0] == str(tmp_path / f"{file}.py")
    assert str(tmp_path / f"{file}.py") not in program.callers
    assert any(name.endswith("train.py") for name in program.callers)
    assert program.origins.gradient(loss) is True
    assert [str(model.op) for model in program.origins.networks(loss)] == ["pretrained"]
    assert [term.is_policy for term in terms] == [True]


def test_a_script_that_runs_by_itself_has_no_caller(tmp_path):
    lay(
        tmp_path,
        grpo=LOSS + "\nif __name__ == '__main__':\n    update(1, 2, 3, 4)\n",
        train=CALLER.format(module="grpo"),
    )
    assert len(read_program(tmp_path / "grpo.py").files) == 1


def test_a_file_that_only_a_test_calls_has_no_caller(tmp_path):
    lay(tmp_path, grpo=LOSS, tests__test_grpo=CALLER.format(module="grpo"))
    assert caller_of(tmp_path / "grpo.py") is None


def test_a_caller_that_never_reaches_the_file_is_left_aside(tmp_path):
    lay(tmp_path, grpo=LOSS, train="from grpo import update\nprint('nothing is trained here')\n")
    assert len(read_program(tmp_path / "grpo.py").files) == 1


def test_the_root_is_where_version_control_is(tmp_path):
    lay(tmp_path, inner__deep__train="x = 1")
    assert root_of(tmp_path / "inner" / "deep" / "train.py") == tmp_path
    (tmp_path / "inner" / ".git").mkdir()
    assert root_of(tmp_path / "inner" / "train.py") == tmp_path / "inner"


def test_methods_are_read_from_the_one_that_calls_them(tmp_path):
    text = """
import torch
class Trainer:
    def learn(self, rows):
        loss = -(rows["logprobs"] * rows["rewards"]).mean()
        loss.backward()
    def fit(self):
        model = torch.nn.Linear(2, 2)
        self.learn({"logprobs": torch.log_softmax(model(x), -1)[0], "rewards": r})
"""
    lay(tmp_path, trainer=text)
    program = read_program(tmp_path / "trainer.py")
    ((loss, _),) = program.losses
    assert [model.op for model in program.origins.networks(loss)] == ["module"]
