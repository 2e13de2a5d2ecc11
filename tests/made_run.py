"""A watched run written by hand: a graph of values with numbers, as a process would have left it. No torch."""

import numpy as np

from assay.programs.graph import Context, Value
from assay.programs.run.roles import find_roles
from assay.programs.run.sight import Sight
from assay.programs.run.watched import Backward, Forward, Model, WatchedRun, WatchedUpdate
from assay.verdict import Place


def place(line):
    return Place("script.py", line, text=f"line {line}")


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


class MadeRun:
    """Every value gets a line of its own: lines count up from 1."""

    def __init__(self, *models):
        self.run = WatchedRun("script.py", torch_was_used=True)
        self.run.models += [Model(number, "Net", 1, ("float32",), **how) for number, how in enumerate(models)]

    def value(self, op, numbers=None, *, grad=False, dtype=None, context=None, line=None, overlaps=False, **arguments):
        made = self.run.graph.new(
            op,
            {name: self._argument(one) for name, one in arguments.items()},
            place(line or len(self.run.graph.values) + 1),
            context or Context(),
        )
        if numbers is not None:
            data = np.asarray(numbers)
            kind = dtype or {"f": "float32", "i": "int64", "b": "bool"}[data.dtype.kind]
            made.thing = Sight(data.shape, kind, grad, data, overlaps=overlaps)
        return made

    def _argument(self, one):
        if isinstance(one, Value):
            return one
        return Value("constant", {}, place(0), Context(), len(self.run.graph.values), constant=one)

    def keyed(self, op, numbers, *keys, input, **how):
        """x[keys]: keys are arguments named 0, 1, ..."""
        made = self.value(op, numbers, input=input, **how)
        made.arguments |= {str(number): self._argument(key) for number, key in enumerate(keys)}
        return made

    def forward(self, ids, logits, model=0, *, grad=False, context=None, **how):
        """A pass of a model: what it was given are values or arrays."""
        given = ids if isinstance(ids, Value) else self.value("given", np.asarray(ids))
        made = self.value("forward", np.asarray(logits, float), grad=grad, context=context, input_ids=given)
        self.run.origins.logits.add(id(made))
        parts = {"attention_mask": None, "position_ids": None, "weights": (float(model),), "version": 0, **how}
        seen = Forward(value=made, model=model, dropout=0, input_ids=given, **parts)
        self.run.forwards.append(seen)
        self.run.origins.forwards[id(made)] = seen
        return made

    def logprobs(self, ids, logits, tokens, model=0, *, grad=False, **how):
        """log_softmax and gather of the tokens: [B, T]."""
        passed = self.forward(ids, logits, model, grad=grad, **how)
        whole = log_softmax(np.asarray(logits, float))
        everything = self.value("log_softmax", whole, grad=grad, input=passed)
        index = self.value("given", np.asarray(tokens)[..., None])
        chosen = np.take_along_axis(whole, np.asarray(tokens)[..., None], -1)
        gathered = self.value("gather", chosen, grad=grad, input=everything, index=index)
        return self.value("squeeze", chosen[..., 0], grad=grad, input=gathered)

    def backward(self, loss):
        self.value("backward", input=loss)
        seen = Backward(loss, None, roles=find_roles(loss, self.run.origins))
        self.run.backwards.append(seen)
        return seen

    def update(self, *backwards, **how):
        order = len(self.run.graph.values)
        seen = WatchedUpdate(len(self.run.updates), 0, place(900), order, 1e-3, 0.0, tuple(backwards), **how)
        self.run.updates.append(seen)
        return seen


class Grpo:
    """exp(new - old) * advantages, clipped, masked and averaged: the values of one update by name.

    `form` makes what is multiplied by the advantages of new and old; `old_grad` leaves old with its graph.
    """

    IDS = ((1, 2, 3), (2, 3, 1))
    TOKENS = ((2, 3), (3, 1))
    MASK = ((1.0, 1.0), (1.0, 0.0))
    ADVANTAGES = ((1.0,), (-1.0,))

    def __init__(self, made, *, ratio=None, old_grad=False, old_model=0, old_how=None, clip=(0.8, 1.2), new_how=None):
        rng = np.random.default_rng(0)
        old_logits, new_logits = rng.normal(size=(2, 2, 2, 5))
        self.made = made
        self.old = made.logprobs(self.IDS, old_logits, self.TOKENS, old_model, grad=old_grad, **(old_how or {}))
        self.new = made.logprobs(self.IDS, new_logits, self.TOKENS, grad=True, **(new_how or {}))
        new, old = self.new.thing.data, self.old.thing.data
        if ratio is None:
            self.difference = made.value("sub", new - old, grad=True, input=self.new, other=self.old)
            self.ratio = made.value("exp", np.exp(new - old), grad=True, input=self.difference)
        else:
            self.ratio = ratio(self)
        numbers = self.ratio.thing.data
        self.advantages = made.value("given", np.array(self.ADVANTAGES))
        weight = np.array(self.ADVANTAGES)
        self.product = made.value("mul", numbers * weight, grad=True, input=self.ratio, other=self.advantages)
        gain = self.product
        if clip is not None:
            clipped = np.clip(numbers, *clip)
            self.clamp = made.value("clamp", clipped, grad=True, input=self.ratio, min=clip[0], max=clip[1])
            other = made.value("mul", clipped * weight, grad=True, input=self.clamp, other=self.advantages)
            both = np.minimum(numbers * weight, clipped * weight)
            gain = made.value("minimum", both, grad=True, input=self.product, other=other)
        self.mask = made.value("given", np.array(self.MASK))
        counted = gain.thing.data * np.array(self.MASK)
        masked = made.value("mul", counted, grad=True, input=gain, other=self.mask)
        total = made.value("sum", counted.sum(), grad=True, input=masked)
        self.loss = made.value("neg", -counted.sum(), grad=True, input=total)

    def backward(self):
        return self.made.backward(self.loss)
