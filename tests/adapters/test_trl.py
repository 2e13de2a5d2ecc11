"""attach(trainer) beside real TRL runs: it changes nothing, is silent on sound runs, and never stops one."""

import json
import logging

import pytest
import torch
from fixtures.cases import thorough

pytest.importorskip("trl")

from adapters.healthy_trl import HEALTHY
from adapters.tiny_trl import Models, fresh, quietly
from transformers import TrainerCallback
from trl import GRPOTrainer

from assay.adapters.trl import AttachError, attach
from assay.adapters.trl_settings import METRICS, settings_of
from assay.record import METRICS as OUR_METRICS
from assay.record.batch import Batch
from assay.record.batch_file import read_batch
from assay.verdict import State


@pytest.fixture(scope="module")
def models(run_root):
    quietly()
    return Models(fresh(run_root))


def trained(trainer):
    """All that a run leaves in memory: losses, weights, random states."""
    losses = []

    class Noted(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **others):
            losses.append({name: value for name, value in logs.items() if "time" not in name and "second" not in name})

    trainer.add_callback(Noted())
    trainer.train()
    weights = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    return losses, weights, torch.get_rng_state()


@pytest.mark.parametrize(
    "settings",
    [
        {"dropout": 0.3, "beta": 0.05, "num_iterations": 2},  # dropout draws numbers in every pass
        {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "entropy_coef": 0.01, "max_steps": 4},
    ],
    ids=["dropout, reference, iterations", "micro-batches"],
)
def test_a_run_is_the_same_bit_for_bit_with_and_without_the_doctor(models, settings):
    alone = trained(models.trainer(**settings))
    trainer = models.trainer(**settings)
    doctor = attach(trainer)
    beside = trained(trainer)
    assert beside[0] == alone[0]
    assert all(torch.equal(weight, alone[1][name]) for name, weight in beside[1].items())
    assert torch.equal(beside[2], alone[2])
    assert len(list(doctor.directory.glob("examined/*"))) >= 3  # it did look


CHOSEN = [  # trl_table.py runs all
    "bnpo, 2 micro-batches, 2 updates, 2 iterations",
    "sapo, sequence level, beta 0.05, 2 iterations",
    "truncated rows masked, dapo",
    "adapters with a reference",
    *thorough(
        "dapo, 2 micro-batches, 2 updates, 2 iterations",
        "vespo, token level, beta 0.05, 2 iterations",
        "evaluation between steps",
    ),
]


@pytest.mark.parametrize("name", CHOSEN)
def test_a_sound_run_has_no_finding(models, name):
    trainer = models.trainer(**HEALTHY[name])
    doctor = attach(trainer)
    trainer.train()
    assert [(word.code, word.verdict.message) for word in doctor.findings] == []
    healthy = {word.code for word in doctor.diagnosis.of(State.HEALTHY)}
    assert {"ALGN01", "ALGN02", "MASK01", "MASK02", "RAT01", "SAMP01", "OPT02", "ALGN05", "ADV05"} - healthy <= (
        {"ALGN05"} if "truncated" in name else set()  # TRL hides completions that are not in the loss
    )
    assert not doctor.diagnosis.of(State.CRASHED)


class OwnSampler(GRPOTrainer):
    """Draws token by token, and looks at the greedy answers beside it."""

    asks_for_greedy = True

    def _generate_single_turn(self, prompt_ids, *args, **others):
        model, rows = self.accelerator.unwrap_model(self.model), []
        model.eval()
        with torch.no_grad():
            for prompt in prompt_ids:
                ids = list(prompt)
                while len(ids) < len(prompt) + 10 and ids[-1] not in self.eos_token_ids:
                    logits_V = model(input_ids=torch.tensor([ids])).logits[0, -1]
                    ids.append(int(torch.multinomial(torch.softmax(logits_V / self.temperature, dim=-1), 1)))
                rows.append(ids[len(prompt) :])
                if self.asks_for_greedy:
                    model.generate(input_ids=torch.tensor([prompt]), do_sample=False, max_new_tokens=10)
        model.train()
        return rows, None


@pytest.mark.parametrize("has_generate", [True, False])
def test_a_sampler_of_the_trainers_own_is_not_confused_with_what_generate_returns(models, has_generate):
    trainer = models.trainer(kind=OwnSampler)
    if not has_generate:
        trainer.asks_for_greedy, trainer.model.generate = False, None
    said = []
    doctor = attach(trainer, report=said.append)
    trainer.train()
    assert (doctor.findings, said) == ([], [])


