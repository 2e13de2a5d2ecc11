"""
## What it checks
The share of the trainable numbers that an optimizer update changed. With a gradient and a learning rate above 0 nearly
all of them move; fewer than 5 % means that the changes are smaller than the weights' precision. In a script: weights
that are loaded in or cast to 16 bits, and an optimizer of the Adam family that steps them with a small rate.

## Why it hurts
bfloat16 keeps 8 bits: a change below 1/256 of a weight is rounded away. At a learning rate of 1e-6, usual in GRPO, that
is almost every change. The loss, the gradient and its norm look right, and the policy stays where it is.

## How to fix it
Keep the weights that the optimizer steps in float32 and compute with a rounded copy of them.

    # before: the optimizer adds 1e-6 to weights that keep three digits
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16)
    optimizer = AdamW(model.parameters(), lr=1e-6)
    # after: float32 weights, bfloat16 arithmetic
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    optimizer = AdamW(model.parameters(), lr=1e-6)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = compute_loss(model, batch)

## When it is wrong
Where most numbers get no gradient they do not change either: rows of a large embedding for tokens that do not occur,
experts without tokens. Of weights that are known to be float32 the check says nothing. Stochastic rounding changes few
numbers on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import with_change
from assay.programs.edits import Spot
from assay.programs.facts.optimizer.optimizers import optimizers
from assay.programs.facts.optimizer.precision import cast_to, is_mixed, precision_of_weights
from assay.programs.facts.origin import network
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import ancestors
from assay.verdict import Confidence, Edit, Fact, Severity, Verdict, finding, healthy, not_applicable

FEW_NUMBERS = 0.05  # of the numbers; an update in float32 changes nearly all
SMALL_RATE = {"bfloat16": 1e-5, "float16": 1e-6}  # Adam moves a weight of 0.02 by that; half a bfloat16 step is 4e-5
STEPPED = ("Adam", "AdamW", "Adafactor", "NAdam", "RAdam", "Adamax", "Lion", "AdamW8bit", "Adam8bit", "PagedAdamW8bit")
ADAPTERS = ("get_peft_model", "PeftModel", "prepare_model_for_kbit_training")
FULL = 32  # bits


def check_batch(batch: Batch) -> Verdict:
    share = float(batch.number("numbers_changed_share"))
    norm = float(batch.number("gradient_norm"))
    if not norm > 0 or batch.settings.get("learning_rate", 1.0) == 0:
        return not_applicable("the update has no gradient, or a learning rate of 0")
    facts = (
        Fact("share of the numbers that changed", share, FEW_NUMBERS, batch.step),
        Fact("gradient norm", norm),
        Fact("learning rate", batch.settings.get("learning_rate", "not recorded")),
    )
    if share >= FEW_NUMBERS:
        return healthy(f"the update changed {share:.0%} of the trainable numbers", *facts)
    bits = batch.numbers.get("weight_bits")
    if bits is not None and FULL <= bits < float("inf"):
        return not_applicable(
            f"few numbers changed, and the weights are float{int(bits)}: no_update (OPT02) looks at that"
        )
    low = batch.settings.get("dtype") in ("bfloat16", "float16")
    if not low and bits is None:
        return not_applicable("few numbers changed, and nothing says that the weights are of 16 bits")
    reached = batch.numbers.get("tensors_without_gradient", 0) == 0
    return finding(
        f"the update changed {share:.2%} of the trainable numbers: the changes are below the precision of the weights",
        *facts,
        # the dtype is that of the arithmetic: the weights may be others
        confidence=Confidence.PROVEN if reached and bits is not None else Confidence.LIKELY,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    if is_mixed(program):
        return
    for optimizer in optimizers(program):
        if optimizer.networks is None or not optimizer.is_known or "bf16_stochastic_round" in optimizer.value.arguments:
            continue
        if optimizer.value.name not in STEPPED or any(_is_adapted(program, model) for model in optimizer.networks):
            continue
        rate = optimizer.value.setting("lr", 1e-3)
        for model in optimizer.networks:
            kept = precision_of_weights(program, model)
            if kept is None or _is_written_by_hand(program, model):
                continue
            limit = SMALL_RATE.get(kept[0])
            places = (kept[1].place, optimizer.value.place)
            is_number = isinstance(rate, int | float)
            if limit is not None and (not is_number or 0 < rate <= limit):
                # a rate that the text does not show is one of fine-tuning, nearly always
                shown = f"lr={rate:g}: " if is_number else "a rate that the text does not show: at the usual ones "
                yield finding(
                    f"`{kept[1].place.text}` keeps the weights in {kept[0]} and {optimizer.value.name} steps them with "
                    f"{shown}most changes are below their precision and are rounded away",
                    confidence=Confidence.LIKELY,
                    places=places,
                )
            else:
                yield healthy(f"the weights are {kept[0]}, the learning rate is {rate}", places=places)


def _is_written_by_hand(program: Program, model: Value) -> bool:
    """Whether lines of the script put other numbers into the weights: copies in float32 that it steps itself."""
    changes = [change for change in program.of("setattr") if change.name == "data"]
    changes += [change for change in program.of("method") if change.name == "copy_" and _is_full(change.argument("1"))]
    return any(network(model) in ancestors(change.input) for change in changes if change.input is not None)


def _is_full(value: Value | None) -> bool:
    return value is not None and any(cast_to(part) == "float32" for part in ancestors(value))


def _is_adapted(program: Program, model: Value) -> bool:
    """Adapters of peft are float32 whatever the network is."""
    wrapped = [value for value in program.of("wrapped") if value.name in ADAPTERS]
    return any(network(value) is network(model) for value in wrapped)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """Weights in float32; not safe: they take twice the memory."""
    for name in ("dtype", "torch_dtype"):
        given = spot.argument(name)
        yield given.becomes("torch.float32", safe=False) if given is not None else None
    for call in (spot, *islice(spot.outside, 2)):
        yield call.cast_to_float(safe=False)


ILLNESS = illness(
    __name__,
    code="OPT01",
    severity=Severity.FATAL,
    summary="updates are smaller than the precision of the weights and are rounded away",
    fix="Keep float32 master weights for the optimizer; compute in bfloat16 with a copy of them.",
    symptoms=(
        "weights do not change in bf16",
        "nothing is learned in bfloat16",
        "updates vanish in half precision",
        "small learning rate has no effect in bf16",
    ),
    sick=lambda: of_batch(edit_batch(healthy_batch(), numbers_changed_share=0.01, dtype="bfloat16", weight_bits=16)),
    well=lambda: of_batch(edit_batch(healthy_batch(), numbers_changed_share=0.9, dtype="bfloat16")),
    scripts=Scripts(
        sick=with_change('from_pretrained("tiny")', 'from_pretrained("tiny", dtype=torch.bfloat16)'),
        well=with_change('from_pretrained("tiny")', 'from_pretrained("tiny", dtype=torch.float32)'),
    ),
    explains=frozenset({"OPT02", "LOSS05", "RAT02"}),
)
