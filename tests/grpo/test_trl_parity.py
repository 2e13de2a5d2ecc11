"""The same numbers as TRL, value and gradient, for every variant both have.

TRL's own code runs, in real trainers built from a GRPOConfig around a tiny model: `_compute_loss`,
`_generate_and_score_completions` (advantages, importance weights against vLLM) and the log-prob pass. Only what feeds
them is fixed here: the sampled tokens, the rewards and the per-token log-probs. Two attributes are set after the
constructor because TRL's would need a model hub or vLLM itself: `beta` (it loads a reference model) and `use_vllm`.
"""

import pytest
import torch

import assay.grpo as grpo
from assay.config import LossConfig
from assay.types import Totals

trl = pytest.importorskip("trl")

from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast  # noqa: E402
from trl.rewards import get_soft_overlong_punishment  # noqa: E402

NAN = float("nan")
GROUP, MAX_TOKENS = 4, 9
LENGTHS = (5, 2, 7, 1, 3, 4, 6, 8)  # two groups of four rollouts


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Builds a real TRL trainer from config settings, in a few milliseconds."""
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2, "b": 3, "c": 4}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    size = {"n_positions": 32, "n_embd": 8, "n_layer": 1, "n_head": 2}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=5, bos_token_id=1, eos_token_id=1, **size))
    model.lm_head.weight.data.mul_(10)  # logits far enough apart for a temperature to matter
    output = str(tmp_path_factory.mktemp("trl"))

    def make(trainer="GRPO", rewards=((0.0,) * 8,), **settings):
        config = {
            "output_dir": output,
            "use_cpu": True,
            "bf16": False,
            "report_to": [],
            "num_generations": GROUP,
            "per_device_train_batch_size": len(LENGTHS),
            "max_completion_length": MAX_TOKENS,
            **settings,
        }
        built = getattr(trl, f"{trainer}Trainer")(
            model=model,
            args=getattr(trl, f"{trainer}Config")(**config),
            processing_class=tokenizer,
            reward_funcs=[lambda values=values, **_: list(values) for values in rewards],
            train_dataset=Dataset.from_dict({"prompt": ["a b"] * 16}),
        )
        built.current_gradient_accumulation_steps = built.args.gradient_accumulation_steps  # set by train() otherwise
        built.model.train()
        return built

    return make


def make_batch(dtype=torch.float64):
    """A policy far enough from old that every bound bites; one row and one token of another are out of the loss."""
    generator = torch.Generator().manual_seed(7)
    shape = (len(LENGTHS), max(LENGTHS))

    def normal(scale):
        return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)

    old = -2 + normal(0.5)
    mask = torch.arange(shape[1]) < torch.tensor(LENGTHS).unsqueeze(1)
    mask[4], mask[2, 1] = False, False
    advantages = torch.tensor([1.0, -0.7, 0.4, -1.3, 0.9, -0.2, 1.6, -1.9], dtype=dtype)
    return {
        "new_BT": old + normal(0.8),
        "old_BT": old,
        "ref_BT": old + normal(0.3),
        "sampler_BT": old + normal(0.15),
        "entropy_BT": normal(1.0).abs(),
        "advantages_BT": advantages.unsqueeze(1).expand(shape),
        "mask_BT": mask,
    }


def trl_loss(trainer, batch, **inputs):
    """TRL's loss of the batch and its gradients with respect to the log-probs and the entropies."""
    new, entropy = (batch[name].clone().requires_grad_() for name in ("new_BT", "entropy_BT"))
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (new, entropy, None)
    mask = batch["mask_BT"].long()
    inputs = {
        "prompt_ids": torch.ones(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": torch.ones_like(mask),
        "completion_mask": torch.ones_like(mask),
        "tool_mask": mask,
        "advantages": batch["advantages_BT"][:, 0],
        "old_per_token_logps": batch["old_BT"],
        "ref_per_token_logps": batch["ref_BT"],
        "num_items_in_batch": mask.sum() + 5,  # of the whole generation: dapo and bnpo would be the same otherwise
        **inputs,
    }
    loss = trainer._compute_loss(trainer.model, inputs)
    return loss.detach(), *torch.autograd.grad(loss, (new, entropy), materialize_grads=True)


def our_loss(batch, settings, totals=None):
    new, entropy = (batch[name].clone().requires_grad_() for name in ("new_BT", "entropy_BT"))
    tokens = int(batch["mask_BT"].sum())
    totals = totals or Totals(len(batch["mask_BT"]), tokens, tokens + 5.0, MAX_TOKENS)
    loss = grpo.policy_loss(**{**batch, "new_BT": new, "entropy_BT": entropy}, totals=totals, settings=settings)
    return loss.total.detach(), *torch.autograd.grad(loss.total, (new, entropy), materialize_grads=True)


def in_float64(objective):
    """What two float64 computations may differ by; TRL keeps sapo's temperatures in float32."""
    return 1e-6 if objective == "sapo" else 1e-12


def assert_same(ours, theirs, tolerance=1e-6):
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=tolerance, check_dtype=False)


