"""What was seen of a script's run: the graph of its values, its models, passes, samples, updates, and how it ended.

Nothing here imports torch. A tensor's numbers are held as they were when the script made it, however it was changed
later: `Sight.numbers`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from assay.programs.value import Graph, Value
from assay.record.batch import Array, Batch
from assay.verdict import Place, Verdict, finding, healthy


@dataclass(eq=False, slots=True)
class Sight:
    """One tensor as it was seen. `data` is a copy of it, or None where it was too large to keep."""

    shape: tuple[int, ...]
    dtype: str  # float32, bfloat16, int64, bool, ...
    requires_grad: bool = False
    data: Any = None
    # of a tensor as wide as the vocabulary, by a few of its rows: lowest, highest, row_sum, row_logsumexp, finite
    summary: Mapping[str, float] = field(default_factory=dict)
    rows: Array | None = None  # a few of them
    overlaps: bool = False  # several of its numbers are one place in memory: expand()

    @property
    def numbers(self) -> Array | None:
        """float64, int64 or bool; None if it was not kept."""
        data = self.data
        if data is None or isinstance(data, np.ndarray):
            return data
        data = data.detach().cpu()
        self.data = data.double().numpy() if data.is_floating_point() else data.numpy()
        return self.data  # type: ignore[no-any-return]

    @property
    def is_floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(eq=False, slots=True)
class Model:
    """A module that was called from outside of any other."""

    number: int
    name: str  # of its class
    parameters: int
    trainable: int  # tensors that require a gradient
    dtypes: tuple[str, ...]
    version: int = 0  # optimizer steps that changed it so far
    is_trained: bool = False  # an optimizer that stepped holds one of its parameters
    has_adapter: bool = False
    eos_ids: tuple[int, ...] = ()  # of its configuration
    pad_id: int | None = None
    dropout: float = 0.0  # the largest probability of a dropout module
    vocabulary: int | None = None
    can_cache: bool = False  # keys and values of what was read before: its configuration speaks of them


@dataclass(eq=False, slots=True)
class Forward:
    """One pass of a model from outside: ids in, logits (or what the model returns) out."""

    value: Value
    model: int
    version: int  # optimizer steps of the model that were made before it
    training: bool  # the model's own flag
    dropout: int  # dropout modules in training mode with a probability above 0
    input_ids: Value | None
    attention_mask: Value | None
    position_ids: Value | None
    caches: bool = False  # it was given past keys and values
    weights: tuple[float, ...] = ()  # sums of a few numbers of the weights: equal for equal weights
    adapter_off: bool = False


@dataclass(eq=False, slots=True)
class Generation:
    """One call of generate(). `config` is what was in effect inside; `given` what the script passed."""

    value: Value
    model: int
    version: int
    training: bool
    dropout: int
    config: Mapping[str, Any]
    given: Mapping[str, Any]
    input_ids: Value | None
    attention_mask: Value | None
    sequences: Value | None
    weights: tuple[float, ...] = ()
    stated: Mapping[str, Any] = field(default_factory=dict)  # what the script asked for, by keyword or configuration
    widths: tuple[int, ...] = ()  # tokens that the model was given in each pass inside
    state: int | None = None  # of the random numbers before it


@dataclass(eq=False, slots=True)
class Sampling:
    """One draw: multinomial, or a distribution's sample."""

    value: Value
    version: int
    forward: Forward | None  # whose logits it drew from
    temperature: float | None  # None: not known
    cuts: tuple[str, ...] = ()  # operations between logits and draw that take tokens out: topk, sort, ...
    state: int | None = None  # of the random numbers before it


@dataclass(eq=False, slots=True)
class Backward:
    """One call of backward(): the loss, the log-probs in it and how the loss pulls at them."""

    loss: Value
    number: float | None
    version: int
    roles: Any = None  # assay.programs.run.roles.Roles, or None: nothing was recognised
    gradients: Any = None  # d loss / d new log-probs, as a Sight


