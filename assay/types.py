"""The nouns of one training step, in the order in which they flow.

    Prompt --> Rollout[G] --> Group --> Sample[P*G] --> Minibatch --> FrozenBatch --> Update --> StepRecord

A Prompt is made of a Problem, which is what a task poses: text or a conversation, not yet tokens.

Every type is frozen: it is built once, whole, and never edited; no field waits for a later stage to fill it.
`old` is the policy that sampled, `new` the policy being trained, `ref` the frozen reference, `sampler` what the
engine itself reported while sampling (old, as seen by the engine's own arithmetic).

Shape legend: B completions, T completion tokens (padded to the longest), R rows of a forward pass, S tokens of a row,
K tokens that one was sampled among.
This module imports without torch, so that records can be read without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


NO_SIGNAL = "no signal: every advantage is 0"  # Update.skipped of a healthy update that was not worth taking


class StopReason(StrEnum):
    """Why a rollout ended."""

    EOS = "eos"  # the policy sampled its end token, which is the rollout's last token
    STOP = "stop"  # its text came to hold a stop string, which its last token completed
    LENGTH = "length"  # the token limit cut it off


@dataclass(frozen=True, slots=True)
class Problem:
    """What a task poses: a text to continue, or a conversation to answer; and what its reward needs to know."""

    id: str
    text: str  # what a reward reads as the prompt; of a conversation, the last message
    answer: str
    messages: tuple[Mapping[str, str], ...] = ()  # role and content of each; empty: the text itself is continued
    fields: Mapping[str, Any] = field(default_factory=dict)  # what else a reward may ask for; JSON


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem in tokens. Its identity is `id`, never its text: two prompts may read alike and differ in their answer.

    >>> Prompt(id="sort-7", text="312>", tokens=(5, 3, 4, 12), answer="123").id
    'sort-7'
    """

    id: str
    text: str
    tokens: tuple[int, ...]
    answer: str
    fields: Mapping[str, Any] = field(default_factory=dict)  # what else a reward may ask for; JSON

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError(f"prompt {self.id!r} has no tokens; a policy cannot continue nothing")


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled completion: without its prompt, with its EOS. `text` is for scorers and readers only: it ends before
    the EOS or the stop string.

    >>> Rollout("sort-7", (3, 4, 5, 1), (-0.1, -0.2, -0.1, -0.3), StopReason.EOS, 0, "123").truncated
    False
    """

    prompt_id: str
    tokens: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    stop: StopReason
    policy_version: int
    text: str
    support: tuple[tuple[int, ...], ...] | None = None  # top-k and its like: the tokens each one was sampled among

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError(f"a rollout of prompt {self.prompt_id!r} holds no token; an empty answer is an EOS alone")
        if len(self.tokens) != len(self.sampler_logprobs):
            raise ValueError(
                f"a rollout of prompt {self.prompt_id!r} has {len(self.tokens)} tokens "
                f"but {len(self.sampler_logprobs)} log-probs"
            )
        if self.support is not None and len(self.support) != len(self.tokens):
            raise ValueError(
                f"a rollout of prompt {self.prompt_id!r} has {len(self.tokens)} tokens but {len(self.support)} supports"
            )

    @property
    def truncated(self) -> bool:
        return self.stop is StopReason.LENGTH


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a reward function failed, for a reader. Any field may quote a model's text or a user's code."""

    place: str = ""  # file:line of the user's code: where it raised, else where the function begins; "" = not known
    exception: str = ""  # "ValueError: no digits"; "" = it raised nothing
    frames: tuple[str, ...] = ()  # the calls of the user's code up to there, the last one last
    printed: str = ""  # the beginning and the end of what the call printed
    completions: int = 1  # in the call that failed


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward made of one rollout: a number and its components, or no number and the reason.

    A failure is never a 0.0: an unscored rollout leaves the baseline of its group and gets no advantage.

    >>> Score.of({"exact": 1.0}).reward, Score.failed("raised ValueError: bad digit").reward
    (1.0, None)
    """

    reward: float | None
    components: Mapping[str, float]
    error: str
    steps: tuple[tuple[int, float], ...] = ()  # process rewards: (completion tokens up to its end, reward) of each step
    failure: Failure | None = None  # of an error, where it came from, if that is known; it is not recorded

    @classmethod
    def of(
        cls,
        components: Mapping[str, float],
        weights: Mapping[str, float] = MappingProxyType({}),
        steps: tuple[tuple[int, float], ...] = (),
    ) -> Score:
        """The weighted sum of the components; a component without a weight counts once."""
        total = sum(weight_of(name, weights) * value for name, value in components.items())
        return cls(total, components, "", steps)

    @classmethod
    def failed(cls, error: str, failure: Failure | None = None) -> Score:
        return cls(None, {}, error, failure=failure)


def weight_of(component: str, weights: Mapping[str, float]) -> float:
    """The weight of a component, or of the function it comes from, which stands before a slash.

    >>> weight_of("style/length", {"style": 0.5}), weight_of("exact", {"style": 0.5})
    (0.5, 1.0)
    """
    return weights.get(component, weights.get(component.partition("/")[0], 1.0))


@dataclass(frozen=True, slots=True)
class Group:
    """One prompt, its G rollouts and their scores, in the same order."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    scores: tuple[Score, ...]

    def __post_init__(self) -> None:
        if len(self.rollouts) != len(self.scores):
            raise ValueError(f"group {self.prompt.id!r}: {len(self.rollouts)} rollouts but {len(self.scores)} scores")
        strangers = {rollout.prompt_id for rollout in self.rollouts} - {self.prompt.id}
        if strangers:
            raise ValueError(
                f"group {self.prompt.id!r} holds rollouts of other prompts ({', '.join(sorted(strangers))}); "
                "advantages compare answers to one and the same problem"
            )

    @property
    def rewards(self) -> tuple[float | None, ...]:
        return tuple(score.reward for score in self.scores)


