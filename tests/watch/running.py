"""Scripts that are run as `assay watch` runs them, each in its own process."""

import json
import subprocess
import sys
from pathlib import Path

LETTERS = Path(__file__).parent / "scripts" / "letters.py"


def run_plainly(script, *arguments):
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, cwd=script.parent)


def run_watched(script, *arguments, **how):
    """The finished process of `assay watch`; how=... are keywords of assay.watch.command.run."""
    code = (
        "import sys, json; from pathlib import Path; from assay.watch.command import run\n"
        "how = json.loads(sys.argv[1]); how['out'] = Path(how['out']) if 'out' in how else None\n"
        "sys.exit(run(Path(sys.argv[2]), sys.argv[3:], **how))"
    )
    command = [sys.executable, "-c", code, json.dumps(how), str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=script.parent)


def planted(folder, *edits):
    """letters.py with these texts in it replaced."""
    text = LETTERS.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    script = folder / "script.py"
    script.write_text(text)
    return script
