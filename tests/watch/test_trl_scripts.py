"""A script that trains with TRL gets the adapter by itself; what it finds is in the one report of `assay watch`."""

import json
from pathlib import Path

import pytest
from watch.running import run_plainly, run_watched

ADAPTERS = Path(__file__).resolve().parent.parent / "adapters"
SCRIPT = """
import sys
sys.path.insert(0, {adapters!r})
import tempfile
from tiny_trl import GRPOTrainer, made_trainer, model_directory


class Mine(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return {factor} * super()._compute_loss(model, inputs)


with tempfile.TemporaryDirectory() as folder:
    model = model_directory(folder + "/model")
    trainer = made_trainer(model, folder + "/out", kind=Mine, max_steps=4)
    trainer.train()
    import os
    print(sorted(os.listdir(folder)), sum(w.double().sum().item() for w in trainer.model.parameters()))
"""


@pytest.fixture
def script(write):
    def script(factor=1.0):
        return write(SCRIPT.format(adapters=str(ADAPTERS), factor=factor))

    return script


def test_a_trl_script_runs_as_without_it_and_is_judged_by_the_adapter(script, tmp_path):
    sound, out = script(), tmp_path / "report.json"
    plain, watched = run_plainly(sound), run_watched(sound, out=str(out), how="json")
    assert watched.returncode == plain.returncode == 0, watched.stderr
    assert watched.stdout.splitlines()[-1] == plain.stdout.splitlines()[-1]  # the lines before hold seconds
    report = json.loads(out.read_text())
    assert [finding["code"] for finding in report["findings"] if finding["confidence"] != "possible"] == []
    assert {"LAW02", "LAW03", "LAW04", "LAW05", "LAW07", "RAT01"} <= {one["code"] for one in report["passed"]}
    assert "the script trains with TRL: the doctor was attached to its trainer" in report["notes"]


def test_a_fault_in_a_trl_script_is_proven(script, tmp_path):
    out = tmp_path / "report.json"
    run_watched(script(-1.0), out=str(out), how="json")
    found = {finding["code"]: finding["confidence"] for finding in json.loads(out.read_text())["findings"]}
    assert found.get("LOSS01") == "proven"


def test_steps_end_a_trl_script(script):
    watched = run_watched(script(), steps=2)
    assert watched.returncode == 0
    assert "model" not in watched.stdout
    assert "attached to its trainer" in watched.stderr
