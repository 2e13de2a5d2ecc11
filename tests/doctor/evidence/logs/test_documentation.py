"""docs/logs.md says what the tables say: the names by trainer stand between two marks and are compared with them."""

from pathlib import Path

import pytest

from assay.doctor.evidence.logs.names import ARGUMENTS, PLAIN, TRAINERS
from assay.doctor.evidence.logs.rollouts import (
    ADVANTAGE,
    COMPLETION,
    COMPLETION_IDS,
    FINISH,
    GROUP,
    LOGPROBS,
    MASK,
    PROMPT,
    REWARD,
    STEP,
    TRUTH,
)
from assay.doctor.evidence.logs.series import STEP_NAMES

PAGE = (Path(__file__).parents[4] / "docs" / "logs.md").read_text()
BEGIN, END = "<!-- names: begin -->\n", "<!-- names: end -->\n"


def table() -> str:
    """One part for each trainer: its signs, then ours and its names. Our own log needs none."""
    parts = []
    for trainer in (*TRAINERS[1:], PLAIN):
        lines = [f"### {trainer.name[:1].upper()}{trainer.name[1:]}" if trainer is PLAIN else f"### {trainer.name}", ""]
        if trainer is not PLAIN:
            lines += ["Signs: " + ", ".join(f"`{sign}`" for sign in trainer.signs) + ".", ""]
        lines += ["| here | there |", "|---|---|"]
        lines += [f"| {ours} | {', '.join(f'`{name}`' for name in names)} |" for ours, names in trainer.names.items()]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def test_the_page_holds_the_tables():
    assert PAGE[PAGE.index(BEGIN) + len(BEGIN) : PAGE.index(END)] == table()


@pytest.mark.parametrize(
    "names",
    [
        *(PROMPT, COMPLETION, REWARD, ADVANTAGE, GROUP, STEP, COMPLETION_IDS, STEP_NAMES, TRUTH, MASK, FINISH),
        *LOGPROBS.values(),
    ],
)
def test_the_page_names_every_field_that_is_read(names):
    assert all(f"`{name}`" in PAGE for name in names)


def test_the_page_names_every_argument_that_is_read():
    assert all(f"`{name}`" in PAGE for name in ARGUMENTS)
