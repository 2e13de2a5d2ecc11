"""The doctor beside TRL's GRPOTrainer, by one line before training.

    from assay.adapters.trl import attach

    doctor = attach(trainer)
    trainer.train()
    print(doctor.report())

The first updates are looked at closely, later ones ever more rarely; docs/trl.md says what is recorded and what it
costs. attached.py says what an adapter may do to a run: nothing.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from assay.adapters.attached import AT_FIRST, Attached, Look, Rollouts
from assay.adapters.trl_batch import TRLGeneration, loss_tokens, part_of, rollout_batch, update_batch
from assay.adapters.trl_settings import (
    METRICS,
    ChatMarks,
    dataset_size,
    metrics_row,
    settings_of,
    temperature_of,
    whole_run,
)
from assay.examine.inputs import PassInputs
from assay.examine.loss_probes import token_gradients
from assay.record.batch import Batch

FAST = 0.1  # seconds that a reward function took for a generation, to be asked again about some rows
ROWS = "assay_rows"  # key under which rows keep their number while TRL shuffles them
_MARK = "_assay_attached"
_AROUND = {  # methods of TRL's trainer -> ours around them
    "_generate_single_turn": "_around_sampling",
    "_generate": "_around_turns",
    "_calculate_rewards": "_around_rewards",
    "_generate_and_score_completions": "_around_generation",
    "_get_per_token_logps_and_entropies": "_around_scoring",
    "_compute_loss": "_around_loss",
}

logger = logging.getLogger("assay")


class AttachError(TypeError):
    """What was given cannot be attached to. The message is one sentence with the fix."""


def attach(trainer: Any, *, directory: Path | None = None, report: Callable[[str], None] = logger.warning) -> Attached:
    """Puts the doctor beside a trl.GRPOTrainer, or a subclass of it; before train(), or while it runs.

    `directory`: where it writes, `assay` in the trainer's output directory if it is not given; `report` is called with
    each line that it has to say."""
    try:
        wanted = _trl_trainer()
    except ImportError as error:
        raise AttachError(f"attach(trainer) needs TRL, which cannot be imported ({error}); pip install trl") from error
    if not isinstance(trainer, wanted):
        raise AttachError(
            f"attach(trainer) was given a {type(trainer).__name__}; give it the trl.GRPOTrainer that trains"
        )
    absent = [name for name in _AROUND if not callable(getattr(trainer, name, None))]
    if absent:
        raise AttachError(f"this version of TRL has no GRPOTrainer.{absent[0]}; attach(trainer) knows TRL 1.16")
    if getattr(trainer, _MARK, None) is not None:
        raise AttachError("the doctor is attached to this trainer already; call attach(trainer) once")
    attached = AttachedToTRL(trainer, directory or Path(trainer.args.output_dir) / "assay", report)
    setattr(trainer, _MARK, attached)
    return attached


def attached_to(trainer: Any) -> Attached | None:
    """What attach(trainer) returned, if the script has called it."""
    found: Attached | None = getattr(trainer, _MARK, None)
    return found


class AttachedToTRL(Attached):
    """Wraps methods of a GRPOTrainer and sees through them what it does."""

    def __init__(self, trainer: Any, directory: Path, report: Callable[[str], None]) -> None:
        super().__init__(directory, report, "trl")
        self.trainer = trainer
        self._coming: TRLGeneration | None = None  # that is being made
        self._scored: tuple[dict[str, Any], Any] | None = None  # arguments and answer of the last scoring pass
        self._read: dict[str, Any] | None = None  # inputs of TRL's own loss
        self._in_loss = False
        self._scoring: list[Mapping[str, Any]] = []  # arguments of the scoring pass of each part
        self.dataset_size: dict[str, int] = {}
        self._chat: ChatMarks | None = None
        self._rate: float | None = None  # of the update in progress; where groups differ, the largest
        self._seen_metrics: dict[str, int] = {}
        self._originals = {name: getattr(trainer, name) for name in _AROUND}
        for name, ours in _AROUND.items():  # on the instance: a subclass's own methods are inside of these
            self._wrap(name, getattr(self, ours))
        if callable(getattr(trainer, "_clip_grad_norm", None)):  # of transformers, in some versions
            self._wrap("_clip_grad_norm", self._around_clipping)
        functions = enumerate(trainer.reward_funcs)
        trainer.reward_funcs = [self._noting(number, function) for number, function in functions]
        trainer.add_callback(_Callback(self))

    def steps_done(self) -> int:
        return int(self.trainer.state.global_step)

    def begin(self) -> None:
        self.dataset_size = self.attempt(lambda: dataset_size(self.trainer), {})
        self._chat = self.attempt(lambda: ChatMarks.of(self.trainer._tokenizer), None)
        super().begin()

    def settings(self) -> dict[str, Any]:
        """Where weights lie apart on several devices the model's size is not known here."""
        size = sum(weight.numel() for weight in self.trainer.model.parameters())
        return settings_of(self.trainer) | whole_run(self.trainer) | ({"parameters": size} if size else {})

    def metrics(self) -> dict[str, Any]:
        """Those that TRL collected in this update; it empties its lists when it logs."""
        collected = {}
        for name in METRICS:
            values = self.trainer._metrics["train"].get(name, [])
            first = self._seen_metrics.get(name, 0)
            collected[name] = values[first if first <= len(values) else 0 :]
            self._seen_metrics[name] = len(values)
        return metrics_row(collected) | ({} if self._rate is None else {"learning_rate": self._rate})

    def update_batch(self, look: Look) -> Batch:
        assert isinstance(look.rollouts, TRLGeneration)
        return update_batch(self.trainer, look.rollouts, look, self._losses, self._rate, self.dataset_size)

    def rollout_batch(self, rollouts: Rollouts) -> Batch:
        assert isinstance(rollouts, TRLGeneration)
        return rollout_batch(self.trainer, rollouts, self.dataset_size)

    def is_on(self) -> bool:
        return bool(self.trainer.accelerator.is_main_process) and super().is_on()

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        original = getattr(self.trainer, name)
        setattr(self.trainer, name, functools.wraps(original)(functools.partial(around, original)))

    def _noting(self, number: int, function: Any) -> Any:
        """A reward function that notes what it returned. Models and coroutines are left as they are."""
        call = getattr(function, "__call__", None)  # noqa: B004
        if isinstance(function, nn.Module) or any(map(inspect.iscoroutinefunction, (function, call))):
            return function

        @functools.wraps(function, updated=())
        def noting(*args: Any, **others: Any) -> Any:
            began = time.perf_counter()
            rewards = function(*args, **others)
            if self._coming is not None and isinstance(rewards, list):
                self._coming.returned[number] = list(rewards)
                if not args and time.perf_counter() - began < FAST:
                    self._coming.scorers[number] = functools.partial(_score_rows, function, others)
            return rewards

        return noting

    # what TRL does, from the inside to the outside

    def _around_sampling(self, original: Callable[..., Any], prompt_ids: Any, *args: Any, **others: Any) -> Any:
        answer = original(prompt_ids, *args, **others)
        if (coming := self._coming) is not None:
            self.attempt(lambda: coming.add_turn(prompt_ids, answer[0]), None)
        return answer

    def _around_turns(self, original: Callable[..., Any], *args: Any, **others: Any) -> Any:
        answer = original(*args, **others)
        if (coming := self._coming) is not None:
            self.attempt(lambda: coming.add_whole(*answer[:3]), None)
        return answer

    def _around_rewards(self, original: Callable[..., Any], *args: Any, **others: Any) -> Any:
        rewards_BF = original(*args, **others)
        if (coming := self._coming) is not None:
            self.attempt(lambda: coming.add_rewards(rewards_BF, self.trainer.reward_weights), None)
        return rewards_BF

    def _around_generation(self, original: Callable[..., Any], *args: Any, **others: Any) -> Any:
        if not self.trainer.model.training or not self.is_on():
            return original(*args, **others)
        self._coming = coming = TRLGeneration(version=self.steps_done())
        draws = self.attempt(lambda: self._noting_draws(coming), None)
        try:
            output = original(*args, **others)
            self.attempt(lambda: self._keep_generation(output), None)
        finally:
            if draws is not None:
                self.attempt(draws.close, None)
            self._coming = None
        return output

    def _noting_draws(self, coming: TRLGeneration) -> NotingDraws | None:
        def note(ids: Any, mask: Any, answer: Any) -> None:
            self.attempt(lambda: coming.add_draws(ids, mask, answer, self.trainer.eos_token_ids), None)

        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        return NotingDraws(model, note) if callable(getattr(model, "generate", None)) else None

    def _keep_generation(self, output: dict[str, Any]) -> None:
        coming = self._coming
        assert coming is not None
        self.add_rollouts(None)
        if len(coming.sampled) == len(output["completion_ids"]):
            coming.align()
            coming.add_output(self.trainer, output)
            if self.steps_done() == 0:
                coming.score_again()
            self.add_rollouts(coming)
            output[ROWS] = torch.arange(len(coming.sampled), device=output["completion_ids"].device)

    def _around_scoring(self, original: Callable[..., Any], *args: Any, **others: Any) -> Any:
        answer = original(*args, **others)
        if self._in_loss:
            names = ("model", "input_ids", "attention_mask", "logits_to_keep")
            self._scored = ({**dict(zip(names, args, strict=False)), **others}, answer)
            self._read = self.attempt(_inputs_of_trl, None)
        return answer

    def _around_loss(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **others: Any) -> Any:
        rows = inputs.pop(ROWS, None) if isinstance(inputs, dict) else None
        try:
            if rows is None or not self.trainer.model.training or not torch.is_grad_enabled() or not self.is_on():
                return original(model, inputs, *args, **others)
            look = self.look_at_loss()
            if look is None:
                loss = original(model, inputs, *args, **others)
            else:
                loss = self._look_at_loss(look, lambda: original(model, inputs, *args, **others), model, inputs, rows)
            self.add_loss(loss)
            return loss
        finally:
            if rows is not None:
                inputs[ROWS] = rows  # TRL trains on the same rows again in its next iteration

    def _look_at_loss(self, look: Look, original: Callable[[], Any], model: Any, inputs: Any, rows: Tensor) -> Any:
        seen = dict(inputs)
        self._in_loss = True
        try:
            with PassInputs(self.trainer.accelerator.unwrap_model(model)).watching() as given:
                loss = original()
        finally:
            self._in_loss = False
        self.attempt(lambda: self._keep_part(look, loss, self._read or seen, rows, given), None)
        self._scored, self._read = None, None  # they hold on to the graph
        return loss

    def _keep_part(self, look: Look, loss: Tensor, inputs: Mapping[str, Any], rows: Tensor, given: PassInputs) -> None:
        if self._scored is None:
            raise RuntimeError("the loss did not ask for log-probs by _get_per_token_logps_and_entropies")
        scoring, (new_BT, entropy_BT, *_) = self._scored
        gradients_BT = token_gradients(loss, new_BT, keep_graph=True)
        if not look.parts:
            self._scoring = []
            look.numbers |= loss_tokens(self.trainer, inputs)
            if self._chat is not None:
                look.numbers["prompts_left_open"] = self._chat.left_open(self.trainer._tokenizer, look.rollouts.prompts)
        look.parts.append(part_of(inputs, rows, new_BT, entropy_BT, gradients_BT, scoring))
        look.inputs.append(given)
        self._scoring.append(scoring)

    def _around_clipping(self, original: Callable[..., Any], *args: Any, **others: Any) -> Any:
        norm = original(*args, **others)
        if (look := self._look) is not None and norm is not None:
            self.attempt(lambda: look.numbers.update(gradient_norm=float(norm)), None)
        return norm

    def before_optimizer(self, optimizer: Any) -> None:
        groups = getattr(optimizer, "param_groups", ())
        self._rate = self.attempt(lambda: max((float(group["lr"]) for group in groups), default=None), None)
        if self._look is not None and self._look.parts:
            self.attempt(functools.partial(self._measure, self._look, optimizer), None)

    def _measure(self, look: Look, optimizer: Any) -> None:
        trainer = self.trainer
        if trainer.accelerator.num_processes > 1:
            return  # weights that are spread over processes cannot be asked by one
        name = "_get_per_token_logps_and_entropies"
        if getattr(type(trainer), name) is getattr(_trl_trainer(), name):
            look.logprobs["scored_again"] = self._score_again(look)
        if not trainer._is_vlm:
            model = trainer.accelerator.unwrap_model(trainer.model)
            look.add_plain_logprobs(model, temperature_of(trainer), _reference(trainer, model), self.reference_row)
        self.before_step([weight for weight in trainer.model.parameters() if weight.requires_grad], optimizer)

    def after_optimizer(self) -> None:
        self.after_step()
        look = self._look
        if look is not None and "plain_logprobs" in look.logprobs and self.steps_done() < AT_FIRST:
            model = self.trainer.accelerator.unwrap_model(self.trainer.model)
            self.attempt(lambda: look.add_plain_logprobs_after(model, temperature_of(self.trainer)), None)

    def _score_again(self, look: Look) -> dict[int, Tensor]:
        """By TRL's own pass."""
        again: dict[int, Tensor] = {}
        for part, scoring in zip(look.parts, self._scoring, strict=True):
            device = part.tensors["new_logprobs"].device
            with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                again_BT = self._originals["_get_per_token_logps_and_entropies"](**scoring)[0]
            again |= dict(zip(part.rows, again_BT.detach(), strict=True))
        return again

    def logged(self, logs: Mapping[str, Any]) -> None:
        self._seen_metrics.clear()
        if self.is_on() and logs.get("grad_norm") is not None:
            self.attempt(lambda: self.complete_row({"gradient_norm": float(logs["grad_norm"])}), None)


