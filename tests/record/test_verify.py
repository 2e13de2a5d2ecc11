"""Every change of a recorded byte is named with its file; what kills and users leave behind is not called damage."""

import json
import os
import random
import shutil

import pytest
from fixtures.fake_records import fake_record, new_run

from assay.record import RunDirectory, RunError, checksums
from assay.record.evaluations import HeldoutAnswers, write_answers
from assay.record.manifest import write_manifest
from assay.record.verify import as_json, as_text, check_history, verify

ANSWER = HeldoutAnswers("p", "12>", "12", "12", 1.0, ("21",), (0.0,), "")


@pytest.fixture
def run(tmp_path):
    """Three steps, two evaluations, events, a finding, an examined update, a checkpoint, final weights."""
    made = new_run(tmp_path / "run", steps=3)
    for step in (0, 3):
        write_answers(made.path, step, [ANSWER])
        made.append_evaluation({"step": step, "pass_at_1": 0.5})
    made.append_event("start")
    made.append_finding({"code": "RAT01"})
    made.replace_file("examined/step-000001-update-1.safetensors", b"numbers")
    made.replace_file("dumps/step-000002-update-1.safetensors", b"more numbers")
    checkpoint = made.path / "checkpoints/update-00000002"
    checkpoint.mkdir()
    (checkpoint / "state.json").write_text("{}\n")
    (checkpoint / "weights.safetensors").write_bytes(bytes(range(100)))
    write_manifest(checkpoint, checkpoint.name)
    made.append_event("checkpoint", name=checkpoint.name)
    (made.path / "final").mkdir()
    (made.path / "final/model.safetensors").write_bytes(b"weights")
    checksums.note_files(made.path, {"final/model.safetensors": checksums.facts_of(b"weights")})
    made.append_event("finished")
    return made.path


def problems(run, **how):
    return [str(problem) for problem in verify(run, **how).problems]


def test_a_run_as_it_was_written_has_no_problem_and_nothing_is_left_uncovered(run):
    found = verify(run)
    assert (found.problems, found.uncovered_files, found.uncovered_lines) == ([], [], 0)
    # config, environment, mark, 3 rollouts, 2 evaluations, examined, dump, final; and 3 files of the checkpoint
    assert (found.files, found.checkpoints) == (11 + 3, 1)
    assert found.lines == 3 + 3 + 2 + 3 + 1  # metrics, timings, evaluations, events, findings


def files_of(run):
    return sorted(file for file in run.rglob("*") if file.is_file())


def test_a_change_of_any_byte_of_any_file_is_named_with_the_file(run):
    choose = random.Random(1)
    for file in files_of(run):
        whole = file.read_bytes()
        name = str(file.relative_to(run))
        for index in {0, len(whole) - 1, *(choose.randrange(len(whole)) for _ in range(25))}:
            file.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
            found = problems(run)
            where = name.rpartition("/")[0] if name.startswith("checkpoints/") else name
            assert any(problem.startswith(f"{where} ") for problem in found), (name, index, found)
        file.write_bytes(whole)
    assert problems(run) == []


@pytest.mark.parametrize("how", ["missing", "directory", "pipe", "device", "truncated", "extended"])
def test_a_file_that_is_missing_or_of_another_kind_or_size_is_named_without_hashing(run, how):
    for file in files_of(run):
        if file.name == checksums.FILE:
            continue  # without it nothing is covered, which the closing line says
        name = str(file.relative_to(run))
        whole = file.read_bytes()
        file.unlink()
        if how == "directory":
            file.mkdir()
        elif how == "pipe":
            os.mkfifo(file)
        elif how == "device":
            file.symlink_to("/dev/zero")
        elif how != "missing":
            file.write_bytes(whole[:-1] if how == "truncated" else whole + b" ")
        if name == "run.json" and how == "missing":
            with pytest.raises(RunError, match=r"holds no run\.json"):
                verify(run)
        else:
            where = name.rpartition("/")[0] if name.startswith("checkpoints/") else name
            found = problems(run, full=False)
            assert any(problem.startswith(f"{where} ") for problem in found), (name, found)
        shutil.rmtree(file) if how == "directory" else file.unlink(missing_ok=True)
        file.write_bytes(whole)
    assert problems(run) == []


