"""Real runs of a few tiny steps, in this process, against a plain PyTorch loop that knows nothing of the trainer."""

import json
from types import SimpleNamespace

import pyarrow.parquet
import pytest
import torch
from fixtures.commands import TINY
from fixtures.tiny import sample, tiny_policy, uneven_samples
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from assay import config as configuration
from assay.config import LossConfig, OptimizerConfig
from assay.policy.causal_packing import CausalPacking
from assay.policy.embedded import embedded_directory, tokenizer
from assay.tasks import open_task
from assay.tasks.sort_digits import SortDigits
from assay.train.failure import RunFailed
from assay.train.run.run import start
from assay.train.step.learner import Learner
from assay.train.step.pack import pack_rows
from assay.types import NO_SIGNAL, Score

STEPS = 3
SETTINGS = TINY | {
    "run.steps": STEPS,
    "evaluate.prompts": 24,
    "task.options.min_digits": 4,
    "task.options.max_digits": 5,
    "rollout.temperature": 0.7,
    "rollout.truncated": "mask",
    "advantage.baseline": "leave_one_out",
    "advantage.std": "population",
    "loss.kl_coef": 0.1,
    "optimizer.learning_rate": 3e-4,
    "optimizer.schedule": "linear",
    "optimizer.warmup": 1,
    "optimizer.beta1": 0.6,
    "optimizer.beta2": 0.95,
    "optimizer.weight_decay": 0.3,
    "optimizer.clip_norm": 0.2,
    "optimizer.epochs": 1,
    "optimizer.minibatches": 2,
    "optimizer.microbatches": 2,
    "checkpoint.every": 100,
}
RATES = [3e-4 * share for share in (1, 1, 0.8, 0.6, 0.4, 0.2)]  # 1 update of warm-up, then 5 down to 0


def config_of(**changes):
    chosen = SETTINGS | {name.replace("__", ".", 1): value for name, value in changes.items()}
    return configuration.load(None, [f"{name}={value}" for name, value in chosen.items()])


def share_in_place(prompt, rollout):
    """A reward with many values, so that every group has a signal."""
    right = sum(got == wanted for got, wanted in zip(rollout.text, prompt.answer, strict=False))
    return Score.of({"in_place": right / len(prompt.answer), "low": -sum(rollout.tokens) / 100})


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def rollouts_of(path, step):
    (file,) = (path / "rollouts").glob(f"*{step:06d}*")
    return [row for row in pyarrow.parquet.read_table(file).to_pylist() if row["old_logprobs"] is not None]


@pytest.fixture(scope="module")
def workshop():
    """Shared by all runs here: a reward, and torch as it was afterwards."""
    patch = pytest.MonkeyPatch()
    patch.setattr(SortDigits, "score", lambda self, prompt, rollout: share_in_place(prompt, rollout))
    threads = torch.get_num_threads()
    yield patch
    patch.undo()
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def finished(workshop, run_root):
    """A whole run, and the same training done again by hand from its rollouts."""
    path = run_root / "verbs"
    assert start(config_of(), path) == 0
    return SimpleNamespace(
        path=path,
        rollouts=[rollouts_of(path, step + 1) for step in range(STEPS)],
        metrics=lines(path / "metrics.jsonl"),
        weights=load_file(max((path / "checkpoints").iterdir()) / "weights.safetensors"),
        by_hand=train_by_hand([rollouts_of(path, step + 1) for step in range(STEPS)]),
    )


def embedded_model():
    return AutoModelForCausalLM.from_pretrained(embedded_directory(TINY["model.warm_steps"], lambda *_: None)).eval()


def logprobs(model, row):
    ids = torch.tensor([row["prompt_tokens"] + row["tokens"]])
    logits = model(ids, use_cache=False).logits[0, len(row["prompt_tokens"]) - 1 : -1] / 0.7
    return logits.log_softmax(dim=1).gather(1, torch.tensor(row["tokens"]).unsqueeze(1)).squeeze(1)


def first_minibatch(rows):
    """Read off the record: the first update saw the very policy that sampled."""
    return {row["row"] for row in rows if row["new_logprobs"] == row["old_logprobs"]}


def advantage(row, rows):
    group = [other["reward"] for other in rows if other["group"] == row["group"]]
    others = (sum(group) - row["reward"]) / (len(group) - 1)
    return (row["reward"] - others) / (float(torch.tensor(group, dtype=torch.float64).std(correction=0)) + 1e-4)


def row_loss(row, rows, new, old, ref):
    """-min(r A, clip(r) A) + 0.1 r k3 of a row, summed over its tokens."""
    ratio, value = (new - old).exp(), advantage(row, rows)
    surrogate = torch.minimum(ratio * value, ratio.clamp(0.8, 1.2) * value)
    return (-surrogate + 0.1 * ratio * ((ref - new).exp() - 1 - (ref - new))).sum()


