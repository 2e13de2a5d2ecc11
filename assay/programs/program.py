"""A program: its graph of values, and the facts that every check asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from assay.programs.facts.kinds import Kinds
from assay.programs.facts.loss.terms import Term, Terms
from assay.programs.facts.origin import Origins
from assay.programs.graph import Graph, Value
from assay.programs.read.things import Module
from assay.programs.walk import walk
from assay.verdict import Place


@dataclass(frozen=True)
class Ignore:
    """A comment `# assay: ignore[CODE] reason`; no codes means all of them."""

    place: Place
    codes: frozenset[str]  # or names, in capitals: RAT04, RATIO_FORM
    reason: str
    is_for_below: bool = False  # it ends no statement, so it may speak of the next line


@dataclass
class Program:
    """What a script does, as far as its text says. `values` are in the order in which they are made."""

    path: str
    graph: Graph
    files: tuple[str, ...]
    lines: int
    notes: tuple[str, ...] = ()
    ignores: tuple[Ignore, ...] = ()
    callers: frozenset[str] = frozenset()  # files that lead to the script; what is wrong there is not its own
    used_ignores: set[Ignore] = field(default_factory=set)
    silenced: dict[tuple[str, Place], Ignore] = field(default_factory=dict)  # by code and place, and who asked
    modules: tuple[Module, ...] = ()  # the files as text
    find_module: Callable[..., Module | None] = field(default=lambda name, importer, part="": None, repr=False)
    computed: dict[Callable[..., Any], Any] = field(default_factory=dict)  # see `once`

    @property
    def values(self) -> list[Value]:
        return self.graph.values

    def of(self, *ops: str) -> list[Value]:
        return self.graph.of(*ops)

    def ignores_at(self, place: Place, code: str, name: str = "") -> bool:
        """Whether a comment on the lines of the expression, or above it, asks to ignore a code or its name there."""
        asked = [
            ignore
            for ignore in self.ignores
            if ignore.place.file == place.file
            and place.line - ignore.is_for_below <= ignore.place.line <= max(place.end_line, place.line)
            and (not ignore.codes or not ignore.codes.isdisjoint((code, name.upper())))
        ]
        self.used_ignores.update(asked)
        if asked:
            self.silenced[code, place] = asked[0]
        return bool(asked)

    @cached_property
    def is_training(self) -> bool:
        """Whether a loss, an optimizer or sampling was recognised."""
        return bool(self.of("backward", "optimizer", "step", "generate", "multinomial", "sample"))

    @cached_property
    def kinds(self) -> Kinds:
        return Kinds(self.graph)

    @cached_property
    def origins(self) -> Origins:
        return Origins(self.graph, self.kinds)

    @cached_property
    def terms(self) -> Terms:
        return Terms(self.kinds, self.origins)

    @cached_property
    def losses(self) -> list[tuple[Value, list[Term]]]:
        """Each loss that is differentiated, and its terms."""
        found: dict[int, Value] = {}
        for backward in self.of("backward"):
            if backward.input is not None:
                found.setdefault(id(backward.input), backward.input)
        return [(loss, self.terms.of(loss)) for loss in found.values()]

    @cached_property
    def policy_factor_ids(self) -> frozenset[int]:
        """id() of all values that become a factor of a policy term: advantages and what they are made of."""
        policy = [term for _, terms in self.losses for term in terms if term.is_policy]
        factors = [factor for term in policy for factor in self.terms.factors(term)]
        ends = ("forward", "generate", "multinomial")
        behind = walk(factors, until=lambda value: value.op in ends)
        return frozenset(id(value) for value in behind if value.op not in ends)
