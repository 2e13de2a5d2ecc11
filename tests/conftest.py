"""Shared by the tests that run real commands."""

import fcntl
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fixtures import warm_python as warm
from fixtures.commands import serving, settings

# Where Python may not keep bytecode, each of the hundreds of processes below compiles torch and transformers again.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).parents[1] / ".pytest_cache/bytecode")
# Before torch is imported. Test files run side by side; two pools of threads on the same cores slow each other down.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # where a test asks for two, they do not spin while they wait for each other
# Before triton is imported, which transformers does: without a GPU its kernels are interpreted.
if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"

MEMORY = "/dev/shm"
# half a minute and more each: files are dealt out whole, and a long one at the end would keep a single core busy
LONGEST_FILES = (
    "tests/test_readme.py",
    "tests/train/run/test_default_run.py",
    "tests/train/run/test_resume.py",
    "tests/train/run/test_changes.py",
    "tests/policy/test_smollm2.py",
    "tests/watch/test_the_script_is_its_own.py",
    "tests/watch/test_run_checks.py",
    "tests/watch/test_faults_of_ours.py",
    "tests/proof/test_scripts.py",
)


# what `make test-fast` leaves out: tests that start commands, that interpret kernels, or that take seconds each
SLOW_FIXTURES = {"assay_command", "smollm2", "warm_peer", "warm_python"}
SLOW_FILES = (
    "tests/adapters/", "tests/bench/", "tests/cli/test_first_words.py", "tests/doctor/command/test_many_inputs.py",
    "tests/doctor/command/test_script_command.py", "tests/doctor/command/test_unreadable_inputs.py",
    "tests/doctor/illnesses/test_curves.py", "tests/doctor/illnesses/test_sound_runs.py",
    "tests/doctor/illnesses/test_source_checks.py", "tests/doctor/illnesses/test_what_must_not_matter.py",
    "tests/doctor/report/test_hostile_names.py", "tests/doctor/report/test_report_of_a_broken_run.py",
    "tests/doctor/report/test_report_schemas.py", "tests/doctor/test_catalogue.py", "tests/doctor/test_false_alarms.py",
    "tests/doctor/test_garbage.py", "tests/doctor/test_live.py", "tests/engine/", "tests/foreign/",
    "tests/grpo/test_mutants.py", "tests/grpo/test_trl_parity.py", "tests/llama/kernels/", "tests/llama/test_cpu.py",
    "tests/llama/test_cuda", "tests/llama/test_family_decoder.py", "tests/llama/test_forward.py",
    "tests/machine/test_interpreter.py", "tests/policy/test_checkpointing.py", "tests/policy/test_embedded.py",
    "tests/policy/test_lora.py", "tests/policy/test_probe.py", "tests/programs/read/test_literals.py", "tests/proof/",
    "tests/record/test_record_survives.py", "tests/record/test_verify.py", "tests/reward_check/test_bench.py",
    "tests/reward_check/test_gallery.py", "tests/rewards/judges/test_judge_http",
    "tests/rewards/judges/test_judge_model.py", "tests/rewards/test_children.py", "tests/rewards/test_combined.py",
    "tests/rewards/test_failures.py", "tests/rewards/test_math_answer.py", "tests/rewards/test_pool.py",
    "tests/rewards/test_printed.py", "tests/rewards/test_process.py", "tests/tasks/test_reasoning_gym.py",
    "tests/test_observe.py", "tests/test_sampling.py", "tests/train/evaluate/test_evaluate.py",
    "tests/train/evaluate/test_export.py", "tests/train/run/test_checkpoint_survives.py",
    "tests/train/run/test_default_run.py", "tests/train/run/test_long_prompts.py", "tests/train/show/test_sinks.py",
    "tests/train/step/test_learner.py", "tests/train/step/test_verbs.py", "tests/train/test_examine",
    "tests/train/test_recompute.py", "tests/train/test_settings_matter.py", "tests/train/test_trainer_steps.py",
    "tests/train/test_watch.py", "tests/watch/",
)  # fmt: skip


def pytest_ignore_collect(collection_path, config):
    """What `make test-fast` leaves out is not even imported."""
    name = collection_path.relative_to(config.rootpath).as_posix() if config.option.markexpr == "not slow" else ""
    return True if name.startswith(SLOW_FILES) else None


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # ten thousand tests and the libraries: nothing that need be looked through again and again


def pytest_collection_modifyitems(config, items):
    if "thorough" not in config.option.markexpr:
        kept = [item for item in items if not item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("thorough")])
        items[:] = kept
    places = {file: place for place, file in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: places.get(item.location[0], len(places)))
    for item in items:
        if item.location[0].startswith(SLOW_FILES) or not SLOW_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def run_root():
    """Where runs are made: in memory where that is possible. A killed process, unlike a power cut, cannot tell the
    difference, and syncing to a disk is most of what a tiny run does."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as root:
        yield Path(root)


@pytest.fixture
def run_path(run_root):
    """A path at which there is nothing yet, for one run."""
    return Path(tempfile.mkdtemp(dir=run_root)) / "run"


@pytest.fixture(scope="session")
def warm_python():
    """The path of a `python` that has torch and transformers in memory."""
    with warm.serving() as python:
        yield python


@pytest.fixture(scope="session")
def smollm2(warm_python):
    """SmolLM2 is unpacked: once, by whichever of the processes of this test session comes first."""
    unpack = (
        "from assay.policy.gguf import unpack_gguf; from assay.policy.where import smollm2_file; "
        "unpack_gguf(smollm2_file(), lambda sentence: None)"
    )
    with Path(os.environ["ASSAY_TEST_HOME"], "smollm2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([warm_python, "-c", unpack], check=True)


@pytest.fixture(scope="session")
def warm_peer(warm_python):
    """... and TRL."""
    with warm.serving(("trl.trainer.grpo_trainer",), warm_python) as python:
        yield python


@pytest.fixture(scope="session")
def assay_command(run_root, warm_python):
    """`assay_command.run("train", ...)` runs a command in a process of its own and returns what it left behind."""
    with serving(warm_python) as commands:
        # the warm start of the embedded model is cached: from here on, all runs of one config are alike
        assert commands.run("train", *settings(run__steps=1), "--out", run_root / "first").code == 0
        yield commands