def train_by_hand(steps):
    """DAPO with KL and AdamW, row by row and without padding: weights, and the log-probs of each step by row."""
    model, reference = embedded_model(), embedded_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.6, 0.95), weight_decay=0.3)
    kept, norms = [], []
    for step, rows in enumerate(steps):
        trained = {row["row"] for row in rows if row["stop"] == "eos"}
        first = first_minibatch(rows)
        share = sum(len(row["tokens"]) for row in rows if row["row"] in trained) / 2
        with torch.no_grad():
            old = {row["row"]: logprobs(model, row) for row in rows}
            ref = {row["row"]: logprobs(reference, row) for row in rows}
        new = {}
        for part in range(2):
            optimizer.zero_grad()
            for row in (row for row in rows if (row["row"] in first) == (part == 0)):
                number = row["row"]
                new[number] = logprobs(model, row)
                if number in trained:
                    (row_loss(row, rows, new[number], old[number], ref[number]) / share).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)))
            optimizer.param_groups[0]["lr"] = RATES[2 * step + part]
            optimizer.step()
        kept.append({"old": old, "ref": ref, "new": {number: values.detach() for number, values in new.items()}})
    return SimpleNamespace(weights=dict(model.named_parameters()), logprobs=kept, norms=norms)


def test_a_run_ends_with_the_weights_of_a_plain_loop(finished):
    assert finished.weights.keys() == finished.by_hand.weights.keys()
    for name, weight in finished.by_hand.weights.items():
        apart = (finished.weights[name] - weight.detach()).abs()
        assert apart.mean() < 1e-6, name
        assert apart.max() < 3e-5, name  # Adam makes a whole step of a gradient that is nothing but rounding


def test_the_recorded_gradient_norms_are_those_of_a_plain_loop(finished):
    for step, row in enumerate(finished.metrics):
        pair = finished.by_hand.norms[2 * step : 2 * step + 2]
        assert row["gradient_norm"] == pytest.approx(sum(pair) / 2, rel=1e-3)
        assert row["gradient_norm_max"] == pytest.approx(max(pair), rel=1e-3)


@pytest.mark.parametrize("which", ["old", "new", "ref"])
def test_recorded_log_probs_are_those_of_the_policy_they_are_named_after(finished, which):
    for rows, by_hand in zip(finished.rollouts, finished.by_hand.logprobs, strict=True):
        for row in rows:
            assert row[f"{which}_logprobs"] == pytest.approx(by_hand[which][row["row"]].tolist(), abs=1e-4)
    last = finished.by_hand.logprobs[-1]
    for other in {"old", "new", "ref"} - {which}:  # else the names could be swapped unseen
        assert max(float((last[which][number] - last[other][number]).abs().max()) for number in last[which]) > 1e-2


def test_the_sampler_reports_log_probs_at_the_configured_temperature(finished):
    for rows in finished.rollouts:
        for row in rows:
            assert row["sampler_logprobs"] == pytest.approx(row["old_logprobs"], abs=1e-4)


def test_the_learning_rate_follows_its_schedule_over_the_whole_run(finished):
    assert [row["learning_rate"] for row in finished.metrics] == pytest.approx(RATES[1::2])


def test_the_size_of_the_model_is_recorded_at_the_start(finished):
    first = lines(finished.path / "events.jsonl")[0]
    assert first["kind"] == "start"
    assert first["parameters"] == sum(tensor.numel() for tensor in finished.weights.values())


def test_policy_versions_count_the_updates_before_and_after_a_step(finished):
    assert [{row["policy_version"] for row in rows} for rows in finished.rollouts] == [{0}, {2}, {4}]
    assert [row["policy_version"] for row in finished.metrics] == [2, 4, 6]


def test_truncated_rollouts_are_out_of_the_loss_and_all_others_in_it(finished):
    rows = [row for rows in finished.rollouts for row in rows]
    assert {row["stop"] for row in rows} == {"eos", "length"}
    for row in rows:
        assert row["mask"] == [row["stop"] == "eos"] * len(row["tokens"])


def test_each_step_is_cut_into_equal_minibatches_by_a_shuffle_of_its_own(finished):
    firsts = [first_minibatch(rows) for rows in finished.rollouts]
    assert [len(first) for first in firsts] == [8, 8, 8]
    assert len({frozenset(first) for first in firsts}) == 3


