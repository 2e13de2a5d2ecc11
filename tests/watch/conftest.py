"""A script in a folder of its own."""

import pytest


@pytest.fixture
def write(tmp_path):
    def write(text):
        script = tmp_path / "script.py"
        script.write_text(text)
        return script

    return write
