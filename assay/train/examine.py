"""StepInProgress + Learner + Update -> record Batch: one update, with all that the trainer did and computed for it.

    look = Examination(config, learner, work, place)
    look.open()                                            asks the model again, by other ways
    learned = learner.update(..., observer=look)           keeps what the update saw
    look.close()
    batch = look.batch(learned.update)                     asks the loss again, and puts everything together

The model's numbers and the loss are computed again by ways that must not matter (plainly, padded, in another order,
alone, cut in two, with garbage under the mask). Nothing of the update changes, and no random state moves.

The rows examined are whole groups, as many as PASSES forward passes of the step pay for, at most MOST_ROWS rows, at
least one group; of a large model fewer, and asked in fewer ways (examined_rows.py). Where they are only a part of the
update, its loss and gradients are those of the trainer's own policy_loss on these rows with the denominators of the
whole update, which the settings tell.

Shape legend: B completions, T completion tokens, P prompt tokens, R rows of S tokens (see ModelInputs).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from assay.config import Config
from assay.grpo import OBJECTIVES, Loss
from assay.machine.faults import FAULTS
from assay.policy.plain import Support, logprobs_of, plain_logits, policy_asked_plainly
from assay.policy.policy import Policy
from assay.record.batch import Array, Batch
from assay.record.settings import settings_of
from assay.train.examined_rows import ALL, at_most, chosen_rows, longer_than, part_of, plan
from assay.train.loss_probes import Piece, loss_probes, losses
from assay.train.progress import Progress, StepInProgress
from assay.train.run.randomness import restore_global_generators, save_global_generators
from assay.train.seen_inputs import SeenInputs
from assay.train.step.learner import Learner
from assay.train.step.pack import packed_for
from assay.types import Microbatch, Minibatch, Sample, StopReason, Update

NUMBERS = 2_000_000  # weights that are compared before and after the update
Answer = TypeVar("Answer")


class Examination:
    """An Observer of one update. `failure` is a sentence if something could not be asked; the update goes on."""

    def __init__(
        self, config: Config, learner: Learner, work: StepInProgress, place: Progress, *, thorough: bool = True
    ) -> None:
        """Not thorough: of the model only the plain log-probs are asked for."""
        self.config, self.learner, self.work, self.place = config, learner, work, place
        self.thorough = thorough
        self.minibatch: Minibatch = work.batch.minibatches[work.next_minibatch(place)]
        self.failure = ""
        self.seconds = 0.0  # that the examination took so far
        weights = sum(weight.numel() for weight in learner.policy.model.parameters())
        self.plan = plan(weights, len(work.samples), has_reference=learner.reference is not None)
        self.rows = chosen_rows(self.minibatch, work, self.plan)
        self.whole = len(self.rows) == sum(len(batch.rows) for batch in self.minibatch.microbatches)
        groups = work.collected.groups
        # as the engine was given and returned them, whatever became of them on their way to the loss
        self._prompts = [group.prompt for group in groups for _ in group.rollouts]
        self._sampled = [rollout for group in groups for rollout in group.rollouts]
        self._rewards = [reward for group in groups for reward in group.rewards]
        self._group = [number for number, group in enumerate(groups) for _ in group.rollouts]
        self._pieces: list[Piece] = []
        self._inputs = SeenInputs(learner.policy, self.rows)
        self._model_probes: dict[str, Array] = {}
        self._without_gradient = 0
        self._before: list[Tensor] = []
        self._masters: Sequence[nn.Parameter] = ()

    def open(self) -> None:
        self._model_probes = self._attempt(self._ask_the_model, {})
        if not self.failure:
            self._inputs.open()

    def close(self) -> None:
        self._inputs.close()

    def differentiating(
        self, batch: Microbatch, old_BT: Tensor, ref_BT: Tensor | None, new_BT: Tensor, entropy_BT: Tensor, loss: Loss
    ) -> None:
        seen = Piece(
            rows=batch.rows,
            tokens=batch.inputs.targets_BT,
            mask=batch.mask_BT,
            advantages=batch.advantages_BT,
            sampler=batch.sampler_BT,
            old=old_BT,
            new=new_BT.detach(),
            entropy=entropy_BT.detach(),
            ref=ref_BT,
            gradients=new_BT.detach(),  # replaced below
            ratio=loss.ratio_BT,
            clipped=loss.clipped_BT,
        )
        self._attempt(lambda: self._keep(batch, seen, new_BT, loss), None)

    def _keep(self, batch: Microbatch, seen: Piece, new_BT: Tensor, loss: Loss) -> None:
        self._inputs.take(batch)
        kept = [number for number, row in enumerate(batch.rows) if row in self.rows]
        if kept:
            (gradients_BT,) = torch.autograd.grad(loss.total, new_BT, retain_graph=True, allow_unused=True)
            gradients_BT = torch.zeros_like(new_BT) if gradients_BT is None else gradients_BT
            self._pieces.append(replace(seen, gradients=gradients_BT).only(kept))

    def stepping(self, masters: Sequence[nn.Parameter]) -> None:
        self._masters = masters
        self._attempt(self._look_at_the_weights, None)

    def _look_at_the_weights(self) -> None:
        gradients = [master.grad for master in self._masters]
        self._without_gradient = sum(gradient is None or not bool(gradient.any()) for gradient in gradients)
        self._before = [numbers.clone() for numbers in self._sampled_numbers()]

    def batch(self, update: Update) -> Batch | None:
        """None if something could not be asked: `failure` says what."""
        return self._attempt(lambda: self._assembled(update), None)

    def _assembled(self, update: Update) -> Batch:
        probes, gradients = self._ask_the_loss()
        return Batch.of(
            {**self._settings(update), **self._arrays(gradients), **self._numbers(update, probes)},
            texts=self._texts(),
            source=f"step {self.place.step + 1}, update {self.place.update + 1}",
        )

    def _ask_the_model(self) -> dict[str, Array]:
        """Log-probs of the rows by ways that must not matter, [B, T] each."""
        with _unmoved():
            return self._answers()

    def _answers(self) -> dict[str, Array]:
        policy, reference = self.learner.policy, self.learner.reference
        answers = dict(zip(("plain_logprobs", "plain_raw_logprobs"), self._plainly(policy), strict=True))
        if reference is not None:
            answers["plain_ref_logprobs"], _ = self._plainly(reference)
        if not self.thorough:
            return answers
        samples = [self.work.samples[row] for row in self.rows]
        count, longer = len(samples), longer_than(samples, policy.context)
        # no more rows at a time than the trainer's own micro-batches have: there is memory for those
        room = max(len(batch.rows) for batch in self.minibatch.microbatches)
        backwards = range(count)[::-1]
        padded = at_most(range(count) if self.plan.questions == ALL else backwards, room - 1)
        answers["scored_padded"] = self._scored([*samples, longer], [[*part, count] for part in padded])
        if self.plan.questions == ALL:
            answers["scored_permuted"] = self._scored(samples, at_most(backwards, room))
            answers["scored_alone"] = self._scored(samples, at_most(range(count), 1))
        again: dict[int, Tensor] = {}
        for batch in self.minibatch.microbatches:
            part = part_of(batch, self.rows)
            if part is not None:
                again |= self._logprobs_by_row(part)
        answers["scored_again"] = self._laid_out([again[row] for row in self.rows])
        return answers

    def _plainly(self, policy: Policy) -> tuple[Array, Array]:
        """At the sampling temperature and among the tokens that could be sampled; and at temperature 1, among all."""
        scaled, raw = [], []
        for row in self.rows:
            self.learner.check_interrupt()
            rollout = self._sampled[row]
            scaled_T, raw_T = asked_plainly(policy, self._prompts[row].tokens, rollout.tokens, rollout.support)
            scaled.append(scaled_T)
            raw.append(raw_T)
        return self._laid_out(scaled), self._laid_out(raw)

    def _scored(self, samples: Sequence[Sample], parts: Sequence[Sequence[int]]) -> Array:
        """The trainer's own packing and scoring of these samples, part by part; of those examined, in their order."""
        values: dict[int, Tensor] = {}
        for part in parts:
            values |= self._logprobs_by_row(packed(self.learner.policy, self.config, samples, part))
        return self._laid_out([values[number] for number in range(len(self.rows))])

    def _logprobs_by_row(self, batch: Microbatch) -> dict[int, Tensor]:
        self.learner.check_interrupt()
        return logprobs_by_row(self.learner.policy, batch)

    def _ask_the_loss(self) -> tuple[dict[str, float], dict[str, Array]]:
        """The loss, and d loss / d new of the rows, computed again."""
        settings, totals = self.learner.loss, self.minibatch.totals
        numbers, gradients = loss_probes(self._pieces, totals, settings)
        if not self.whole:
            once = losses(self._pieces, totals, settings)
            numbers |= {"loss": once.total, "policy_loss": once.policy, "kl_loss": once.kl}
            gradients["gradients"] = once.gradients
        arrays = {name: self._by_row(dict(self._numbered(values))) for name, values in gradients.items()}
        return numbers, arrays

    def _numbered(self, tensors: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
        for piece, values_BT in zip(self._pieces, tensors, strict=True):
            yield from zip(piece.rows, values_BT.detach().cpu(), strict=True)

    def _arrays(self, gradients: Mapping[str, Array]) -> dict[str, Any]:
        sampled = [self._sampled[row] for row in self.rows]
        prompts = [self._prompts[row].tokens for row in self.rows]
        lengths_B = np.array([len(rollout.tokens) for rollout in sampled])
        observed = {
            "tokens": "tokens",
            "mask": "mask",
            "new_logprobs": "new",
            "old_logprobs": "old",
            "ref_logprobs": "ref",
            "sampler_logprobs": "sampler",
            "entropy": "entropy",
            "ratio": "ratio",
            "clipped": "clipped",
            "gradients": "gradients",
        }
        arrays: dict[str, Any] = {
            name: self._piecewise(of) for name, of in observed.items() if getattr(self._pieces[0], of) is not None
        }
        advantages_BT = self._piecewise("advantages")
        inside_BT = np.arange(advantages_BT.shape[1]) < lengths_B[:, None]
        is_one_a_row = (np.where(inside_BT, advantages_BT, advantages_BT[:, :1]) == advantages_BT[:, :1]).all()
        arrays |= {
            "sampled_tokens": self._laid_out([torch.tensor(rollout.tokens) for rollout in sampled]),
            "prompt_tokens": _padded(prompts),
            "prompt_mask": _padded([[1] * len(prompt) for prompt in prompts]),
            "lengths": lengths_B,
            "finished": [rollout.stop is not StopReason.LENGTH for rollout in sampled],
            "forced": np.zeros_like(arrays["mask"]),
            "sampler_versions": [rollout.policy_version for rollout in sampled],
            "advantages": advantages_BT[:, 0] if is_one_a_row else advantages_BT,
            **self._inputs.arrays(),
            **self._model_probes,
            **gradients,
        }
        examined = {self._group[row] for row in self.rows}
        complete = len(self.rows) == sum(group in examined for group in self._group)
        if complete and (self.config.advantage.scale == "group" or len(self.rows) == len(self._group)):
            rewards = [self._rewards[row] for row in self.rows]
            arrays["rewards"] = [np.nan if reward is None else reward for reward in rewards]
            arrays["group_ids"] = [self._group[row] for row in self.rows]
        return arrays

    def _numbers(self, update: Update, probes: Mapping[str, float]) -> dict[str, Any]:
        with torch.no_grad():
            changed = [
                int((now != then).sum()) for now, then in zip(self._sampled_numbers(), self._before, strict=True)
            ]
        compared = sum(then.numel() for then in self._before)
        numbers: dict[str, Any] = {
            "step": self.place.step + 1,
            "update": self.place.update,
            "policy_version": self.place.policy_version,
            "gradient_norm": update.gradient_norm,
            "update_norm": update.update_norm,
            "tensors": update.tensors,
            "tensors_changed": update.tensors_changed,
            "tensors_without_gradient": self._without_gradient,
            "numbers_changed_share": sum(changed) / max(compared, 1),
            "dropout_modules": self._inputs.dropout_modules,
        }
        if self.whole:
            numbers |= {"loss": update.loss, "policy_loss": update.policy_loss, "kl_loss": update.kl_loss}
            numbers["clipped_share"] = update.clipped_tokens / max(update.tokens, 1)
            if self._pieces and self._pieces[0].ref is not None:
                numbers["kl_mean"] = update.ref_kl_sum / max(update.tokens, 1)
        return numbers | dict(probes)

    def _settings(self, update: Update) -> dict[str, Any]:
        totals, objective = self.minibatch.totals, OBJECTIVES[self.learner.loss.objective]
        settings = settings_of(self.config) | {
            "eos_ids": tuple(self.learner.policy.eos_ids),
            "process_rewards": any(score.steps for group in self.work.collected.groups for score in group.scores),
            "learning_rate": update.learning_rate,
            "microbatches": len(self.minibatch.microbatches),
        }
        per_update = objective.aggregation != "rollout_token_mean"
        tokens = float(totals.tokens if per_update else totals.share_of_rollout_tokens)
        if not self.whole:
            settings["sequences"] = totals.sequences
        if tokens != sum(int(piece.mask.sum()) for piece in self._pieces):
            settings["loss_tokens"] = tokens
        return settings

    def _texts(self) -> dict[str, list[str]]:
        return {
            "prompt": [self._prompts[row].text for row in self.rows],
            "completion": [self._sampled[row].text for row in self.rows],
            "prompt_id": [self._prompts[row].id for row in self.rows],
        }

    def _piecewise(self, name: str) -> Array:
        return self._by_row(dict(self._numbered([getattr(piece, name) for piece in self._pieces])))

    def _by_row(self, values: Mapping[int, Tensor]) -> Array:
        return self._laid_out([values[row] for row in self.rows])

    def _laid_out(self, rows: Sequence[Tensor]) -> Array:
        """[B, T] of all rows, 0 where a row is shorter; cut where it only has padding."""
        width = max(
            max(len(self.work.samples[row].rollout.tokens) for row in self.rows),
            max(len(self._sampled[row].tokens) for row in self.rows),
        )
        laid = torch.zeros(len(rows), width, dtype=rows[0].dtype)
        for number, values in enumerate(rows):
            laid[number, : len(values)] = values[:width]
        array: Array = laid.numpy()
        return array

    def _sampled_numbers(self) -> list[Tensor]:
        each = max(1, NUMBERS // max(len(self._masters), 1))
        return [master.detach().flatten()[:each] for master in self._masters]

    def _attempt(self, ask: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Whatever breaks in here breaks the examination, never the update."""
        if self.failure:
            return otherwise
        began = time.perf_counter()
        try:
            return ask()
        except FAULTS as error:
            self.failure = not_examined(self.place, error)
            return otherwise
        finally:
            self.seconds += time.perf_counter() - began


def asked_plainly(
    policy: Policy, prompt: Sequence[int], tokens: Sequence[int], support: Support | None = None
) -> tuple[Tensor, Tensor]:
    """logprobs_T at the sampling temperature and among the tokens that could be sampled; and at 1, among all."""
    with policy_asked_plainly(policy) as model:
        logits_TV = plain_logits(model, prompt, tokens)
        raw_T = logprobs_of(logits_TV, tokens, 1.0)
        is_raw = support is None and policy.temperature == 1.0
        return raw_T if is_raw else logprobs_of(logits_TV, tokens, policy.temperature, support), raw_T


def packed(policy: Policy, config: Config, samples: Sequence[Sample], rows: Sequence[int]) -> Microbatch:
    """These rows in one forward pass, as the trainer packs them."""
    one_pass = replace(config, optimizer=replace(config.optimizer, microbatches=1, pass_tokens=0))
    (minibatch,) = packed_for(policy, one_pass, samples, rows, minibatches=1)
    return minibatch.microbatches[0]


@torch.no_grad()
def logprobs_by_row(policy: Policy, batch: Microbatch) -> dict[int, Tensor]:
    """The trainer's own scoring of a forward pass, by the samples in it."""
    return dict(zip(batch.rows, policy.logprobs(batch.inputs)[0].cpu(), strict=True))


def not_examined(place: Progress, error: Exception) -> str:
    reason = " ".join(str(error).split())[:200]
    where = f"update {place.update + 1} of step {place.step + 1}"
    return f"{where} could not be examined: {type(error).__name__}: {reason}"


def _padded(rows: Sequence[Sequence[int]]) -> Array:
    width = max(map(len, rows))
    return np.array([[*row, *[0] * (width - len(row))] for row in rows])


@contextmanager
def _unmoved() -> Iterator[None]:
    tensors, state = save_global_generators()
    try:
        yield
    finally:
        restore_global_generators(tensors, state)