def test_what_a_run_leaves_behind_can_be_read(models, caplog):
    caplog.set_level(logging.WARNING, logger="assay")
    trainer = models.trainer(generation_kwargs={"temperature": 0.4}, num_iterations=2, max_steps=4, logging_steps=2)
    doctor = attach(trainer)
    trainer.train()
    told = [record.getMessage() for record in caplog.records if record.name == "assay"]
    assert [text.split()[1] for text in told] == ["SAMP01"]  # once, though every look finds it
    files = sorted(file.name for file in doctor.directory.glob("examined/*"))
    assert files == [f"step-00000{step}-update-{update}.safetensors" for step in (1, 3) for update in (1, 2)]
    batch = read_batch(doctor.directory / "examined" / files[1])
    assert (batch.numbers["step"], batch.numbers["update"], batch.settings["trainer"]) == (1, 1, "trl")
    assert batch.settings["temperature"] == 0.4  # what samples, not what the arguments say
    rows = [json.loads(line) for line in (doctor.directory / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert "reward_mean" in rows[2]
    assert "reward_mean" not in rows[3]  # the second update of the same completions has no reward of its own
    assert rows[3]["gradient_norm"] > 0  # TRL logs every second step
    findings = [json.loads(line) for line in (doctor.directory / "findings.jsonl").read_text().splitlines()]
    found = [(row["code"], row["step"], row["follows_from"]) for row in findings]
    assert sorted(found) == [("LAW03", 1, "SAMP01"), ("SAMP01", 1, None), ("SAMP06", 1, "SAMP01")]
    assert "SAMP01" in doctor.report("concise")
    assert json.loads(doctor.report("json"))


def test_a_new_run_in_the_same_place_takes_the_place_of_the_last(models):
    trainer = models.trainer(max_steps=3)
    attach(trainer)
    trainer.train()
    again = models.trainer(max_steps=1, output_dir=trainer.args.output_dir)
    doctor = attach(again)
    again.train()
    assert [file.name for file in doctor.directory.glob("examined/*")] == ["step-000001-update-1.safetensors"]
    assert len((doctor.directory / "metrics.jsonl").read_text().splitlines()) == 1


def test_what_breaks_beside_the_run_is_told_and_the_run_goes_on(models, caplog):
    caplog.set_level(logging.WARNING, logger="assay")
    trainer = models.trainer(max_steps=4)
    doctor = attach(trainer)
    doctor.directory.parent.mkdir(parents=True, exist_ok=True)
    doctor.directory.write_text("a file where the directory should be")
    trainer.train()
    assert trainer.state.global_step == 4
    told = [record.getMessage() for record in caplog.records if record.name == "assay"]
    assert len(told) == 2  # the first time, and when it gives up
    assert "training goes on" in told[0]
    assert "does not look any more" in told[1]


def test_it_can_be_attached_while_a_run_is_on_its_way(models):
    trainer = models.trainer(max_steps=5, num_iterations=2)
    doctors = []

    class Late(TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            if state.global_step == 1:
                doctors.append(attach(trainer))

    trainer.add_callback(Late())
    trainer.train()
    (doctor,) = doctors
    assert doctor.findings == []
    # update 2 trains on rows that were generated before anybody looked
    assert min(file.name for file in doctor.directory.glob("examined/*")) == "step-000003-update-1.safetensors"


def test_what_cannot_be_attached_to_is_refused_in_a_sentence(models):
    with pytest.raises(AttachError, match=r"given a dict; give it the trl.GRPOTrainer"):
        attach({})
    trainer = models.trainer()
    attach(trainer)
    with pytest.raises(AttachError, match="attached to this trainer already"):
        attach(trainer)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"loss_type": "dapo"}, {"objective": "dapo", "aggregation": "rollout_token_mean", "clip_high": 0.2}),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, {"objective": "cispo", "cispo_max": 5.0}),
        (
            {"loss_type": "dr_grpo", "importance_sampling_level": "sequence"},
            {"objective": "gspo", "aggregation": "constant", "max_tokens": 10},
        ),
        ({"loss_type": "luspo"}, {"objective": None, "aggregation": None}),
        ({"loss_type": "sapo", "importance_sampling_level": "sequence"}, {"objective": None}),
        ({"scale_rewards": "none"}, {"std": "none", "advantage_epsilon": 1e-4}),
        ({"scale_rewards": "batch"}, {"std": "sample", "scale": "batch"}),
        ({"use_bias_correction_kl": True}, {"kl_gradient": "unbiased", "kl_estimator": "k3", "kl_coef": 0.0}),
        ({"delta": 1.5, "epsilon": 0.1, "epsilon_high": 0.3}, {"delta": 1.5, "clip_low": 0.1, "clip_high": 0.3}),
        ({"top_k": 5, "top_p": 0.9, "min_p": 0.1}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1, "support_kept": False}),
        (
            {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 3},
            {"microbatches": 2, "minibatches": 2, "updates_per_rollout": 6, "prompts": 8, "group_size": 4},
        ),
        ({"mask_truncated_completions": True}, {"mask_truncated": True, "eos_ids": (1,), "pad_id": 0}),
    ],
    ids=lambda value: "-".join(value),
)
def test_settings_are_told_in_our_words(models, settings, wanted):
    found = settings_of(models.trainer(**settings))
    assert {name: found.get(name) for name in wanted} == wanted
    assert Batch.of(found)


def test_metrics_are_mapped_to_names_that_exist():
    assert set(METRICS.values()) <= set(OUR_METRICS)


def test_a_subclass_with_a_loss_of_its_own_is_watched_too(models):
    class Scaled(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            return 1.0 * super()._compute_loss(model, inputs)

    trainer = models.trainer(kind=Scaled)
    doctor = attach(trainer)
    trainer.train()
    assert doctor.findings == []


def test_an_update_of_rows_of_two_generations_is_left_out(models):
    parts = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 3}
    trainer = models.trainer(**parts, max_steps=6)
    doctor = attach(trainer)
    trainer.train()
    assert not doctor.findings
    updates = [read_batch(path) for path in sorted(doctor.directory.glob("examined/*-update-[12].safetensors"))]
    assert [batch.number("policy_version") for batch in updates] == [0, 2, 3]  # of 6 updates the 2nd and 5th are mixed


def test_what_a_subclass_adds_to_the_loss_or_takes_from_the_log_is_left_to_it(models):
    class Own(GRPOTrainer):
        def compute_loss(self, model, inputs, *args, **others):
            return self._compute_loss(model, inputs, scale=0.5)

        def _compute_loss(self, model, inputs, scale):
            return scale * super()._compute_loss(model, inputs)

        def log(self, logs, *args, **others):
            super().log({**logs, "grad_norm": None}, *args, **others)

    trainer = models.trainer(kind=Own, max_steps=2)
    doctor = attach(trainer)
    trainer.train()
    assert len(list(doctor.directory.glob("examined/*"))) >= 2
    assert not doctor._failures
