"""What a finding in the numbers of a rehearsal depends on. What a stand-in could have caused is not reported.

A check of a run judges numbers. Some follow from the script's lines whatever flows through them: the sign of a loss,
the direction of a ratio, the positions of a mask, the axis of a group, ids that are tokenized again. Others follow from
the weights, the rows or the rewards: how often an answer is right, how long it is, how far a step moves a model. A code
that is not listed here is of the first sort. What was read in the text stays, as sure as a text can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from assay.doctor.diagnosis import Word
from assay.rehearsal.stage import Kind
from assay.verdict import Confidence, State

_VALUES: tuple[Kind, ...] = ("data", "rewards", "weights", "sizes")

DEPENDS: Mapping[str, tuple[Kind, ...]] = {
    # the engine's sampling and its log-probs, and whether it knew all ways to give it new weights
    "LAW09": ("engine", "processes"),
    "SYNC01": ("engine", "processes"),
    "SAMP05": ("engine",),
    "SAMP06": ("engine", "device", "weights"),
    "ALGN09": ("engine",),
    "RAT05": ("engine", "processes"),
    # two names are two made checkpoints, though the real ones may be the same model
    "LAW08": ("weights",),
    "KL05": ("weights",),
    # rows of data: how long a prompt is, which ones repeat
    "LAW11": ("data",),
    "ALGN07": ("data", "sizes"),
    # rewards that were made to differ after the script computed them
    "LAW10": ("rewards",),
    "ADV10": ("rewards",),
    # an update of equal rewards moves nothing, and the ratio stays at 1
    "RAT02": ("rewards",),
    "REW01": _VALUES,
    "ADV09": _VALUES,
    "LOSS05": _VALUES,
    # completions are cut after a few tokens, and a random model ends where it likes
    "MASK06": ("sizes", "data", "weights"),
    "MET03": ("sizes", "weights"),
    # scale of the weights, and how far a step moves a small random model
    "OPT01": ("weights",),
    "RAT07": ("weights",),
    "HYP01": _VALUES,
    "MET01": _VALUES,
    "MET02": _VALUES,
    "MET04": _VALUES,
    "MET05": _VALUES,
    "MET07": _VALUES,
    "MET08": _VALUES,
    # arithmetic of a CPU, and its autocast, which is not CUDA's
    "NUM01": ("device",),
    "NUM02": ("device", "engine"),
    "NUM03": ("weights", "device", "rewards"),
    "PERF03": ("sizes", "weights", "device", "engine"),
}
# their evidence comes from a device only where the script asks for autocast
_OF_AUTOCAST = ("NUM01", "NUM02")
# in 16 bits a small step of a small model is rounded away
_OF_ROUNDING: Mapping[str, tuple[Kind, ...]] = {"RAT02": ("weights",), "OPT02": ("weights",)}


def doubts(code: str, replaced: Iterable[Kind], *, autocast: bool, rounds: bool) -> tuple[Kind, ...]:
    """What the code depends on and was replaced: () means that its numbers are the script's. `rounds`: something of the
    policy is computed in 16 bits."""
    depends: tuple[Kind, ...] = DEPENDS.get(code, ()) + (_OF_ROUNDING.get(code, ()) if rounds else ())
    if code in _OF_AUTOCAST and not autocast:
        depends = tuple(kind for kind in depends if kind != "device")
    known = set(replaced)
    return tuple(kind for kind in depends if kind in known)


def lowered(words: Sequence[Word], causes: Mapping[str, str]) -> tuple[Word, ...]:
    """A law says that something is wrong and not what. Where an illness explains it, or where it is only likely, it is
    a note in a rehearsal: numbers of small random models break laws by accident more often than those of real ones."""
    return tuple(
        replace(word, verdict=replace(word.verdict, confidence=Confidence.POSSIBLE))
        if word.illness.explained_by
        and word.verdict.state is State.FINDING
        and (word.code in causes or word.confidence is not Confidence.PROVEN)
        else word
        for word in words
    )


def words_on(kinds: Iterable[Kind]) -> str:
    named: Mapping[Kind, str] = {
        "data": "rows of data",
        "rewards": "rewards",
        "sizes": "sizes",
        "weights": "weights",
        "device": "the device",
        "engine": "the engine",
        "processes": "processes",
        "files": "files",
        "service": "services",
    }
    return " and ".join(named[kind] for kind in kinds)
