"""What `python -m benchmarks.model` refuses before any process is started."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from assay.config import ConfigError
from benchmarks.model.options import Options, check, gpu_is_out_of_reach
from benchmarks.model.workload import Workload

SMALL = Workload(prompts=2, group_size=3, prompt_tokens=4, new_tokens=5)


@pytest.mark.parametrize(
    ("changes", "words_of_it"),
    [
        ({"model": "huge"}, "huge is neither a directory"),
        ({"workload": replace(SMALL, group_size=1)}, "--group-size 1 leaves nothing"),
        ({"peer_batch": 4}, "--peer-batch 4 does not divide the 6 rows"),
        ({"plot_path": Path("x.svg")}, "--plot draws how a step grows; add scaling"),
        ({"json_path": Path("missing/x.json")}, "--json missing/x.json: its directory does not exist"),
        ({"json_path": Path("/proc/x.json")}, "--json /proc/x.json could not be written"),
        ({"model": "."}, r"\. is neither a directory with a model"),
        ({"model": __file__}, "is neither a directory with a model"),
        ({"model": "made/of.gguf"}, "is neither a directory with a model"),
        ({"device": "cuda"}, "--device cuda, but torch sees no GPU"),
        ({"contenders": ("trl-autocast",), "dtype": "float32"}, "trl-autocast is about bfloat16"),
        ({"contenders": ("trl-autocast",), "device": "cpu"}, "trl-autocast is about bfloat16"),
        ({"contenders": ("trl-autocast",)}, "trl-autocast is about bfloat16"),
        ({"workload": replace(SMALL, prompt_tokens=508)}, "508 \\+ 5 = 513 tokens, but the model's context is 512"),
        ({"contenders": ("generate",), "measurements": ("step",)}, "--contenders generate has nothing to do"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(changes, words_of_it, monkeypatch):
    monkeypatch.setattr("benchmarks.model.options.gpu_is_out_of_reach", lambda: True)
    with pytest.raises(ConfigError, match=words_of_it):
        check(replace(Options("tiny", SMALL), **changes))


@pytest.fixture
def model(tmp_path):
    """A directory that says how many tokens its model takes."""
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 40}))
    return str(tmp_path)


def test_a_directory_tells_how_many_tokens_fit(model):
    fits = Options(model, replace(SMALL, prompt_tokens=35))
    check(fits)
    with pytest.raises(ConfigError, match=r"36 \+ 5 = 41 tokens, but the model's context is 40"):
        check(replace(fits, workload=replace(SMALL, prompt_tokens=36)))
    with pytest.raises(ConfigError, match=r"70 \+ 5 = 75 tokens"):  # scaling doubles the prompt
        check(replace(fits, measurements=("scaling",)))


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": replace(SMALL, prompt_tokens=507)},
        {"model": "owner/name"},
        {"device": "cpu"},
        {"contenders": ("trl-autocast",), "dtype": "bfloat16"},
        {"contenders": ("trl",), "dtype": "float32"},
        {"json_path": Path("x.json")},
    ],
)
def test_what_may_work_is_left_to_those_who_know(changes, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    check(replace(Options("tiny", SMALL), **changes))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_not_taken_for_a_name_on_the_hub(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    check(Options("owner/name", SMALL))
    Path("owner/name").mkdir(parents=True)
    with pytest.raises(ConfigError, match="owner/name is neither a directory with a model"):
        check(Options("owner/name", SMALL))


@pytest.mark.parametrize("changes", [{"device": "cuda"}, {"contenders": ("trl-autocast",)}])
def test_with_a_gpu_in_reach_torch_is_asked(changes, monkeypatch):
    monkeypatch.setattr("benchmarks.model.options.gpu_is_out_of_reach", lambda: False)
    check(replace(Options("tiny", SMALL), **changes))


@pytest.mark.parametrize(
    ("build", "platform", "driver", "out_of_reach"),
    [
        ("2.13.0+cpu", "linux", True, True),
        ("2.13.0+cpu", "win32", False, True),
        ("2.13.0+cu130", "linux", False, True),
        ("2.13.0", "linux", False, True),
        ("2.13.0+cu130", "linux", True, False),
        ("2.13.0", "win32", False, False),  # its driver has another name
        ("2.13.0+rocm6", "linux", False, False),
    ],
)
def test_a_gpu_is_out_of_reach_without_a_build_or_a_driver_for_it(build, platform, driver, out_of_reach, monkeypatch):
    def load(name):
        if not driver:
            raise OSError(name)

    monkeypatch.setattr("importlib.metadata.version", lambda name: build)
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("ctypes.CDLL", load)
    assert gpu_is_out_of_reach() == out_of_reach
