"""Runs the text of a script with every stand-in installed, in its own process, and returns what it prints as JSON."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

_DRIVER = """
import json, runpy, sys
from pathlib import Path
from assay.rehearsal.stage import Stage
from assay.rehearsal.standins import install_all
script = Path(sys.argv[1])
stage = Stage(script, script.parent, Path(sys.argv[2]))
install_all(stage)
stage.open()
sys.path.insert(0, str(script.parent))
sys.argv = [str(script), *sys.argv[3:]]
try:
    runpy.run_path(str(script), run_name="__main__")
finally:
    found = [[one.kind, one.what, one.by] for one in stage.replacements]
    print("REPLACED", json.dumps({"replaced": found, "obstacles": [one.what for one in stage.obstacles]}))
"""


def standing(folder: Path, text: str, *arguments: str, fails: bool = False) -> dict:
    """`text` calls show(name=value, ...) with what JSON can hold; also under "replaced" and "obstacles"."""
    script = folder / "script.py"
    show = "import json\ndef show(**values): print('SHOWN', json.dumps(values))\n"
    script.write_text(show + textwrap.dedent(text))
    home = folder / "home"
    home.mkdir(exist_ok=True)
    command = [sys.executable, "-c", _DRIVER, str(script), str(home), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)
    assert (done.returncode != 0) == fails, done.stderr[-3000:]
    shown = {"out": done.stdout, "errors": done.stderr}
    for line in done.stdout.splitlines():
        mark, _, rest = line.partition(" ")
        if mark in ("SHOWN", "REPLACED"):
            shown |= json.loads(rest)
    return shown