class _Callback(TrainerCallback):  # type: ignore[misc]
    """Reports to an Attached where the optimizer is."""

    def __init__(self, attached: AttachedToTRL) -> None:
        self.attached = attached

    def on_train_begin(self, *args: Any, **others: Any) -> None:
        self.attached.begin()

    def on_pre_optimizer_step(self, *args: Any, optimizer: Any = None, **others: Any) -> None:
        self.attached.before_optimizer(optimizer)

    def on_optimizer_step(self, *args: Any, **others: Any) -> None:
        self.attached.after_optimizer()

    def on_step_end(self, *args: Any, **others: Any) -> None:
        self.attached.end_step()

    def on_log(self, *args: Any, logs: Mapping[str, Any] | None = None, **others: Any) -> None:
        self.attached.logged(logs or {})

    def on_train_end(self, *args: Any, **others: Any) -> None:
        self.attached.end()


def _score_rows(function: Callable[..., Any], given: Mapping[str, Any], rows: Sequence[int]) -> Sequence[float | None]:
    """A reward function asked about some rows of what it was given; what is not one per row goes along whole."""
    count = len(given["completions"])
    of_rows = {
        name: [value[row] for row in rows] if isinstance(value, list) and len(value) == count else value
        for name, value in given.items()
    }
    return list(function(**of_rows))


