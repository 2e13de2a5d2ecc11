"""What the machine decides is written into the config as numbers; a starved run is told so."""

import os
import time
from dataclasses import replace

import pytest
import torch

from assay.config import load
from assay.train.run import cpu
from assay.train.run.cpu import NOTICEABLE, STARVED, free_threads, settled, starvation
from assay.train.show.clock import StageClock


def test_what_the_machine_decides_is_written_down():
    config = settled(load(None))
    assert (config.run.threads, config.model.dtype) == (1, "float32")  # the embedded model
    assert config.run.device == ("cuda" if torch.cuda.is_available() else "cpu")
    other = settled(load(None, ["model.path=somewhere", "run.device=cpu"]))
    assert other.run.threads >= 1
    assert (other.run.device, other.model.dtype) == ("cpu", "float32")


def test_a_settled_config_stays_as_it_is_and_a_setting_of_ones_own_too(monkeypatch):
    config = settled(load(None, ["model.path=somewhere"]))
    monkeypatch.setattr(cpu, "free_threads", lambda: 77)
    assert settled(config) == config  # a resumed run does the same again, however busy the machine is by then
    chosen = load(None, ["run.threads=3", "run.device=cpu", "model.dtype=bfloat16"])
    assert settled(chosen) == chosen
    assert settled(replace(config, run=replace(config.run, threads=0))).run.threads == 77


@pytest.mark.parametrize(
    ("cores", "load_average", "free"), [(8, 0.2, 8), (8, 2.6, 5), (8, 8.0, 1), (8, 40.0, 1), (1, 0.0, 1), (2, 0.9, 1)]
)
def test_free_threads_are_the_cores_that_nobody_uses_and_never_none(cores, load_average, free, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load_average, 99.0, 99.0))
    assert free_threads() == free


def test_this_machine_has_a_thread():
    assert 1 <= free_threads() <= (os.cpu_count() or 1)


def test_a_run_that_waits_for_the_cpu_is_told_so_with_its_numbers():
    assert (STARVED, NOTICEABLE) == (3.0, 5.0)
    assert starvation(60.0, 55.0, 4) == ""
    assert starvation(60.0, 20.1, 4) == ""
    assert starvation(4.9, 0.1, 4) == ""  # nobody waits for that
    sentence = starvation(60.0, 19.9, 4)
    assert "60 s passed while this run computed for 20 s" in sentence
    assert sentence.endswith("one thread (run.threads = 1) suffers least")
    assert starvation(60.0, 19.9, 1).endswith("computed for 20 s")  # it has only one already
    assert starvation(5.0, 0.0, 1) != ""


def test_setting_up_fixes_threads_and_kernels(monkeypatch):
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    try:
        cpu.set_up(load(None, ["run.threads=2", "run.device=cpu", "model.dtype=float32"]))
        assert torch.get_num_threads() == 2
        assert torch.are_deterministic_algorithms_enabled()
        assert "ONEDNN_MAX_CPU_ISA" not in os.environ
        cpu.set_up(load(None, ["run.threads=1", "run.device=cpu", "model.dtype=bfloat16"]))
        assert torch.get_num_threads() == 1
        assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])
        for name in ("ONEDNN_MAX_CPU_ISA", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
            os.environ.pop(name, None)


def test_a_step_counts_the_cpu_time_of_its_own_work_and_not_that_of_the_rewards():
    def compute(seconds):
        began = time.process_time()
        while time.process_time() - began < seconds:
            pass

    clock = StageClock(torch.device("cpu"), None)
    clock.begin(1)
    for stage, seconds in (("generated", 0.05), ("scored", 0.3), ("loss", 0.05)):
        with clock.timed(stage):
            compute(seconds)
    assert 0.1 <= clock.cpu_seconds < 0.3
    clock.begin(2)
    assert clock.cpu_seconds == 0.0
