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

from collections.abc import Iterator, Sequence

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import GENERATE
from assay.programs.edits import Spot
from assay.programs.facts.sampling.prompts import prompts_of
from assay.programs.facts.sampling.scoring import ancestors_and_lists, made_of
from assay.programs.graph import UNKNOWN, Value
from assay.programs.program import Program
from assay.programs.read.things import Listing, Table
from assay.verdict import Confidence, Edit, Fact, Missing, Severity, Verdict, finding, healthy

TURNS = (  # words that open the user's turn, and the assistant's
    ("<|im_start|>user", "<|im_start|>assistant"),
    ("<|start_header_id|>user<|end_header_id|>", "<|start_header_id|>assistant<|end_header_id|>"),
    ("<start_of_turn>user", "<start_of_turn>model"),
    ("<|user|>", "<|assistant|>"),
)


def check_batch(batch: Batch) -> Verdict:
    prompts = batch.texts.get("prompt", ())
    closed = [prompt for prompt in prompts if any(prompt.rfind(user) > prompt.rfind(own) for user, own in TURNS)]
    is_chat = bool(closed) or any(own in prompt for prompt in prompts for _, own in TURNS)
    if "prompts_left_open" not in batch.numbers and not is_chat:
        raise Missing("prompts_left_open")
    left_open = int(batch.numbers.get("prompts_left_open", len(closed)))
    fact = Fact("chat prompts without the words after which the assistant speaks", left_open, 0, batch.step)
    if not left_open:
        return healthy("chat prompts end where the assistant speaks", fact)
    return finding(
        f"{left_open} prompts are made by the chat template and end before the assistant's turn",
        fact,
        confidence=Confidence.LIKELY,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    prompts = _behind_generation(program)
    for value in program.of("apply_chat_template"):
        added = value.setting("add_generation_prompt", False)
        role = _last_role(value)
        is_prompt = value in prompts
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
        is_given = "add_generation_prompt" in value.arguments
        said = "add_generation_prompt=False" if is_given else "no add_generation_prompt"
        yield finding(
            f"apply_chat_template() makes the prompt of a rollout with {said}: the assistant's turn is not opened",
            confidence=Confidence.LIKELY if is_prompt or role == "user" else Confidence.POSSIBLE,
            places=(value.place,),
        )


def _is_conversation(value: Value) -> bool:
    """prompt + completion"""
    messages = _messages(value)
    return messages is not None and messages.op == "add"


def _messages(value: Value) -> Value | None:
    return value.argument("1") or value.argument("conversation") or value.argument("messages")


def _is_one_of_several(program: Program, value: Value) -> bool:
    """Whether another call in the same file says it: then this one may be of whole conversations."""
    calls = [call for call in program.of("apply_chat_template") if call.place.file == value.place.file]
    return any("add_generation_prompt" in call.arguments for call in calls if call.place != value.place)


def _behind_generation(program: Program) -> set[Value]:
    """All values that a call of generate() is given, or tokens are drawn after, and of what these are made."""
    calls = program.of("generate")
    given = [argument for call in calls for name, argument in call.arguments.items() if name != "input"]
    found = {value for argument in given for value in ancestors_and_lists(argument)}
    return found | {value for prompts in prompts_of(program) for value in made_of(prompts)}


def _last_role(value: Value) -> str:
    """The role of the last message, where the messages are written down."""
    messages = _messages(value)
    thing = messages.thing if messages is not None else None
    while isinstance(thing, Listing) and thing.elements:  # one conversation, or several
        thing = thing.elements[-1].thing
    role = thing.entries.get("role") if isinstance(thing, Table) else None
    return role.constant if role is not None and isinstance(role.constant, str) else ""


SICK = GENERATE.replace("add_generation_prompt=True, ", "")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    yield spot.set_argument("add_generation_prompt", None, "True")


ILLNESS = illness(
    __name__,
    code="ALGN08",
    severity=Severity.HARMFUL,
    summary="the chat template is applied without the generation prompt, the words after which the assistant answers",
    fix="Pass add_generation_prompt=True where a prompt is made.",
    symptoms=(
        "model continues the user's message",
        "add_generation_prompt is missing",
        "chat template without assistant turn",
        "model answers as the user",
    ),
    sick=lambda: of_batch(edit_batch(healthy_batch(), prompts_left_open=8)),
    well=lambda: of_batch(edit_batch(healthy_batch(), prompts_left_open=0)),
    scripts=Scripts(SICK, GENERATE),
)