# our settings -> TRL's
OBJECTIVES = {
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo"},
}
VARIANTS = {
    "defaults": ({}, {}),
    "other bounds": ({"clip_low": 0.1, "clip_high": 0.28}, {"epsilon": 0.1, "epsilon_high": 0.28}),
    "delta": ({"delta": 1.5}, {"delta": 1.5}),
    "cispo cap": ({"cispo_max": 1.2}, {"epsilon_high": 1.2}),
    "sapo temperatures": (
        {"sapo_positive": 0.6, "sapo_negative": 2.5},
        {"sapo_temperature_pos": 0.6, "sapo_temperature_neg": 2.5},
    ),
    "unbiased KL": ({"kl_coef": 0.07}, {"beta": 0.07, "use_bias_correction_kl": True}),
    "naive KL": ({"kl_coef": 0.07, "kl_gradient": "naive"}, {"beta": 0.07, "use_bias_correction_kl": False}),
    "entropy": ({"entropy_coef": 0.03}, {"entropy_coef": 0.03}),
}
FOR_ALL = ("defaults", "unbiased KL", "naive KL", "entropy")
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "gspo")
CASES = [
    *[(objective, variant) for objective in OBJECTIVES for variant in FOR_ALL],
    *[(objective, variant) for objective in CLIPPED for variant in ("other bounds", "delta")],
    ("cispo", "cispo cap"),
    ("sapo", "sapo temperatures"),
]


def both(build, objective, variant, **more):
    """Our settings and a TRL trainer for one case."""
    mine, theirs = VARIANTS[variant]
    theirs = {**OBJECTIVES[objective], **theirs, **more}
    beta = theirs.pop("beta", 0.0)
    trainer = build(**theirs)
    trainer.beta = beta
    return LossConfig(objective=objective, **mine), trainer


@pytest.mark.parametrize(("objective", "variant"), CASES)
def test_loss_and_gradient_are_those_of_trl(build, objective, variant):
    settings, trainer = both(build, objective, variant)
    batch = make_batch()
    assert_same(our_loss(batch, settings), trl_loss(trainer, batch), in_float64(objective))
    single = make_batch(torch.float32)
    assert_same(our_loss(single, settings), trl_loss(trainer, single))


def test_no_two_cases_have_the_same_loss_or_gradient_so_that_none_is_compared_in_vain():
    batch = make_batch()
    seen = {}
    for objective, variant in CASES:
        result = our_loss(batch, LossConfig(objective=objective, **VARIANTS[variant][0]))
        key = tuple(round(x, 9) for tensor in result for x in tensor.flatten().tolist())
        assert key not in seen, f"{objective}, {variant} equals {seen.get(key)}"
        seen[key] = (objective, variant)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("variant", FOR_ALL)
def test_accumulated_over_micro_batches_and_updates_of_one_generation_the_gradient_is_that_of_trl(
    build, objective, variant
):
    # a generation batch of four micro-batches, two an update; bnpo and the entropy bonus are a mean of means in TRL,
    # equal to ours only where micro-batches have equally many tokens: the second one has the first one's mask
    settings, trainer = both(build, objective, variant, gradient_accumulation_steps=2, steps_per_generation=4)
    first, second = make_batch(), make_batch()
    second["new_BT"] = second["new_BT"].flip(0)
    tokens = int(first["mask_BT"].sum())
    rollout_tokens = 3 * tokens  # the other update's rollouts are shorter
    totals = Totals(2 * len(LENGTHS), 2 * tokens, rollout_tokens / 2, MAX_TOKENS)
    for batch in (first, second):
        theirs = trl_loss(trainer, batch, num_items_in_batch=torch.tensor(rollout_tokens))
        assert_same(our_loss(batch, settings, totals), theirs, in_float64(objective))


# ---------------------------------------------------------------- from sampled tokens and rewards


def generate_and_score(trainer, sampled_logprobs=None, logprobs=None):
    """Runs TRL's `_generate_and_score_completions` on completions of LENGTHS tokens."""
    tokens = [[2] * (length - 1) + [1] for length in LENGTHS]
    generated = ([[2, 3]] * len(LENGTHS), tokens, None, ["a"] * len(LENGTHS), sampled_logprobs, {}, None, None)
    if isinstance(trainer, trl.RLOOTrainer):
        generated = (*generated[:2], generated[3])
    trainer._generate = lambda prompts: generated
    if logprobs is not None:
        queue = list(logprobs)
        trainer._get_per_token_logps_and_entropies = lambda *_, **__: (queue.pop(0), None, None)
    return trainer._generate_and_score_completions([{"prompt": "a b"} for _ in LENGTHS])


REWARDS = {
    "all scored": (1.0, 0.0, 0.0, 1.0, 0.25, -3.0, 2.0, 0.5),
    "some unscored": (1.0, None, 0.0, 1.0, None, -3.0, 2.0, None),
    "one scored in a group": (None, None, 0.5, None, 1.0, 2.0, 3.0, 5.0),
    "a group unscored": (None, None, None, None, 1.0, 2.0, 3.0, 5.0),
    "a group of equals": (0.5, 0.5, 0.5, 0.5, 1.0, 2.0, 3.0, 5.0),
}


