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

import ast
from collections.abc import Iterable, Iterator, Sequence

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.examples.scripts import with_change
from assay.programs.edits import Spot
from assay.programs.facts.optimizer.optimizers import optimizer_of, optimizers
from assay.programs.facts.optimizer.ownership import is_network, trained_networks
from assay.programs.facts.origin import network, same_network
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import ancestors
from assay.verdict import Edit, Severity, Verdict, finding, healthy

WRAPPERS = ("DistributedDataParallel", "DDP", "FSDP", "FullyShardedDataParallel")


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    wrappers = [value for value in program.of("wrapped") if value.name.rpartition(".")[2] in WRAPPERS]
    prepared = program.of("prepare")
    if not any(_averages_by_hand(call) for call in program.of("call", "method")):
        yield from _passes(program, wrappers, prepared)
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
    is_unknown = any(value.op in ("parameter", "element") for value in call.inputs)
    of_gradients = [value.op in ("parameters", "named_parameters") or value.name == "grad" for value in ancestors(call)]
    return is_unknown or any(of_gradients)


def _passes(program: Program, wrappers: list[Value], prepared: list[Value]) -> Iterator[Verdict]:
    for loss, _ in program.losses if wrappers or prepared else ():
        for call in program.origins.forwards(loss):
            if call.op != "forward" or call.context.no_grad:
                continue
            model = call.arguments["model"]
            what, outside = _bypass(call, model, wrappers, prepared)
            if what:
                first = call.context.calls[-1] if call.context.calls else call.place
                yield finding(what, places=(call.place, first, outside.place))
            elif any(same_network(model, wrapper) for wrapper in wrappers):
                yield healthy("the loss is computed through the wrapper", places=(call.place,))


def _bypass(call: Value, model: Value, wrappers: list[Value], prepared: list[Value]) -> tuple[str, Value]:
    """(what is wrong, the wrapper); "" if the call goes through it."""
    for option in [model, *(model.inputs if model.op == "phi" else ())]:
        for wrapper in wrappers:
            if option.op == "attribute" and option.name == "module" and _may_be(option.input, wrapper):
                return f"`{call.place.text}` computes the loss with the network inside of its wrapper", wrapper
            inner = wrapper.argument("0") or wrapper.argument("module")
            if option is model and inner is model and _is_certain(wrapper, call):
                return f"`{call.place.text}` computes the loss with the network beside its wrapper", wrapper
    if model.op == "wrapped" and model.name == "unwrap_model":
        for preparation in prepared:
            if _has_network(preparation.inputs, model):
                return f"`{call.place.text}` computes the loss with the unwrapped network", preparation
    return "", call


def _may_be(value: Value | None, wrapper: Value) -> bool:
    options = value.inputs if value is not None and value.op == "phi" else [value]
    return any(option is wrapper for option in options)


def _has_network(values: Iterable[Value], model: Value) -> bool:
    return any(is_network(network(value)) and same_network(value, model) for value in values)


def _is_certain(wrapper: Value, call: Value) -> bool:
    sides = {(branch.place, branch.side) for branch in call.context.branches}
    is_before = wrapper.order < call.order
    return is_before and all((branch.place, branch.side) in sides for branch in wrapper.context.branches)


def _left_out(program: Program, prepared: list[Value]) -> Iterator[Verdict]:
    """accelerate prepared the optimizer and not the network."""
    given = [value for call in prepared for name, value in call.arguments.items() if name != "engine"]
    if any(value.op in ("starred", "parameter", "call", "method") for value in given):
        return
    used = [model for loss, _ in program.losses for model in trained_networks(program, loss) or ()]
    for optimizer in optimizers(program):
        if not any(optimizer_of(value) is optimizer.value for value in given):
            continue
        for model in optimizer.networks or ():
            is_used = is_network(network(model)) and any(same_network(model, other) for other in used)
            if is_used and not _has_network(given, model):
                yield finding(
                    f"accelerate prepares {optimizer.value.shown} and not {network(model).shown}: on several processes "
                    "its gradients are not averaged",
                    places=(prepared[0].place, network(model).place),
                )


WELL = with_change(
    "optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)\n",
    "wrapped = torch.nn.parallel.DistributedDataParallel(policy)\n"
    "optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-6)\n",
).replace("        new = score(policy, ids", "        new = score(wrapped, ids")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The wrapper in place of what is inside of it."""
    for part in (spot, *others[:1]):
        inside = [inner for found in part.parts(1) for inner in found.all(ast.Attribute)]
        for inner in inside:
            if inner.node.attr == "module":
                is_forward = isinstance(inner.parent.node, ast.Attribute) and inner.parent.node.attr == "forward"
                end = (inner.parent if is_forward else inner).span[2:]
                yield inner.text.edit((*inner.child(inner.node.value).span[2:], *end), "")
    wrapped = others[-1] if others else None
    target = wrapped.statement.node.targets[0] if wrapped and isinstance(wrapped.statement.node, ast.Assign) else None
    if isinstance(target, ast.Name) and wrapped is not None and wrapped.receiver is not None:
        for name in others[0].all(ast.Name):
            yield name.becomes(target.id) if name.source == wrapped.receiver.source else None


ILLNESS = illness(
    __name__,
    code="OPT03",
    severity=Severity.FATAL,
    summary="the loss is computed with the network inside of its distributed wrapper",
    fix="Call the wrapper in the pass that is differentiated; use the network inside for sampling only.",
    symptoms=(
        "ranks diverge",
        "DDP does not sync gradients",
        "each GPU learns its own model",
        "multi-GPU gives other results than one GPU",
        "model.module is used in the loss",
    ),
    scripts=Scripts(sick=WELL.replace("new = score(wrapped, ids", "new = score(wrapped.module, ids"), well=WELL),
)