def test_the_spread_of_the_ratio_and_the_kl_of_the_step_are_those_of_the_recorded_log_probs(finished):
    for rows, metrics in zip(finished.rollouts, finished.metrics, strict=True):
        pairs = [
            pair
            for row in rows
            if all(row["mask"])
            for pair in zip(row["old_logprobs"], row["new_logprobs"], strict=True)
        ]
        old, new = torch.tensor(pairs, dtype=torch.float64).unbind(dim=1)
        ratio = (new - old).exp()
        assert ratio.std() > 1e-3
        assert metrics["ratio_mean"] == pytest.approx(float(ratio.mean()), abs=1e-5)
        assert metrics["ratio_std"] == pytest.approx(float(ratio.std(correction=0)), rel=1e-3)
        assert metrics["old_kl"] == pytest.approx(float((ratio - 1 - (new - old)).mean()), rel=1e-3, abs=1e-7)


def test_the_first_evaluation_is_greedy_on_held_out_problems(finished):
    config, model, words = config_of(), embedded_model(), tokenizer()
    rewards = []
    for index in range(24):
        problem = open_task(config).heldout_problem(index)
        tokens = words.encode(problem.text, add_special_tokens=False)
        begun = len(tokens)
        with torch.no_grad():
            while len(tokens) < begun + 6 and tokens[-1] != words.eos_token_id:
                tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        answer = tokens[begun:]
        rollout = SimpleNamespace(text=words.decode(answer, skip_special_tokens=True), tokens=answer)
        rewards.append(share_in_place(problem, rollout).reward)
    first, last = lines(finished.path / "evaluations.jsonl")
    assert first["reward_greedy"] == pytest.approx(sum(rewards) / 24, abs=1e-9)
    assert first["reward_sampled"] != first["reward_greedy"]
    assert last["reward_greedy"] != first["reward_greedy"]


def refill(patch, path, *, rounds_allowed, flat_rounds=2):
    """Two steps of 2 groups of 3, whose first rounds are without signal: (prompt, tokens) of every answer scored.

    The policy is as good as uniform, so answers are equal exactly where the random numbers are."""
    seen = []

    def reward(self, prompt, rollout):
        seen.append((prompt.text, rollout.tokens))
        return Score.of({"late": float(len(seen)) if len(seen) > 6 * flat_rounds else 0.0})

    sampling = {"rollout__prompts": 2, "rollout__group_size": 3, "rollout__temperature": 1000.0, "model__warm_steps": 0}
    rules = {"rollout__zero_variance": "refill", "rollout__refill_rounds": rounds_allowed, "evaluate__prompts": 0}
    with patch.context() as inner:
        inner.setattr(SortDigits, "score", reward)
        assert start(config_of(**sampling, **rules, run__steps=2, optimizer__microbatches=1), path) == 0
    return seen


def test_every_round_of_a_refill_has_prompts_and_random_numbers_of_its_own(workshop, run_path):
    seen = refill(workshop, run_path, rounds_allowed=3)
    task = open_task(config_of())
    assert [text for text, _ in seen[::3]] == [task.training_problem(index).text for index in range(8)]
    rounds = [tuple(tokens for _, tokens in seen[first : first + 6]) for first in range(0, 24, 6)]
    assert len(seen) == 24
    assert len(set(rounds)) == 4
    assert [row["refill_rounds"] for row in lines(run_path / "metrics.jsonl")] == [2, 0]


def test_a_refill_gives_up_after_exactly_the_rounds_it_is_allowed(workshop, run_path):
    with pytest.raises(RunFailed, match="2 rounds"):
        refill(workshop, run_path, rounds_allowed=2)


def one_update(samples, loss):
    one = Learner(tiny_policy(), None, loss, OptimizerConfig(epochs=2), total_updates=2)
    cpu = torch.device("cpu")
    batch = one.freeze(
        pack_rows(samples, range(len(samples)), CausalPacking(cpu), minibatches=1, microbatches=2, max_tokens=8)
    )
    return one.update(batch.minibatches[0], batch.frozen[0], 0), batch


def test_the_sums_of_the_correction_are_those_of_its_weights():
    learned, batch = one_update(uneven_samples(), LossConfig(correction="token", correction_high=3.0))
    weights = []
    for part, fixed in zip(batch.minibatches[0].microbatches, batch.frozen[0], strict=True):
        weights += (fixed.old_BT + 1.0).exp().clamp(max=3.0)[part.mask_BT].tolist()  # the sampler said -1 everywhere
    assert len(set(weights)) > 5
    assert learned.update.correction_sum == pytest.approx(sum(weights), rel=1e-5)
    assert learned.update.correction_square_sum == pytest.approx(sum(weight**2 for weight in weights), rel=1e-5)


def test_an_update_whose_only_advantages_are_masked_out_is_not_taken():
    samples = [sample(0, (2, 3), (4, 5), 1.0, in_loss=False), sample(0, (2, 3), (4, 1), 0.0)]
    assert one_update(samples, LossConfig())[0].update.skipped == NO_SIGNAL
    assert one_update([*samples, sample(0, (2, 3), (6, 1), -1.0)], LossConfig())[0].update.applied
