"""Beside a running script: what it calls --> WatchedRun. Gradients are caught by hooks on tensors; nothing is retained.

patches.py calls the ScriptObserver. It holds tensors only from the pass that made them to the backward that uses them.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from assay.examine.directions import remembers
from assay.examine.inputs import active_dropout
from assay.examine.weights import Weights
from assay.machine.faults import FAULTS
from assay.programs.facts.kinds import Kind
from assay.programs.graph import Value
from assay.programs.run.draws import sampling_of
from assay.programs.run.kinds import DRAWS, above
from assay.programs.run.observe.guard import shielded
from assay.programs.run.observe.ledger import GradientLedger
from assay.programs.run.observe.models import (
    Models,
    adapter_is_off,
    gradient_norm,
    has_new_pair,
    ids_given,
    plain_settings,
    random_state,
    stated_config,
    tensors_of,
)
from assay.programs.run.observe.patches import Patches, patch_generate, patch_torch
from assay.programs.run.observe.places import Places
from assay.programs.run.observe.recorder import MOST_VALUES, CallRecorder
from assay.programs.run.observe.stores import stored_numbers
from assay.programs.run.observe.updates import UpdateReader, updates_since_sampling
from assay.programs.run.policies import drawn_actions
from assay.programs.run.sight import Sight, is_mask, number_of, shape_of, sight
from assay.programs.run.watched import Backward, Forward, GenerateCall, Sampling, WatchedRun, WatchedUpdate

LEAST_ROLLOUTS, LEAST_UPDATES = 3, 32  # observed unless the script says how many steps: schedules and loaders end late
MOST_UPDATES = 64  # observed since something was sampled
MOST_STORES = 4  # rollouts whose stored numbers are looked at
MOST_BEFORE = 160  # observed before, at a time: a script may imitate answers first


MOST_OPERATIONS_OF_A_DRAW = 40  # between the random numbers and what is drawn
_SCORES = (Kind.LOGITS, Kind.PROBABILITIES, Kind.LOG_SOFTMAX)
_RANDOM = frozenset("rand rand_like uniform exponential uniform_ exponential_ gumbel".split())


class Enough(SystemExit):
    """Raised inside an optimizer step when as many were made as were asked for."""


class ScriptObserver:
    def __init__(self, run: WatchedRun, places: Places, steps: int | None, finished: Callable[[], None]) -> None:
        self.run, self.steps, self._finished = run, steps, finished
        self.seen_some: Callable[[], None] | None = None  # called once, when three rollout batches were seen
        self.recorder = CallRecorder(run, places)
        self.recorder.before["backward"] = self._backward
        self.recorder.made = self._made
        self.recorder.drawn = self._drawn
        self.recorder.chosen = self._chosen
        self.recorder.left = self._left
        self.recorder.parameter = self._parameter
        self.recorder.given = self._given
        self.patches = Patches()
        self.kinds = run.kinds
        self.ledger = GradientLedger(run)
        self.models = Models(run)
        self.kinds.owner = lambda tensor: self.models.of_parameter(tensor).number
        self.updates = UpdateReader(run, self.models)
        self.dropouts = 0  # in the pass under way
        self.inside: tuple[Any, list[int]] | None = None  # generate() under way: its model, widths of its passes
        self._state: int | None = None  # of the random numbers before the draw under way
        self._transparent: set[int] = set()
        self._lent: dict[int, weakref.ref[Tensor]] = {}  # weights that a module has for one call
        self._distributions: dict[int, tuple[weakref.ref[Any], Value]] = {}
        self._tensors: dict[int, Tensor] = {}  # by id of their Value: may be log-probs, until the next backward
        self._pending: list[Backward] = []  # since the last step
        self._weights: dict[int, tuple[Weights, bool]] = {}  # by optimizer; whether a low-rank pair is new
        self._optimizers: dict[int, int] = {}
        self.config: Any = None  # of the generate() under way, as it prepared it
        self._clip_norm: float | None = None
        self._rollouts = 0
        self._sampled_since_step = self._has_stores = False
        self._live, self._leaving = True, False

    # -- beginning and end

    def start(self) -> None:
        self.run.torch_was_used = True
        patch_torch(self.patches, self)
        self.recorder.__enter__()  # type: ignore[no-untyped-call]

    def watch_generate(self, module: Any) -> None:
        if self._live:
            patch_generate(self.patches, self, module)

    def stop(self) -> None:
        """Takes everything off; the script then runs as if nobody had looked."""
        if not self._live:
            return
        self._live = False
        if self.recorder.is_asleep:
            self.recorder.wake()
        self.recorder.stopped = True
        self.patches.undo()
        if self.recorder.off == 0:
            self.recorder.remove()
        self.recorder.off += 1
        self._tensors.clear()

    def is_a_pass(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if (self._leaving or len(self.run.graph.values) > MOST_VALUES) and self.steps is None:
            self._enough()
            return False
        if self._rollouts > LEAST_ROLLOUTS:
            self._report_so_far()
        for tensor in module._parameters.values():
            if tensor is not None and not isinstance(tensor, nn.Parameter):  # functional_call() put it there
                self._lent[id(tensor)] = weakref.ref(tensor)
        is_part = type(module).__module__.startswith("torch.nn.modules.") or id(module) in self._transparent
        if not is_part and (ids_given(args, kwargs) is not None or isinstance(kwargs.get("inputs_embeds"), Tensor)):
            return True
        self.models.own(module)
        return False

    def _parameter(self, value: Value, tensor: Tensor) -> None:
        """Outside of any pass: a policy that is given no ids, a head, a table of logits."""
        if id(value) not in self.kinds.parameters:
            self.kinds.parameters[id(value)] = (weakref.ref(tensor), self.models.steps[id(tensor)])

    def _given(self, value: Value, tensor: Tensor) -> None:
        """A tensor that is not a parameter, and may be one under another name, as those of a state_dict() are."""
        own = self.models.sharing(tensor) if tensor.is_floating_point() and tensor.ndim > 1 else None
        if own is None and (lent := self._lent.get(id(tensor))) is not None and lent() is tensor:
            own = tensor  # weights of a model that has no module: a copy that is kept for functional_call()
        if own is not None:
            self._parameter(value, own)

    def add_pass(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, frame: Any
    ) -> None:
        where = self.recorder.here(frame)
        found = ids_given(args, kwargs)
        given = {**kwargs, **{str(number): argument for number, argument in enumerate(args) if argument is not found}}
        arguments = {
            name: self.recorder.tensor(argument, where)
            for name, argument in given.items()
            if isinstance(argument, Tensor)
        }
        if found is not None:
            arguments["input_ids"] = self.recorder.tensor(found, where)
        model = self.models.of(module)
        self.ledger.passed(module)
        value = self.recorder.event("forward", arguments, frame, name=model.name)
        logits = self._outputs(value, output, where, found)
        if logits is not None:
            model.gives_logits = not self.models.lend(module)  # what was lent is gone when it is asked
            self.kinds.renumber(self.models.absorb(module))
        elif not _is_body(output, found):
            self._transparent.add(id(module))
        second = arguments.get("1")
        if second is not None and shape_of(second) == shape_of(arguments.get("input_ids")) and is_mask(second):
            arguments.setdefault("attention_mask", second)
        self.run.forwards.append(
            Forward(
                value=value,
                model=model.number,
                version=model.version,
                dropout=max(self.dropouts, active_dropout(module) if module.training else 0),
                input_ids=arguments.get("input_ids"),
                attention_mask=arguments.get("attention_mask"),
                position_ids=arguments.get("position_ids"),
                caches=kwargs.get("past_key_values") is not None,
                weights=self.models.sums(module),
                adapter_off=adapter_is_off(module) if model.has_adapter else False,
            )
        )
        self.kinds.forwards[id(value)] = self.run.forwards[-1]

    def _outputs(self, value: Value, output: Any, where: Any, ids: Tensor | None) -> Value | None:
        """Every tensor of the output is known from now on; the first with a dimension more than the ids are logits."""
        logits: Value | None = None
        for name, tensor in tensors_of(output):
            looks = tensor.is_floating_point() and tensor.dim() == (ids.dim() + 1 if ids is not None else 3)
            is_logits = logits is None and looks and (name in ("", "0", "logits") or name.startswith("logit"))
            if tensor is output:
                made = value
            else:
                op = "element" if name.isdigit() else "attribute"
                place, _, context = where
                made = self.run.graph.new(op, {"input": value}, place, context, name=name)
            if is_logits:
                logits = made
                self.recorder.widen(made)
                self.kinds.logits.add(id(made))
            self.recorder.adopt(tensor, made)
        return logits

    # -- sampling

    def before_generate(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any) -> None:
        self.config = None
        self._state = random_state(next(args[0].parameters(), None), None)
        self.inside = (args[0], [])

    def after_generate(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any, output: Any) -> None:
        where = self.recorder.here(frame)
        model = args[0]
        named = {**({"inputs": args[1]} if len(args) > 1 else {}), **kwargs}
        ids = next((named[name] for name in ("input_ids", "inputs") if isinstance(named.get(name), Tensor)), None)
        arguments = {
            name: self.recorder.value_of(given, where)
            for name, given in named.items()
            if isinstance(given, (Tensor, int, float, bool, str))
        }
        seen = self.models.of(model)
        widths, self.inside = self.inside[1] if self.inside is not None else [], None
        value = self.recorder.event("generate", arguments, frame, name=seen.name)
        sequences = output if isinstance(output, Tensor) else getattr(output, "sequences", None)
        made: Value | None = None
        if sequences is not None:
            is_all = sequences is output
            made = value if is_all else self.recorder.event("attribute", {"input": value}, frame, name="sequences")
            self.recorder.adopt(sequences, made)
        seen.gives_logits = True
        config = self.config.to_dict() if hasattr(self.config, "to_dict") else {}
        self.run.generations.append(
            GenerateCall(
                value=value,
                model=seen.number,
                version=seen.version,
                config=plain_settings(config),
                input_ids=None if ids is None else arguments.get("input_ids") or arguments.get("inputs"),
                attention_mask=arguments.get("attention_mask"),
                sequences=made,
                weights=self.models.sums(model),
                stated=stated_config(model, kwargs),
                widths=tuple(widths),
                state=self._state,
            )
        )
        if config.get("do_sample"):
            self._sampled()

    def add_distribution(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any) -> None:
        named = {**dict(zip(("", "probs", "logits"), args, strict=False)), **kwargs}
        where = self.recorder.here(frame)
        arguments = {
            name: self.recorder.tensor(given, where) for name, given in named.items() if isinstance(given, Tensor)
        }
        value = self.recorder.event(op, arguments, frame)
        self._distributions[id(args[0])] = (weakref.ref(args[0]), value)

    def add_result(
        self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any, result: Any
    ) -> Value | None:
        """Of a distribution's method."""
        known = self._distributions.get(id(args[0]))
        if known is None or known[0]() is not args[0] or not isinstance(result, Tensor):
            return None
        where = self.recorder.here(frame)
        tensors = [given for given in (*args[1:], *kwargs.values()) if isinstance(given, Tensor)]
        arguments = {"input": known[1], **({"value": self.recorder.tensor(tensors[0], where)} if tensors else {})}
        value = self.recorder.remember(result, op, arguments, where)
        if result.requires_grad:
            self._made(value, result)
        return value

    def before_sample(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any) -> None:
        self._state = random_state(None, None)

    def after_sample(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any, result: Any) -> None:
        value = self.add_result("sample", args, kwargs, frame, result)
        if value is not None:
            self._drawn(value)

    def _drawn(self, value: Value) -> None:
        draw = sampling_of(value, self.kinds)
        if draw.forward is not None and not draw.forward.weights:
            module = self.models.module(draw.forward.model)
            draw.forward.weights = () if module is None else self.models.sums(module)
        draw.state = self.recorder.state if value.op == "multinomial" else self._state
        self.run.samplings.append(draw)
        self._sampled()

    def _chosen(self, value: Value) -> None:
        """Integers that were made of a policy's numbers and of random ones: Gumbel noise and argmax, the place of a
        random number in the summed probabilities."""
        made_of = list(islice(above(value), MOST_OPERATIONS_OF_A_DRAW))
        if any(made.op in DRAWS for made in made_of) or not any(made.op in _RANDOM for made in made_of):
            return
        passes = (self.kinds.forward_of(argument) for argument in value.arguments.values())
        forward = next((found for found in passes if found is not None), None)
        if forward is None:
            return
        scores = (made for made in made_of[1:] if self.kinds.of(made) in _SCORES and not _is_random(made))
        drawn_from = next(scores, None)
        draw = Sampling(value, forward, None, is_composed=True)
        if drawn_from is not None:  # as if it had been drawn from these
            given = {"input": drawn_from}
            plain = sampling_of(Value("multinomial", given, value.place, value.context, value.order), self.kinds)
            draw = Sampling(value, forward, plain.temperature, plain.cuts, is_composed=True)
        self.run.samplings.append(draw)
        self._sampled()

    def _left(self, value: Value) -> None:
        """Probabilities of actions that numpy or Python draw from."""
        given, seen = value.input, sight(value.input)
        if value.name not in ("numpy", "tolist") or given is None or seen is None or seen.shape[-1:] in ((), (1,)):
            return
        if self.kinds.of(given) is Kind.PROBABILITIES and self.kinds.learned_in(given) is not None:
            self.run.samplings.append(sampling_of(value, self.kinds))
            self._sampled()

    def _sampled(self) -> None:
        if not self._sampled_since_step:
            self._sampled_since_step = True
            self._rollouts += 1
            # not here: torch puts the mode back behind the call that is under way
            is_enough = len(updates_since_sampling(self.run)) >= LEAST_UPDATES
            self._leaving = self._rollouts > LEAST_ROLLOUTS and is_enough

    # -- learning

    def _made(self, value: Value, tensor: Tensor) -> None:
        """Of the tensors that need a gradient those are held that may be log-probs of chosen tokens."""
        if self.kinds.is_chosen(value):
            self._tensors[id(value)] = tensor

    def _backward(self, value: Value, tensor: Tensor) -> Callable[[], None] | None:
        loss = value.arguments["input"]
        backward = Backward(loss, number_of(loss))
        self.ledger.backward(value.place, tensor)
        self.run.backwards.append(backward)
        self._pending.append(backward)
        self._look_at_stores(value)
        caught: dict[int, Tensor] = {}
        handles = [
            made.register_hook(functools.partial(shielded, self.recorder.broke, catch, caught, key))  # type: ignore[no-untyped-call]
            for key, made in self._tensors.items()
            if made.requires_grad
        ]

        def after() -> None:
            for handle in handles:
                handle.remove()
            backward.gradients = {
                key: Sight(tuple(gradient.shape), "float64", data=gradient) for key, gradient in caught.items()
            }
            self._tensors.clear()
            self.ledger.after_backward()

        return after

    def _look_at_stores(self, value: Value) -> None:
        """Once for each rollout, of actions alone: what was generated from a prompt is seen by torch."""
        if not self._sampled_since_step or self._has_stores or len(self.run.stores) >= MOST_STORES:
            return
        self._has_stores = True
        before = self.run.updates[-1].order if self.run.updates else -1
        draws = [draw for draw in self.run.samplings if draw.value.order > before]
        if not draws or any(draw.forward is not None and _is_given_tokens(draw.forward) for draw in draws):
            return
        count = sum(map(drawn_actions, draws))
        with self.recorder.suspended():
            try:
                found = stored_numbers(sys._getframe(), self.recorder.places.is_own, count) if count else []
            except FAULTS:  # of an object of the script that cannot be looked into
                found = []
        self.run.stores.append((value.order, found))

    def add_event(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any) -> None:
        subject = args[0] if args else None
        norm: float | None = None
        if kind == "clip_grad_norm":
            given = kwargs.get("max_norm", kwargs.get("clip_value", args[1] if len(args) > 1 else None))
            norm = self._clip_norm = float(given) if isinstance(given, (int, float)) else None
        elif kind == "train" and isinstance(subject, nn.Module):
            self.models.of(subject)  # it may be called by another one only
        elif kind == "ddp":
            self.ledger.wrapped(subject)
        place = self.recorder.here(frame)[0]
        if kind == "manual_seed":
            self.run.seeds.append(place)
        if frame.f_code.co_name not in ("_initial_step", "__init__") and (
            kind != "clip_grad_norm" or norm not in (None, math.inf)
        ):
            self.ledger.happened(kind, place)

    def before_step(self, optimizer: torch.optim.Optimizer, frame: Any) -> None:
        if self.recorder.missed_a_pass:  # the first draw was seen without what came before it: its row is not whole
            self.recorder.missed_a_pass = False
            self.run.samplings.clear()
        if self.recorder.just_woke and not self._pending:
            return  # its backward was not seen
        self.recorder.just_woke = False
        held = _held(optimizer)
        models = self.models.holding(held)
        for model in models:
            model.is_trained = True
            module = self.models.module(model.number)
            if module is not None:
                self.run.history[self.models.sums(module)] = (model.number, model.version)
        number = self._optimizers.setdefault(id(optimizer), len(self._optimizers))
        group = optimizer.param_groups[0]
        update = WatchedUpdate(
            number=sum(update.optimizer == number for update in self.run.updates),
            optimizer=number,
            place=self.recorder.here(frame)[0],
            order=len(self.run.graph.values),
            learning_rate=float(group.get("lr", 0.0)),
            weight_decay=float(group.get("weight_decay", 0.0) or 0.0),
            backwards=tuple(self._pending),
            maximize=bool(group.get("maximize", False)),
            clip_norm=self._clip_norm,
            models=tuple(model.number for model in models),
        )
        self.run.updates.append(update)
        is_now = self.updates.begins(update)
        policies = {piece.forward.model for piece in update.pieces}
        modules = [module for policy in policies if (module := self.models.module(policy)) is not None]
        self.ledger.stepping(optimizer, held, modules, update.place)
        with self.recorder.suspended(), torch.no_grad():
            trainable = [parameter for parameter in held if parameter.requires_grad]
            update.numbers["gradient_norm"] = gradient_norm(trainable)
            self._weights[id(optimizer)] = (
                Weights(
                    trainable,
                    fresh=update.number == 0 and not remembers(optimizer),
                    climbs=update.maximize,
                    groups=optimizer.param_groups,
                ),
                has_new_pair(trainable),
            )
            self.updates.before(update, now=is_now)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) not in self._weights:
            return
        number = self._optimizers[id(optimizer)]
        update = next(update for update in reversed(self.run.updates) if update.optimizer == number)
        with self.recorder.suspended():
            weights, is_new_pair = self._weights.pop(id(optimizer))
            moved = weights.after()  # of a new pair, zeros are not a sign of anything
            update.numbers |= {"update_norm": moved["update_norm"]} if is_new_pair else moved
            self.updates.after(update)
        self.ledger.stepped(optimizer, update.place, list(self.recorder._known.values()))
        self.kinds.note_owners()
        self._pending, self._clip_norm = [], None
        self._sampled_since_step = self._has_stores = False
        for model in self.models.holding(_held(optimizer)):
            model.version += 1
        self.models.steps.update(map(id, _held(optimizer)))
        self.recorder.next_update()
        if self.steps is not None and len(self.run.updates) >= self.steps:
            shielded(self.recorder.broke, self._enough)
            raise Enough(0)
        is_full = self._leaving or len(self.run.graph.values) > MOST_VALUES
        if self.steps is None and (
            is_full or (self._rollouts and len(updates_since_sampling(self.run)) >= MOST_UPDATES)
        ):
            self._enough()
        elif self._rollouts == 0 and len(self.run.updates) >= LEAST_UPDATES:
            self._report_so_far()
        if self.steps is None and self._rollouts == 0 and len(self.run.updates) % MOST_BEFORE == 0:
            self.recorder.sleep()

    def _report_so_far(self) -> None:
        """Between two calls of the script."""
        report, self.seen_some = self.seen_some, None
        if report is not None:
            with self.recorder.suspended():
                self.updates.settle()
                report()

    def _enough(self) -> None:
        self.stop()
        self.updates.settle()
        self._finished()


def _held(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_body(output: Any, ids: Tensor | None) -> bool:
    """A network without its head, as forward() of transformers calls it: what it returns is a pass, too."""
    hidden = getattr(output, "last_hidden_state", None)
    return ids is not None and isinstance(hidden, Tensor) and hidden.dim() == ids.dim() + 1


def _is_given_tokens(forward: Forward) -> bool:
    """Not just numbers of states."""
    return forward.input_ids is not None and len(shape_of(forward.input_ids) or ()) != 1


def _is_random(value: Value) -> bool:
    return any(made.op in _RANDOM for made in islice(above(value), MOST_OPERATIONS_OF_A_DRAW))


def catch(caught: dict[int, Tensor], key: int, gradient: Tensor) -> None:
    copy = gradient.detach().to(torch.float64, copy=True)
    caught[key] = caught[key] + copy if key in caught else copy
