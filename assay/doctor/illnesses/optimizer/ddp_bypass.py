"""
## What it checks
The forward pass of the loss goes through the wrapper (DistributedDataParallel, FSDP, what accelerate's `prepare`
returns), not through the network inside of it.

## Why it hurts
The wrapper averages gradients over all processes by hooks of its own forward. A loss that is computed with
`model.module`, or with the network that was kept beside its wrapper, gets each process's own gradient: every process
trains a network of its own, and no error says so. With one process nothing differs.

## How to fix it
    # before
    logits = model.module(ids).logits
    # after
    logits = model(ids).logits

## When it is wrong
Sampling and scoring without gradients may use the network inside. A script that averages its gradients by hand
(`all_reduce`) is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from assay.doctor.catalogue import Illness, Scripts
from assay.doctor.examples.scripts import changed
from assay.programs.facts.optimizer.optimizers import optimizer_of, optimizers
from assay.programs.facts.optimizer.ownership import is_network, trained_networks
from assay.programs.facts.origin import network, same_network
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import ancestors
from assay.verdict import Confidence, Place, Severity, Verdict, finding, healthy

WRAPPERS = ("DistributedDataParallel", "DDP", "FSDP", "FullyShardedDataParallel")


def check_source(program: Program) -> Iterator[Verdict]:
    wrappers = [one for one in program.of("wrapped") if one.name.rpartition(".")[2] in WRAPPERS]
    prepared = program.of("prepare")
    if any(_averages_by_hand(one) for one in program.of("call", "method")):
        return
    told: set[Place] = set()
    for loss, _ in program.losses if wrappers or prepared else ():
        for call in program.origins.forwards(loss):
            if call.op != "forward" or call.context.no_grad or call.place in told:
                continue
            model = call.arguments["model"]
            what, outside = _bypassed(call, model, wrappers, prepared)
            if what:
                told.add(call.place)
                first = call.context.calls[-1] if call.context.calls else call.place
                yield finding(what, confidence=Confidence.LIKELY, places=(call.place, first, outside.place))
            elif any(same_network(model, one) for one in wrappers):
                told.add(call.place)
                yield healthy("the loss is computed through the wrapper", places=(call.place,))
    yield from _left_out(program, prepared)


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    for bypass in run.gradients.bypasses:
        yield finding(
            f"the gradients of {bypass.module} were made without a pass through {bypass.wrapper}: they are not "
            "averaged over the processes",
            places=(bypass.place,) if bypass.made_at is None else (bypass.made_at, bypass.place),
        )
    if run.gradients.is_wrapped:
        yield healthy("gradients come from passes through the wrapper")


def _averages_by_hand(call: Value) -> bool:
    """all_reduce(p.grad), or of what gradients were gathered in; a sum of numbers for a log is another thing."""
    if not call.name.rpartition(".")[2].startswith("all_reduce"):
        return False
    unknown = any(one.op in ("parameter", "element") for one in call.inputs)
    return unknown or any(one.op in ("parameters", "named_parameters") or one.name == "grad" for one in ancestors(call))


def _bypassed(call: Value, model: Value, wrappers: list[Value], prepared: list[Value]) -> tuple[str, Value]:
    """(what is wrong, the wrapper); "" if the call goes through it."""
    for option in [model, *(model.inputs if model.op == "phi" else ())]:
        for wrapper in wrappers:
            if option.op == "attribute" and option.name == "module" and _is(option.input, wrapper):
                return f"`{call.place.text}` computes the loss with the network inside of its wrapper", wrapper
            inner = wrapper.argument("0") or wrapper.argument("module")
            if option is model and inner is model and _is_certain(wrapper, call):
                return f"`{call.place.text}` computes the loss with the network beside its wrapper", wrapper
        if option is model and option.op == "wrapped" and option.name == "unwrap_model":
            for one in prepared:
                if any(is_network(network(given)) and same_network(given, model) for given in one.inputs):
                    return f"`{call.place.text}` computes the loss with the unwrapped network", one
    return "", call


def _is(value: Value | None, wrapper: Value) -> bool:
    if value is not None and value.op == "phi":
        return any(one is wrapper for one in value.inputs)
    return value is wrapper


def _is_certain(wrapper: Value, call: Value) -> bool:
    sides = {(one.place, one.side) for one in call.context.branches}
    return wrapper.order < call.order and all((one.place, one.side) in sides for one in wrapper.context.branches)


def _left_out(program: Program, prepared: list[Value]) -> Iterator[Verdict]:
    """accelerate prepared the optimizer and not the network."""
    given = [value for one in prepared for name, value in one.arguments.items() if name != "engine"]
    if any(one.op in ("starred", "parameter", "call", "method") for one in given):
        return
    for optimizer in optimizers(program):
        if not optimizer.networks or not any(optimizer_of(one) is optimizer.value for one in given):
            continue
        used = [model for loss, _ in program.losses for model in trained_networks(program, loss) or ()]
        for model in optimizer.networks:
            known = is_network(network(model)) and any(same_network(model, one) for one in used)
            if known and not any(is_network(network(one)) and same_network(one, model) for one in given):
                yield finding(
                    f"accelerate prepares {optimizer.value.shown} and not {network(model).shown}: on several processes "
                    "its gradients are not averaged",
                    confidence=Confidence.LIKELY,
                    places=(prepared[0].place, network(model).place),
                )


WELL = changed(
    "optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)\n",
    "wrapped = torch.nn.parallel.DistributedDataParallel(policy)\n"
    "optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-6)\n",
).replace("        new = score(policy, ids", "        new = score(wrapped, ids")


ILLNESS = Illness(
    code="OPT03",
    name="ddp_bypass",
    severity=Severity.FATAL,
    summary="the loss is computed with the network inside of its distributed wrapper",
    fix="Call the wrapper in the pass that is differentiated; use the network inside for sampling only.",
    explanation=__doc__,
    symptoms=(
        "ranks diverge",
        "DDP does not sync gradients",
        "each GPU learns its own model",
        "multi-GPU gives other results than one GPU",
        "model.module is used in the loss",
    ),
    run=check_run,
    source=check_source,
    scripts=Scripts(sick=WELL.replace("new = score(wrapped, ids", "new = score(wrapped.module, ids"), well=WELL),
)
