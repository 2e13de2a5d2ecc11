"""Who draws the tokens that are trained on, and with which settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from assay.programs.facts.kinds import Kind, takes_best
from assay.programs.facts.origin import network, same_network
from assay.programs.facts.sampling.scoring import DRAWS, Scoring, is_off, made_of, number_of, scorings
from assay.programs.facts.sampling.tokens import encoding_behind
from assay.programs.graph import UNKNOWN, Value
from assay.programs.program import Program
from assay.programs.walk import walk

_HF = frozenset("max_new_tokens attention_mask input_ids pad_token_id generation_config do_sample max_length".split())
_OF_SCORES = ("add", "sub", "mul", "div", "log", "neg", "cast", "softmax", "log_softmax", "method", "phi", "clamp")
_NOISE = ("rand", "uniform", "gumbel", "exponential")
OFF: dict[str, tuple[object, ...]] = {
    "top_k": (0, -1, None),
    "top_p": (1, 1.0, None),
    "min_p": (0, 0.0, None),
    "typical_p": (1, 1.0, None),
    "epsilon_cutoff": (0, 0.0, None),
    "eta_cutoff": (0, 0.0, None),
    "repetition_penalty": (1, 1.0, None),
    "presence_penalty": (0, 0.0, None),
    "frequency_penalty": (0, 0.0, None),
    "no_repeat_ngram_size": (0, None),
}


@dataclass
class Settings:
    """The settings of a call of generate(). `is_open`: there are more that the text does not show."""

    given: dict[str, Value] = field(default_factory=dict)
    inherited: dict[str, Value] = field(default_factory=dict)  # what the script wrote into the model's own config
    is_open: bool = False
    engine: str = ""  # transformers, vllm, "": not known
    config: Value | None = None  # the GenerationConfig or SamplingParams

    def number(self, name: str) -> float | None:
        return number_of(self.given[name]) if name in self.given else None

    def truncation(self) -> dict[str, Value]:
        """Settings that take tokens away or reweigh them, with a number in the text."""
        found = {}
        for name, off in OFF.items():
            value = self.given.get(name)
            constant = value.constant if value is not None else None
            if value is not None and value.op == "parameter":
                constant = number_of(value)
            if value is not None and isinstance(constant, int | float) and constant not in off:
                found[name] = value
        return found


def settings_of(program: Program, generate: Value) -> Settings:
    """The settings of a call of generate(): its keywords before those of the config it is given."""
    settings = Settings()
    keywords = {name: part for name, part in generate.arguments.items() if not name.isdigit() and name != "input"}
    settings.is_open = "**" in keywords and encoding_behind(keywords["**"]) is None
    config = keywords.get("generation_config") or keywords.get("sampling_params")
    if config is None:
        config = next((part for part in generate.inputs if _config_name(part)), None)
    base = network(generate.input) if generate.input is not None else None
    if config is None and base is not None:
        config = _assigned_config(program, generate, base)
    if config is not None:
        settings.config = config
        _read_config(program, settings, config)
    if base is not None and base.op in ("pretrained", "wrapped", "deepcopy"):
        for value in program.of("setattr"):
            holder = value.input
            if holder is None or holder.op != "attribute" or holder.name != "generation_config":
                continue
            if holder.input is not None and same_network(holder.input, base):
                settings.inherited[value.name] = value.arguments["value"]
    settings.given |= {name: keyword for name, keyword in keywords.items() if name not in ("**", "generation_config")}
    is_library = generate.name == "generate"  # not a function of that work which was not read
    if settings.engine == "" and is_library and (_HF & set(keywords) or (base is not None and base.op == "pretrained")):
        settings.engine = "transformers"
    return settings


def _assigned_config(program: Program, generate: Value, base: Value) -> Value | None:
    """model.generation_config = GenerationConfig(...): the last one before the call, for all calls."""
    for value in reversed(program.of("setattr")):
        is_earlier = value.name == "generation_config" and value.order < generate.order and not value.context.branches
        if is_earlier and value.input is not None and same_network(value.input, base):
            return value.arguments["value"]
    return None


def _config_name(value: Value) -> str:
    last = value.name.rpartition(".")[2]
    return last if value.op == "call" and last in ("GenerationConfig", "SamplingParams") else ""


def _read_config(program: Program, settings: Settings, config: Value) -> None:
    name = _config_name(config)
    if config.op == "phi":
        settings.is_open = True
        return
    if name:
        settings.engine = "vllm" if name == "SamplingParams" else "transformers"
        settings.given |= {key: part for key, part in config.arguments.items() if not key.isdigit() and key != "**"}
        settings.is_open |= "**" in config.arguments
    elif config.op == "attribute" and config.name == "generation_config":
        settings.engine = "transformers"
    elif config.op == "call" and config.name.endswith("GenerationConfig"):
        settings.engine = "transformers"  # GenerationConfig.from_pretrained(...)
        settings.given |= {key: part for key, part in config.arguments.items() if not key.isdigit() and key != "**"}
    else:
        settings.is_open = True
    for value in program.of("setattr", "update"):
        if value.input is not config:
            continue
        if value.op == "setattr":
            known = settings.given if config.op != "attribute" else settings.inherited
            known[value.name] = value.arguments["value"]
        else:
            settings.given |= {
                key: part for key, part in value.arguments.items() if key not in ("input", "**") and not key.isdigit()
            }
            settings.is_open |= "**" in value.arguments


def draws(program: Program) -> list[Value]:
    """All places where tokens are chosen: calls of generate(), draws from weights, the likeliest token."""
    found = [part for part in program.of(*DRAWS) if part.op == "generate" or program.kinds.is_a(part, Kind.SAMPLED)]
    for value in program.of("attribute", "index"):  # probs.max(-1).indices, distribution.mode
        is_best = value.input is not None and takes_best(value.input)
        if (is_best or value.name == "mode") and program.kinds.is_a(value, Kind.SAMPLED):
            found.append(value)
    return [part for part in found if not is_off(part)]


def is_greedy(draw: Value) -> bool:
    """Whether it takes the likeliest token, again and again; for generate() its settings decide."""
    return draw.op in ("argmax", "attribute", "index") and bool(draw.context.loops) and not _has_noise(draw)


def _has_noise(draw: Value) -> bool:
    """Whether noise was added to what the greatest is taken of: Gumbel's trick draws by it."""
    scores = walk(draw, until=lambda value: value is not draw and value.op not in _OF_SCORES)
    return any(
        (score.op in ("call", "method") and any(word in score.name.lower() for word in _NOISE))
        or (score.op == "log" and score.input is not None and score.input.op == "neg")
        for score in islice(scores, 60)
    )