@dataclass(frozen=True, slots=True)
class Sample:
    """A rollout with its advantage: one number, or one per token when rewards come per step."""

    prompt: Prompt
    rollout: Rollout
    advantage: float | tuple[float, ...]
    in_loss: bool  # False: kept in the record and in the denominators, but none of its tokens is trained

    def __post_init__(self) -> None:
        if isinstance(self.advantage, tuple) and len(self.advantage) != len(self.rollout.tokens):
            raise ValueError(
                f"a sample of prompt {self.prompt.id!r} has {len(self.advantage)} token advantages "
                f"for {len(self.rollout.tokens)} tokens"
            )


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over one whole optimizer update: the denominators shared by all of its micro-batches."""

    sequences: int
    tokens: int  # loss tokens of this update
    share_of_rollout_tokens: float  # loss tokens of the whole rollout batch / updates in an epoch (DAPO)
    max_tokens: int  # the completion limit (Dr. GRPO's constant)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ModelInputs:
    """What a policy's forward pass reads: R rows of S tokens, padded on the right, and which output predicts what.

    In the rows of a causal policy a prompt is followed by one or more of its completions: branch 0 is the prompt,
    branch n its n-th completion, -1 the padding. A token sees the prompt and its own branch, up to itself. With one
    completion in a row that is what a causal model sees anyway.
    Compared by identity: llama/layout.py caches the layout of each object.
    """

    trees: tuple[tuple[int, ...], ...]  # of each of the R rows, the tokens of its prompt and of its completions
    lengths: tuple[int, ...]  # of the B completions
    ids_RS: Tensor
    positions_RS: Tensor  # position of each token in its own sequence
    branches_RS: Tensor | None  # None: one completion in each row, no mask needed
    predictors_BT: Tensor  # index into the R * S outputs: the one that predicts completion token t; -1 at padding
    targets_BT: Tensor  # the sampled completion tokens
    support_BTK: Tensor | None  # the tokens each was sampled among; fewer than K repeat the first; None: all


@dataclass(frozen=True, slots=True)
class Microbatch:
    """B samples of one forward pass: what the policy reads of them, and what the loss needs besides log-probs."""

    rows: tuple[int, ...]  # which samples of the step these are
    inputs: ModelInputs
    mask_BT: Tensor  # bool: this completion token is in the loss
    sampler_BT: Tensor
    advantages_BT: Tensor


@dataclass(frozen=True, slots=True)
class Minibatch:
    """What one optimizer update sees: micro-batches whose gradients are summed, and their common totals."""

    microbatches: tuple[Microbatch, ...]
    totals: Totals


@dataclass(frozen=True, slots=True)
class FrozenLogprobs:
    """Log-probs of one micro-batch that no update changes: `old` before the first update, `ref` if there is one."""

    old_BT: Tensor | None  # None: this is the only update of the step, old is new, detached
    ref_BT: Tensor | None


@dataclass(frozen=True, slots=True)
class FrozenBatch:
    """All minibatches of one rollout batch. They are cut once, so that old and new log-probs share their bits."""

    minibatches: tuple[Minibatch, ...]
    frozen: tuple[tuple[FrozenLogprobs, ...], ...]  # parallel to minibatches and their micro-batches
    epochs: int  # how often each minibatch is trained on


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer update, as sums and counts: they add up over updates, and division happens once, at the end."""

    applied: bool  # False: the optimizer did not move, `skipped` says why
    skipped: str
    loss: float
    policy_loss: float
    kl_loss: float
    entropy_loss: float
    learning_rate: float
    gradient_norm: float
    update_norm: float  # Euclidean length of the change of all weights
    tensors: int
    tensors_changed: int  # of `tensors` trainable tensors, how many changed at all
    tokens: int  # loss tokens
    ratio_sum: float
    ratio_square_sum: float
    ratio_min: float
    ratio_max: float
    clipped_tokens: int
    old_kl_sum: float  # k3 of old against new, over loss tokens
    ref_kl_sum: float  # k3 of new against ref, over loss tokens
    entropy_sum: float
    mismatch_sum: float  # |old - sampler| log-prob, over loss tokens
    mismatch_max: float
    correction_sum: float  # importance weights old/sampler after truncation or masking
    correction_square_sum: float
    surprise_sum: float = 0.0  # log-prob of new + entropy, over loss tokens; a checkpoint of an older version has none
    surprise_square_sum: float = 0.0


@dataclass(frozen=True, slots=True)
class Learned:
    """An update, and the log-probs of `new` that it saw, one tensor per micro-batch."""

    update: Update
    new_logprobs: tuple[Tensor, ...]
    loss_seconds: float
    step_seconds: float


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as it is written to the run directory. Plain Python throughout."""

    step: int
    policy_version: int
    groups: tuple[Group, ...]
    samples: tuple[Sample, ...]
    updates: tuple[Update, ...]
    old_logprobs: tuple[tuple[float, ...], ...]  # per sample, per token
    new_logprobs: tuple[tuple[float, ...], ...]  # as seen by the last update that trained the sample
    ref_logprobs: tuple[tuple[float, ...], ...] | None
    groups_without_signal: int
    refill_rounds: int
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage; differs between equal runs
    memory_bytes: Mapping[str, int] = field(default_factory=dict)  # by stage; differs between equal runs
