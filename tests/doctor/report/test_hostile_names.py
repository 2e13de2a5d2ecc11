"""No name of a file, no text of a script and no record can command a CI runner, in whatever format it is printed.

GitHub takes a line for a command that begins with "::" behind blanks, or holds "##["; Azure one that holds "##vso[".
"""

import json
import random
import re

import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import Diagnosis, Word
from assay.doctor.report import FORMATS, Crash, Report, write
from assay.machine.terminal import escape, printable
from assay.verdict import Fact, Place, State, Verdict, finding, healthy, not_enough_data

PIECES = (
    "::", "::stop-commands::x", "::add-mask::y", "::error file=a,line=1::z", ":::", ": :", "##[", "##[error]",
    "##vso[task]", "##VSO[task.setvariable]", "##teamcity[x]", "###[", " ", "  ", "\t", "\n", "\r", "\r\n",
    "\u2028", "\x0b", "\x0c", "\x85", "\xa0", "\u3000", "\x1b[2K", "\x1b]0;", "\u202e", "\u200b", "%0A", "%3A", "%25",
    ",", "x", "word", "x[::2]", "a.py", "\x00", "\udcff", "\\", "`", "|",
)  # fmt: skip
OWN = re.compile(r"::(error|warning|notice) title=")


def hostile(seed):
    chosen = random.Random(seed)
    return "".join(chosen.choice(PIECES) for _ in range(chosen.randint(1, 40)))


def commands_in(text, how=""):
    """The lines that a runner would obey, without our own annotations."""
    lines = re.split(r"\r\n|\r|\n", text)
    obeyed = [line for line in lines if line.lstrip().startswith("::") or re.search(r"##\w*\[", line)]
    return [line for line in obeyed if not (how == "github" and OWN.match(line) and not re.search(r"##\w*\[", line))]


def test_the_search_for_commands_can_fail():
    assert commands_in("a\n  ::error::x\nb ##[error] c\n##vso[x]") == ["  ::error::x", "b ##[error] c", "##vso[x]"]


def reports_of(text):
    place = Place(text, 3, 4, 3, 9, text)
    verdicts = [
        finding(text, Fact(text, text), fix=text, places=(place, place), why=(text,)),
        finding(text, Fact(text, 1.0)),
        healthy(text, Fact(text, text)),
        not_enough_data(text),
        Verdict(State.CRASHED, text),
    ]
    codes = ("RAT04", "KL01", "MET07", "ADV01", "RAT01")
    words = tuple(Word(by_code(code), verdict, text, 2) for code, verdict in zip(codes, verdicts, strict=True))
    first = Report(text, Diagnosis(words, {}, (text,) * 8), text)
    return [
        first,
        Report(text, Diagnosis((Word(by_code("RAT01"), healthy(text)),), {}, (text,)), text),
        Report(text, Diagnosis((), {}, (text,)), text),
        Report(text, Diagnosis(()), unread=text),
        Report(text, Diagnosis(()), crash=Crash("KeyError", text)),
    ]


@pytest.mark.parametrize("how", FORMATS)
def test_no_line_is_a_command(how):
    for seed in range(300):
        reports = reports_of(hostile(seed))
        width = 30 + seed % 80
        for several in (reports, reports[:1], reports[3:4], reports[4:]):
            for all_passes in (False, True):
                text = write(several, how, width=width, all_passes=all_passes, why=True)
                assert not commands_in(text, how), (seed, commands_in(text, how))


def test_what_is_escaped_can_be_broken_anywhere_between_words():
    for seed in range(2000):
        words = escape(hostile(seed)).split(" ")
        assert not commands_in("\n".join(words))
        assert not commands_in(printable(hostile(seed)))


def test_json_holds_the_name_itself():
    name = "##[group]x ::y"
    (report,) = [json.loads(write([Report(name, Diagnosis(()), unread="it is gone")], "json"))]
    assert report["source"] == name


def test_a_property_of_an_annotation_is_the_name_as_github_decodes_it():
    name = "::stop-commands::50%,a\nb.py"
    words = (Word(by_code("RAT04"), finding("off", places=(Place(name, 3, 0, 3, 1),))),)
    line = write([Report(name, Diagnosis(words))], "github").splitlines()[0]
    (value,) = re.findall(r",file=([^,]*),line=3", line)
    assert ":" not in value
    for sign, code in ((":", "%3A"), (",", "%2C"), ("\r", "%0D"), ("\n", "%0A"), ("%", "%25")):
        value = value.replace(code, sign)
    assert value == name


@pytest.mark.parametrize("how", FORMATS)
def test_a_script_with_a_hostile_name_and_text_commands_nothing(how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sick = by_code("RAT04").scripts.sick
    assert "torch.exp(old - new)" in sick
    text = sick.replace("torch.exp(old - new)", "torch.exp(old - new + 0 * len('a ::error::b ##vso[c]'))")
    for name in ("::stop-commands::x.py", "##[error]y.py", "a ::b.py"):
        (tmp_path / name).write_text(text)
    (tmp_path / "::broken.py").write_text("def f(: ##[error]")
    done = CliRunner().invoke(app, ["doctor", ".", "--format", how], env={"COLUMNS": "40"})
    assert done.exit_code == 2, done.output
    assert not commands_in(done.stdout, how)
    assert not commands_in(done.stderr)
    done = CliRunner().invoke(app, ["doctor", "::stop-commands::x.py", "--format", how], env={"COLUMNS": "40"})
    assert not commands_in(done.stdout, how)
    missing = CliRunner().invoke(app, ["doctor", "::gone.py", "--format", how])
    assert not commands_in(missing.stderr)


@pytest.mark.parametrize("how", [(), ("--json",), ("--verbose",)], ids=["text", "json", "verbose"])
def test_what_a_reward_raises_commands_nothing(how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "::error::a\n::stop-commands::b ##[error]c ##vso[d]"
    (tmp_path / "::x.py").write_text(f"def reward(prompt, completion, answer):\n    raise ValueError({text!r})\n")
    done = CliRunner().invoke(app, ["reward-check", "::x.py:reward", *how], env={"COLUMNS": "40"})
    assert done.exit_code == 1, done.output
    assert "ValueError" in done.stdout
    assert not commands_in(done.stdout)
    assert how != ("--json",) or text in json.loads(done.stdout)["failures"][0]["error"]
