"""assay rehearse: a script runs in a copy behind walls, for a few steps, and one report names the user's files."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from assay.rehearsal import command

TRAINS = """
    import torch

    torch.manual_seed(0)
    policy = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    for update in range(100):
        states = torch.randn(8, 4)
        distribution = torch.distributions.Categorical(logits=policy(states))
        actions = distribution.sample()
        rewards = (actions == 1).float()
        loss = -(distribution.log_prob(actions) * (rewards - rewards.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise SystemExit("all hundred were made")
"""


def rehearse(folder: Path, text: str, *arguments: str, name: str = "train.py", **how) -> dict:
    """The report as JSON. The folder is a project of its own."""
    script = folder / "project" / name
    script.parent.mkdir(parents=True, exist_ok=True)
    (folder / "project" / "requirements.txt").write_text("torch\n")
    script.write_text(textwrap.dedent(text))
    out = folder / "report.json"
    command.run(script, arguments, how="json", out=out, **how)
    return json.loads(out.read_text())


def what_hindered(report: dict) -> list[str]:
    return [obstacle["what"] for obstacle in report["rehearsal"]["obstacles"]]


def test_a_script_is_ended_after_the_steps_that_were_asked_for(tmp_path):
    report = rehearse(tmp_path, TRAINS, steps=3)
    rehearsal = report["rehearsal"]
    assert (rehearsal["ended"], rehearsal["steps"]) == ("steps", 3)
    assert list(rehearsal["seconds"]) == ["started", "sampled", "scored", "backward", "first step", "third step"]
    assert report["source"] == str(tmp_path / "project" / "train.py")


def test_required_arguments_are_made_by_choice_type_and_the_projects_commands(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text(
        "```\npython train.py --flavour vanilla --size 7 \\\n  --shape $X\n```\n"
    )
    report = rehearse(
        tmp_path,
        """
        import argparse, sys
        parser = argparse.ArgumentParser()
        parser.add_argument("--kind", choices=["a", "b"], required=True)
        parser.add_argument("--flavour", required=True)
        parser.add_argument("--count", type=int, required=True)
        parser.add_argument("--size", type=int, default=3)
        parser.add_argument("--shape", required=True)
        given = parser.parse_args()
        sys.exit(f"{given.kind} {given.flavour} {given.count + 1} {given.size} {given.shape}")
        """,
    )
    assert what_hindered(report) == ["the script ended itself with 'a vanilla 5 3 rehearsal'"]
    assert report["rehearsal"]["arguments"] == ["--kind a --flavour vanilla --count 4 --shape rehearsal"]


def test_a_file_that_only_defines_is_run_through_the_one_that_calls_it(tmp_path):
    project = tmp_path / "project"
    (project / "src" / "loops").mkdir(parents=True)
    (project / "start.py").write_text("from loops.grpo import learn\n\nif __name__ == '__main__':\n    learn()\n")
    report = rehearse(tmp_path, "import sys\n\ndef learn():\n    sys.exit('learned')\n", name="src/loops/grpo.py")
    assert report["rehearsal"]["entry"] == "start.py"
    assert what_hindered(report) == ["the script ended itself with 'learned'"]
    assert report["rehearsal"]["obstacles"][0]["file"] == str(project / "src" / "loops" / "grpo.py")


def test_relative_imports_run_as_a_module_of_their_package(tmp_path):
    package = tmp_path / "project" / "src" / "ours" / "loop"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "words.py").write_text("word = 'relative'\n")
    report = rehearse(
        tmp_path,
        "import sys\nfrom .words import word\n\nif __name__ == '__main__':\n    sys.exit(word)\n",
        name="src/ours/loop/train.py",
    )
    assert what_hindered(report) == ["the script ended itself with 'relative'"]


def test_what_a_script_writes_and_deletes_stays_in_its_copy(tmp_path):
    kept, outside = tmp_path / "project" / "data.txt", tmp_path / "outside.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    outside.write_text("mine too")
    report = rehearse(
        tmp_path,
        f"""
        import os, pathlib, sys
        seen = open("data.txt").read()
        os.remove("data.txt")
        open("new.txt", "w").write("x")
        (pathlib.Path.home() / "cache.txt").write_text("x")
        try:
            open({str(outside)!r}, "w").write("gone")
        except OSError:
            sys.exit(f"{{seen}}, refused")
        """,
    )
    assert kept.read_text() == "mine"
    assert not (tmp_path / "project" / "new.txt").exists()
    assert not (Path.home() / "cache.txt").exists()
    if what_hindered(report):  # where the kernel has Landlock, or namespaces
        assert what_hindered(report) == ["the script ended itself with 'mine, refused'"]
        assert outside.read_text() == "mine too"


def test_a_script_reaches_itself_and_nobody_else_on_the_network(tmp_path):
    report = rehearse(
        tmp_path,
        """
        import socket, sys
        server = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(server.getsockname(), timeout=5).close()
        try:
            socket.create_connection(("93.184.215.14", 80), timeout=5)
        except OSError as error:
            sys.exit(error.strerror)
        """,
    )
    assert what_hindered(report) == ["the script ended itself with 'a rehearsal has no network: 93.184.215.14'"]


def test_an_endless_loop_is_cut_and_what_it_started_ends_with_it(tmp_path):
    mark = f"rehearsed-{os.getpid()}"
    began = time.monotonic()
    report = rehearse(
        tmp_path,
        f"""
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", {mark!r}], start_new_session=True)
        while True:
            try:
                1 + 1
            except:
                pass
        """,
        seconds=3,
    )
    assert report["rehearsal"]["ended"] == "time"
    assert time.monotonic() - began < 60
    assert _with(mark) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_killed_leaves_no_process(tmp_path, number):
    mark = f"killed-{os.getpid()}-{number}"
    script = tmp_path / f"{mark}.py"
    script.write_text("import time\n\nif __name__ == '__main__':\n    time.sleep(600)\n")
    started = subprocess.Popen([sys.executable, "-m", "assay", "rehearse", str(script)], stderr=subprocess.DEVNULL)
    assert _becomes_true(lambda: len(_with(mark)) >= 2)
    started.send_signal(number)
    started.wait()
    assert _becomes_true(lambda: not _with(mark))


def _with(mark: str) -> list[bytes]:
    places = [place for place in Path("/proc").glob("[0-9]*/cmdline") if _is_readable(place)]
    return [line for place in places if _is_readable(place) and mark.encode() in (line := place.read_bytes())]


def _becomes_true(said) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end and not said():
        time.sleep(0.1)
    return said()


def _is_readable(place: Path) -> bool:
    try:
        return bool(place.read_bytes()) or True
    except OSError:
        return False


@pytest.mark.parametrize(
    ("line", "hindrance"),
    [
        ("import a_module_that_is_not_there; a_module_that_is_not_there.count + {}", "a value of a stand-in was used"),
        ("[][1]", "IndexError"),
    ],
)
def test_what_a_rehearsal_lacks_is_an_obstacle_with_its_line(tmp_path, line, hindrance):
    report = rehearse(tmp_path, f"import os\n\n{line}\n")
    (obstacle,) = report["rehearsal"]["obstacles"]
    assert obstacle["what"].startswith(hindrance)
    assert (obstacle["file"], obstacle["line"]) == (str(tmp_path / "project" / "train.py"), 3)
    assert report["findings"] == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("print(undefined_thing)", "NameError: name 'undefined_thing' is not defined"),
        ("take(1, 2)", "TypeError: take() takes 1 positional argument but 2 were given"),
        ("Thing().size", "AttributeError: 'Thing' object has no attribute 'size'"),
    ],
)
def test_a_name_that_does_not_exist_is_a_finding_of_the_script_with_its_line(tmp_path, line, words):
    text = f"def take(one):\n    return one\n\nclass Thing:\n    pass\n\nif __name__ == '__main__':\n    {line}\n"
    report = rehearse(tmp_path, text)
    found = {finding["code"]: finding for finding in report["findings"]}
    assert found["NAME01"]["message"] == f"the script stops here with {words}"
    assert (found["NAME01"]["confidence"], found["NAME01"]["line"]) == ("proven", 8)
    assert report["rehearsal"]["obstacles"] == []


def test_a_main_that_nothing_calls_is_called_with_the_configuration_beside_it(tmp_path):
    (tmp_path / "project").mkdir()
    fields = "from dataclasses import dataclass\n\n@dataclass\nclass RunConfig:\n    word: str = 'called'\n"
    (tmp_path / "project" / "config.py").write_text(fields)
    text = "import sys\n\ndef main(config):\n    loss.backward() if not config.word else sys.exit(config.word)\n"
    assert what_hindered(rehearse(tmp_path, text)) == ["the script ended itself with 'called'"]