@dataclass(eq=False, slots=True)
class Update:
    """One optimizer step."""

    number: int  # from 0, of this optimizer
    optimizer: int
    optimizer_name: str
    place: Place
    version: int  # optimizer steps of any kind before it
    order: int  # values recorded before it
    learning_rate: float
    weight_decay: float
    backwards: tuple[Backward, ...]
    maximize: bool = False
    clip_norm: float | None = None
    clipped_before_backward: bool = False
    zeroed: bool = True  # gradients were set to zero since the last step
    models: tuple[int, ...] = ()  # whose parameters the optimizer holds
    held: int = 0  # tensors the optimizer holds
    foreign: int = 0  # trainable tensors of the policy that no optimizer holds
    dtypes: tuple[str, ...] = ()
    numbers: dict[str, float | int] = field(default_factory=dict)  # as a Batch names them
    skipped: bool = False
    parts: tuple[tuple[int, int], ...] = ()  # (rows, columns) of the log-probs of each backward
    samplers: frozenset[tuple[float, ...]] = frozenset()  # weights that sampled its rows
    sampler_models: frozenset[int] = frozenset()
    is_first: bool = False  # no update came between the sampling of its rows and it
    sampled_at: frozenset[tuple[Any, ...]] = frozenset()  # (place, calls) of what sampled its rows


@dataclass(eq=False, slots=True)
class Event:
    """No operation: zero_grad, train, eval, manual_seed, clip_grad_norm, scheduler, load_state_dict."""

    kind: str
    place: Place
    order: int  # values recorded before it
    version: int
    detail: Any = None


@dataclass(eq=False, slots=True)
class Failure:
    """The exception that ended the script. `value` is the call of torch that raised it, if one did."""

    kind: str
    message: str
    place: Place | None
    value: Value | None = None


@dataclass(frozen=True)
class Mark:
    """A verdict that follows from the run itself, for the illness with this code."""

    code: str
    verdict: Verdict


@dataclass(repr=False)
class WatchedRun:
    script: str
    folder: str = ""  # in which the script was started
    graph: Graph = field(default_factory=Graph)
    models: list[Model] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    backwards: list[Backward] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    failure: Failure | None = None
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    torch_was_used: bool = False
    # weights of the trained models before each of their steps --> (model, version)
    history: dict[tuple[float, ...], tuple[int, int]] = field(default_factory=dict)
    # place of the surrogate --> (what it fits, whether the loss holds nothing else)
    objectives: dict[str, tuple[str, bool]] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    is_marked: bool = False
    origins: Any = None  # assay.programs.run.origins.Origins
    raised: Value | None = None  # the last call of torch that raised
    not_finite: Value | None = None  # first operation whose result is not finite while what it was given is

    def __str__(self) -> str:
        """In words, as "looked at"."""
        steps, passes = len(self.updates), len(self.forwards) + len(self.generations)
        return f"a run of {steps} optimizer step{'s' * (steps != 1)} and {passes} pass{'es' * (passes != 1)}"

    def found(self, code: str, message: str, *places: Place, **how: Any) -> None:
        """Notes a finding, once for a place."""
        known = {(mark.code, mark.verdict.places[:1]) for mark in self.marks}
        if (code, places[:1]) not in known:
            self.marks.append(Mark(code, finding(message, places=places, **how)))

    def is_well(self, code: str, message: str) -> None:
        if not any(mark.code == code for mark in self.marks):
            self.marks.append(Mark(code, healthy(message)))

    def verdicts(self, code: str) -> Iterator[Verdict]:
        return (mark.verdict for mark in self.marks if mark.code == code)

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    @property
    def policy(self) -> Model | None:
        """The model that is trained, where there is just one."""
        trained = [model for model in self.models if model.is_trained]
        return trained[0] if len(trained) == 1 else None


def as_of_now(run: WatchedRun) -> WatchedRun:
    """What was known at this moment; what is found is still found for all."""
    return replace(
        run,
        models=[replace(model) for model in run.models],
        forwards=list(run.forwards),
        generations=list(run.generations),
        samplings=list(run.samplings),
        backwards=list(run.backwards),
        updates=list(run.updates),
        events=list(run.events),
        history=dict(run.history),
    )


def sight(value: Value | None) -> Sight | None:
    """What was seen of a value that is a tensor."""
    return value.thing if value is not None and isinstance(value.thing, Sight) else None


def numbers_of(value: Value | None) -> Array | None:
    seen = sight(value)
    return None if seen is None else seen.numbers
