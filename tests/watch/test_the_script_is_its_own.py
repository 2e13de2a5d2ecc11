"""What a script prints, returns and leaves behind is the same as without `assay watch`."""

import os
import signal
import subprocess
import sys

import pytest
from watch.running import LETTERS, run_plainly, run_watched

from assay.watch.command import WatchError, run


def test_its_output_is_the_same_to_the_last_digit_and_the_random_numbers_behind_it_too():
    plain, watched = run_plainly(LETTERS, "3"), run_watched(LETTERS, "3")
    assert watched.stdout == plain.stdout
    assert "final" in plain.stdout
    assert watched.returncode == 0


def test_its_arguments_name_path_and_exit_code_are_its_own(write):
    script = write(
        "import sys, os, __main__\n"
        "print(sys.argv, __name__, __file__, sys.path[0], os.getcwd(), __main__.__file__, __spec__)\nsys.exit(3)\n"
    )
    plain, watched = run_plainly(script, "a", "--b"), run_watched(script, "a", "--b")
    assert watched.stdout == plain.stdout
    assert watched.returncode == plain.returncode == 3
    assert "did not import torch" in watched.stderr
    assert not (script.parent / "__pycache__").exists()


def test_its_traceback_is_the_same_and_the_diagnosis_comes_behind(write):
    script = write(
        "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, ids):\n"
        "        return ids.float() @ ids.float()\n\n\nModel()(torch.ones(2, 3, dtype=torch.long))\n"
    )
    plain, watched = run_plainly(script), run_watched(script)
    assert plain.stderr.endswith("(2x3 and 2x3)\n")
    assert watched.stderr.startswith(plain.stderr)
    assert "the script ended with RuntimeError at" in watched.stderr
    assert "script.py:7" in watched.stderr
    assert watched.returncode == plain.returncode == 1


def test_os_exit_ends_it_with_its_code_and_what_was_seen_is_told(write):
    script = write("import os, torch\ntorch.ones(2).sum()\nprint('out', flush=True)\nos._exit(5)\n")
    watched = run_watched(script)
    assert watched.returncode == 5
    assert watched.stdout == "out\n"
    assert "no optimizer step was observed" in watched.stderr


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers_run_as_they_would(write, how):
    script = write(
        "import multiprocessing, torch\n\n\ndef work(n):\n    return float(torch.full((n,), 2.0).sum())\n\n\n"
        f"if __name__ == '__main__':\n    with multiprocessing.get_context('{how}').Pool(1) as pool:\n"
        "        print(pool.map(work, [1, 2]))\n"
    )
    watched = run_watched(script)
    assert watched.stdout == "[2.0, 4.0]\n"
    assert watched.returncode == 0


def test_a_signal_reaches_it(write):
    script = write(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    code = "from pathlib import Path; from assay.watch.command import run; import sys; sys.exit(run(Path(sys.argv[1])))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 7
    assert "nothing could be observed" in errors


def test_a_script_that_is_killed_is_told_by_the_code_of_a_shell(write):
    script = write("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    watched = run_watched(script)
    assert watched.returncode == 128 + signal.SIGKILL
    assert "ended before a report could be written" in watched.stderr


def test_steps_stop_it_after_so_many_optimizer_steps():
    watched = run_watched(LETTERS, "50", steps=4)
    assert watched.returncode == 0
    assert watched.stdout.count("step") == 1  # the second rollout batch was not finished
    assert "4 optimizer steps" in watched.stderr


def test_a_file_in_its_folder_is_found_and_relative_paths_hold(write):
    script = write("import beside\nprint(beside.word, open('data.txt').read())\n")
    (script.parent / "beside.py").write_text("word = 'found'\n")
    (script.parent / "data.txt").write_text("data")
    assert run_watched(script).stdout == run_plainly(script).stdout == "found data\n"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"steps": 0}, "--steps is 0"),
        ({"how": "json"}, "needs --out"),
        ({"how": "xml"}, "--format is 'xml'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence_before_anything_runs(how, words):
    with pytest.raises(WatchError, match=words):
        run(LETTERS, [], **how)


def test_a_script_that_is_not_there_is_named(tmp_path):
    with pytest.raises(WatchError, match=r"nowhere\.py does not exist"):
        run(tmp_path / "nowhere.py")
    notebook = tmp_path / "train.ipynb"
    notebook.write_text("{}")
    with pytest.raises(WatchError, match="is a notebook, which assay doctor reads; export it as a script"):
        run(notebook)
    with pytest.raises(WatchError, match="is a directory"):
        run(tmp_path)


def test_nothing_is_left_in_the_temporary_folder(write, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    run_watched(write("print(1)\n"))
    assert os.listdir(folder) == []
