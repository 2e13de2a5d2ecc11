"""Whatever a reward has started ends with it, also what has a session of its own and what has lost its parent."""

import os
import subprocess
import sys
import time

import pytest
from rewards.asking import asked, body, score_all
from rewards.test_process import ends_soon, is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker's process group alone is killed")

# three ways to get away: a session of its own, a session and another parent, and both with an empty environment
STARTS = """
def start(file):
    script = f'echo $$ >> {file}; exec sleep 600'
    subprocess.Popen(['sh', '-c', script], start_new_session=True)
    subprocess.run(['sh', '-c', f'(setsid sh -c "{script.replace("$$", chr(92) + "$" + chr(92) + "$")}" &) &'])
    subprocess.Popen(['setsid', 'env', '-i', 'PATH=' + os.environ['PATH'], 'sh', '-c', script])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(file, 'a').write(f'{os.getpid()}\\n')
            time.sleep(600)
        os._exit(0)
    for _ in range(500):
        if os.path.exists(file) and len(open(file).read().split()) == 4: return
        time.sleep(0.01)
"""


def started(file):
    processes = [int(word) for word in file.read_text().split()]
    assert len(processes) == 4
    return processes


@pytest.mark.parametrize(
    ("then", "error"),
    [
        ("time.sleep(600)", "took longer than"),
        ("os._exit(3)", "its process exited with 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", r"its process died (SIGSEGV)"),
        ("os.killpg(0, signal.SIGKILL)", r"its process died (SIGKILL)"),
        ("os.closerange(3, 256)", "closed the connection"),
    ],
)
def test_they_end_when_the_worker_hangs_or_dies(rewards, tmp_path, then, error):
    file = tmp_path / "started"
    reward = rewards(
        STARTS + body(f"if completion == 'fine': return 1.0\n    start({str(file)!r}); {then}"), timeout=2.0
    )
    lost, fine = score_all(reward, asked("lost", "fine"))
    assert error in lost.error or (error == "closed the connection" and "exited with" in lost.error)
    assert fine.reward == 1.0
    assert all(map(ends_soon, started(file)))


def test_they_live_on_between_calls_and_end_when_the_pool_is_closed(rewards, tmp_path):
    file = tmp_path / "started"
    reward = rewards(STARTS + body(f"if completion == 'first': start({str(file)!r})\n    return 1.0"))
    assert [score.reward for score in score_all(reward, asked("first", "second"))] == [1.0, 1.0]
    assert all(map(is_running, started(file)))
    reward.close()
    assert all(map(ends_soon, started(file)))


def test_they_end_when_the_trainer_is_killed(tmp_path):
    file = tmp_path / "started"
    (tmp_path / "reward.py").write_text(
        f"import os, subprocess, time\n{STARTS}\nstart({str(file)!r})\ntime.sleep(600)\n"
    )
    spec = f"{tmp_path / 'reward.py'}:score"
    code = (
        "from assay.rewards.pool import Pool, RewardSpec\n"
        f"Pool([RewardSpec('score', {spec!r})], workers=1, timeout=60, separator='x')\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", code])
    try:
        for _ in range(400):
            if file.exists() and len(file.read_text().split()) == 4:
                break
            time.sleep(0.05)
    finally:
        trainer.kill()
        trainer.wait()
    assert all(map(ends_soon, started(file)))


def test_a_flood_of_processes_ends_too(rewards, tmp_path):
    file = tmp_path / "started"
    source = (
        "def score(completion):\n"
        "    for _ in range(6):\n"  # 64 processes, each in a session of its own
        "        if os.fork() == 0: os.setsid()\n"
        f"    os.write(os.open({str(file)!r}, os.O_CREAT | os.O_APPEND | os.O_WRONLY), f'{{os.getpid()}} '.encode())\n"
        "    time.sleep(600)\n"
    )
    (score,) = score_all(rewards(source, timeout=2.0), asked("1"))
    assert score.error == "score: took longer than 2 s"
    processes = [int(word) for word in file.read_text().split()]
    assert len(processes) == 64
    assert all(map(ends_soon, processes))


def test_a_child_that_holds_the_standard_streams_keeps_nobody_waiting(rewards):
    source = body("subprocess.Popen(['sleep', '600'], start_new_session=True); return os.getpid()")
    read, write = os.pipe()
    kept = os.dup(2)
    os.dup2(write, 2)
    try:
        reward = rewards(source)
        assert score_all(reward, asked("1"))[0].reward > 0
        reward.close()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(write)
    assert os.read(read, 1) == b""  # nobody else holds our standard error: a shell's pipe would end here
    os.close(read)


def test_a_trainer_that_ignores_the_end_of_children_waits_for_no_worker_for_ever(tmp_path):
    (tmp_path / "reward.py").write_text("import os\nos._exit(4)\n")
    spec = f"{tmp_path / 'reward.py'}:score"
    code = (
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"  # as a daemon may have left it
        "from assay.config import ConfigError\nfrom assay.rewards.pool import Pool, RewardSpec\n"
        f"try: Pool([RewardSpec('score', {spec!r})], workers=1, timeout=60, separator='x')\n"
        "except ConfigError as error: print(error)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "could not be loaded: its process" in shown.stdout, shown.stderr