def as_groups(rewards):
    return torch.tensor([NAN if reward is None else reward for reward in rewards]).reshape(-1, GROUP)


@pytest.mark.parametrize("rewards", REWARDS.values(), ids=list(REWARDS))
@pytest.mark.parametrize(
    ("scale_rewards", "settings"), [("group", {}), ("batch", {"scale": "batch"}), ("none", {"std": "none"})]
)
def test_advantages_are_those_of_trl(build, rewards, scale_rewards, settings):
    trainer = build(rewards=[rewards], scale_rewards=scale_rewards)
    theirs = generate_and_score(trainer)["advantages"]
    assert_same([grpo.group_advantages(as_groups(rewards), **settings).flatten()], [theirs])


@pytest.mark.parametrize("second", REWARDS.values(), ids=list(REWARDS))
def test_gdpo_advantages_are_those_of_trl(build, second):
    first = (3.0, 1.0, None, None, 0.0, 0.5, 0.0, None)
    trainer = build(
        rewards=[first, second], multi_objective_aggregation="normalize_then_sum", reward_weights=[1.0, 0.4]
    )
    theirs = generate_and_score(trainer)["advantages"]
    rewards = torch.stack([as_groups(first), as_groups(second)], dim=2)
    assert_same([grpo.gdpo_advantages(rewards, torch.tensor([1.0, 0.4])).flatten()], [theirs])


@pytest.mark.parametrize("rewards", REWARDS.values(), ids=list(REWARDS))
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_leave_one_out_advantages_and_kl_in_the_reward_are_those_of_trls_rloo(build, rewards, beta):
    trainer = build("RLOO", rewards=[rewards], beta=0.0, normalize_advantages=False)
    trainer.beta, trainer.ref_model = beta, trainer.model
    batch = make_batch(torch.float32)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)
    theirs = generate_and_score(trainer, logprobs=[batch["old_BT"], batch["ref_BT"]])["advantages"]
    penalty = beta * grpo.sequence_kl(batch["old_BT"], batch["ref_BT"], mask).reshape(-1, GROUP)
    ours = grpo.group_advantages(as_groups(rewards) - penalty, baseline="leave_one_out", std="none")
    assert_same([ours.flatten()], [theirs])


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
@pytest.mark.parametrize(("low", "high"), [(0.0, 3.0), (0.8, 1.3)])
@pytest.mark.parametrize("objective", ["dapo", "gspo", "cispo"])
def test_importance_weights_against_the_engine_and_the_loss_with_them_are_those_of_trl(
    build, level, mode, low, high, objective
):
    trainer = build(
        **OBJECTIVES[objective],
        vllm_importance_sampling_mode=f"{level}_{mode}",
        vllm_importance_sampling_clip_max=high,
        vllm_importance_sampling_clip_min=low or None,
    )
    trainer.use_vllm, trainer.beta = True, 0.07
    batch = make_batch(torch.float32)
    batch["mask_BT"] = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)
    batch["sampler_BT"][2, 3] = NAN
    sampled = [row[:length].tolist() for row, length in zip(batch["sampler_BT"], LENGTHS, strict=True)]
    sampled[2][3] = None  # how vLLM reports it
    trainer.ref_model = trainer.model
    scored = generate_and_score(trainer, sampled, [batch["old_BT"], batch["ref_BT"]])

    correction = LossConfig(correction=level, correction_mode=mode, correction_low=low, correction_high=high)
    weights = grpo.mismatch_weights(batch["old_BT"], batch["sampler_BT"], batch["mask_BT"], correction)
    theirs = scored["importance_sampling_ratio"].expand_as(weights).where(batch["mask_BT"], 1.0)
    assert_same([weights], [theirs])
    assert len(weights.unique()) > 2

    settings = LossConfig(
        objective=objective,
        kl_coef=0.07,
        correction=level,
        correction_mode=mode,
        correction_low=low,
        correction_high=high,
    )
    ratio = scored["importance_sampling_ratio"]
    assert_same(our_loss(batch, settings), trl_loss(trainer, batch, importance_sampling_ratio=ratio))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_and_entropies_of_a_model_are_those_of_trl(build, temperature):
    trainer = build(temperature=temperature)
    trainer.model.eval()
    ids = torch.randint(5, (3, 8), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logprobs, entropies, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, torch.ones_like(ids), 6, compute_entropy=True
        )
        logits = trainer.model(ids).logits[:, 1:-1]
    assert logits.std() > 0.5
    assert_same(
        [grpo.token_logprobs(logits, ids[:, 2:], temperature), grpo.token_entropy(logits, temperature)],
        [logprobs, entropies],
    )


def test_the_overlong_penalty_is_that_of_trl():
    lengths = torch.arange(1, 14)
    theirs = get_soft_overlong_punishment(10, 4)([[1] * length for length in lengths.tolist()])
    assert_same([grpo.overlong_penalty(lengths, 10, 4)], [torch.tensor(theirs)])
