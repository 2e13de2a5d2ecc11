"""Reward files that are written, opened as a Reward and closed at the end."""

import pytest
from rewards.asking import TwoDigits, characters

from assay.config import from_mapping
from assay.rewards import open_rewards


@pytest.fixture
def rewards(tmp_path):
    """rewards(source, functions=..., **settings of [reward]) writes reward.py and opens the functions."""
    opened = []

    def open_source(source="", functions=("reward.py:score",), task=None, head="", report=None, **settings):
        imports = "import asyncio, math, os, signal, subprocess, sys, time\n"
        (tmp_path / "reward.py").write_text(head + imports + source)
        named = [str(tmp_path / name) if name.startswith("reward.py:") else name for name in functions]
        config = from_mapping({"reward": {"functions": named, "timeout": 20.0, **settings}})
        opened.append(open_rewards(config, task or TwoDigits(), characters, report=report or (lambda sentence: None)))
        return opened[-1]

    yield open_source
    for reward in opened:
        reward.close()
