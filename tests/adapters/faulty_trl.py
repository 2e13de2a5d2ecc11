"""TRL trainers with one thing broken each. FAULTS: name -> (subclass, settings of the run, codes of that illness)."""

import torch
from adapters.tiny_trl import EOS
from trl import GRPOTrainer


def made_otherwise(change):
    """A trainer whose generated and scored rows are changed before they are trained on."""

    class Faulty(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            return {**output, **change(self, output)}

    return Faulty


def loss_of_other_inputs(change):
    class Faulty(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            return super()._compute_loss(model, {**inputs, **change(self, inputs)})

    return Faulty


def own_loss(token_loss, kl_sign=1.0):
    """A trainer with a loss of its own: a mean over rows of means over tokens."""

    class Faulty(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            width, mask = inputs["completion_ids"].shape[1], inputs["completion_mask"]
            new, _, _ = self._get_per_token_logps_and_entropies(model, ids, attended, width, compute_entropy=True)
            old = inputs.get("old_per_token_logps", new.detach())
            loss = token_loss(new, old, inputs["advantages"].unsqueeze(1), mask)
            if self.beta:
                apart = inputs["ref_per_token_logps"] - new
                loss = loss + kl_sign * self.beta * (apart.exp() - apart - 1)
            return ((loss * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()

    return Faulty


def clipped(ratio, advantages):
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


class ScoredAtOne(GRPOTrainer):
    """Log-probs at temperature 1, whatever the sampler's: TRL's own head scales by its temperature."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **how):
        logits = model(input_ids=input_ids, attention_mask=attention_mask).logits[:, -logits_to_keep - 1 : -1]
        logps = torch.log_softmax(logits.float(), dim=-1)
        new = logps.gather(2, input_ids[:, -logits_to_keep:, None])[:, :, 0]
        return new, -(logps.exp() * logps).sum(-1), None


class OffByOne(GRPOTrainer):
    """The logits of the token itself, where those of its predecessor are meant."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **how):
        logits = model(input_ids=input_ids, attention_mask=attention_mask).logits[:, -logits_to_keep:]
        logps = torch.log_softmax(logits.float() / self.temperature, dim=-1)
        new = logps.gather(2, input_ids[:, -logits_to_keep:, None])[:, :, 0]
        return new, -(logps.exp() * logps).sum(-1), None


class WithoutAttentionMask(GRPOTrainer):
    """Padding is attended to."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **how):
        everything = torch.ones_like(attention_mask)
        return super()._get_per_token_logps_and_entropies(model, input_ids, everything, logits_to_keep, **how)


class RewardsMoved(GRPOTrainer):
    """Every row gets the reward of its neighbour."""

    def _calculate_rewards(self, *args, **others):
        return super()._calculate_rewards(*args, **others).roll(1, dims=0)


class Reencoded(GRPOTrainer):
    """Completions are decoded and encoded again on their way to the loss: what decoding drops is lost."""

    def _generate(self, prompts):
        answer = list(super()._generate(prompts))
        texts = self.processing_class.batch_decode(answer[1], skip_special_tokens=True)
        again = [self.processing_class(text)["input_ids"] for text in texts]
        answer[1] = [[*ids, EOS] if ids else [EOS] for ids in again]
        return tuple(answer)


class Negated(GRPOTrainer):
    """One minus too many."""

    def _compute_loss(self, model, inputs):
        return -super()._compute_loss(model, inputs)


class Detached(GRPOTrainer):
    """The log-probs carry no gradient; the entropy does, so that nothing crashes."""

    def _get_per_token_logps_and_entropies(self, *args, **how):
        new, entropy, aux = super()._get_per_token_logps_and_entropies(*args, **how)
        return new.detach(), entropy, aux


class FrozenBehindItsBack(GRPOTrainer):
    """The optimizer holds half of the tensors."""

    def create_optimizer(self, *args, **others):
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(weights[::2], lr=self.args.learning_rate)
        return self.optimizer


def without_eos(trainer, output):
    return {"completion_mask": output["completion_mask"] * (output["completion_ids"] != EOS)}


def with_padding(trainer, inputs):
    return {"completion_mask": torch.ones_like(inputs["completion_mask"])}


def with_prompts(trainer, output):
    """The prompt is moved into the completion, but for its first column."""
    prompts, kept = output["prompt_ids"], output["prompt_mask"]
    return {
        "prompt_ids": prompts[:, :1],
        "prompt_mask": kept[:, :1],
        "completion_ids": torch.cat([prompts[:, 1:], output["completion_ids"]], dim=1),
        "completion_mask": torch.cat([kept[:, 1:], output["completion_mask"]], dim=1),
    }


def of_the_batch(trainer, output):
    rewards = trainer._assay_attached._coming.rewards_BF.sum(1)
    return {"advantages": (rewards - rewards.mean()) / (rewards.std() + 1e-4)}


def not_centred(trainer, output):
    rewards = trainer._assay_attached._coming.rewards_BF.sum(1)
    return {"advantages": rewards / (rewards.view(-1, 4).std(dim=1).repeat_interleave(4) + 1e-4)}


def completions_moved(trainer, output):
    return {name: output[name].roll(1, dims=0) for name in ("completion_ids", "completion_mask")}


def groups_mixed(trainer, output):
    """Advantages in the order of `repeat` where rows are in that of `repeat_interleave`."""
    advantages = output["advantages"]
    return {"advantages": advantages.view(-1, 4).T.reshape(-1)}


def old_again(trainer, inputs):
    """Old log-probs are those of the policy that is being trained."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    width = inputs["completion_ids"].shape[1]
    with torch.no_grad():
        old = GRPOTrainer._get_per_token_logps_and_entropies(trainer, trainer.model, ids, attended, width)[0]
    return {"old_per_token_logps": old}


def reference_is_old(trainer, output):
    """The reference is the policy that sampled."""
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    attended = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    with torch.no_grad():
        ref = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, attended, output["completion_ids"].shape[1]
        )[0]
    return {"ref_per_token_logps": ref}


def padded_with_eos(trainer, output):
    """Tokens behind the end are in the loss of rows that ended."""
    ids, mask = output["completion_ids"], output["completion_mask"]
    return {"completion_ids": ids.where(mask != 0, EOS), "completion_mask": torch.ones_like(mask)}


def old_dropped(trainer, output):
    """Without old log-probs TRL takes those of the same pass, as if every update were the first."""
    return {"old_per_token_logps": None}


GRPO = {"loss_type": "grpo"}
TWICE = GRPO | {"num_iterations": 2, "max_steps": 4}
REFERENCE = {"beta": 0.1}

FAULTS = {
    "temperature left out of scoring": (ScoredAtOne, {}, {"SAMP01"}),
    "another temperature in generation_kwargs": (
        GRPOTrainer,
        {"generation_kwargs": {"temperature": 0.4}},
        {"SAMP01"},
    ),
    "top_k at sampling only": (GRPOTrainer, {"top_k": 3}, {"SAMP02"}),
    "log-probs off by one": (OffByOne, {}, {"ALGN01"}),
    "padding attended to": (WithoutAttentionMask, {}, {"ALGN05"}),
    "EOS masked out": (made_otherwise(without_eos), {}, {"MASK01"}),
    "padding in the loss": (loss_of_other_inputs(with_padding), {}, {"MASK02"}),
    "tokens behind EOS in the loss": (made_otherwise(padded_with_eos), {}, {"MASK02"}),
    "prompt in the loss": (made_otherwise(with_prompts), {}, {"MASK03"}),
    "advantages of the batch": (made_otherwise(of_the_batch), {}, {"ADV01"}),
    "advantages not centred": (made_otherwise(not_centred), {}, {"ADV03"}),
    "advantages in another row order": (made_otherwise(groups_mixed), {}, {"ALGN10", "ADV02"}),
    "rewards of the neighbour": (RewardsMoved, {}, {"ADV10"}),
    "completions of the neighbour": (made_otherwise(completions_moved), {}, {"ALGN10"}),
    "re-encoded completions": (Reencoded, {}, {"ALGN02"}),
    "loss with the wrong sign": (Negated, {}, {"LOSS01"}),
    "ratio inverted": (own_loss(lambda n, o, a, m: clipped((o - n).exp(), a)), TWICE, {"RAT04"}),
    "ratio without exp": (own_loss(lambda n, o, a, m: clipped(n - o, a)), TWICE, {"RAT04"}),
    "max where min is meant": (
        own_loss(lambda n, o, a, m: -torch.max((n - o).exp() * a, (n - o).exp().clamp(0.8, 1.2) * a)),
        GRPO | {"num_iterations": 4, "max_steps": 5, "learning_rate": 0.1},
        {"CLIP02"},
    ),
    "never clipped": (
        own_loss(lambda n, o, a, m: -(n - o).exp() * a),
        GRPO | {"num_iterations": 4, "max_steps": 5, "learning_rate": 0.1},
        {"CLIP01"},
    ),
    "KL with the wrong sign": (
        own_loss(lambda n, o, a, m: clipped((n - o).exp(), a), -1.0),
        TWICE | REFERENCE,
        {"KL01"},
    ),
    "old log-probs computed again": (loss_of_other_inputs(old_again), TWICE, {"RAT02"}),
    "old log-probs dropped": (made_otherwise(old_dropped), TWICE, {"RAT02"}),
    "reference is the policy": (made_otherwise(reference_is_old), REFERENCE, {"KL05"}),
    "dropout active": (GRPOTrainer, {"dropout": 0.3}, {"MODE01"}),
    "log-probs detached": (Detached, {"entropy_coef": 0.01}, {"OPT02"}),
    "half of the tensors not in the optimizer": (FrozenBehindItsBack, {}, {"OPT02"}),
}
