import pytest
import torch

from assay.machine import memory

CPU = torch.device("cpu")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 100 kB\nMemAvailable: 500 kB\n")
    return tmp_path


def test_what_the_system_calls_available_is_free(machine):
    assert memory.free_bytes(CPU) == 500 * 1024


@pytest.mark.parametrize(("limit", "free"), [("300000", 200_000), ("9000000", 500 * 1024), ("max", 500 * 1024)])
def test_a_container_may_have_less_than_its_machine(machine, limit, free):
    (machine / "memory.max").write_text(f"{limit}\n")
    (machine / "memory.current").write_text("100000\n")
    assert memory.free_bytes(CPU) == free