def change_line(file, number, edit):
    lines = file.read_bytes().splitlines(keepends=True)
    lines[number - 1 : number] = edit(lines[number - 1])
    file.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda line: [line.replace(b"2", b"7", 1)], "line 2 is not as it was written"),
        (lambda line: [], "line 2 is missing"),
        (lambda line: [b"{}\n", line], "line 2 is not as it was written"),
        (lambda line: [line[:-1] + b" \n"], "line 2 is not as it was written"),
    ],
    ids=["a digit", "removed", "a line before it", "a space"],
)
def test_the_damaged_line_is_named_and_a_run_that_would_keep_it_is_not_resumed(run, edit, fault):
    change_line(run / "metrics.jsonl", 2, edit)
    assert problems(run) == [f"metrics.jsonl {fault}; restore it from a copy of the run"]
    with pytest.raises(RunError, match=rf"metrics\.jsonl {fault}; restore it .*, or delete checksums\.jsonl to go on"):
        check_history(run, 2, pytest.fail)
    check_history(run, 1, pytest.fail)  # what comes after step 1 is made again


def test_a_missing_last_line_is_named(run):
    change_line(run / "metrics.jsonl", 3, lambda line: [])
    assert problems(run) == ["metrics.jsonl line 3 is missing; restore it from a copy of the run"]


def test_damaged_findings_are_said_and_do_not_end_a_run(run):
    change_line(run / "findings.jsonl", 1, lambda line: [line.replace(b'"', b"'", 1)])
    said = []
    check_history(run, 3, said.append)
    assert [sentence.partition(";")[0] for sentence in said] == [
        f"{run}/findings.jsonl line 1 is not as it was written"
    ]
    (run / "findings.jsonl").unlink()
    check_history(run, 3, pytest.fail)


@pytest.mark.parametrize("name", ["timings.jsonl", "evaluations.jsonl", "events.jsonl"])
def test_a_damaged_line_of_any_history_is_refused(run, name):
    check_history(run, 3, pytest.fail)
    change_line(run / name, 1, lambda line: [line.replace(b'"', b"'", 1)])
    with pytest.raises(RunError, match=rf"{name} line 1 is not as it was written"):
        check_history(run, 3, pytest.fail)


def test_a_run_whose_checksums_are_deleted_goes_on_and_a_missing_step_is_said(run):
    change_line(run / "metrics.jsonl", 2, lambda line: [])
    (run / checksums.FILE).unlink()
    said = []
    check_history(run, 3, said.append)
    assert said == [f"{run}/metrics.jsonl line 2 holds step 3, where step 2 was written; the run goes on without it"]
    found = verify(run)
    assert [str(problem).partition(";")[0] for problem in found.problems] == [
        "metrics.jsonl line 2 holds step 3, where step 2 was written"
    ]
    assert len(found.uncovered_files) == 11
    assert found.uncovered_lines == 2 + 3 + 2 + 3 + 1


def test_damaged_checksums_are_named_themselves_and_blame_no_other_file(run):
    whole = (run / checksums.FILE).read_bytes()
    for number in range(1, whole.count(b"\n") + 1):
        change_line(run / checksums.FILE, number, lambda line: [line.replace(b'"sha256": "', b'"sha256": "0', 1)])
        (found,) = problems(run) if (run / checksums.FILE).read_bytes() != whole else ("checksums.jsonl",)
        assert found.startswith("checksums.jsonl")
        (run / checksums.FILE).write_bytes(whole)
    change_line(run / checksums.FILE, 4, lambda line: [])
    (found,) = problems(run)
    assert found.startswith("checksums.jsonl line 4 is damaged, or the line before it is missing")
    said = []
    check_history(run, 3, said.append)
    assert [sentence.partition(" line")[0] for sentence in said] == [str(run / checksums.FILE)]


def test_checksums_never_lead_out_of_the_run(run):
    (run.parent / "secret").write_text("mine")
    for name in ("../secret", str(run.parent / "secret")):
        checksums.note_files(run, {name: checksums.facts_of(b"x")})
    assert [problem.partition(" is damaged")[0] for problem in problems(run)] == [
        f"checksums.jsonl line {(run / checksums.FILE).read_text().count(chr(10)) - 1} (and 1 more)"
    ]


