"""
## What it checks
A chat template that makes the prompt of a rollout must end with the words after which the assistant speaks:
apply_chat_template(..., add_generation_prompt=True). Its default is False.

## Why it hurts
Without them the policy continues the user's turn, or writes the header of its own turn token by token. Rewards are
near 0 for a reason that training first has to learn away, and what is trained differs from what is used later.

## How to fix it
    # before
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    # after
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

## When it is wrong
Templates of whole conversations (the last turn is the assistant's, or continue_final_message is set) need no such end
and are left alone. A few templates add it always.
"""

from __future__ import annotations

from collections.abc import Iterator

from assay.doctor.catalogue import Illness, Scripts
from assay.doctor.examples.scripts import GENERATE
from assay.programs.facts.sampling.prompts import prompts_of
from assay.programs.facts.sampling.scoring import ancestors_and_lists, made_of
from assay.programs.graph import UNKNOWN, Value
from assay.programs.program import Program
from assay.programs.read.things import Listing, Table
from assay.verdict import Confidence, Edit, Severity, Verdict, finding, healthy


def check_source(program: Program) -> Iterator[Verdict]:
    prompts = _behind_generation(program)
    for value in program.of("apply_chat_template"):
        added = value.setting("add_generation_prompt", False)
        role = _last_role(value)
        is_prompt = id(value) in prompts
        if "**" in value.arguments or added is UNKNOWN or "continue_final_message" in value.arguments:
            continue
        if role == "assistant" or (not is_prompt and (role != "user" or not prompts)):
            continue
        is_unsure = not role or not is_prompt
        if not added and (_is_conversation(value) or (is_unsure and _is_one_of_several(program, value))):
            continue
        if added:
            yield healthy("the prompt ends with the words after which the assistant speaks", places=(value.place,))
            continue
        said = (
            "add_generation_prompt=False" if "add_generation_prompt" in value.arguments else "no add_generation_prompt"
        )
        yield finding(
            f"apply_chat_template() makes the prompt of a rollout with {said}: the assistant's turn is not opened",
            confidence=Confidence.LIKELY if is_prompt or role == "user" else Confidence.POSSIBLE,
            places=(value.place,),
            edit=_edit(value),
        )


def _is_conversation(value: Value) -> bool:
    """prompt + completion"""
    messages = value.argument("1") or value.argument("conversation") or value.argument("messages")
    return messages is not None and messages.op == "add"


def _is_one_of_several(program: Program, value: Value) -> bool:
    """Whether another call in the same file says it: then this one may be of whole conversations."""
    others = [one for one in program.of("apply_chat_template") if one.place != value.place]
    return any("add_generation_prompt" in one.arguments for one in others if one.place.file == value.place.file)


def _edit(value: Value) -> Edit | None:
    given = value.given.get("add_generation_prompt")
    return Edit(given, "True", safe=True) if given is not None and given.text == "False" else None


def _behind_generation(program: Program) -> set[int]:
    """Ids of all values that a call of generate() is given, or tokens are drawn after, and of what these are made."""
    found: set[int] = set()
    for generate in program.of("generate"):
        given = [one for name, one in generate.arguments.items() if name != "input"]
        for one in given:
            found |= {id(value) for value in ancestors_and_lists(one)}
    for prompts in prompts_of(program):
        found |= {id(value) for value in made_of(prompts)}
    return found


def _last_role(value: Value) -> str:
    """The role of the last message, where the messages are written down."""
    messages = value.argument("1") or value.argument("conversation") or value.argument("messages")
    for _ in range(3):
        thing = messages.thing if messages is not None else None
        if not isinstance(thing, Listing) or not thing.elements:
            break
        messages = thing.elements[-1]
    if messages is None or not isinstance(messages.thing, Table):
        return ""
    role = messages.thing.entries.get("role")
    return role.constant if role is not None and isinstance(role.constant, str) else ""


SICK = GENERATE.replace("add_generation_prompt=True, ", "")

ILLNESS = Illness(
    code="ALGN08",
    name="no_generation_prompt",
    severity=Severity.HARMFUL,
    summary="the chat template is applied without the generation prompt, the words after which the assistant answers",
    fix="Pass add_generation_prompt=True where a prompt is made.",
    explanation=__doc__,
    symptoms=(
        "model continues the user's message",
        "add_generation_prompt is missing",
        "chat template without assistant turn",
        "model answers as the user",
    ),
    source=check_source,
    scripts=Scripts(SICK, GENERATE),
)
