"""What a policy over a few actions was given: the state, as a tensor or as rows of a table that it picks."""

from __future__ import annotations

import numpy as np

from assay.programs.graph import RESHAPES, Value
from assay.programs.run.kinds import DRAWS, RunKinds, above
from assay.programs.run.readings import follows_reading
from assay.programs.run.roles import LossPiece
from assay.programs.run.sight import numbers_of, sight
from assay.programs.walk import main_input, walk
from assay.record.batch import Array

_MOVED = RESHAPES | {"cast", "detach", "index", "expand"}


def states_of(made: Value, kinds: RunKinds) -> Value | None:
    """What the policy was given: the one tensor beside parameters that its logits were made of; None if not known."""
    found = [value for value in _given_to_policy(made, kinds) if (seen := sight(value)) and seen.is_floating]
    return found[0] if len(found) == 1 else None


def state_numbers(made: Value, kinds: RunKinds) -> Array | None:
    """The same as numbers, [..., S]; states may also be rows of a table that they pick, table[day, room]."""
    states = states_of(made, kinds)
    if states is not None:
        return numbers_of(states)
    found = [numbers_of(value) for value in _given_to_policy(made, kinds)]
    known = [numbers for numbers in found if numbers is not None and numbers.dtype.kind in "iu"]
    if not known or len(known) < len(found) or len({numbers.shape for numbers in known}) > 1:
        return None
    return np.stack(known, axis=-1)


def _given_to_policy(made: Value, kinds: RunKinds) -> list[Value]:
    """Tensors beside parameters that the logits were made of."""
    found: dict[int, Value] = {}
    start = made.input if made.op in DRAWS and made.input is not None else made
    if kinds.learned_in(start) is None:
        return []
    for value in walk(start, until=lambda part: kinds.learned_in(part) is None):
        is_other = kinds.learned_in(value) is None and id(value) not in kinds.parameters and value.op not in DRAWS
        seen = sight(value)
        if is_other and seen is not None and seen.size > 1 and (seen.is_floating or seen.dtype in ("int64", "int32")):
            found[id(value)] = value
    return list(found.values())


def states_one_by_one(logprobs: Value) -> Array | None:
    """The ids of the states whose log-probs were put together, where a pass was given each of them alone."""
    tensors = logprobs.arguments.get("tensors")
    passes = [
        next((made for made in above(part) if made.op == "forward"), None)
        for part in (tensors.arguments.values() if tensors is not None else ())
    ]
    given = [numbers_of(made.arguments.get("input_ids")) for made in passes if made is not None]
    states = [ids for ids in given if ids is not None and ids.shape == (1,)]
    return np.concatenate(states) if states and len(states) == len(passes) else None


def is_of_states(piece: LossPiece) -> bool:
    """The policy was given no ids, or ids of states: what was chosen is not a part of what was given."""
    given = numbers_of(piece.forward.input_ids)
    if given is None:
        return piece.forward.input_ids is None
    if given.shape == (1,) and piece.ids.ndim == 1 and piece.new.op in ("stack", "cat"):
        given = states_one_by_one(piece.new)  # a pass for each action
    elif piece.forward.value.op != "forward" and not (given.ndim == 1 and piece.ids.ndim == 1):
        return not follows_reading(given, piece.ids)
    if given is None or given.ndim != 1 or piece.ids.shape != given.shape or len(given) < 2:
        return False
    return not np.array_equal(given[1:], piece.ids[:-1])


def normaliser_of(value: Value) -> Value | None:
    """Of logits - logits.logsumexp()."""
    other = value.arguments.get("other")
    chain = walk(other, main_input, until=lambda made: made.op not in _MOVED) if other is not None else ()
    return next((made for made in chain if made.op == "logsumexp"), None)