def weights_of(draw: Value) -> Value | None:
    """The values over the vocabulary that a draw in the script's own loop draws from."""
    if draw.op in ("multinomial", "argmax"):
        return draw.input
    if is_greedy(draw) and draw.input is not None:
        return draw.input.input
    if draw.op in ("sample", "rsample") and draw.input is not None and draw.input.op == "categorical":
        return draw.input.argument("logits") or draw.input.argument("probs")
    return None


def passes_of(program: Program, draw: Value) -> list[Value]:
    """The calls of networks whose output a draw in the script's own loop draws from."""
    weights = weights_of(draw)
    return program.origins.forwards(weights) if weights is not None else []


def is_drawn_from(program: Program, call: Value) -> bool:
    """Whether tokens or actions are drawn from the output of a pass: log-probs of it are those of the rollout."""
    return any(part is call for draw in draws(program) if draw.op != "argmax" for part in passes_of(program, draw))


@dataclass(frozen=True, eq=False)
class Trained:
    """A draw and the log-probs in the loss whose tokens it drew. `is_linked`: the text shows that it did."""

    draw: Value
    scoring: Scoring
    is_linked: bool


def trained_draws(program: Program, found: list[Scoring] | None = None, same_pass: bool = False) -> list[Trained]:
    """Each pair of a draw and the log-probs in the loss of what it drew; `same_pass`: those of its own pass too.

    Where the tokens are lost from sight, in a file or a queue, the only draw of a script with a policy gradient is it.
    """
    found = scorings(program) if found is None else found
    compared = _only_compared(program)
    trained = [part for part in found if part.is_trained and id(part.value) not in compared]
    known = draws(program)
    by_id = {id(part): part for part in known}
    pairs = []
    for scoring in trained:
        for value in made_of(scoring.tokens):
            if id(value) in by_id and (same_pass or not _is_same_pass(program, value, scoring)):
                pairs.append(Trained(by_id[id(value)], scoring, is_linked=True))
    if pairs or not trained:
        return pairs
    has_policy = any(term.is_policy for _, terms in program.losses for term in terms)
    known = [part for part in known if not is_greedy(part) and part.name != "post"]  # a server may be a judge's
    places = {(part.place.file, part.place.line) for part in known}
    if has_policy and len(places) == 1:
        draw = known[0]
        in_use = [model for model in trained if not _is_same_pass(program, draw, model)]
        return [Trained(draw, part, is_linked=False) for part in in_use]
    return []


def _only_compared(program: Program) -> set[int]:
    """id() of what enters the losses by a comparison of two answers alone, as in DPO: how they were drawn is free."""
    losses = [backward.input for backward in program.of("backward") if backward.input is not None]
    comparisons = program.of("logsigmoid")
    if not comparisons or not losses:
        return set()
    otherwise = {id(part) for part in walk(losses, until=lambda value: value.op == "logsigmoid")}
    return {id(part) for value in comparisons for part in walk(value)} - otherwise


def _is_same_pass(program: Program, draw: Value, scoring: Scoring) -> bool:
    """Whether the log-prob is of the very distribution that was drawn from."""
    scored = program.origins.forwards(scoring.logits)
    return any(value is other for value in passes_of(program, draw) for other in scored)


def shown_number(value: Value) -> str:
    """A setting as a sentence shows it."""
    constant = value.constant if value.constant is not UNKNOWN else number_of(value)
    return f"{constant:g}" if isinstance(constant, int | float) and not isinstance(constant, bool) else value.shown
