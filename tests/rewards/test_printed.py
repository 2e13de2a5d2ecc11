"""What a reward prints: the beginning and the end are kept, the rest is counted, nothing fills memory or a disk."""

import resource
import subprocess
import sys

import pytest
from rewards.asking import asked, body, score_all

from assay.rewards.printed import ECHOED, SHOWN, Echo, Printed

KEY = "sk-0123456789abcdef"


def printed(*pieces):
    one = Printed()
    for piece in pieces:
        one.add(piece)
    return one


def test_a_little_is_kept_whole():
    assert printed().text == ""
    assert printed(b"one\n", b"two\n").text == "one\ntwo\n"
    assert printed(b"\xff\xfe ok").text == "\\xff\\xfe ok"


@pytest.mark.parametrize("size", [1, 100, 65_536, 5_000_000])
def test_of_much_the_beginning_and_the_end_are_kept_and_the_rest_is_counted(size):
    data = b"".join(b"%09d\n" % number for number in range(500_000))
    one = Printed()
    for start in range(0, min(len(data), size * 20_000), size):
        one.add(data[start : start + size])
    sent = data[: one.total]
    head, gap, tail = one.text.partition("\n[... ")
    left_out, _, tail = tail.partition(" left out ...]\n")
    assert gap
    assert sent.decode().startswith(head)
    assert sent.decode().endswith(tail)
    assert len(head) == len(tail) == SHOWN
    assert int(left_out.split()[0].replace(",", "")) == len(sent) - 2 * SHOWN
    assert len(one._head) + len(one._tail) < 10 * SHOWN


@pytest.mark.parametrize("before", [0, SHOWN - 10, SHOWN - 1, 2 * SHOWN - 10, 3 * SHOWN])
@pytest.mark.parametrize("lots", [0, 100_000])
def test_no_part_of_a_secret_is_left_at_the_cut(monkeypatch, before, lots):
    monkeypatch.setenv("SOME_API_KEY", KEY)
    text = printed(b"x" * before + KEY.encode() + b"y" * lots + KEY.encode() + b"z" * before).text
    for start in range(len(KEY) - 4):
        assert KEY[start : start + 4] not in text
    flood = printed(*[KEY.encode() + b"\n"] * 5000).text
    assert "sk-" not in flood
    assert "cdef" not in flood


def test_a_long_secret_that_is_printed_over_and_over_leaves_no_part_of_it(monkeypatch):
    key = "".join(f"{number:03d}-" for number in range(750))
    monkeypatch.setenv("SOME_API_KEY", key)
    text = printed(*[key.encode() + b"\n"] * 100).text
    assert not [part for part in key.split("-") if part and f"{part}-" in text]


def test_the_first_lines_are_reported_as_they_come(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", KEY)
    said = []
    echo = Echo(said.append)
    echo.add("a", b"one\ntw")
    assert said == ["the reward prints: one"]
    echo.add("b", b"three\n")
    echo.add("a", f"o {KEY}\n".encode())
    assert said[1:] == ["the reward prints: three", "the reward prints: two [value of SOME_API_KEY]"]
    for number in range(10_000):
        echo.add("a", b"%d\n" % number)
    assert len(said) == ECHOED + 1
    assert said[-1].startswith(f"the reward has printed {ECHOED} lines")


def test_a_line_without_an_end_is_reported_in_pieces():
    said = []
    echo = Echo(said.append)
    for _ in range(100):
        echo.add("a", b"x" * 100_000)
    assert len(said) == ECHOED + 1
    assert max(map(len, said)) < 3000


@pytest.mark.parametrize("size", [100, 1_995, 65_536])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_no_part_of_a_secret_is_left_where_a_long_line_is_cut(monkeypatch, size, end):
    monkeypatch.setenv("SOME_API_KEY", KEY)
    said = []
    echo = Echo(said.append)
    data = b"x" * 10 + b"".join(b"x" * (2_000 - len(KEY)) + KEY.encode() for _ in range(40)) + end
    for start in range(0, len(data), size):
        echo.add("a", data[start : start + size])
    assert said
    assert not [line for line in said if "sk-" in line or "cdef" in line]


LOUD = body(
    "print('first'); sys.stderr.write('error too\\n')\n"
    "    os.write(1, b'from C\\n'); subprocess.run(['echo', 'from a child'])\n"
    "    if completion == 'much':\n"
    "        for _ in range(200): sys.stdout.write('x' * 1_000_000)\n"
    "    print('last')\n"
    "    if completion == 'die': os._exit(3)\n"
    "    if completion == 'fine': return 1.0\n"
    "    raise ValueError('after all')"
)


def test_what_was_printed_comes_with_the_failure(rewards):
    said = []
    fine, failed, dead, much = score_all(
        rewards(LOUD, timeout=60.0, report=said.append), asked("fine", "raise", "die", "much")
    )
    assert fine.reward == 1.0
    for score in (failed, dead):
        assert score.failure.printed == "first\nerror too\nfrom C\nfrom a child\nlast\n"
    assert much.failure.printed.startswith("first\nerror too\nfrom C\nfrom a child\nxxx")
    assert much.failure.printed.endswith("xxxlast\n")
    assert "bytes left out" in much.failure.printed
    assert len(much.failure.printed) < 3 * SHOWN
    assert "the reward prints: from a child" in said


def test_a_reward_that_prints_a_gigabyte_costs_no_memory(tmp_path):
    (tmp_path / "reward.py").write_text(
        "import os\ndef score(completion):\n    for _ in range(16_000): os.write(2, b'x' * 65_536)\n    return 1.0\n"
    )
    code = (
        "import resource, sys\n"
        "from assay.rewards.pool import Pool, RewardSpec\n"
        f"pool = Pool([RewardSpec('score', {str(tmp_path / 'reward.py')!r} + ':score')], workers=1, timeout=120, "
        "separator='x')\n"
        "sample = {'completion': '', 'fields': {}, 'id': 'a', 'prompt': '', 'answer': '', 'tokens': [], "
        "'truncated': False}\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "pool.score([sample], lambda sample, function, result: print(result))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        "pool.close()\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    result, kilobytes = shown.stdout.splitlines()
    assert result == "{'components': {'': 1.0}}"
    assert int(kilobytes) < 20_000
    assert shown.stderr == ""


def test_a_completion_that_no_encoding_knows_can_be_printed(rewards):
    (score,) = score_all(rewards(body("print('\\ud800 \\x1b[2J', flush=True); return None")), asked("1"))
    assert score.error == "score: returned None"
    assert score.failure.printed == "\\ud800 \x1b[2J\n"


def test_a_child_that_prints_for_ever_disturbs_nobody(rewards):
    reward = rewards(body("subprocess.Popen(['yes']); return 1.0"))
    assert [score.reward for score in score_all(reward, asked("1", "2", "3"))] == [1.0] * 3


def test_no_file_is_written_for_what_is_printed(rewards):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        reward = rewards(body("print('x' * 1_000_000); return os.getpid()"))
        assert score_all(reward, asked("1"))[0].reward > 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
