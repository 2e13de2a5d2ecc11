"""`assay doctor --fix` and `--diff`: what is written, what keeps its bytes, and what is refused."""

import json
import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.doctor.catalogue import by_code
from assay.doctor.fix import Original

SICK = by_code("RAT04").scripts.sick  # the ratio upside down
WELL = SICK.replace("torch.exp(old - new)", "torch.exp(new - old)")
TWICE = SICK.replace("(rewards.std(dim=1, keepdim=True) + 1e-4)", "rewards.std(dim=1, keepdim=True)")
BROKEN = Path(__file__).parents[3] / "examples/broken_grpo.py"


def doctor(*words):
    return CliRunner().invoke(app, ["doctor", *map(str, words)], env={"COLUMNS": "100"})


def script(folder, data, name="grpo.py"):
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_fix_writes_the_edit_and_prints_its_diff(tmp_path):
    path = script(tmp_path, SICK)
    done = doctor("--fix", path)
    assert done.exit_code == 0
    assert path.read_text() == WELL
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"--- {path}", f"+++ {path}"]
    assert [line for line in lines[2:] if line[0] in "-+"] == [
        "-        ratio = torch.exp(old - new)",
        "+        ratio = torch.exp(new - old)",
    ]
    assert done.stderr.splitlines() == ["1 edit made (RAT04)"]
    assert os.listdir(tmp_path) == ["grpo.py"]


def test_diff_prints_the_same_and_writes_nothing(tmp_path):
    path = script(tmp_path, SICK)
    shown = doctor("--diff", path)
    assert (shown.exit_code, path.read_text()) == (1, SICK)
    assert shown.stdout == doctor("--fix", path).stdout
    again = doctor("--diff", path)
    assert (again.exit_code, again.stdout, again.stderr) == (0, "", "no edits to make\n")


def test_the_diff_is_one_that_patch_takes(tmp_path):
    """Applied by hand, hunk by hunk: context and removed lines must stand where the hunk says."""
    path = script(tmp_path, TWICE)
    hunks = doctor("--diff", path).stdout.split("\n@@ ")[1:]
    rows, shift = TWICE.split("\n"), 0
    for hunk in hunks:
        head, *body = hunk.rstrip("\n").split("\n")
        start = int(head.split()[0].strip("-").split(",")[0]) - 1 + shift
        old, new = ([row[1:] for row in body if row[0] in signs] for signs in (" -", " +"))
        assert rows[start : start + len(old)] == old
        rows[start : start + len(old)] = new
        shift += len(new) - len(old)
    doctor("--fix", path)
    assert "\n".join(rows) == path.read_text()


def test_several_edits_of_one_file_are_made_together(tmp_path):
    path = script(tmp_path, TWICE)
    assert doctor("--fix", path).stderr.splitlines() == ["2 edits made (RAT04, ADV04)"]
    assert path.read_text() == WELL.replace(
        "/ (rewards.std(dim=1, keepdim=True) +", "/ (rewards.std(dim=1, keepdim=True) +"
    )


def test_the_example_is_fixed_whole(tmp_path):
    path = script(tmp_path, BROKEN.read_bytes())
    assert doctor("--fix", path, "--fail-on", "note").exit_code == 0
    assert "0 findings" in doctor(path).stdout


def test_only_chosen_checks_are_fixed(tmp_path):
    path = script(tmp_path, TWICE)
    doctor("--fix", path, "--select", "ADV04")
    assert path.read_text() == SICK


def test_the_exit_code_of_fix_is_of_what_is_left(tmp_path):
    rate = by_code("HYP01").scripts.sick
    path = script(tmp_path, rate)
    done = doctor("--fix", path, "--fail-on", "warning")
    assert (done.exit_code, path.read_text()) == (1, rate)
    assert done.stderr.splitlines() == [
        "no edits made",
        f"left: {path}:9 HYP01 hyperparameter (no mechanical edit)",
    ]


def test_an_edit_with_a_choice_in_it_is_shown_and_left(tmp_path):
    text = by_code("RAT07").scripts.sick  # an importance weight without a bound
    path = script(tmp_path, text)
    done = doctor("--fix", path)
    assert path.read_text() == text
    assert f"left: {path}:28 RAT07 unbounded_exp (look at its edit first)" in done.stderr
    assert "look at it first: --fix leaves it to you" in doctor(path).stdout


def test_what_a_comment_silences_is_not_fixed(tmp_path):
    text = SICK.replace("torch.exp(old - new)", "torch.exp(old - new)  # assay: ignore[RAT04] meant so")
    path = script(tmp_path, text)
    assert doctor("--fix", path).stderr.splitlines()[0] == "no edits made"
    assert path.read_text() == text


