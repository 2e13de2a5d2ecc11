"""One batch as a trainer saw it: arrays, numbers, settings, texts; every one of them optional.

It is the doctor's evidence and the record of an examined update, of this trainer or of any other: docs/batch-file.md
describes the file (safetensors, scalars as JSON in its metadata). Nothing here imports torch.

Shape legend: B completions, T completion tokens, P prompt tokens, S tokens given to the model, O numbers of
a state.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.config.sections import AdvantageConfig, LossConfig, RolloutConfig, choices_of
from assay.grpo import AGGREGATIONS
from assay.machine.user_error import UserError
from assay.verdict import Missing

Array = NDArray[Any]
Scalar = float | int | str | bool | Sequence[int]


class Field(NamedTuple):
    shapes: tuple[str, ...]
    kind: str  # "int", "float" or "bool"
    meaning: str


FIELDS: dict[str, Field] = {
    # what was sampled
    "tokens": Field(("BT",), "int", "Ids of the completion tokens that the loss is computed on; padded on the right."),
    "mask": Field(("BT",), "bool", "Which of them are in the loss."),
    "sampled_tokens": Field(("BT",), "int", "Ids as the sampler returned them; they must be those in `tokens`."),
    "prompt_tokens": Field(("BP",), "int", "Ids of each row's prompt, padded on either side."),
    "prompt_mask": Field(("BP",), "bool", "Which of `prompt_tokens` are not padding."),
    "start_states": Field(("BO",), "float", "Small environments: what the policy was given at each row's first step."),
    "lengths": Field(("B",), "int", "Tokens that were sampled for each row, EOS included, padding not."),
    "finished": Field(("B",), "bool", "Whether the row ended by itself (EOS, stop string), not by the token limit."),
    "forced": Field(("BT",), "bool", "Tokens the policy did not sample: tool output, template text, an added EOS."),
    "sampler_versions": Field(("B",), "int", "Version of the weights that sampled each row."),
    # what the scoring pass was given
    "input_ids": Field(("BS",), "int", "What the model was given when `new_logprobs` were computed."),
    "attention_mask": Field(("BS",), "bool", "The attention mask of that pass."),
    "position_ids": Field(("BS",), "int", "The positions of that pass."),
    "packed_behind": Field(("B",), "int", "Where rows were packed end to end: how many stand before it in its line."),
    # log-probs of `tokens`
    "new_logprobs": Field(("BT",), "float", "Under the policy being trained, as the loss saw them."),
    "old_logprobs": Field(("BT",), "float", "Under the policy that sampled, as the trainer computed them."),
    "ref_logprobs": Field(("BT",), "float", "Under the frozen reference."),
    "sampler_logprobs": Field(("BT",), "float", "As the sampling engine reported them; NaN where it did not."),
    # rewards and advantages
    "rewards": Field(("B",), "float", "Reward of each row; NaN where scoring failed."),
    "group_ids": Field(("B",), "int", "Which rows the trainer compares with each other; integers or strings."),
    "advantages": Field(("B", "BT"), "float", "One number per row or per token."),
    "raw_advantages": Field(("BT",), "float", "PPO: advantages before whitening."),
    "values": Field(("BT",), "float", "PPO: what the critic predicted."),
    "returns": Field(("BT",), "float", "PPO: what the critic is trained towards."),
    "token_rewards": Field(("BT",), "float", "Reward of each token, KL penalty included."),
    "step_rewards": Field(("BT",), "float", "What the environment paid at each step, where a reward is their sum."),
    "rewards_alone": Field(("B",), "float", "Rewards computed again, each row by itself; NaN where not."),
    "rewards_again": Field(
        ("B",), "float", "Rewards computed again in another order of the rows; NaN where not, or where they are random."
    ),
    # what the loss made of it
    "ratio": Field(("BT", "B"), "float", "new / old as the trainer computed it; one per row for sequence ratios."),
    "clipped": Field(("BT",), "bool", "Tokens that the trainer counts as clipped."),
    "kl": Field(("BT",), "float", "KL estimate of each token as the trainer computed it, without coefficient."),
    "token_loss": Field(("BT",), "float", "Loss of each token before aggregation, to be minimised."),
    "entropy": Field(("BT",), "float", "Entropy of the policy at each token, in nats."),
    "gradients": Field(("BT",), "float", "d loss / d new_logprobs: how the loss pulls at each token."),
    # what came out when it was computed again; see docs/batch-file.md
    "plain_logprobs": Field(
        ("BT",),
        "float",
        "Plain log-probs of the model: one row at a time, no padding, eval mode, float32 log-softmax.",
    ),
    "plain_raw_logprobs": Field(("BT",), "float", "The same at temperature 1."),
    "plain_entropy": Field(("BT",), "float", "Entropy of the distribution that `plain_logprobs` come from, in nats."),
    "plain_variance": Field(("BT",), "float", "Variance of a draw's log-prob under that distribution."),
    "drawn_counts": Field(("QI",), "float", "How often each id was drawn, by place: rows are classes of places."),
    "drawn_expected": Field(("QI",), "float", "How often it should have been: the sum of its plain probabilities p."),
    "drawn_variance": Field(("QI",), "float", "The sum of p (1 - p)."),
    "drawn_absent": Field(("QI",), "float", "The sum of -log(1 - p): how improbable it is that it was never drawn."),
    "variant_gains": Field(("M",), "float", "Sum of log q - log p of the sampled tokens, of each known other sampler."),
    "variant_impossible": Field(("M",), "float", "Sampled tokens that this sampler cannot draw."),
    "plain_logprobs_after": Field(("BT",), "float", "`plain_logprobs` of the same tokens, right after the update."),
    "plain_ref_logprobs": Field(("BT",), "float", "Plain log-probs of the reference."),
    "scored_again": Field(("BT",), "float", "The trainer's own scoring repeated on the same weights and inputs."),
    "scored_padded": Field(("BT",), "float", "The trainer's own scoring with padding added."),
    "scored_permuted": Field(("BT",), "float", "The trainer's own scoring with the rows in another order, put back."),
    "scored_alone": Field(("BT",), "float", "The trainer's own scoring, one row at a time."),
    "gradients_split": Field(("BT",), "float", "`gradients` when the batch is cut into two micro-batches."),
    "gradients_perturbed": Field(("BT",), "float", "`gradients` when the values under the mask are replaced."),
}

# what policy/plain.py computes of a completion, in its order
PLAIN_FIELDS = ("plain_logprobs", "plain_raw_logprobs", "plain_entropy", "plain_variance")

NUMBERS: dict[str, str] = {
    "step": "Training step, from 1.",
    "update": "Optimizer update within the rollout batch, from 0: at 0 the policy is still the one that sampled.",
    "policy_version": "Version of the weights being trained.",
    "loss": "The loss of the update, as it was differentiated.",
    "policy_loss": "Its policy part.",
    "kl_loss": "Its KL part, coefficient included.",
    "kl_mean": "The KL that the trainer logs.",
    "clipped_share": "The share of clipped tokens that the trainer logs.",
    "reward_mean": "The mean reward that the trainer logs.",
    "gradient_norm": "Norm of the gradient before clipping.",
    "update_norm": "Length of the change of the weights.",
    "tensors": "Trainable tensors.",
    "tensors_changed": "Trainable tensors in which the update changed a number.",
    "tensors_without_gradient": "Trainable tensors that got no gradient, or one of zeros.",
    "numbers_changed_share": "Share of the trainable numbers that the update changed.",
    "mean_move": "Root of the mean square of the change of a trainable number.",
    "relative_update": "Length of the change of the weights over the length of the weights.",
    "smallest_step": "Smallest rate that would change a number, of tensors that have a gradient and did not change.",
    "weight_bits": "Bits of a trainable number; the fewest where tensors differ.",
    "loss_again": "The loss computed again from the same tensors.",
    "loss_padded": "The loss with columns of padding added.",
    "loss_permuted": "The loss with the rows in another order.",
    "loss_split": "The loss summed over two micro-batches.",
    "loss_perturbed": "The loss with the values under the mask replaced.",
    "descent": "Cosine between the step of the weights and minus their gradient: above 0, the step goes downhill.",
    "tensors_judged": "In the first step of an optimizer: tensors whose steps were held against their gradients.",
    "tensors_against": "Of them: tensors that moved up their own gradient.",
    "tensors_astray": "Of them: tensors whose step has nothing to do with their own gradient.",
    "tensors_exchanged": "Of these: tensors that follow the gradient of another tensor.",
    "steps_without_gradient": "Optimizer steps in a row before which no tensor had a gradient, not even one of zeros.",
    "prompts_left_open": "Chat prompts that do not end with the words after which the assistant speaks.",
    "baseline_age": "Updates since the rewards were given of which the baseline is the mean: 0 where they are the own.",
    "moved_between": "How far the weights moved between the last update and this one, as a share of the last update.",
    "reference_drift": "Largest change of the reference's log-probs of one row since the first look at it.",
    "new_temperature": "The temperature at which the model gives `new_logprobs`, where that is not the stated one.",
    "dropout_modules": "Dropout modules that were active in the scoring pass.",
}

CHOICES: dict[str, Collection[str]] = {  # of settings that are words
    "aggregation": AGGREGATIONS,
    **choices_of(LossConfig),
    **choices_of(AdvantageConfig),
    "zero_variance": choices_of(RolloutConfig)["zero_variance"],
}


def _as_configured(section: type, **renamed: str) -> dict[str, str]:
    """The settings of a section with their meanings; a batch holds values, never "auto"."""
    return {
        renamed.get(setting.name, setting.name): setting.metadata["meaning"].partition("; auto = ")[0]
        for setting in fields(section)
    }


MEANINGS: dict[str, str] = {
    "aggregation": "How the tokens are weighed against each other; by default as the objective does.",
    **_as_configured(LossConfig),
    **_as_configured(AdvantageConfig, epsilon="advantage_epsilon"),
    "group_size": "Rollouts per prompt.",
    "prompts": "Prompts per step.",
    "temperature": "Sampling temperature.",
    "top_k": "Sampling; 0 = off.",
    "top_p": "Sampling; 1 = off.",
    "min_p": "Sampling; 0 = off.",
    "support_kept": "Whether training renormalises over the same truncated distribution as sampling.",
    "max_tokens": "Limit of a completion, EOS included.",
    "mask_truncated": "Whether completions cut off by the limit are left out of the loss.",
    "zero_variance": "Groups whose rewards are all equal.",
    "eos_ids": "Ids that end a completion.",
    "pad_id": "Id of padding.",
    "updates_per_rollout": "Optimizer updates on one rollout batch.",
    "minibatches": "Optimizer updates per pass over the rollout batch.",
    "microbatches": "Passes per update.",
    "sequences": "Rows of the whole update, if this batch is only a part of it.",
    "loss_tokens": "Loss tokens of the whole update, if this batch is only a part of it.",
    "learning_rate": "Learning rate of the update.",
    "weight_decay": "Weight decay of the optimizer.",
    "clip_norm": "The gradient norm is clipped to this; 0 = off.",
    "dtype": "Compute dtype: float32 bfloat16 float16.",
    "lora_rank": "Rank of adapters; 0 = all weights are trained.",
    "parameters": "Number of parameters of the model, adapters included.",
    "process_rewards": "Whether rewards come per step, so that advantages differ between the tokens of a row.",
    "groups_assumed": "Whether group_ids were read off the trainer's own mean, and not off the prompts.",
    "max_reward": "The best reward an answer can get.",
    "min_reward": "The worst.",
    "steps": "Planned steps of the run.",
    "dataset_size": "Different prompts that the data set has.",
    "trainer": "Trainer that recorded the batch.",
}
SETTINGS = {
    name: f"{meaning} ({', '.join(CHOICES[name])})" if name in CHOICES and name != "objective" else meaning
    for name, meaning in MEANINGS.items()
}

WORDS = frozenset((*CHOICES, "dtype", "trainer"))
FLAGS = frozenset(("support_kept", "mask_truncated", "process_rewards", "groups_assumed"))
COUNTED = frozenset(("step", "update"))  # numbers: whole and not negative
POSITIVE = 1e-3  # a log-prob above this is none; rounding leaves less

TEXTS = ("prompt", "completion", "prompt_id", "truth")


class BatchError(UserError, ValueError):
    """A batch that cannot be one. The message is one sentence with the field and the fix."""


@dataclass(frozen=True)
class Batch:
    """Build it with `Batch.of`, which checks shapes and kinds. Asked for what it does not hold, it raises Missing.

    >>> batch = Batch.of({"tokens": [[5, 2]], "mask": [[1, 1]], "step": 3, "temperature": 0.7})
    >>> batch.need("mask")[0].tolist(), batch.number("step"), batch.setting("temperature")
    ([[True, True]], 3, 0.7)
    """

    arrays: Mapping[str, Array]
    numbers: Mapping[str, float | int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    source: str = ""  # where it came from: a file, a step of a run

    @classmethod
    def of(cls, values: Mapping[str, Any], texts: Mapping[str, Sequence[str]] | None = None, source: str = "") -> Batch:
        """Sorts values by name into arrays, numbers and settings; None is the same as absent."""
        arrays: dict[str, Array] = {}
        numbers: dict[str, float | int] = {}
        settings: dict[str, Any] = {}
        for name, value in values.items():
            if value is None:
                continue
            if name in FIELDS:
                arrays[name] = _as_array(name, value)
            elif name in NUMBERS:
                numbers[name] = _as_number(name, value)
            elif name in SETTINGS:
                settings[name] = _as_setting(name, value)
            else:
                raise BatchError(f"{name!r} is not a field of a batch{_nearest(name)}")
        _check_objective(settings)
        _align_shifted(arrays)
        _check_shapes(arrays, texts or {})
        _check_signs(arrays)
        return cls(arrays, numbers, settings, texts or {}, source)

    def need(self, *names: str) -> tuple[Array, ...]:
        absent = [name for name in names if name not in self.arrays]
        if absent:
            raise Missing(*absent)
        return tuple(self.arrays[name] for name in names)

    def get(self, name: str) -> Array | None:
        return self.arrays.get(name)

    def only(self, names: Collection[str]) -> Batch:
        """The same batch with these arrays, and without its completions as text."""
        texts = {name: text for name, text in self.texts.items() if name != "completion"}
        arrays = {name: array for name, array in self.arrays.items() if name in names}
        return Batch(arrays, self.numbers, self.settings, texts, self.source)

    def number(self, name: str) -> float | int:
        if name not in self.numbers:
            raise Missing(name)
        return self.numbers[name]

    def setting(self, name: str) -> Any:
        if name not in self.settings:
            raise Missing(name)
        return self.settings[name]

    @property
    def step(self) -> int | None:
        step = self.numbers.get("step")
        return None if step is None else int(step)

    @property
    def token_advantages(self) -> Array:
        """One per token, also if they were given per row."""
        advantages, tokens_BT = self.need("advantages", "tokens")
        return advantages if advantages.ndim == 2 else np.broadcast_to(advantages[:, None], tokens_BT.shape)

    @property
    def is_on_policy(self) -> bool:
        """Whether `new` must still equal `old`: the first update of a rollout batch."""
        return self.number("update") == 0


def _as_array(name: str, value: Any) -> Array:
    if hasattr(value, "detach"):  # a torch tensor; bfloat16 has no numpy dtype
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    wanted = FIELDS[name].kind
    try:
        array = np.asarray(value)
    except ValueError:
        raise BatchError(f"{name} is ragged; pad its rows to one length and leave the padding out of `mask`") from None
    if name == "group_ids" and array.dtype.kind in "USO":
        array = np.unique(array.astype(str), return_inverse=True)[1].reshape(array.shape)
    if array.dtype.kind not in "biuf":
        raise BatchError(f"{name} holds {array.dtype}, not numbers")
    if wanted == "float":
        return array.astype(np.float64)
    if array.dtype.kind == "f" and not (np.isfinite(array).all() and (array == np.floor(array)).all()):
        raise BatchError(
            f"{name} holds fractions or NaN; it must be {'0 or 1' if wanted == 'bool' else 'whole numbers'}"
        )
    if wanted == "bool":
        if not np.isin(array, (0, 1)).all():
            raise BatchError(f"{name} holds {array[~np.isin(array, (0, 1))].flat[0]}; it must be 0 or 1")
        return array.astype(bool)
    return array.astype(np.int64)


def _as_number(name: str, value: Any) -> float | int:
    value = _unwrap(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BatchError(f"{name} is {value!r}; it must be a number")
    if name in COUNTED and not (value >= 0 and float(value).is_integer()):
        raise BatchError(f"{name} is {value!r}; it must be a whole number, {'1' if name == 'step' else '0'} or more")
    return value


def _as_setting(name: str, value: Any) -> Any:
    if name == "eos_ids":
        return value
    value = _unwrap(value)
    if name in WORDS:
        choices = CHOICES.get(name, ())
        if not isinstance(value, str) or (choices and value not in choices and name != "objective"):
            raise BatchError(f"{name} is {value!r}; it must be {_one_of(choices) or 'a word'}")
    elif name in FLAGS:
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            raise BatchError(f"{name} is {value!r}; it must be true or false")
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BatchError(f"{name} is {value!r}; it must be a number")
    elif name == "temperature" and not value > 0:
        raise BatchError(f"temperature is {value!r}; it must be more than 0")
    return value


def _check_objective(settings: Mapping[str, Any]) -> None:
    """A run of this trainer may have an objective that its user registered, which its configuration has checked."""
    objective = settings.get("objective")
    if objective is not None and objective not in CHOICES["objective"] and settings.get("trainer") != "assay":
        raise BatchError(f"objective is {objective!r}; it must be {_one_of(CHOICES['objective'])}, or left out")


def _one_of(choices: Collection[str]) -> str:
    *others, last = choices or [""]
    return f"{', '.join(others)} or {last}" if others else last


def _unwrap(value: Any) -> Any:
    """A tensor or an array of one number is that number."""
    if hasattr(value, "detach"):
        value = value.detach()
    return value.item() if hasattr(value, "item") and np.prod(value.shape) == 1 else value


def _check_signs(arrays: Mapping[str, Array]) -> None:
    mask_BT = arrays.get("mask")
    for name, array in arrays.items():
        if not name.endswith("_logprobs"):
            continue
        judged = array.ravel() if mask_BT is None else array[mask_BT]
        if (np.isfinite(judged) & (judged > POSITIVE)).sum() > len(judged) / 2:
            raise BatchError(f"{name} are mostly positive; give log-probs, not their negatives")


def _align_shifted(arrays: dict[str, Array]) -> None:
    """Log-probs one column shorter than the tokens are those of tokens[:, 1:]: the first token has no predictor."""
    widths = {array.shape[1] for name, array in arrays.items() if name.endswith("_logprobs") and array.ndim == 2}
    tokens = arrays.get("tokens")
    if tokens is None or tokens.ndim != 2 or widths != {tokens.shape[1] - 1}:
        return
    width = tokens.shape[1]
    for name, array in arrays.items():
        if "BT" in FIELDS[name].shapes and array.ndim == 2 and array.shape[1] == width:
            arrays[name] = array[:, 1:]


def _check_shapes(arrays: Mapping[str, Array], texts: Mapping[str, Sequence[str]]) -> None:
    sizes: dict[str, tuple[int, str]] = {}
    for name, array in arrays.items():
        shapes = [shape for shape in FIELDS[name].shapes if len(shape) == array.ndim]
        if not shapes:
            wanted = " or ".join(f"[{', '.join(shape)}]" for shape in FIELDS[name].shapes)
            raise BatchError(f"{name} has {array.ndim} dimensions; it must be {wanted}")
        for letter, size in zip(shapes[0], array.shape, strict=True):
            known, first = sizes.setdefault(letter, (size, name))
            if known != size:
                raise BatchError(
                    f"{name} has {size} {_LETTERS[letter]} but {first} has {known}; all of them must agree"
                )
    for name, rows in texts.items():
        if name not in TEXTS:
            raise BatchError(f"{name!r} is not a text of a batch; {', '.join(TEXTS)} are")
        known, first = sizes.setdefault("B", (len(rows), name))
        if known != len(rows):
            raise BatchError(f"{name} has {len(rows)} rows but {first} has {known}; all of them must agree")


_LETTERS = {
    "B": "rows", "T": "token columns", "P": "prompt columns", "S": "input columns",
    "Q": "classes of places", "I": "classes of ids", "M": "variants",
}  # fmt: skip


def _nearest(name: str) -> str:
    known = [*FIELDS, *NUMBERS, *SETTINGS]
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; the fields are {', '.join(FIELDS)}"
