"""Numbers of a script that steer its training, found by what they do: rates, coefficients, bounds, temperatures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.facts.loss.terms import Term, TermKind
from assay.programs.facts.optimizer.optimizers import Optimizer, optimizers
from assay.programs.facts.ratio import clamp_of
from assay.programs.facts.sampling.samplers import draws_behind
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import follow
from assay.verdict import Place

ADAPTIVE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "AdamW8bit", "Adam8bit", "PagedAdamW8bit", "Lion")
HIGHEST_RATE = 0.05
HIGHEST_RATE_OF_A_TABLE = 1.0  # a lone table of logits, which no other layer multiplies
HIGHEST_KL, HIGHEST_ENTROPY = 1.0, 0.2
HIGHEST_DECAY = 0.5
WIDEST_CLIP = 0.8
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.1, 2.0
RATES = ("the learning rate", "`learning_rate`")  # the names of settings that are rates
MULTIPLYING = ("ExponentialLR", "StepLR", "MultiStepLR")
_CONFIGS = ("GRPOConfig", "RLOOConfig", "PPOConfig", "OnlineDPOConfig", "ReinforceConfig")
_RANGES = {
    "learning_rate": (
        0.0,
        HIGHEST_RATE,
        "nothing is learned, or every weight is moved by about that much in each update",
    ),
    "beta": (-1e-9, HIGHEST_KL, "the KL outweighs the reward and holds the policy where it is"),
    "kl_coef": (-1e-9, HIGHEST_KL, "the KL outweighs the reward and holds the policy where it is"),
    "temperature": (LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE, "the answers of a group are nearly the same, or noise"),
}  # of a library's trainer: above, up to, and what happens outside
SHORTEST_SIGHT = 0.5  # gamma * lambda


@dataclass(frozen=True)
class Setting:
    """`reason`: what the value does to training; "" where it is usual."""

    name: str
    value: float
    places: tuple[Place, ...]
    reason: str = ""


def settings(program: Program) -> Iterator[Setting]:
    reported: set[tuple[str, Place]] = set()
    for value in _all(program):
        if (value.name, value.places[0]) not in reported:
            reported.add((value.name, value.places[0]))
            yield value


def _all(program: Program) -> Iterator[Setting]:
    yield from _of_optimizers(program)
    yield from _of_schedules(program)
    yield from _of_configs(program)
    for loss, terms in program.losses:
        if not any(term.is_policy for term in terms):
            continue
        for term in terms:
            yield from _of_term(term)
            yield from _of_clip(program, term)
        yield from _of_sampling(program, loss)
    yield from _of_returns(program)


def _of_optimizers(program: Program) -> Iterator[Setting]:
    rates_set = any(part.name == "lr" for part in program.of("setitem", "index"))  # group["lr"] = ...
    for optimizer in optimizers(program):
        if not optimizer.is_known or not optimizer.steps:
            continue
        value = optimizer.value
        rate = value.argument("lr")
        if rate is not None and (number := _number(rate)) is not None:
            places, is_adaptive = (value.place, rate.place), value.name in ADAPTIVE
            if number <= 0 and not rates_set and not program.of("scheduler"):
                yield Setting("the learning rate", number, places, "nothing is learned")
            elif number > (HIGHEST_RATE_OF_A_TABLE if _holds_a_table(optimizer) else HIGHEST_RATE) and is_adaptive:
                reason = f"{value.name} moves every weight by about that much in each update"
                yield Setting("the learning rate", number, places, reason)
            else:
                yield Setting("the learning rate", number, places)
        decay = value.argument("weight_decay")
        pulled = _number(decay) if value.name == "AdamW" else None
        if decay is not None and pulled is not None and pulled > HIGHEST_DECAY:
            yield Setting("the weight decay", pulled, (value.place, decay.place), "the weights are pulled to 0")


def _of_schedules(program: Program) -> Iterator[Setting]:
    """ExponentialLR(optimizer, gamma=1 / 0.95): what is multiplied again and again must not grow."""
    for schedule in program.of("scheduler"):
        given = schedule.argument("gamma")
        number = _number(given) if schedule.name.rpartition(".")[2] in MULTIPLYING else None
        if given is None or number is None:
            continue
        reason = (
            "the rate is multiplied by it again and again, and grows until it kills the policy" if number > 1 else ""
        )
        yield Setting("the factor of the learning rate", number, (schedule.place, given.place), reason)


def _holds_a_table(optimizer: Optimizer) -> bool:
    """Adam([torch.zeros(states, actions, requires_grad=True)]), or of a lone nn.Embedding."""
    if optimizer.networks is not None:
        return len(optimizer.networks) == 1 and optimizer.networks[0].name.rpartition(".")[2] == "Embedding"
    given = optimizer.value.argument("parameters")
    parts = list(given.arguments.values()) if given is not None and given.op == "listing" else []
    is_tensor = [part.name == "Parameter" or part.name.startswith("torch.") for part in parts]
    return is_tensor == [True]


def _of_configs(program: Program) -> Iterator[Setting]:
    """What a library's trainer is reported: GRPOConfig(beta=...)."""
    for config in program.of("call"):
        if config.name.rpartition(".")[2] not in _CONFIGS:
            continue
        for name, (low, high, reason) in _RANGES.items():
            given = config.argument(name)
            number = _number(given)
            if given is not None and number is not None and (name != "temperature" or number > 0):
                yield Setting(f"`{name}`", number, (given.place, config.place), "" if low < number <= high else reason)