# bytes


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SICK.replace("\n", "\r\n").encode(), WELL.replace("\n", "\r\n").encode()),
        (SICK.replace("\n", "\r").encode(), WELL.replace("\n", "\r").encode()),
        (b"\xef\xbb\xbf" + SICK.encode(), b"\xef\xbb\xbf" + WELL.encode()),
        (SICK.replace("    ", "\t").encode(), WELL.replace("    ", "\t").encode()),
        (SICK.rstrip("\n").encode(), WELL.rstrip("\n").encode()),
        (
            b"# -*- coding: latin-1 -*-\n# \xe4\xf6\xfc\n" + SICK.encode(),
            b"# -*- coding: latin-1 -*-\n# \xe4\xf6\xfc\n" + WELL.encode(),
        ),
        (
            "# coding: shift_jis\n# \u65e5\u672c\n".encode("shift_jis") + SICK.encode(),
            "# coding: shift_jis\n# \u65e5\u672c\n".encode("shift_jis") + WELL.encode(),
        ),
        (
            SICK.replace("ratio = torch.exp", "ratio, note = '\u65e5\u672c', 1; ratio = torch.exp").encode(),
            WELL.replace("ratio = torch.exp", "ratio, note = '\u65e5\u672c', 1; ratio = torch.exp").encode(),
        ),
        (
            SICK.replace("import copy", "import copy\x0c").encode(),
            WELL.replace("import copy", "import copy\x0c").encode(),
        ),
    ],
    ids=["crlf", "cr", "bom", "tabs", "no end of line", "latin-1", "shift-jis", "wide letters", "form feed"],
)
def test_all_other_bytes_stay(before, after, tmp_path):
    path = script(tmp_path, before)
    assert doctor("--fix", path).exit_code == 0
    assert path.read_bytes() == after


def test_lines_that_are_added_end_as_the_others_do(tmp_path):
    text = by_code("LOSS04").scripts.sick.replace("        optimizer.zero_grad()\n", "").replace("\n", "\r\n")
    path = script(tmp_path, text)
    doctor("--fix", path)
    fixed = path.read_bytes().decode()
    assert fixed == text.replace("optimizer.step()\r\n", "optimizer.step()\r\n        optimizer.zero_grad()\r\n")


def test_the_mode_is_kept_and_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    path = script(tmp_path / "real", SICK)
    path.chmod(0o751)
    link = tmp_path / "link.py"
    link.symlink_to(path)
    assert doctor("--fix", link).exit_code == 0
    assert link.is_symlink()
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (WELL, 0o751)


def test_an_edit_in_an_imported_file_is_written_only_if_it_is_given_too(tmp_path):
    text = SICK.replace("        ratio = torch.exp(old - new)", "        ratio = ratio_of(new, old)")
    main = script(tmp_path, text.replace("import copy\n", "import copy\nfrom parts import ratio_of\n"))
    parts = script(tmp_path, "import torch\n\n\ndef ratio_of(new, old):\n    return torch.exp(old - new)\n", "parts.py")
    before = main.read_text(), parts.read_text()
    assert doctor("--fix", main).stderr.splitlines()[0] == "no edits made"
    assert (main.read_text(), parts.read_text()) == before
    doctor("--fix", main, parts)
    assert (main.read_text(), parts.read_text()) == (before[0], before[1].replace("old - new", "new - old"))


# refusals: one sentence, exit code 2, nothing written


def refused(folder, *words):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = doctor("--fix", *words)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert (done.exit_code, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    return sentence


def test_what_is_not_a_script_is_refused(tmp_path):
    cell = {"cell_type": "code", "source": SICK}
    book = script(tmp_path, json.dumps({"nbformat": 4, "cells": [cell]}), "book.ipynb")
    assert refused(tmp_path, book).startswith(f"assay: {book} is a notebook; ")
    log = script(tmp_path, '{"step": 1, "reward": 0.5}\n', "log.jsonl")
    assert refused(tmp_path, log) == f"assay: {log} is not a script; --fix and --diff edit .py files only"
    run = tmp_path / "run"
    run.mkdir()
    script(run, "{}", "run.json")
    assert refused(tmp_path, run).startswith(f"assay: {run} holds no scripts; ")
    nowhere = tmp_path / "nowhere.py"
    assert refused(tmp_path, nowhere) == f"assay: {nowhere} could not be read: No such file or directory"


def test_a_syntax_error_is_refused_and_nothing_else_is_written(tmp_path):
    well = script(tmp_path, SICK)
    wrong = script(tmp_path, "def f(:\n", "wrong.py")
    assert f"{wrong}:1 is not valid Python" in refused(tmp_path, well, wrong)


def test_a_file_that_is_not_writable_is_refused(tmp_path):
    path = script(tmp_path, SICK)
    path.chmod(0o444)
    assert refused(tmp_path, path).endswith("is not writable; make it writable, or print the edits with --diff")
    assert doctor("--diff", path).exit_code == 1


def test_a_file_that_changes_meanwhile_is_left(tmp_path):
    path = script(tmp_path, SICK)
    original = Original.of(path)
    path.write_text("other\n")
    with pytest.raises(ValueError, match="was changed while it was looked at"):
        original.replace(WELL)
    assert path.read_text() == "other\n"


def test_other_forms_of_output_are_refused(tmp_path):
    path = script(tmp_path, SICK)
    for words in (["--format", "json"], ["--out", tmp_path / "out.txt"], ["--recompute"]):
        assert "leave out --format, --out and --recompute" in refused(tmp_path, path, *words)
