"""The model of a checkpoint asked again: only about what its weights sampled, and it proves what a record cannot."""

import json
import shutil

import numpy as np
import pytest
from fixtures.cases import thorough
from fixtures.tiny import sample
from typer.testing import CliRunner

from assay.cli import app
from assay.config import ConfigError, from_mapping, load
from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.evidence.run_directory import read_run
from assay.doctor.examples import healthy_batch
from assay.record import METRICS_FILE, RunError, read_rollouts
from assay.record.batch_file import write_batch
from assay.train.recompute import MOST_ROWS, _whole_groups, recompute_run, rows_a_pass
from assay.train.run import checkpoint, run
from assay.verdict import Confidence, State
from proof.plants.runs import plants
from proof.trial import apply_plant

SMALL = {
    "run.steps": 4,
    "run.device": "cpu",
    "run.seed": 3,  # every step has a signal, and so an update
    "run.threads": 1,
    "evaluate.prompts": 0,
    "rollout.prompts": 6,
    "rollout.group_size": 4,
    "model.warm_steps": 20,
    "optimizer.warmup": 0,
    "checkpoint.every": 2,
    "checkpoint.final": "false",
}
OF_LOGPROBS = ("SAMP01", "ALGN01", "ALGN03", "ALGN04", "ALGN05", "ALGN09", "ALGN10", "MODE01", "SAMP06", "SYNC01")
SCORED = ("new_logprobs", "scored_again", "scored_permuted", "scored_alone", "scored_padded")


