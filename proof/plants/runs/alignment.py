"""Plants of illnesses of alignment: each makes a real run of the real trainer ill."""

from __future__ import annotations

from dataclasses import replace

import torch

from proof.plants.plant import Plant

MICROBATCH = "assay.train.step.pack._microbatch"


def _first_token_lost(original, policy, inputs, **how):
    """Log-probs of tokens 1, 2, ... stand at tokens 0, 1, ...: the slice began one output too late."""
    values_BT, entropy_BT = original(policy, inputs, **how)
    return torch.cat([values_BT[:, 1:], torch.zeros_like(values_BT[:, :1])], dim=1), entropy_BT


def _read_back_from_text(original, samples, rows, packing):
    """A doubled character comes back as one: what a merge in the vocabulary does to a round trip through text."""

    def read_back(sample):
        tokens = list(sample.rollout.tokens)
        for place in range(1, len(tokens) - 1):
            if tokens[place] == tokens[place - 1]:
                tokens[place] = tokens[place + 1]
        return replace(sample, rollout=replace(sample.rollout, tokens=tuple(tokens)))

    return original(list(map(read_back, samples)), rows, packing)


def _prompts_of_the_next_row(original, samples, rows, packing):
    """Completions were shuffled against their prompts."""
    prompts = [sample.prompt for sample in samples]
    moved = [
        replace(sample, prompt=prompt, rollout=replace(sample.rollout, prompt_id=prompt.id))
        for sample, prompt in zip(samples, prompts[-1:] + prompts[:-1], strict=True)
    ]
    return original(moved, rows, packing)


def _positions_by_column(original, samples, rows, packing):
    """Positions as if the prompts were padded on the right to one width and all columns counted."""
    batch = original(samples, rows, packing)
    inputs, device = batch.inputs, packing.device
    prompts_R1 = torch.tensor([[len(samples[row].prompt.tokens)] for row in rows], device=device)
    lengths_R1 = torch.tensor([[len(samples[row].rollout.tokens)] for row in rows], device=device)
    columns_1S = torch.arange(inputs.ids_RS.shape[1], device=device).unsqueeze(0)
    in_completion_RS = columns_1S >= prompts_R1
    branches_RS = in_completion_RS.long().masked_fill(columns_1S >= prompts_R1 + lengths_R1, -1)
    positions_RS = inputs.positions_RS + in_completion_RS * (prompts_R1.max() - prompts_R1)
    return replace(batch, inputs=replace(inputs, positions_RS=positions_RS, branches_RS=branches_RS))


def _padded_on_the_left_without_mask(original, samples, rows, packing):
    batch = original(samples, rows, packing)
    inputs, device = batch.inputs, packing.device
    width = inputs.ids_RS.shape[1]
    pads = [width - len(samples[row].prompt.tokens) - len(samples[row].rollout.tokens) for row in rows]
    ids_RS = torch.stack([ids_S.roll(pad) for ids_S, pad in zip(inputs.ids_RS, pads, strict=True)])
    moved_BT = inputs.predictors_BT + torch.tensor(pads, device=device).unsqueeze(1)
    padded = replace(
        inputs,
        trees=tuple((width - length, length) for length in inputs.lengths),  # the padding counts as prompt
        ids_RS=ids_RS,
        positions_RS=torch.arange(width, device=device).expand_as(ids_RS),
        predictors_BT=moved_BT.where(inputs.predictors_BT >= 0, -1),
    )
    return replace(batch, inputs=padded)


def _cut_on_the_right(original, policy, problem, max_tokens):
    """Prompts of more than 6 tokens lose their end."""
    whole = original(policy, problem, max_tokens)
    return replace(whole, tokens=whole.tokens[:6])


def _first_candidate(original, engine, prompts, **how):
    """The engine's log-prob of the likeliest token is taken for that of the sampled one."""
    groups, policy = [], engine.policy
    for prompt, group in zip(prompts, original(engine, prompts, **how), strict=True):
        likeliest = []
        for rollout in group:
            ids_1L = torch.tensor([[*prompt.tokens, *rollout.tokens]], device=policy.device)
            with torch.no_grad():
                logits_LV = policy.logits(ids_1L)[0, len(prompt.tokens) - 1 : -1].float() / policy.temperature
            highest = logits_LV.log_softmax(dim=1).amax(dim=1).tolist()
            likeliest.append(replace(rollout, sampler_logprobs=tuple(highest)))
        groups.append(likeliest)
    return groups


def _old_of_the_row_before(original, learner, minibatches):
    """The rows were gathered again after old was computed, and old was not."""
    batch = original(learner, minibatches)
    frozen = tuple(
        tuple(replace(part, old_BT=None if part.old_BT is None else part.old_BT.roll(1, dims=0)) for part in parts)
        for parts in batch.frozen
    )
    return replace(batch, frozen=frozen)


PLANTS: dict[str, Plant] = {
    "ALGN01": Plant(replaces={"assay.policy.causal.CausalPolicy.logprobs": _first_token_lost}),
    "ALGN02": Plant(replaces={MICROBATCH: _read_back_from_text}),
    "ALGN03": Plant(replaces={MICROBATCH: _prompts_of_the_next_row}),
    "ALGN04": Plant(
        settings=("optimizer.share_prompts=false",),
        replaces={MICROBATCH: _positions_by_column},
    ),
    "ALGN05": Plant(
        settings=("optimizer.share_prompts=false",),
        replaces={MICROBATCH: _padded_on_the_left_without_mask},
    ),
    "ALGN07": Plant(replaces={"assay.policy.causal.CausalPolicy.prompt": _cut_on_the_right}),
    "ALGN09": Plant(replaces={"assay.engine.shared_weights.SharedWeightsEngine.generate": _first_candidate}),
    "ALGN10": Plant(replaces={"assay.train.step.learner.Learner.freeze": _old_of_the_row_before}),
}