def test_what_a_user_puts_into_a_run_is_not_covered_and_not_damage(run):
    (run / "notes.txt").write_text("mine")
    (run / "checkpoints/best").mkdir()
    (run / "checkpoints/best/weights.safetensors").write_bytes(b"x")
    for place in ("", "final", "rollouts", "checkpoints", "checkpoints/update-00000002"):
        for name in (".DS_Store", ".nfs0001", "._x"):
            (run / place / name).write_bytes(b"x")
    found = verify(run)
    assert found.problems == []
    assert found.uncovered_files == ["notes.txt", "checkpoints/best/weights.safetensors"]


def test_a_checkpoint_that_is_pruned_meanwhile_is_not_damage(run):
    shutil.copytree(run / "checkpoints/update-00000002", run / "checkpoints/update-00000001")

    def prune(name):
        if name == "checkpoints/update-00000001":
            shutil.rmtree(run / name)

    assert verify(run, on_file=prune).problems == []


def test_a_run_without_any_checkpoint_cannot_be_resumed_and_that_is_a_problem(run):
    shutil.rmtree(run / "checkpoints/update-00000002")
    assert [problem.partition(",")[0] for problem in problems(run)] == ["checkpoints holds no checkpoint"]


def test_files_that_a_rewind_removes_are_not_missed(run):
    directory = RunDirectory.open(run)
    directory.rewind(1)
    (run / "evaluations/step-000003.jsonl").unlink()
    assert problems(run) == []
    directory.append_step(fake_record(2))
    assert problems(run) == []
    change_line(run / "metrics.jsonl", 2, lambda line: [line.replace(b"2", b"7", 1)])
    assert problems(run) != []


def test_what_a_kill_cut_off_is_named_and_the_next_rewind_removes_it(run):
    for name in ("metrics.jsonl", "events.jsonl", "findings.jsonl"):
        with (run / name).open("ab") as file:
            file.write(b'{"step": 4, "co')
    assert [problem.partition(";")[0] for problem in problems(run)] == [
        "metrics.jsonl line 4 was cut off while it was written",
        "events.jsonl line 4 was cut off while it was written",
        "findings.jsonl line 2 was cut off while it was written",
    ]
    RunDirectory.open(run).rewind(3)
    assert problems(run) == []


def test_a_file_that_is_replaced_may_hold_the_old_or_the_new_content(run):
    old = (run / "config.toml").read_bytes()
    RunDirectory.open(run).replace_file("config.toml", b"[run]\nsteps = 9\n")
    assert problems(run) == []
    (run / "config.toml").write_bytes(old)  # as a kill before the rename leaves it
    assert problems(run) == []
    (run / "config.toml").write_bytes(old + b" ")
    assert problems(run) != []


def test_final_weights_that_a_killed_run_never_published_are_not_missed(run):
    shutil.rmtree(run / "final")
    assert problems(run) == [f"final/model.safetensors is missing; make it again with: assay export {run} --out DIR"]
    RunDirectory.open(run).append_event("resume")
    assert problems(run) == []


def test_a_run_of_an_older_version_is_read_and_called_not_covered(run):
    (run / checksums.FILE).unlink()
    found = verify(run)
    assert found.problems == []
    assert (found.files, found.lines, found.checkpoints) == (3, 0, 1)
    RunDirectory.open(run).append_step(fake_record(4))  # nobody begins to cover it half-way through
    assert not (run / checksums.FILE).exists()
    RunDirectory.open(run).rewind(4)  # a resumed run does
    RunDirectory.open(run).append_step(fake_record(5))
    assert verify(run).lines == 2


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="is not a run directory"):
        verify(tmp_path)
    (tmp_path / "run.json").write_text('{"schema_version": 99}')
    with pytest.raises(RunError, match="use the newer Assay"):
        verify(tmp_path)


def test_text_and_json_say_the_same(run):
    (run / "notes.txt").write_text("mine")
    (run / "final/model.safetensors").write_bytes(b"wEights")
    found = verify(run)
    problem, closing = as_text(run, found)
    assert problem.startswith("final/model.safetensors does not match its checksum; make it again")
    assert closing.startswith(f"{run}: 1 problem; verified 13 files (0.0 MB), 12 lines and 1 whole checkpoint; ")
    assert closing.endswith("not covered by checksums: 1 file (notes.txt), 0 lines")
    document = json.loads(as_json(run, found))
    assert [entry["file"] for entry in document["problems"]] == ["final/model.safetensors"]
    assert document["verified"] == {"files": 13, "bytes": found.bytes, "lines": 12, "checkpoints": 1}
    assert document["not_covered"] == {"files": ["notes.txt"], "lines": 0}
