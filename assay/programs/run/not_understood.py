"""Which part of a watched run was not understood, and where: sentences for its user."""

from __future__ import annotations

from collections.abc import Iterator

from assay.programs.facts.kinds import Kind
from assay.programs.graph import Value
from assay.programs.run.kinds import RunKinds
from assay.programs.run.roles import Flow, LossPiece, flows
from assay.programs.run.sight import requires_grad
from assay.programs.run.watched import WatchedRun, WatchedUpdate
from assay.programs.walk import walk

DEEPEST = 6  # operations of a loss that are named
_QUIET = frozenset("element listing attribute cast clone detach view reshape squeeze unsqueeze changed".split())


def not_understood(run: WatchedRun) -> list[str]:
    """One sentence for each place, in the order in which the script came there."""
    found: dict[str, None] = {}
    for backward, flow in flows(run):
        if not backward.pieces:
            found.setdefault(_of_a_loss(flow, run.kinds))
        for piece in backward.pieces:
            found.update(dict.fromkeys(_of_a_piece(piece)))
    for update in run.updates:
        if update.pieces and update.unknown_rows is not None:
            found.setdefault(_of_rows(run, update, *update.unknown_rows))
    return list(found)


def _of_a_loss(flow: Flow, kinds: RunKinds) -> str:
    loss = flow.loss
    begin = f"the loss at {loss.place} was not understood: no log-probs of sampled tokens or actions were found in it; "
    made = f"it is {_formula(loss)}"
    if not requires_grad(loss):
        return f"{begin}{made}, and has no gradient"
    if flow.finals:
        final = flow.finals[-1]
        return f"{begin}of which tokens the log-probs at {final.place} are is not known"
    last = _last_known(flow, kinds)
    if last is None:
        return f"{begin}{made}, and no logits of a model were recognised behind it"
    value, user = last
    return f"{begin}{made}; {kinds.of(value)} at {value.place} go into {user.op}() at {user.place}, and are lost there"


def _formula(value: Value) -> str:
    """mean(mul(neg(...)))"""
    names: list[str] = []
    for made in walk(value, lambda made: [part for part in made.arguments.values() if requires_grad(part)][:1]):
        if made.op not in _QUIET:
            names.append(made.op)
        if len(names) == DEEPEST:
            break
    return "(".join([*names, "..."]) + ")" * len(names)


def _last_known(flow: Flow, kinds: RunKinds) -> tuple[Value, Value] | None:
    """The last value of a known kind on the way to the loss, and what was made of it that has none."""
    for value in reversed(flow.values):
        if requires_grad(value) and isinstance(kinds.of(value), Kind):
            lost = [user for user in flow.users(value) if kinds.of(user) is None]
            if lost:
                return value, lost[0]
    return None


def _of_a_piece(piece: LossPiece) -> Iterator[str]:
    where = f"the log-probs at {piece.new.place}"
    if piece.advantages is None and "advantages" not in piece.unsure:
        yield f"no advantages were found that weigh {where}: checks of advantages and rewards were not asked"
    elif "advantages" in piece.unsure:
        yield f"what weighs {where} is not sure to be advantages: checks of advantages and rewards were not asked"
    if "old" in piece.unsure:
        yield f"{where} are compared with several others: which of them are old ones is not known"


def _of_rows(run: WatchedRun, update: WatchedUpdate, unknown: int, rows: int) -> str:
    begin = (
        f"{unknown} of {rows} rows whose log-probs are taken at {update.pieces[0].new.place} are not known as sampled"
    )
    if not run.generations and not run.samplings:
        return f"{begin}: no generate() and no draw was seen; another process, an engine or a file may have made them"
    return f"{begin}: no row that was seen to be drawn stands there as it was drawn"