def trained(path, **changes):
    chosen = SMALL | {name.replace("__", "."): value for name, value in changes.items()}
    assert run.start(load(None, [f"{name}={value}" for name, value in chosen.items()]), path) == 0
    return path


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Two updates a step; a checkpoint after each of them."""
    path = tmp_path_factory.mktemp("kept") / "run"
    return trained(path, checkpoint__every=1, checkpoint__keep=20, rollout__temperature=0.7)


@pytest.fixture
def copy(kept, tmp_path):
    shutil.copytree(kept, tmp_path / "run")
    return tmp_path / "run"


def asked(path, name=None):
    notes = []
    return recompute_run(path, notes.append, name), notes


def rewritten(path, name, **place):
    """The checkpoint saved anew, its place changed."""
    saved = checkpoint.load(path / "checkpoints", name)
    state = {**saved.state, "place": {**saved.state["place"], **place}}
    checkpoint.save(path / "checkpoints", name, saved.tensors, state, keep=20)


def damage(path, name):
    (path / "checkpoints" / name / "weights.safetensors").write_bytes(b"half")


def test_the_newest_two_that_sampled_a_recorded_step_are_asked_each_about_its_own_step(kept):
    batches, notes = asked(kept)
    assert notes == []
    assert [batch.source for batch in batches] == [
        "step 4 of the recorded rollouts, beside the model of update-00000006",
        "step 4 of the recorded rollouts, scored now by the model of update-00000006",
        "step 3 of the recorded rollouts, beside the model of update-00000004",
        "step 3 of the recorded rollouts, scored now by the model of update-00000004",
    ]
    for batch, version in zip(batches, (6, 6, 4, 4), strict=True):
        assert (batch.number("policy_version"), batch.number("update")) == (version, 0)
        assert batch.arrays["sampler_versions"].tolist() == [version] * MOST_ROWS


def test_the_model_says_what_is_recorded_by_every_way(kept):
    then, now, *_ = asked(kept)[0]
    (mask_BT,) = then.need("mask")
    for name in ("old_logprobs", "sampler_logprobs"):
        np.testing.assert_allclose(then.arrays[name][mask_BT], then.arrays["plain_logprobs"][mask_BT], atol=2e-5)
    for name in SCORED:
        np.testing.assert_allclose(now.arrays[name][mask_BT], then.arrays["plain_logprobs"][mask_BT], atol=2e-5)
    assert np.abs(then.arrays["plain_raw_logprobs"] - then.arrays["plain_logprobs"])[mask_BT].mean() > 0.05
    tokens = {tuple(row["tokens"]) for row in read_rollouts(kept, 4)}
    assert {tuple(row[:length]) for row, length in zip(*then.need("tokens", "lengths"), strict=True)} <= tokens
    assert "new_logprobs" not in then.arrays  # of a later update
    assert {"old_logprobs", "sampler_logprobs"}.isdisjoint(now.arrays)  # of another day


def test_the_rows_are_scored_as_usual_twice_backwards_alone_and_beside_a_longer_one(kept):
    rest, confirmed = [], []

    def seen(original, policy, batch):
        rest.append((batch.rows, batch.inputs.targets_BT.shape[1]))
        return original(policy, batch)

    def confirming(original, policy, inputs, **how):
        confirmed.append(not rest and len(inputs.lengths) == 2)
        return original(policy, inputs, **how)

    with apply_plant(
        {"assay.train.recompute.logprobs_by_row": seen, "assay.policy.causal.CausalPolicy.logprobs": confirming}
    ):
        _, now = asked(kept, "update-00000006")[0]
    order, longest = tuple(range(MOST_ROWS)), int(now.arrays["lengths"].max())
    assert confirmed.count(True) == 2  # that prompts may be shared
    assert rest[:3] == [(order, longest), (order, longest), (order[::-1], longest)]
    assert rest[3:-1] == [((row,), now.arrays["lengths"][row]) for row in order]
    rows, width = rest[-1]
    assert sorted(rows) == [*order, MOST_ROWS]
    assert width > longest


@pytest.mark.parametrize(
    "changes",
    [
        {"model__lora_rank": 4, "optimizer__microbatches": 3},
        {"model__dtype": "bfloat16"},
        {"rollout__truncated": "mask", "rollout__max_tokens": 5, "record__rollouts": "extremes"},
        *thorough(
            {"rollout__temperature": 0.7},
            {"optimizer__epochs": 1, "checkpoint__every": 1, "optimizer__share_prompts": "false"},
        ),
    ],
    ids=["adapters", "bfloat16", "extremes", "temperature", "one update"],
)
def test_a_sound_run_comes_out_healthy_with_the_models_own_numbers(tmp_path, changes):
    batches, notes = asked(trained(tmp_path / "run", **changes))
    assert (len(batches), notes) == (2, [])
    assert all(batch.arrays["mask"].any(axis=1).all() for batch in batches)  # the others say nothing of the loss
    diagnosis = diagnose(Evidence(tuple(batches)))
    assert diagnosis.findings == []
    assert diagnosis.of(State.CRASHED) == []
    assert set(OF_LOGPROBS) <= {word.code for word in diagnosis.of(State.HEALTHY)}


@pytest.mark.parametrize(
    ("code", "alone", "same_code"),
    [
        ("SAMP01", "likely", False),
        ("ALGN01", "likely", False),
        ("ALGN04", "", True),
        ("MODE01", "", True),
        *thorough(("ALGN09", "likely", False), ("ALGN05", "", True), ("ALGN03", "", True)),
    ],
)
def test_what_a_record_only_suggests_the_model_proves(tmp_path, code, alone, same_code):
    """What the passes were given is not in the record; it shows where the code that scored is still the one at hand."""
    plant = plants()[code]
    settings = {name.replace(".", "__"): value for name, _, value in (one.partition("=") for one in plant.settings)}
    with apply_plant(plant.replaces):
        path = trained(tmp_path / "run", **settings)
    record = read_run(path)
    with apply_plant(plant.replaces if same_code else {}):
        batches, _ = asked(path)
    before, after = (
        {word.code: str(word.confidence) for word in diagnose(evidence, [by_code(code)]).findings}
        for evidence in (record, Evidence(tuple(batches)))
    )
    assert before.get(code, "") == alone
    assert after == {code: str(Confidence.PROVEN)}
    assert diagnose(Evidence((*record.batches, *batches))).findings[0].code == code


def test_a_checkpoint_inside_a_step_is_refused_and_so_is_the_end_of_the_run(kept):
    with pytest.raises(RunError, match=r"update-00000005 was saved inside step 3, after 1 of its 2 updates, and"):
        asked(kept, "update-00000005")
    with pytest.raises(RunError, match=r"update-00000008 has policy version 8, which sampled no recorded rollout"):
        asked(kept, "update-00000008")
    with pytest.raises(RunError, match="final holds weights without the rollouts that they sampled"):
        asked(kept, "final")
    with pytest.raises(RunError, match=r"holds no checkpoint 'update-9'; it holds update-00000008, update-00000007"):
        asked(kept, "update-9")


def test_weights_of_another_version_than_the_one_that_sampled_are_refused(copy):
    rewritten(copy, "update-00000004", policy_version=5)
    with pytest.raises(RunError, match="update-00000004 has policy version 5, which sampled no recorded rollout"):
        asked(copy, "update-00000004")


def test_rollouts_of_a_sampler_that_lags_are_not_used(tmp_path):
    plant = plants()["SYNC01"]
    with apply_plant(plant.replaces):
        path = trained(tmp_path / "run")
    with pytest.raises(RunError, match="update-00000006 has policy version 6, which sampled no recorded rollout"):
        asked(path)


def test_earlier_weights_say_something_else_but_no_more_than_that_is_claimed(copy):
    """A checkpoint that lies about its version."""
    rewritten(copy, "update-00000002", step=3, update=0, policy_version=6)
    then, now = asked(copy, "update-00000002")[0]
    mask_BT, old_BT, plain_BT = then.need("mask", "old_logprobs", "plain_logprobs")
    assert np.abs(old_BT - plain_BT)[mask_BT].mean() > 0.02
    findings = diagnose(Evidence((then, now))).findings
    assert [word.code for word in findings if word.confidence is Confidence.PROVEN] == []


def test_rollouts_that_other_weights_scored_are_not_used(copy):
    rows = [json.loads(line) for line in (copy / METRICS_FILE).read_text().splitlines()]
    rows[2]["updates_applied"] = 1  # so that the step began with version 5
    (copy / METRICS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RunError, match="update-00000004 has policy version 4, which sampled no recorded rollout"):
        asked(copy, "update-00000004")


def test_a_damaged_checkpoint_is_named_and_the_next_one_is_asked(copy):
    damage(copy, "update-00000006")
    batches, notes = asked(copy)
    assert [batch.number("policy_version") for batch in batches] == [4, 4, 2, 2]
    assert notes == ["checkpoint update-00000006 is damaged: weights.safetensors has 4 of "
                     f"{(copy / 'checkpoints/update-00000004/weights.safetensors').stat().st_size} bytes; it was not "
                     "asked"]  # fmt: skip
    with pytest.raises(RunError, match=r"rollouts: checkpoint update-00000006 is damaged: weights\.safetensors has"):
        asked(copy, "update-00000006")


def test_damaged_rollouts_are_named(copy):
    (copy / "rollouts" / "step-000004.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"update-00000006 has nothing to be held against: .*step-000004.parquet is dam"):
        asked(copy, "update-00000006")


def test_a_config_that_was_edited_since_is_refused(copy):
    file = copy / "config.toml"
    file.write_text(file.read_text().replace("temperature = 0.7", "temperature = 0.9"))
    with pytest.raises(ConfigError, match=r"rollout.temperature = 0.9, but update-00000008 was saved with 0.7"):
        asked(copy)


def test_a_pass_has_no_more_rows_than_those_of_the_trainer():
    samples = [sample(0, (2, 3), (4, 5, 6), 0.0), sample(1, (2,), (4,) * 7, 0.0)]  # the longest has 8 tokens
    rollout = {"prompts": 4, "group_size": 6}

    def rows(**optimizer):
        return rows_a_pass(from_mapping({"rollout": rollout, "optimizer": {"minibatches": 2, **optimizer}}), samples)

    assert rows(microbatches=3) == 4
    assert rows(microbatches=0) == 12
    assert rows(microbatches=0, pass_tokens=47) == 5
    assert rows(microbatches=0, pass_tokens=1000) == 12
    assert rows(microbatches=0, pass_tokens=3) == 1


def test_a_run_from_before_a_setting_existed_is_taken_as_at_its_default(copy):
    file, root = copy / "config.toml", copy / "checkpoints"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line for line in lines if not line.startswith(("pass_tokens", "microbatches"))))
    saved = checkpoint.load(root, "update-00000006")
    settings = {section: dict(values) for section, values in saved.state["config"].items()}
    del settings["optimizer"]["pass_tokens"], settings["optimizer"]["microbatches"]
    checkpoint.save(root, "update-00000006", saved.tensors, {**saved.state, "config": settings}, keep=20)
    assert diagnose(Evidence(tuple(asked(copy, "update-00000006")[0]))).findings == []
    file.write_text(file.read_text().replace("[optimizer]", "[optimizer]\npass_tokens = 64"))
    with pytest.raises(ConfigError, match=r"optimizer.pass_tokens = 64, but update-00000006 was saved with 0"):
        asked(copy, "update-00000006")


def test_a_run_of_a_gpu_is_asked_on_the_cpu_and_that_is_said(copy, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    file, root = copy / "config.toml", copy / "checkpoints"
    file.write_text(file.read_text().replace('device = "cpu"', 'device = "cuda"'))
    saved = checkpoint.load(root, "update-00000006")
    settings = {**saved.state["config"], "run": {**saved.state["config"]["run"], "device": "cuda"}}
    checkpoint.save(root, "update-00000006", saved.tensors, {**saved.state, "config": settings}, keep=20)
    batches, notes = asked(copy, "update-00000006")
    assert diagnose(Evidence(tuple(batches))).findings == []
    assert notes == ["the run was trained on a GPU and its model was asked again on a CPU, which rounds differently"]


def test_with_top_k_only_what_must_not_matter_is_asked(tmp_path):
    (batch,), notes = asked(trained(tmp_path / "run", rollout__top_k=5))
    assert set(SCORED) <= set(batch.arrays)
    assert {"plain_logprobs", "plain_raw_logprobs", "old_logprobs"}.isdisjoint(batch.arrays)
    assert [note[:46] for note in notes] == ["the tokens that top-k left to choose from are "]
    assert diagnose(Evidence((batch,))).findings == []


def test_the_groups_with_the_shortest_and_the_longest_prompts_are_taken_whole():
    def rows(group, size, prompt):
        return [{"group": group, "row": 100 * group + row, "prompt_tokens": [0] * prompt} for row in range(size)]

    groups = [rows(0, 7, 5), rows(1, 7, 3), rows(2, 7, 9), rows(3, 7, 4)]
    assert _whole_groups([row for group in groups for row in group]) == groups[1] + groups[2]
    assert _whole_groups(rows(0, 40, 5)) == rows(0, MOST_ROWS, 5)
    assert _whole_groups([]) == []


def doctor(*words):
    return CliRunner().invoke(app, ["doctor", *map(str, words)], env={"COLUMNS": "100"})


def contents(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_the_command_adds_what_the_model_said_and_leaves_the_run_alone(kept):
    before = contents(kept)
    plain, result = doctor(kept, "--format", "json"), doctor(kept, "--format", "json", "--recompute")
    assert (plain.exit_code, result.exit_code) == (0, 0)
    assert contents(kept) == before
    assert "update-00000006: rows of step 4 asked again 16 of 16" in result.stderr
    assert plain.stderr == ""
    names = [{word["code"] for word in json.loads(one.stdout)["passed"]} for one in (plain, result)]
    assert names[1] - names[0] == {"ALGN03", "ALGN04", "ALGN05", "LAW01", "LAW03", "MODE01"}


def test_notes_of_the_recheck_stand_in_the_report(copy):
    damage(copy, "update-00000006")
    result = doctor(copy, "--recompute", "--select", "ALGN04")
    assert result.exit_code == 0
    assert "checkpoint update-00000006 is damaged" in " ".join(result.stdout.split())


def test_what_cannot_be_asked_ends_with_2_and_one_sentence(copy, tmp_path):
    write_batch(tmp_path / "batch.safetensors", healthy_batch())
    shutil.rmtree(copy / "checkpoints")
    for path, sentence in {
        tmp_path / "batch.safetensors": "is a file and holds no model to ask again; give a run directory",
        copy: "checkpoints holds no checkpoint, so that no model can be asked again; leave --recompute",
    }.items():
        result = doctor(path, "--recompute")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"assay: {path}")
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1