def _trl_trainer() -> Any:
    """The class, imported when it is needed: TRL is optional."""
    from trl import GRPOTrainer

    return GRPOTrainer


def _inputs_of_trl() -> dict[str, Any] | None:
    """The inputs as TRL's own loss reads them, found on the stack: a subclass may hand on others than it got."""
    code = inspect.unwrap(_trl_trainer()._compute_loss).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    inputs = None if frame is None else frame.f_locals.get("inputs")
    return dict(inputs) if isinstance(inputs, dict) else None


class NotingDraws:
    """Calls of model.generate() that sample: `note` gets the ids that it was given, their mask, and its answer."""

    def __init__(self, model: Any, note: Callable[[Any, Any, Any], None]) -> None:
        self._model, self._was_own = model, "generate" in vars(model)
        self._original = original = model.generate

        @functools.wraps(original)
        def generate(*args: Any, **others: Any) -> Any:
            answer = original(*args, **others)
            if _samples(model, others):
                ids = args[0] if args else others.get("input_ids", others.get("inputs"))
                note(ids, others.get("attention_mask"), answer)
            return answer

        self._ours = model.generate = generate

    def close(self) -> None:
        if vars(self._model).get("generate") is not self._ours:
            return  # somebody has put another one in its place
        if self._was_own:
            self._model.generate = self._original
        else:
            del self._model.generate


def _samples(model: Any, given: Mapping[str, Any]) -> bool:
    config = given.get("generation_config") or getattr(model, "generation_config", None)
    return bool(given.get("do_sample", getattr(config, "do_sample", True)))


@contextmanager
def _reference(trainer: Any, model: Any) -> Iterator[nn.Module | None]:
    """The model that TRL compares with; None without one, and where an adapter of its own is the reference."""
    if not trainer.beta:
        yield None
    elif trainer.ref_model is not None:
        yield trainer.accelerator.unwrap_model(trainer.ref_model)
    else:
        adapters = getattr(model, "peft_config", None)
        if adapters is None or "ref" in adapters:
            yield None
        else:
            with model.disable_adapter():
                yield model
