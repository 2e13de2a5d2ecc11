"""Numbers of rows per step become smaller together, so that their ratios stay."""

import pytest
from rehearsal.standing import standing

from assay.rehearsal.standins.batches import factor_of


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({"batch_size": 256, "num_questions_per_batch": 32, "micro_batch_size": 2}, 8),
        ({"--rollout_batch": 256, "--group-size": 8, "--train_batch": 256, "--grad_accum": 256}, 8),
        ({"rollout_batch_size": 256, "gradient_accumulation_steps": 1}, 8),
        ({"batch_size": 256, "num_generations": 64}, 4),  # a group stays whole
        ({"batch_size": 288, "mini_batch_size": 96}, 1),  # three mini-batches cannot become one and a half
        ({"batch_size": 256, "prompts_per_step": 6}, 2),
        ({"batch_size": 250}, 2),
        ({"batch_size": 32}, 1),
        ({"eval_batch_size": 512, "vocab_size": 4096}, 1),
        ({}, 1),
    ],
)
def test_all_are_divided_by_one_power_of_two(settings, factor):
    assert factor_of(settings.items()) == factor


SCRIPT = """
import yaml
from part import Config, options

with open("run.yaml") as file:
    settings = yaml.safe_load(file)
show(accumulated=options.grad_accum, settings=settings, questions=Config.num_questions_per_batch,
     other=Config.embedding_size)
"""
PART = """
import argparse

class Config:
    num_questions_per_batch = 32
    embedding_size = 256

parser = argparse.ArgumentParser()
parser.add_argument("--grad_accum", type=int, default=128)
options = parser.parse_args([])
"""


def test_files_and_code_of_a_script_stay_in_proportion(tmp_path):
    (tmp_path / "run.yaml").write_text("train:\n  batch_size: 256  # rows\n  micro_batch_size: 2\n")
    (tmp_path / "part.py").write_text(PART)
    found = standing(tmp_path, SCRIPT)
    assert found["settings"] == {"train": {"batch_size": 32, "micro_batch_size": 2}}
    assert (found["accumulated"], found["questions"], found["other"]) == (16, 4, 256)
    assert ["sizes", "batch_size = 256", "32"] in found["replaced"]


def test_a_number_on_the_command_line_leaves_all_as_they_are(tmp_path):
    (tmp_path / "run.yaml").write_text("batch_size: 256\n")
    (tmp_path / "part.py").write_text(PART)
    found = standing(tmp_path, SCRIPT, "batch_size=256")
    assert (found["settings"], found["questions"]) == ({"batch_size": 256}, 32)
