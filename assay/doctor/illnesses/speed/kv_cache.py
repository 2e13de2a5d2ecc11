"""
## What it checks
Generation keeps the keys and values of the tokens so far. The check looks for `use_cache=False` at `generate()` or in
its config, for gradient checkpointing on a model that generates in train mode (transformers then drops the cache), and
for a loop that runs the whole sequence of a Hugging Face model again for each token.

## Why it hurts
Without the cache each new token costs a pass over all tokens before it: an answer of 1,000 tokens costs some 500 times
the attention and the layers. Rollouts are most of the time of a GRPO step; they become nearly all of it.

## How to fix it
    # before
    model.gradient_checkpointing_enable()
    model.train()
    ids = model.generate(prompts, do_sample=True)
    # after
    model.eval()
    ids = model.generate(prompts, do_sample=True, use_cache=True)
    model.train()

## When it is wrong
Very short answers cost little either way. A pass that scores whole sequences needs no cache, and is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.examples.scripts import GRPO, with_change
from assay.programs.edits import Spot
from assay.programs.facts.kinds import Kind
from assay.programs.facts.optimizer.modes import mode_at
from assay.programs.facts.origin import network, same_network
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.sight import sight
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import ancestors
from assay.verdict import Edit, Place, Severity, Verdict, finding, healthy

LEAST_PASSES = 4  # inside one generate(), or in one loop


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    for value in program.of("generate"):
        if value.input is None:
            continue
        found = _switched_off(program, value) or _checkpointing(program, value)
        if found is not None:
            yield finding(found[0], places=(found[1].place, value.place))
        else:
            yield healthy("generation may use its cache", places=(value.place,))
    for value in program.of("forward"):
        if value.setting("given_use_cache") is False and _grows(program, value):
            yield finding(
                f"`{value.place.text}` runs the whole sequence again for each token, with the cache off",
                places=(value.place,),
            )


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    for call in run.generations:
        if not run.models[call.model].can_cache or len(call.widths) < LEAST_PASSES:
            continue
        if all(after == before + 1 for before, after in pairwise(call.widths)):
            yield _without_cache(call.widths, call.value.place)
        else:
            yield healthy("generate() reads each token once")
    widths: list[int] = []
    for draw in run.samplings:
        forward = draw.forward
        seen = sight(forward.input_ids) if forward is not None else None
        if forward is None or seen is None or not run.models[forward.model].can_cache:
            continue
        widths = [*widths, seen.shape[-1]] if widths and seen.shape[-1] == widths[-1] + 1 else [seen.shape[-1]]
        if len(widths) >= LEAST_PASSES and not forward.caches:
            yield _without_cache(widths, forward.value.place)


def _switched_off(program: Program, call: Value) -> tuple[str, Value] | None:
    if call.setting("use_cache") is False:
        return f"`{call.place.text}` generates with use_cache=False: each token runs all tokens before it again", call
    config = call.argument("generation_config")
    if config is not None and config.op == "call" and config.setting("use_cache") is False:
        return f"`{call.place.text}` generates with a config that has use_cache=False", config
    changes = [value for value in program.of("setattr") if value.name == "use_cache" and value.input is not None]
    for change in changes if "use_cache" not in call.arguments else ():
        owner = change.arguments["input"]
        of_model = owner.op == "attribute" and owner.name == "generation_config" and _is_of(owner.input, call.input)
        if change.setting("value") is False and change.order < call.order and (owner is config or of_model):
            is_last = all(other.order <= change.order for other in changes)
            return (f"`{change.place.text}` switches the cache of generate() off", change) if is_last else None
    return None


def _is_of(owner: Value | None, model: Value | None) -> bool:
    return owner is not None and model is not None and same_network(owner, model)


def _checkpointing(program: Program, call: Value) -> tuple[str, Value] | None:
    assert call.input is not None
    on = [value for value in program.of("gradient_checkpointing_enable") if _is_of(value.input, call.input)]
    off = [value for value in program.of("method") if value.name == "gradient_checkpointing_disable"]
    if not on or off or on[0].order > call.order:
        return None
    training, since = mode_at(program, network(call.input), call)
    if training is True and since is not None:
        return f"`{call.place.text}` generates in train mode with gradient checkpointing: no cache is kept", since
    return None


def _grows(program: Program, call: Value) -> bool:
    """Whether the tokens that go in are those of the turn before and the one that was drawn of them."""
    if not call.context.loops:
        return False
    ids = call.argument("given_0") or call.argument("given_input_ids")
    if ids is None or ids.op != "phi" or ids.name != "turn":
        return False
    for value in list(ancestors(ids))[:60]:
        if value.op == "cat" and call.context.loops[-1] in value.context.loops:
            drawn = [part for part in ancestors(value) if program.kinds.is_a(part, Kind.SAMPLED)]
            if any(call in ancestors(part) for part in drawn[:8]):
                return True
    return False


def _without_cache(widths: Sequence[int], place: Place) -> Verdict:
    return finding(
        "each token that is drawn costs a pass over all tokens before it, without a cache: pass "
        f"{len(widths)} reads {widths[-1]}",
        places=(place,),
    )


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    for call in (spot, *others) if "generates" in verdict.message else ():
        given = call.argument("use_cache")
        yield given.becomes("True") if given is not None else None


ILLNESS = illness(
    __name__,
    code="PERF01",
    severity=Severity.WASTEFUL,
    summary="tokens are generated without a cache of keys and values",
    fix="Generate in eval mode with use_cache=True; gradient checkpointing and train mode are for the update only.",
    symptoms=(
        "generation is slow",
        "slow generation",
        "use_cache is off",
        "no KV cache",
        "generation takes hours",
    ),
    scripts=Scripts(sick=with_change("max_new_tokens=64)", "max_new_tokens=64, use_cache=False)"), well=GRPO),
)