def _number(value: Value | None) -> float | None:
    if value is None or isinstance(value.constant, bool) or not isinstance(value.constant, int | float):
        return None
    return float(value.constant)


def _of_term(term: Term) -> Iterator[Setting]:
    if term.kind not in (TermKind.KL, TermKind.ENTROPY):
        return
    numbers = [(factor, number) for factor in term.factors if (number := _number(factor)) is not None]
    if not numbers:
        return
    product = 1.0
    for _, number in numbers:
        product *= abs(number)
    places = (numbers[-1][0].place, term.core.place)
    if term.kind is TermKind.KL and term.estimator in ("k3", "k2", "abs", "full"):
        reason = "the KL outweighs the reward and holds the policy where it is" if product > HIGHEST_KL else ""
        yield Setting("the coefficient of the KL", product, places, reason)
    elif term.kind is TermKind.ENTROPY and term.sign < 0:
        reason = "the bonus outweighs the reward and makes the policy random" if product > HIGHEST_ENTROPY else ""
        yield Setting("the coefficient of the entropy", product, places, reason)


def _of_clip(program: Program, term: Term) -> Iterator[Setting]:
    if term.kind is not TermKind.SURROGATE:
        return
    for side in program.terms.products(term.core):
        clamp = clamp_of(side.ratio)
        low = _number(clamp.argument("min")) if clamp is not None else None
        high = _number(clamp.argument("max")) if clamp is not None else None
        if clamp is None or low is None or high is None or not 0 < low < 1 < high:
            continue
        reason = "hardly any ratio is ever clipped" if 1 - low >= WIDEST_CLIP and high - 1 >= WIDEST_CLIP else ""
        yield Setting("the clip range", 1 - low, (clamp.place,), reason)


def _of_sampling(program: Program, loss: Value) -> Iterator[Setting]:
    for drawing, _ in draws_behind(program, loss):
        value = drawing.argument("temperature") if drawing.op == "generate" else _divisor(drawing.input)
        number = _number(value)
        if value is None or number is None or number <= 0:
            continue
        reason = "the answers are mostly noise" if number > HIGHEST_TEMPERATURE else ""
        reason = "the answers of a group are nearly the same" if number < LOWEST_TEMPERATURE else reason
        yield Setting("the temperature", number, (drawing.place, value.place), reason)


def _divisor(weights: Value | None) -> Value | None:
    """What logits are divided by before their softmax."""

    def onward(one: Value) -> Value | None:
        if one.op == "categorical":
            return one.argument("logits") or one.argument("probs")
        shaped = ("softmax", "cast", "exp", "log_softmax", "index", "squeeze", "masked_fill")
        return one.input if one.op in shaped else None

    end = follow(weights, onward) if weights is not None else None
    return end.argument("other") if end is not None and end.op == "div" else None


def _of_returns(program: Program) -> Iterator[Setting]:
    """running = delta + gamma * lambda * running, of which advantages are made."""
    for value in program.of("mul"):
        first, second = value.input, value.argument("other")
        if id(value) not in program.policy_factor_ids or first is None or second is None:
            continue
        for factor, carried in ((first, second), (second, first)):
            number = _number(factor)
            if number is None or carried.op != "phi" or carried.name != "turn" or not 0 < number <= 1:
                continue
            if not any(user.op == "add" for user in value.users) or not _is_backwards(value):
                continue
            ahead = 1 / (1 - number) if number < 1 else float("inf")
            reason = f"a token is credited for the next {ahead:.2g} only" if number < SHORTEST_SIGHT else ""
            yield Setting("the discount of the advantages", number, (value.place, factor.place), reason)


def _is_backwards(value: Value) -> bool:
    source = value.context.loops[-1].source if value.context.loops else None
    if source is None:
        return False
    step = source.setting("step") if source.op == "range" else None
    return source.op == "reversed" or (isinstance(step, int) and step < 0)
