"""The doctor beside TRL's GRPOTrainer, by one line before training.

    from assay.adapters.trl import attach

    doctor = attach(trainer)
    trainer.train()
    print(doctor.report())

The first updates are looked at closely, later ones ever more rarely; docs/trl.md says what is recorded and what it
costs. What TRL computes is not changed: no tensor, no mode, no random state. What breaks here is told, and training
goes on.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from assay.adapters.trl_batch import ROWS, Piece, Rollouts, rollout_batch, update_batch
from assay.adapters.trl_doctor import FAULTS, Doctor
from assay.adapters.trl_questions import Weights, asked_again, inputs_of_trl, trl_trainer, watched
from assay.adapters.trl_settings import METRICS, metrics_row, settings_of
from assay.doctor.diagnosis import Diagnosis, Word

CLOSELY = 5  # first updates that are all looked at
SHARE = 0.02  # of the run's time that later looks may take
METHODS = (
    "_generate_single_turn",
    "_generate",
    "_calculate_rewards",
    "_generate_and_score_completions",
    "_get_per_token_logps_and_entropies",
    "_compute_loss",
)
_MARK = "_assay_attached"

Answer = TypeVar("Answer")
logger = logging.getLogger("assay")


class AttachError(TypeError):
    """What was given cannot be attached to. The message is one sentence with the fix."""


def attach(trainer: Any) -> Attached:
    """Puts the doctor beside a trl.GRPOTrainer, or a subclass of it; before train(), or while it runs."""
    try:
        wanted = trl_trainer()
    except ImportError as error:
        raise AttachError(f"attach(trainer) needs TRL, which cannot be imported ({error}); pip install trl") from error
    if not isinstance(trainer, wanted):
        raise AttachError(
            f"attach(trainer) was given a {type(trainer).__name__}; give it the trl.GRPOTrainer that trains"
        )
    absent = [name for name in METHODS if not callable(getattr(trainer, name, None))]
    if absent:
        raise AttachError(f"this version of TRL has no GRPOTrainer.{absent[0]}; attach(trainer) knows TRL 1.16")
    if getattr(trainer, _MARK, None) is not None:
        raise AttachError("the doctor is attached to this trainer already; call attach(trainer) once")
    attached = Attached(trainer)
    setattr(trainer, _MARK, attached)
    return attached


def is_look(step: int) -> bool:
    """The first updates, then two in a row that begin at a power of two: a first and a later one of a rollout batch.

    >>> [step for step in range(1, 40) if is_look(step)]
    [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33]
    """
    return step <= CLOSELY or any(one & (one - 1) == 0 for one in (step, step - 1))


class Attached:
    """What `attach` returns: the doctor's findings so far."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._doctor = Doctor(Path(trainer.args.output_dir) / "assay", logger.warning)
        self._originals: dict[str, Callable[..., Any]] = {}
        self._rollouts: Rollouts | None = None  # of the generation that is being trained on
        self._coming: Rollouts | None = None  # of one that is being made
        self._scored: tuple[dict[str, Any], Any] | None = None  # arguments and answer of the last scoring pass
        self._read: dict[str, Any] | None = None  # inputs of TRL's own loss
        self._in_loss = False
        self._looking = False
        self._looked_at: Rollouts | None = None  # of the first micro-batch of this update
        self._pieces: list[Piece] = []
        self._losses: list[Tensor] = []
        self._weights: Weights | None = None
        self._asked: dict[str, dict[int, Tensor]] = {}
        self._rate = 0.0
        self._gradient_norm: Any = None  # before it is clipped
        self._seen_metrics: dict[str, int] = {}
        self._began = time.perf_counter()
        self._step_began = self._began
        self._wrap(trainer)
        trainer.add_callback(_Callback(self))

    @property
    def diagnosis(self) -> Diagnosis:
        return self._doctor.diagnosis

    @property
    def findings(self) -> list[Word]:
        """Root causes first."""
        return self._doctor.diagnosis.findings

    @property
    def directory(self) -> Path:
        """For `assay doctor`."""
        return self._doctor.directory.path

    def report(self, how: str = "full") -> str:
        """full, concise, json, sarif, github or md, as `assay doctor --format` prints it."""
        return self._doctor.report(how)

    def _wrap(self, trainer: Any) -> None:
        """On the instance: a subclass's own methods are inside of these."""
        around: dict[str, Callable[..., Any]] = {
            "_generate_single_turn": self._sampled,
            "_generate": self._generated,
            "_calculate_rewards": self._rewarded,
            "_generate_and_score_completions": self._made,
            "_get_per_token_logps_and_entropies": self._passed,
            "_compute_loss": self._loss,
        }
        for name, hook in around.items():
            original = getattr(trainer, name)
            self._originals[name] = original
            setattr(trainer, name, functools.wraps(original)(functools.partial(hook, original)))
        if callable(clip := getattr(trainer, "_clip_grad_norm", None)):  # of transformers, in some versions
            trainer._clip_grad_norm = functools.wraps(clip)(functools.partial(self._clipped, clip))
        functions = enumerate(trainer.reward_funcs)
        trainer.reward_funcs = [self._noted(number, function) for number, function in functions]

    def _noted(self, number: int, function: Any) -> Any:
        """A reward function that notes what it returned. Models and coroutines are left as they are."""
        call = getattr(function, "__call__", None)  # noqa: B004
        if isinstance(function, nn.Module) or any(map(inspect.iscoroutinefunction, (function, call))):
            return function

        @functools.wraps(function, updated=())
        def noted(*args: Any, **others: Any) -> Any:
            rewards = function(*args, **others)
            if self._coming is not None and isinstance(rewards, list):
                self._coming.returned[number] = list(rewards)
            return rewards

        return noted

    # what TRL does, from the inside to the outside

    def _sampled(self, original: Callable[..., Any], prompt_ids: Any, *args: Any, **others: Any) -> Any:
        answer = original(prompt_ids, *args, **others)
        if (coming := self._coming) is not None:
            self._attempt(lambda: coming.add_turn(prompt_ids, answer[0]), None)
        return answer

    def _generated(self, original: Callable[..., Any], *args: Any, **others: Any) -> Any:
        answer = original(*args, **others)
        if (coming := self._coming) is not None:
            self._attempt(lambda: coming.add_whole(*answer[:3]), None)
        return answer

    def _rewarded(self, original: Callable[..., Any], *args: Any, **others: Any) -> Any:
        rewards_BF = original(*args, **others)
        if (coming := self._coming) is not None:
            self._attempt(lambda: coming.add_rewards(rewards_BF, self.trainer.reward_weights), None)
        return rewards_BF

    def _made(self, original: Callable[..., Any], *args: Any, **others: Any) -> Any:
        if not self.trainer.model.training or not self._is_on():
            return original(*args, **others)
        self._coming = Rollouts(version=self.trainer.state.global_step)
        try:
            output = original(*args, **others)
            self._attempt(lambda: self._keep_rollouts(output), None)
        finally:
            self._coming = None
        return output

    def _keep_rollouts(self, output: dict[str, Any]) -> None:
        coming = self._coming
        assert coming is not None
        coming.output = dict(output)
        self._rollouts = None
        if len(coming.sampled) == len(output["completion_ids"]):
            self._rollouts = coming
            output[ROWS] = torch.arange(len(coming.sampled), device=output["completion_ids"].device)

    def _passed(self, original: Callable[..., Any], *args: Any, **others: Any) -> Any:
        if not (self._in_loss and self._looking):
            return original(*args, **others)
        answer = original(*args, **others)
        names = ("model", "input_ids", "attention_mask", "logits_to_keep")
        self._scored = ({**dict(zip(names, args, strict=False)), **others}, answer)
        self._read = self._attempt(inputs_of_trl, None)
        return answer

    def _loss(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **others: Any) -> Any:
        rows = inputs.pop(ROWS, None) if isinstance(inputs, dict) else None
        try:
            if rows is None or not self.trainer.model.training or not torch.is_grad_enabled() or not self._is_on():
                return original(model, inputs, *args, **others)
            return self._loss_of(lambda: original(model, inputs, *args, **others), model, inputs, rows)
        finally:
            if rows is not None:
                inputs[ROWS] = rows  # TRL trains on the same rows again in its next iteration

    def _loss_of(self, original: Callable[[], Any], model: Any, inputs: Mapping[str, Any], rows: Tensor) -> Any:
        if not self._losses:  # the first micro-batch of an update
            self._looked_at, self._looking = self._rollouts, self._rollouts is not None and self._may_look()
        elif self._looked_at is not self._rollouts:  # rows of two generations in one update make no Batch
            self._pieces, self._looking = [], False
        if not self._looking:
            loss = original()
            self._losses.append(loss.detach())
            return loss
        seen = dict(inputs)
        self._scored, self._read, self._in_loss = None, None, True
        try:
            with watched(self.trainer.accelerator.unwrap_model(model)) as given:
                loss = original()
        finally:
            self._in_loss = False
        self._losses.append(loss.detach())
        self._attempt(lambda: self._keep_piece(loss, self._read or seen, rows, given), None)
        self._scored, self._read = None, None  # they hold on to the graph
        return loss

    def _keep_piece(self, loss: Tensor, inputs: Mapping[str, Any], rows: Tensor, given: dict[str, Any]) -> None:
        if self._scored is None:
            raise RuntimeError("the loss did not ask for log-probs by _get_per_token_logps_and_entropies")
        scoring, (new_BT, entropy_BT, *_) = self._scored
        gradients_BT = None
        if loss.requires_grad and new_BT.requires_grad:  # only down to the log-probs, which costs next to nothing
            (gradients_BT,) = torch.autograd.grad(loss, new_BT, retain_graph=True, allow_unused=True)
        self._pieces.append(
            Piece(
                rows=rows.cpu().numpy(),
                inputs=inputs,
                new_BT=new_BT.detach(),
                entropy_BT=None if entropy_BT is None else entropy_BT.detach(),
                gradients_BT=torch.zeros_like(new_BT) if gradients_BT is None else gradients_BT,
                loss=loss.detach(),
                scoring=scoring,
                given={name: given[name] for name in given if isinstance(given[name], Tensor)},
                dropout_modules=int(given.get("dropout_modules", 0)),
                accumulated=int(self.trainer.current_gradient_accumulation_steps),
            )
        )

    # what the optimizer does

    def _clipped(self, original: Callable[..., Any], *args: Any, **others: Any) -> Any:
        norm = original(*args, **others)
        self._gradient_norm = norm if self._looking else None
        return norm

    def begin(self) -> None:
        self._began = self._step_began = time.perf_counter()
        self._forget_the_step()  # of a run that was broken off within one
        if self._is_on():
            self._attempt(lambda: self._doctor.begin(anew=self.trainer.state.global_step == 0), None)

    def before_the_step(self, optimizer: Any) -> None:
        if self._looking and self._pieces:
            self._attempt(lambda: self._ask(optimizer), None)

    def _ask(self, optimizer: Any) -> None:
        trainer, rollouts = self.trainer, self._rollouts
        assert rollouts is not None
        self._rate = float(optimizer.param_groups[0]["lr"]) if optimizer is not None else 0.0
        alone = trainer.accelerator.num_processes == 1  # weights that are spread over processes cannot be asked by one
        if alone:
            repeat = None
            if type(trainer)._get_per_token_logps_and_entropies is trl_trainer()._get_per_token_logps_and_entropies:
                repeat = self._originals["_get_per_token_logps_and_entropies"]
            self._asked = asked_again(trainer, rollouts, self._pieces, repeat)
            self._weights = Weights(trainer.model)

    def after_the_step(self) -> None:
        if self._weights is not None:
            self._attempt(self._weights.compare, None)

    def end_of_step(self) -> None:
        """Behind the optimizer: TRL has counted the update."""
        if self._is_on():
            self._attempt(self._tell, None)
        if self._rollouts is not None:
            self._rollouts.updates += 1
        self._forget_the_step()
        self._step_began = time.perf_counter()

    def _forget_the_step(self) -> None:
        self._pieces, self._losses, self._asked, self._weights, self._looking = [], [], {}, None, False

    def _tell(self) -> None:
        trainer, rollouts = self.trainer, self._rollouts
        step = int(trainer.state.global_step)
        if self._pieces and rollouts is not None:
            numbers: dict[str, Any] = {} if self._weights is None else self._weights.numbers()
            if self._gradient_norm is not None:
                numbers["gradient_norm"] = float(self._gradient_norm)
            batch = update_batch(trainer, rollouts, self._pieces, self._asked, numbers, self._rate)
            self._doctor.look_at(batch, rollouts.version + 1, rollouts.updates + 1)
            if "rewards" not in batch.arrays and not rollouts.is_told:
                rollouts.is_told = True
                self._doctor.look_at(rollout_batch(trainer, rollouts), rollouts.version + 1, 0)
        self._doctor.add_row(self._row(step), time.perf_counter() - self._step_began)
        self._doctor.look_at_curves(self._settings(), step, is_due=is_look(step))

    def _row(self, step: int) -> dict[str, Any]:
        """The metrics that TRL collected in this update; it empties its lists when it logs."""
        collected = {}
        for name in METRICS:
            values = self.trainer._metrics["train"].get(name, [])
            first = self._seen_metrics.get(name, 0)
            collected[name] = values[first if first <= len(values) else 0 :]
            self._seen_metrics[name] = len(values)
        losses = torch.stack(self._losses) if self._losses else torch.zeros(0)
        row = {"step": step, **metrics_row(collected)}
        return row | ({"loss": float(losses.sum())} if len(losses) else {})

    def logged(self, logs: Mapping[str, Any]) -> None:
        self._seen_metrics.clear()
        if self._is_on() and logs.get("grad_norm") is not None:
            self._attempt(lambda: self._complete_row(logs), None)

    def _complete_row(self, logs: Mapping[str, Any]) -> None:
        found = {"gradient_norm": float(logs["grad_norm"]), "learning_rate": float(logs.get("learning_rate", np.nan))}
        self._doctor.complete_row(int(self.trainer.state.global_step), found)

    def end(self) -> None:
        if self._is_on():
            self._attempt(lambda: self._doctor.end(self._settings(), int(self.trainer.state.global_step)), None)

    def _settings(self) -> dict[str, Any]:
        """Of the whole run. Where weights lie apart on several devices the model's size is not known here."""
        size = sum(weight.numel() for weight in self.trainer.model.parameters())
        rate = float(self.trainer.args.learning_rate)
        whole = {"steps": max(int(self.trainer.state.max_steps), 0), "learning_rate": rate}
        return settings_of(self.trainer) | whole | ({"parameters": size} if size else {})

    def _may_look(self) -> bool:
        step = int(self.trainer.state.global_step) + 1
        affordable = self._doctor.seconds <= SHARE * (time.perf_counter() - self._began)
        return is_look(step) and (step <= CLOSELY or affordable)

    def _is_on(self) -> bool:
        return bool(self.trainer.accelerator.is_main_process) and not self._doctor.is_broken

    def _attempt(self, ask: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Whatever breaks in here breaks the look, never the training."""
        began = time.perf_counter()
        try:
            return ask()
        except FAULTS as error:
            self._doctor.broke(error, int(self.trainer.state.global_step) + 1)
            self._pieces, self._looking = [], False
            return otherwise
        finally:
            self._doctor.seconds += time.perf_counter() - began


class _Callback(TrainerCallback):  # type: ignore[misc]
    """Tells an Attached where the optimizer is."""

    def __init__(self, attached: Attached) -> None:
        self.attached = attached

    def on_train_begin(self, *args: Any, **others: Any) -> None:
        self.attached.begin()

    def on_pre_optimizer_step(self, *args: Any, optimizer: Any = None, **others: Any) -> None:
        self.attached.before_the_step(optimizer)

    def on_optimizer_step(self, *args: Any, **others: Any) -> None:
        self.attached.after_the_step()

    def on_step_end(self, *args: Any, **others: Any) -> None:
        self.attached.end_of_step()

    def on_log(self, *args: Any, logs: Mapping[str, Any] | None = None, **others: Any) -> None:
        self.attached.logged(logs or {})

    def on_train_end(self, *args: Any, **others: Any) -> None:
        self.attached.end()
