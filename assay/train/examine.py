"""StepInProgress + Learner + Update -> record Batch: one update measured closely, with all that was computed.

    look = Examination(config, learner, current, progress)
    with look.watching():                                  computes the model's numbers again, in other ways
        learned = learner.update(..., observer=look)       keeps what the update saw
    batch = look.batch(learned.update)                     computes the loss again, and puts everything together

The model's numbers and the loss are computed again in ways that must not matter (row by row, padded, in another order,
alone, cut in two, with garbage under the mask). Nothing of the update changes, and no random state moves.

The rows examined are whole groups, as many as PASSES forward passes of the step pay for, at most MOST_ROWS rows, at
least one group; of a large model fewer, and in fewer ways (examined_rows.py). Where they are only a part of the update,
its loss and gradients are those of the trainer's own policy_loss on these rows with the denominators of the whole
update, which are among the settings.

Shape legend: B completions, T completion tokens, P prompt tokens, R rows of S tokens (see ModelInputs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from assay.calibration import Tally
from assay.config import Config
from assay.examine.again import ReferenceRow
from assay.examine.directions import remembers
from assay.examine.guard import Guard, short_reason
from assay.examine.inputs import RowInputs
from assay.examine.loss_probes import loss_probes, losses, token_gradients
from assay.examine.part import Part, join, sampled_fields, stack
from assay.examine.weights import Weights
from assay.grpo import OBJECTIVES, Loss
from assay.policy.policy import Policy
from assay.record.batch import PLAIN_FIELDS, Array, Batch
from assay.record.settings import settings_of
from assay.train.examined_rows import chosen_rows, logprobs_by_row, part_of, plan, score_otherwise
from assay.train.progress import Progress, StepInProgress
from assay.train.randomness import unmoved_generators
from assay.train.step import learner as learning
from assay.train.step.learner import Learner
from assay.types import Microbatch, Minibatch, Prompt, Rollout, Score, StopReason, Update

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class RunKnowledge:
    """What examinations know of the run beyond their own update."""

    reference_row: ReferenceRow = field(default_factory=ReferenceRow)
    score_again: Callable[[Prompt, Rollout], Score] | None = None  # the whole reward, where it is a pure function
    dataset_size: int | None = None  # different prompts, at least


class Examination:
    """An UpdateObserver. `failure` is a sentence if something could not be measured; the update goes on."""

    def __init__(
        self,
        config: Config,
        learner: Learner,
        current: StepInProgress,
        progress: Progress,
        known: RunKnowledge,
        *,
        thorough: bool = True,
    ) -> None:
        """Not thorough: of the model only the plain log-probs are computed again."""
        self.config, self.learner, self.current, self.progress = config, learner, current, progress
        self.thorough, self._known = thorough, known
        self._drift: float | None = None
        self.minibatch: Minibatch = current.batch.minibatches[current.next_minibatch(progress)]
        self.failure = ""
        self._guard = Guard(self._fail)
        weights = sum(weight.numel() for weight in learner.policy.model.parameters())
        self.plan = plan(weights, len(current.samples), has_reference=learner.reference is not None)
        self.rows = chosen_rows(self.minibatch, current, self.plan)
        self.whole = len(self.rows) == sum(len(batch.rows) for batch in self.minibatch.microbatches)
        groups = current.collected.groups
        # as the engine was given and returned them, whatever became of them on their way to the loss
        self._prompts = [group.prompt for group in groups for _ in group.rollouts]
        self._sampled = [rollout for group in groups for rollout in group.rollouts]
        self._rewards = [reward for group in groups for reward in group.rewards]
        self._group = [number for number, group in enumerate(groups) for _ in group.rollouts]
        samples = [current.samples[row].rollout for row in self.rows]
        self._width = max(len(rollout.tokens) for rollout in (*samples, *(self._sampled[row] for row in self.rows)))
        self._parts: list[Part] = []
        self._inputs = RowInputs(learner.policy, self.rows)
        self._answers: dict[str, Array] = {}
        self._weights: Weights | None = None

    @property
    def seconds(self) -> float:
        """That the examination took so far."""
        return self._guard.seconds

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._answers = self._attempt(self._ask_the_model, {})
        with ExitStack() as stack:
            if not self.failure:
                stack.enter_context(self._inputs.watching())
            yield

    def differentiating(
        self, batch: Microbatch, old_BT: Tensor, ref_BT: Tensor | None, new_BT: Tensor, entropy_BT: Tensor, loss: Loss
    ) -> None:
        tensors = {
            "tokens": batch.inputs.targets_BT,
            "mask": batch.mask_BT,
            "new_logprobs": new_BT.detach(),
            "old_logprobs": old_BT,
            **({} if ref_BT is None else {"ref_logprobs": ref_BT}),
            "sampler_logprobs": batch.sampler_BT,
            "entropy": entropy_BT.detach(),
            "ratio": loss.ratio_BT,
            "clipped": loss.clipped_BT,
            "advantages": batch.advantages_BT,
        }
        self._attempt(lambda: self._keep(batch, tensors, new_BT, loss), None)

    def _keep(self, batch: Microbatch, tensors: dict[str, Tensor], new_BT: Tensor, loss: Loss) -> None:
        self._inputs.take(batch)
        kept = [number for number, row in enumerate(batch.rows) if row in self.rows]
        if kept:
            tensors["gradients"] = token_gradients(loss.total, new_BT, keep_graph=True)
            self._parts.append(Part(batch.rows, tensors).only(kept))

    def stepping(self, masters: Sequence[nn.Parameter]) -> None:
        fresh = not remembers(self.learner.optimizer)
        self._weights = self._attempt(lambda: Weights(masters, fresh=fresh), None)

    def batch(self, update: Update) -> Batch | None:
        """None if something could not be measured: `failure` says what."""
        return self._attempt(lambda: self._assemble(update), None)

    def _assemble(self, update: Update) -> Batch:
        probes, gradients = self._ask_the_loss()
        if "plain_logprobs" in self._answers:  # the weights have moved since
            with unmoved_generators():
                self._answers["plain_logprobs_after"], *_ = self._plain(self.learner.policy)
        rows = self.rows
        return Batch.of(
            {**self._settings(update), **self._arrays(gradients), **self._numbers(update, probes)},
            texts={
                "prompt": [self._prompts[row].text for row in rows],
                "completion": [self._sampled[row].text for row in rows],
                "prompt_id": [self._prompts[row].id for row in rows],
            },
            source=f"step {self.progress.step + 1}, update {self.progress.update + 1}",
        )

    def _ask_the_model(self) -> dict[str, Array]:
        """Log-probs of the rows in ways that must not matter, [B, T] each."""
        policy, reference = self.learner.policy, self.learner.reference
        with unmoved_generators():
            tally = Tally()
            answers = dict(zip(PLAIN_FIELDS, self._plain(policy, tally), strict=True)) | tally.fields()
            if reference is not None:
                answers["plain_ref_logprobs"], *_ = self._plain(reference)
                self._drift = self._reference_drift(reference)
            if self.thorough:
                answers |= {name: stack(values, self._width) for name, values in self._scored()}
        return answers

    def _reference_drift(self, reference: Policy) -> float | None:
        row = self.rows[0]
        return self._known.reference_row.drift(
            lambda prompt, tokens: reference.plain_logprobs(prompt, tokens).scaled_T,
            self._prompts[row].tokens,
            self._sampled[row].tokens,
        )

    def _plain(self, policy: Policy, tally: Tally | None = None) -> list[Array]:
        plain = []
        for row in self.rows:
            self.learner.check_interrupt()
            rollout = self._sampled[row]
            plain.append(policy.plain_logprobs(self._prompts[row].tokens, rollout.tokens, rollout.support, tally))
        return [stack(values, self._width) for values in zip(*plain, strict=True)]

    def _scored(self) -> Iterator[tuple[str, list[Tensor]]]:
        """By the trainer's own scoring."""
        policy, samples = self.learner.policy, [self.current.samples[row] for row in self.rows]
        room = max(len(batch.rows) for batch in self.minibatch.microbatches)
        yield from score_otherwise(policy, self.config, samples, room, self._logprobs_by_row, self.plan.questions)
        again: dict[int, Tensor] = {}
        for batch in self.minibatch.microbatches:
            part = part_of(batch, self.rows)
            if part is not None:
                again |= self._logprobs_by_row(part)
        yield "scored_again", [again[row] for row in self.rows]

    def _logprobs_by_row(self, batch: Microbatch) -> dict[int, Tensor]:
        self.learner.check_interrupt()
        return logprobs_by_row(self.learner.policy, batch)

    def _loss_of(self, part: Part) -> Loss:
        # looked up in the learner's module at each call: a plant (proof/plants/runs/) replaces it there, and the
        # examination must measure the replaced one
        return learning.policy_loss(  # type: ignore[attr-defined]
            new_BT=part.tensors["new_logprobs"],
            old_BT=part.tensors["old_logprobs"],
            ref_BT=part.tensors.get("ref_logprobs"),
            sampler_BT=part.tensors["sampler_logprobs"],
            entropy_BT=part.tensors["entropy"],
            advantages_BT=part.tensors["advantages"],
            mask_BT=part.tensors["mask"],
            totals=self.minibatch.totals,
            settings=self.learner.loss_settings,
        )

    def _ask_the_loss(self) -> tuple[dict[str, float], dict[str, Array]]:
        """The loss, and d loss / d new of the rows, computed again."""
        numbers, gradients = loss_probes(self._parts, self._loss_of)
        if not self.whole:
            once = losses(self._parts, self._loss_of)
            numbers |= {"loss": once.total, "policy_loss": once.policy, "kl_loss": once.kl}
            gradients["gradients"] = once.gradients
        arrays: dict[str, Array] = {}
        for name, tensors in gradients.items():
            own = [Part(part.rows, {name: values}) for part, values in zip(self._parts, tensors, strict=True)]
            arrays |= join(own, self.rows, self._width)
        return numbers, arrays

    def _arrays(self, gradients: Mapping[str, Array]) -> dict[str, Any]:
        sampled = [self._sampled[row] for row in self.rows]
        arrays: dict[str, Any] = join(self._parts, self.rows, self._width)
        arrays |= sampled_fields(
            [self._prompts[row].tokens for row in self.rows], [rollout.tokens for rollout in sampled], self._width
        )
        advantages_BT = arrays["advantages"]
        inside_BT = np.arange(self._width) < arrays["lengths"][:, None]
        is_per_row = (np.where(inside_BT, advantages_BT, advantages_BT[:, :1]) == advantages_BT[:, :1]).all()
        arrays |= {
            "finished": [rollout.stop is not StopReason.LENGTH for rollout in sampled],
            "forced": np.zeros_like(arrays["mask"]),
            "sampler_versions": [rollout.policy_version for rollout in sampled],
            "advantages": advantages_BT[:, 0] if is_per_row else advantages_BT,
            **self._inputs.arrays(),
            **self._answers,
            **gradients,
        }
        examined = {self._group[row] for row in self.rows}
        complete = len(self.rows) == sum(group in examined for group in self._group)
        if complete and (self.config.advantage.scale == "group" or len(self.rows) == len(self._group)):
            rewards = [self._rewards[row] for row in self.rows]
            arrays["rewards"] = [np.nan if reward is None else reward for reward in rewards]
            arrays["group_ids"] = [self._group[row] for row in self.rows]
            if self._known.score_again is not None:
                scores = [self._known.score_again(self._prompts[row], self._sampled[row]) for row in self.rows]
                arrays["rewards_again"] = [np.nan if score.reward is None else score.reward for score in scores]
        return arrays

    def _numbers(self, update: Update, probes: Mapping[str, float]) -> dict[str, Any]:
        numbers: dict[str, Any] = {
            "step": self.progress.step + 1,
            "update": self.progress.update,
            "policy_version": self.progress.policy_version,
            "tensors_without_gradient": 0,
            "numbers_changed_share": 0.0,  # of an update that was skipped
            **({} if self._weights is None else self._weights.after()),
            "reference_drift": self._drift,
            "gradient_norm": update.gradient_norm,
            "update_norm": update.update_norm,
            "tensors": update.tensors,
            "tensors_changed": update.tensors_changed,
            "dropout_modules": self._inputs.dropout_modules,
        }
        if self.whole:
            numbers |= {"loss": update.loss, "policy_loss": update.policy_loss, "kl_loss": update.kl_loss}
            numbers["clipped_share"] = update.clipped_tokens / max(update.tokens, 1)
            if self._parts and "ref_logprobs" in self._parts[0].tensors:
                numbers["kl_mean"] = update.ref_kl_sum / max(update.tokens, 1)
        return numbers | dict(probes)

    def _settings(self, update: Update) -> dict[str, Any]:
        totals, objective = self.minibatch.totals, OBJECTIVES[self.learner.loss_settings.objective]
        settings = settings_of(self.config) | {
            "eos_ids": tuple(self.learner.policy.eos_ids),
            "process_rewards": any(score.steps for group in self.current.collected.groups for score in group.scores),
            "learning_rate": update.learning_rate,
            "microbatches": len(self.minibatch.microbatches),
            "dataset_size": self._known.dataset_size,
        }
        per_update = objective.aggregation != "rollout_token_mean"
        tokens = float(totals.tokens if per_update else totals.share_of_rollout_tokens)
        if not self.whole:
            settings["sequences"] = totals.sequences
        if tokens != sum(int(part.tensors["mask"].sum()) for part in self._parts):
            settings["loss_tokens"] = tokens
        return settings

    def _attempt(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Whatever breaks in here breaks the examination, never the update."""
        return otherwise if self.failure else self._guard.attempt(question, otherwise)

    def _fail(self, error: Exception) -> None:
        self.failure = not_examined(self.progress, error)


def not_examined(progress: Progress, error: Exception) -> str:
    return f"update {progress.update + 1} of step {progress.step + 1} could not be examined: {short_reason(error)}"
