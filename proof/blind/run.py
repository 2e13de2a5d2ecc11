"""python -m proof.blind.run OUT.json [--round 3] [--jobs 2] [DOOR ...]: what the doctor says of the specimens.

Each door is the one a user takes: our trainer's run directory, `attach` beside TRL, `assay watch`, `assay.observe`, and
`assay doctor` on a log.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SPECIMENS = {1: HERE / "specimens", 2: HERE / "specimens2", 3: HERE / "specimens3"}  # by round; the third: scripts only
DOORS = ("trainer", "trl", "scripts", "classic", "observe", "logs")
SECONDS = 300  # a specimen takes some 20 on a quiet core

# what runs in the process of a specimen, by door; argv: the specimen, a folder
CHILDREN = {
    "trainer": "load(path).run(folder + '/run')",
    "trl": """
from assay.adapters.trl import attach
trainer = load(path).make(folder + '/trl')
doctor = attach(trainer)
try:
    trainer.train()
finally:
    open(folder + '/report.json', 'w').write(doctor.report('json'))
""",
    "observe": """
import runpy
from assay import observation
from assay.doctor.evidence import Evidence
from assay.doctor.report import Report, write
sys.argv = [path]
try:
    runpy.run_path(path, run_name='__main__')
finally:
    report = Report.of('observe', Evidence(), observation._doctor().diagnosis)
    open(folder + '/report.json', 'w').write(write([report], 'json'))
""",
}
LOAD = """
import importlib.util, os, sys
path, folder = sys.argv[1:3]
sys.path.insert(0, os.path.dirname(path))
def load(path):
    spec = importlib.util.spec_from_file_location('specimen', path)
    sys.modules['specimen'] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("doors", nargs="*", metavar="DOOR", help=f"by default all: {', '.join(DOORS)}")
    parser.add_argument("--round", type=int, choices=SPECIMENS, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    unknown = [door for door in options.doors if door not in DOORS]
    if unknown:
        parser.error(f"{unknown[0]!r} is not a door; choose from {', '.join(DOORS)}")
    logs = SPECIMENS[options.round] / "logs"
    if logs.exists():
        make_logs(logs)
    todo = [
        (door, path)
        for door in options.doors or DOORS
        for path in sorted((SPECIMENS[options.round] / door).glob("a[0-9][0-9]*"))
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        said = []
        for result in pool.map(lambda one: diagnose(*one), todo):
            said.append(result)
            print(f"\r{len(said)} of {len(todo)}", end="", file=sys.stderr, flush=True)
    options.out.write_text(json.dumps(said, indent=1))
    print(file=sys.stderr)


def make_logs(folder: Path) -> None:
    """The logs are made, not kept: they are large, and a simulator writes them the same every time."""
    if not any(folder.glob("a[0-9][0-9]*")):
        print("making the logs", file=sys.stderr)
        subprocess.run([sys.executable, "make.py"], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def diagnose(door: str, path: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        report, errors = Path(folder) / "report.json", ""
        if door in CHILDREN:
            errors = _python(folder, "-c", LOAD + CHILDREN[door], str(path), folder)
        if door in ("scripts", "classic"):
            errors = _python(folder, "-m", "assay", "watch", "--format", "json", "--out", str(report), str(path))
        elif door in ("trainer", "logs"):
            place = str(path) if door == "logs" else f"{folder}/run"
            errors += _python(folder, "-m", "assay", "doctor", "--format", "json", "--out", str(report), place)
        return {"door": door, "file": path.name, **_findings(report, errors)}


def _python(folder: str, *arguments: str) -> str:
    """What went to stderr, if the process failed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    root = str(HERE.parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [environment.get("PYTHONPATH")])])
    command = [sys.executable, *arguments]
    try:
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"took more than {SECONDS} seconds"
    return ended.stderr[-400:] if ended.returncode else ""


def _findings(report: Path, errors: str) -> dict[str, Any]:
    if not report.exists():
        return {"error": errors or "no report"}
    document = json.loads(report.read_text())
    reports = document if isinstance(document, list) else document.get("inputs", [document])
    keys = ("code", "severity", "confidence", "message", "follows_from")
    found = [word for read in reports for word in read.get("findings", ())]
    return {"findings": [{key: word.get(key) for key in keys} for word in found]}


if __name__ == "__main__":
    main()
