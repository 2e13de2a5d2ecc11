"""What was seen of a script's run: the graph of its values, its models, passes, samples, updates, and how it ended.

Nothing here imports torch. Facts about a run are functions of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from assay.programs.graph import Graph, Value
from assay.programs.run.gradients import GradientHistory
from assay.programs.run.kinds import RunKinds
from assay.programs.run.sight import Sight
from assay.record.batch import Array, Batch
from assay.verdict import Place

if TYPE_CHECKING:
    from assay.programs.run.roles import LossPiece, Roles

Spot = tuple[Place, tuple[Place, ...]]  # a line, and the lines that called it


@dataclass(eq=False, slots=True)
class Model:
    """A module that was called from outside of any other."""

    number: int
    name: str  # of its class
    trainable: int  # tensors that require a gradient
    dtypes: tuple[str, ...]
    version: int = 0  # optimizer steps that changed it so far
    is_trained: bool = False  # an optimizer that stepped holds one of its parameters
    has_adapter: bool = False
    eos_ids: tuple[int, ...] = ()  # of its configuration
    vocabulary: int | None = None
    gives_logits: bool = False  # called with ids, it returns logits: it can be asked again
    can_cache: bool = False  # keys and values of what was read before: its configuration speaks of them


@dataclass(eq=False, slots=True)
class Forward:
    """One pass of a model from outside: ids in, logits (or what the model returns) out."""

    value: Value
    model: int
    version: int  # optimizer steps of the model that were made before it
    dropout: int  # dropout modules in training mode with a probability above 0
    input_ids: Value | None
    attention_mask: Value | None
    position_ids: Value | None
    caches: bool = False  # it was given past keys and values
    weights: tuple[float, ...] = ()  # sums of a few numbers of the weights: equal for equal weights
    adapter_off: bool = False


@dataclass(eq=False, slots=True)
class GenerateCall:
    """One call of generate(). `config` is what was in effect inside."""

    value: Value
    model: int
    version: int
    config: Mapping[str, Any]
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
    forward: Forward | None  # whose logits it drew from
    temperature: float | None  # None: not known
    cuts: tuple[str, ...] = ()  # operations between logits and draw that take tokens out: topk, sort, ...
    state: int | None = None  # of the random numbers before it
    is_composed: bool = False  # of random numbers and scores, by the script: it has no weights


@dataclass(eq=False, slots=True)
class Backward:
    """One call of backward(): the loss, the log-probs in it and how the loss pulls at them."""

    loss: Value
    number: float | None
    roles: Roles | None = None  # None: nothing was recognised
    gradients: Mapping[int, Sight] = field(default_factory=dict)  # d loss / d log-probs, by id of their Value

    @property
    def pieces(self) -> Sequence[LossPiece]:
        """The new log-probs in the loss, and what belongs to each."""
        return () if self.roles is None else self.roles.pieces


@dataclass(frozen=True)
class OtherTokens:
    """Rows of a scoring pass that hold a sampled prompt and other tokens behind it than were sampled."""

    rows: int
    of: int
    row: int  # the first of them
    token: int  # of its completion
    given: int  # the id there
    sampled: int


@dataclass(eq=False, slots=True)
class WatchedUpdate:
    """One optimizer step."""

    number: int  # from 0, of this optimizer
    optimizer: int
    place: Place
    order: int  # values recorded before it
    learning_rate: float
    weight_decay: float
    backwards: tuple[Backward, ...]
    maximize: bool = False
    clip_norm: float | None = None
    models: tuple[int, ...] = ()  # whose parameters the optimizer holds
    numbers: dict[str, float | int] = field(default_factory=dict)  # as a Batch names them
    parts: tuple[tuple[int, int], ...] = ()  # (rows, columns) of the log-probs of each backward
    samplers: frozenset[tuple[float, ...]] = frozenset()  # weights that sampled its rows
    sampler_models: frozenset[int] = frozenset()
    is_first: bool = False  # no update came between the sampling of its rows and it
    sampled_at: frozenset[Spot] = frozenset()  # of what sampled its rows
    other_tokens: OtherTokens | None = None
    unknown_rows: tuple[int, int] | None = None  # how many of how many were not found among the sampled ones
    ends_next: float | None = None  # where nearly all rows were cut off: probability of the end as their next token
    barred: tuple[int, int, float] | None = None  # actions drawn while others had no chance, how many others at most,
    # and the probability that the loss gives to those on average
    states_moved: tuple[int, int, int] | None = None  # actions that are scored at the state of another step, of how
    # many, and how many steps later that is
    replaced: tuple[int, int] | None = None  # trained actions that nothing drew at their state, of how many, where all
    # others were drawn from just the distribution that the loss scores

    @property
    def source(self) -> str:
        """As the Batch of it names where it came from."""
        return f"optimizer step {self.number + 1} ({self.place})"

    @property
    def pieces(self) -> list[LossPiece]:
        return [piece for backward in self.backwards for piece in backward.pieces]


@dataclass(frozen=True)
class Stored:
    """Numbers that lay in the script's variables when it began to learn from a rollout, one for each action."""

    name: str  # the variable, and the way into it
    numbers: Array
    lengths: tuple[int, ...] = ()  # where they were kept in lists of their own, as episodes are: how many in each


@dataclass(eq=False, slots=True)
class ScriptFailure:
    """The exception that ended the script. `value` is the call of torch that raised it, if one did."""

    kind: str
    message: str
    place: Place | None
    value: Value | None = None
    is_of_names: bool = False  # a name, an attribute or an argument of the script's own that does not exist


@dataclass(repr=False)
class WatchedRun:
    script: str
    folder: str = ""  # in which the script was started
    graph: Graph = field(default_factory=Graph)
    models: list[Model] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    generations: list[GenerateCall] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    backwards: list[Backward] = field(default_factory=list)
    updates: list[WatchedUpdate] = field(default_factory=list)
    gradients: GradientHistory = field(default_factory=GradientHistory)
    stores: list[tuple[int, list[Stored]]] = field(
        default_factory=list
    )  # at the first backward of a rollout: its order
    seeds: list[Place] = field(default_factory=list)  # where random numbers were seeded, in order
    batches: list[Batch] = field(default_factory=list)
    failure: ScriptFailure | None = None
    notes: list[str] = field(default_factory=list)
    torch_was_used: bool = False
    # weights of the trained models before each of their steps --> (model, version)
    history: dict[tuple[float, ...], tuple[int, int]] = field(default_factory=dict)
    # place of the surrogate --> (what it fits, whether the loss holds nothing else)
    objectives: dict[str, tuple[str, bool]] = field(default_factory=dict)
    kinds: RunKinds = field(default_factory=RunKinds)
    raised: Value | None = None  # the last call of torch that raised
    # see `once`; what was known at an earlier moment has its own
    computed: dict[Callable[..., Any], Any] = field(default_factory=dict, init=False)

    def __str__(self) -> str:
        """In words, as "looked at"."""
        steps, passes = len(self.updates), len(self.forwards) + len(self.generations)
        return f"a run of {steps} optimizer step{'s' * (steps != 1)} and {passes} pass{'es' * (passes != 1)}"


def as_of_now(run: WatchedRun) -> WatchedRun:
    """What was known at this moment."""
    return replace(
        run,
        models=[replace(model) for model in run.models],
        forwards=list(run.forwards),
        generations=list(run.generations),
        samplings=list(run.samplings),
        backwards=list(run.backwards),
        updates=list(run.updates),
        history=dict(run.history),
    )


def spot_of(value: Value) -> Spot:
    return value.place, value.context.calls
