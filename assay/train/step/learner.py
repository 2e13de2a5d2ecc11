"""Minibatch -> Update: one optimizer step, or a refusal to take it.

The gradient is the sum over micro-batches of a loss whose denominators are counted over the whole update, so it does
not depend on the cut. Weights live in float32 (`masters`); a model in bfloat16 is a rounded copy of them. Nothing
non-finite ever reaches the optimizer.

Shape legend: B rows, T completion tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from assay.config.sections import LossConfig, OptimizerConfig
from assay.grpo import Loss, policy_loss, sequence_kl
from assay.policy.policy import Policy
from assay.train.step.sums import LossInputs, Sums
from assay.types import NO_SIGNAL, FrozenBatch, FrozenLogprobs, Learned, Microbatch, Minibatch

STEP_NUMBERS = 2**25  # weights that are copied at a time to see how far they moved: 128 MB in float32


class UpdateObserver(Protocol):
    """Is called while an update is computed, and changes nothing in it; see examine.py."""

    def differentiating(
        self, batch: Microbatch, old_BT: Tensor, ref_BT: Tensor | None, new_BT: Tensor, entropy_BT: Tensor, loss: Loss
    ) -> None:
        """The loss of a micro-batch is about to be differentiated; the graph behind `new_BT` is still whole."""

    def stepping(self, masters: Sequence[nn.Parameter]) -> None:
        """All gradients are there; nothing has moved yet."""


def learning_rate(settings: OptimizerConfig, update: int, total_updates: int) -> float:
    """The rate of update number `update` (from 0): a linear warm-up, then constant, or down to 0 at the end.

    >>> learning_rate(OptimizerConfig(learning_rate=1.0, warmup=2, schedule="linear"), 0, 10)
    0.5
    """
    if update < settings.warmup:
        return settings.peak * (update + 1) / settings.warmup
    progress = (update - settings.warmup) / max(total_updates - settings.warmup, 1)
    shape = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
    }[settings.schedule]
    return settings.peak * shape


class Learner:
    """Owns the trained policy, its float32 masters, the optimizer and the frozen reference."""

    def __init__(
        self,
        policy: Policy,
        reference: Policy | None,
        loss_settings: LossConfig,
        optimizer_settings: OptimizerConfig,
        total_updates: int,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        check_interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self.policy = policy
        self.reference = reference
        self.loss_settings = loss_settings
        self.optimizer_settings = optimizer_settings
        self.total_updates = total_updates
        self.check_interrupt = check_interrupt
        trainable = [(name, weight) for name, weight in policy.model.named_parameters() if weight.requires_grad]
        if not trainable:
            raise ValueError(
                "the model has no trainable parameter; call model.requires_grad_(True) on what is to learn"
            )
        self.names = [name for name, _ in trainable]
        self.weights = [weight for _, weight in trainable]
        self.scheduled = optimizer is None  # an optimizer that is handed in keeps its own learning rate
        if optimizer is None:
            self.masters = [_master(weight) for weight in self.weights]
            self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
                self.masters,
                lr=optimizer_settings.peak,
                betas=(optimizer_settings.beta1, optimizer_settings.beta2),
                weight_decay=optimizer_settings.weight_decay,
                fused=True,
            )
        else:
            self.masters = self.weights
            self.optimizer = optimizer
            _check_optimizer(optimizer, dict(trainable))
        # AdamW moves each tensor by itself; of an optimizer that is handed in that is not known
        self._chunks = _chunks(self.masters) if self.scheduled else [slice(0, len(self.masters))]

    @property
    def keeps_reference(self) -> bool:
        """Whether the reference has weights of its own: under adapters it is the model without them."""
        return self.reference is not None and not self.reference.without_adapter

    @property
    def reference_model(self) -> nn.Module:
        assert self.reference is not None
        return self.reference.model

    def renew_reference(self) -> None:
        """The policy as it is now becomes the reference."""
        self.reference_model.load_state_dict(self.policy.model.state_dict())

    def freeze(self, minibatches: Sequence[Minibatch]) -> FrozenBatch:
        """Adds the log-probs that no update changes, micro-batch by micro-batch: the same shapes as in training, so
        that the ratio of the first update is 1 to the last bit. A lone update needs no old: it is new, detached."""
        self.policy.prepare(batch.inputs for minibatch in minibatches for batch in minibatch.microbatches)
        needs_old = self.optimizer_settings.epochs * len(minibatches) > 1
        needs_ref = self.loss_settings.kl_coef > 0 and self.loss_settings.kl_placement == "loss"
        frozen = []
        for minibatch in minibatches:
            parts = []
            for batch in minibatch.microbatches:
                self.check_interrupt()
                old_BT = self._logprobs(self.policy, batch) if needs_old else None
                ref_BT = self._logprobs(self.reference, batch) if needs_ref and self.reference else None
                parts.append(FrozenLogprobs(old_BT, ref_BT))
            frozen.append(tuple(parts))
        return FrozenBatch(tuple(minibatches), tuple(frozen), self.optimizer_settings.epochs)

    def sequence_kl(self, batch: Microbatch) -> list[float]:
        """KL(policy || reference) of each row, for KL in the reward; exactly 0 while the two are equal."""
        if self.reference is None:
            raise ValueError("KL in the reward needs a reference")
        old_BT = self._logprobs(self.policy, batch)
        ref_BT = self._logprobs(self.reference, batch)
        return sequence_kl(old_BT, ref_BT, batch.mask_BT, self.loss_settings.kl_estimator).tolist()

    def update(
        self,
        minibatch: Minibatch,
        frozen: Sequence[FrozenLogprobs],
        number: int,
        observer: UpdateObserver | None = None,
    ) -> Learned:
        """Takes optimizer step `number` (from 0, over the whole run), unless there is no signal or a NaN."""
        begun = time.perf_counter()
        self._drop_gradients()
        sums = Sums()
        new_logprobs = []
        # a thread for the backward pass would only hand Python's lock to and fro: nothing else runs meanwhile
        with self._folding(), torch.autograd.set_multithreading_enabled(False):
            for batch, fixed in zip(minibatch.microbatches, frozen, strict=True):
                self.check_interrupt()
                new_BT, entropy_BT = self.policy.logprobs(
                    batch.inputs, entropy_gradient=self.loss_settings.entropy_coef > 0
                )
                old_BT = new_BT.detach() if fixed.old_BT is None else fixed.old_BT
                loss = policy_loss(
                    new_BT=new_BT,
                    old_BT=old_BT,
                    ref_BT=fixed.ref_BT,
                    sampler_BT=batch.sampler_BT,
                    entropy_BT=entropy_BT,
                    advantages_BT=batch.advantages_BT,
                    mask_BT=batch.mask_BT,
                    totals=minibatch.totals,
                    settings=self.loss_settings,
                )
                if observer is not None:
                    observer.differentiating(batch, old_BT, fixed.ref_BT, new_BT, entropy_BT, loss)
                loss.total.backward()  # type: ignore[no-untyped-call]
                new_logprobs.append(new_BT.detach())
                sums.add(loss, LossInputs(batch, new_BT.detach(), old_BT, fixed.ref_BT), entropy_BT.detach())
        if observer is not None:
            observer.stepping(self.masters)
        rate = self.optimizer.param_groups[0]["lr"]
        if self.scheduled:
            rate = learning_rate(self.optimizer_settings, number, self.total_updates)
        norm = sums.read(nn.utils.get_total_norm(self._gradients()))
        skipped = sums.first_nonfinite()
        if not skipped and not (math.isfinite(sums.loss) and math.isfinite(norm)):
            skipped = self._culprit(sums.loss, norm)
        if not skipped and self._is_flat(minibatch, sums.has_signal):
            skipped = NO_SIGNAL
        differentiated = time.perf_counter()
        moved, changed = (0.0, 0) if skipped else self._step(rate, norm)
        self._drop_gradients()
        update = sums.update(
            applied=not skipped,
            skipped=skipped,
            learning_rate=rate,
            gradient_norm=norm,
            update_norm=moved,
            tensors=len(self.masters),
            tensors_changed=changed,
        )
        return Learned(update, tuple(new_logprobs), differentiated - begun, time.perf_counter() - differentiated)

    @torch.no_grad()
    def _step(self, rate: float, norm: float) -> tuple[float, int]:
        """Clips, steps, and measures what moved: (length of the change, number of tensors that changed)."""
        if norm > self.optimizer_settings.clip_norm > 0:
            torch._foreach_mul_(self._gradients(), self.optimizer_settings.clip_norm / (norm + 1e-6))
        if self.scheduled:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        lengths: list[Tensor] = []
        gradients = [master.grad for master in self.masters]
        self._drop_gradients()
        for chunk in self._chunks:
            masters, weights = self.masters[chunk], self.weights[chunk]
            now = [master.detach() for master in masters]
            before = [torch.empty_like(master) for master in now]
            torch._foreach_copy_(before, now)
            for master, gradient in zip(masters, gradients[chunk], strict=True):
                master.grad = gradient
            self.optimizer.step()  # which leaves alone what has no gradient: the other chunks
            for master in masters:
                master.grad = None
            now = [master.detach() for master in masters]  # an optimizer may put new memory in the place of the old
            torch._foreach_sub_(before, now)
            # in float64: the square of a weight of 1e30 does not fit into float32, and such weights are still finite
            lengths += torch._foreach_norm(before, 2, dtype=torch.float64)
            rounded = [place for place, weight in enumerate(weights) if weight is not masters[place]]
            if rounded:
                torch._foreach_copy_([weights[place].detach() for place in rounded], [now[place] for place in rounded])
        numbers = torch.stack(lengths).tolist()
        return math.hypot(*numbers), sum(number > 0 for number in numbers)

    def _is_flat(self, minibatch: Minibatch, has_signal: bool) -> bool:
        """Whether the loss has no gradient by construction; Adam would still move the weights, by its momentum."""
        kl_in_loss = self.loss_settings.kl_coef > 0 and self.loss_settings.kl_placement == "loss"
        return minibatch.totals.tokens == 0 or not (has_signal or kl_in_loss or self.loss_settings.entropy_coef > 0)

    def _culprit(self, loss: float, norm: float) -> str:
        """Names the cause when every log-prob and advantage was finite and the loss or its gradient is not."""
        for name, master in zip(self.names, self.masters, strict=True):
            if master.grad is not None and not master.grad.isfinite().all():
                return f"the gradient of {name} is not finite"
        return f"the loss is {loss} and the gradient norm {norm}"

    def _gradients(self) -> list[Tensor]:
        """Of a whole update, before anything moves."""
        return [master.grad for master in self.masters if master.grad is not None]

    @contextmanager
    def _folding(self) -> Iterator[None]:
        """Gradients of low-precision weights add up in float32, in their masters. Each moves there as soon as it is
        made and is gone: those of the whole model never exist twice."""
        pairs = [pair for pair in zip(self.weights, self.masters, strict=True) if pair[0] is not pair[1]]
        hooks = [
            weight.register_post_accumulate_grad_hook(_folded_into(master))  # type: ignore[no-untyped-call]
            for weight, master in pairs
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _drop_gradients(self) -> None:
        for parameter in (*self.weights, *self.masters):
            parameter.grad = None

    @torch.no_grad()
    def _logprobs(self, policy: Policy, batch: Microbatch) -> Tensor:
        return policy.logprobs(batch.inputs)[0]


def _folded_into(master: nn.Parameter) -> Callable[[Tensor], None]:
    def fold(weight: Tensor) -> None:
        assert weight.grad is not None
        if master.grad is None:
            master.grad = weight.grad.float()
        else:
            master.grad.add_(weight.grad)
        weight.grad = None

    return fold


def _check_optimizer(optimizer: torch.optim.Optimizer, weights: dict[str, nn.Parameter]) -> None:
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    missing = [name for name, weight in weights.items() if id(weight) not in held]
    if missing:
        raise ValueError(
            f"the optimizer does not hold {len(missing)} of the model's {len(weights)} trainable tensors (the first is "
            f"{missing[0]}), so they would never change; make it from model.parameters() after the model is final"
        )
    if any(group.get("maximize") for group in optimizer.param_groups):
        raise ValueError("the optimizer has maximize=True and would climb the loss; the loss is to be minimised")
    rounded = [name for name, weight in weights.items() if weight.dtype not in (torch.float32, torch.float64)]
    if rounded:
        raise ValueError(
            f"the optimizer holds {rounded[0]} in {weights[rounded[0]].dtype}: small updates would be rounded away; "
            "pass a float32 model, or leave the optimizer out to get AdamW over float32 master weights"
        )


def _master(weight: nn.Parameter) -> nn.Parameter:
    return weight if weight.dtype in (torch.float32, torch.float64) else nn.Parameter(weight.detach().float())


def _chunks(masters: Sequence[nn.Parameter]) -> list[slice]:
    """Neighbours whose numbers are few enough to be kept twice for a moment, one tensor at least."""
    chunks: list[slice] = []
    first = numbers = 0
    for place, master in enumerate(masters):
        if place > first and numbers + master.numel() > STEP_NUMBERS:
            chunks.append(slice(first, place))
            first, numbers = place, 0
        numbers += master.numel()
    return [*chunks, slice(first, len(masters))]
