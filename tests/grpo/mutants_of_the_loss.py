"""Wrong versions of assay/grpo.py, from objectives to the loss: name -> (a piece of its source that occurs exactly
once, what stands there instead). Each is a bug somebody could write; test_mutants.py
demands that a test notices it.
"""

MUTANTS: dict[str, tuple[str, str]] = {
    # -------------------------------------------------------- objectives
    "clip bounds swapped": (
        "low, high = 1 - settings.clip_low, 1 + settings.clip_high",
        "low, high = 1 - settings.clip_high, 1 + settings.clip_low",
    ),
    "clip bounds both low": (
        "low, high = 1 - settings.clip_low, 1 + settings.clip_high",
        "low, high = 1 - settings.clip_low, 1 + settings.clip_low",
    ),
    "delta is ignored": ("ratio_BT.clamp(max=settings.delta) if settings.delta else ratio_BT", "ratio_BT"),
    "delta is a floor": ("ratio_BT.clamp(max=settings.delta)", "ratio_BT.clamp(min=settings.delta)"),
    "clip takes the larger arm": (").minimum(bounded_BT", ").maximum(bounded_BT"),
    "clip without the unclipped arm": (
        "(capped_BT * advantages_BT).minimum(bounded_BT * advantages_BT)",
        "bounded_BT * advantages_BT",
    ),
    "no clip at all": (
        "(capped_BT * advantages_BT).minimum(bounded_BT * advantages_BT)",
        "capped_BT * advantages_BT",
    ),
    "clip below only": (".masked_fill(ratio_BT > high, high)", ""),
    "clip above only": (".masked_fill(ratio_BT < low, low)", ""),
    "no gradient at the lower bound": ("masked_fill(ratio_BT < low, low)", "masked_fill(ratio_BT <= low, low)"),
    "no gradient at the upper bound": ("masked_fill(ratio_BT > high, high)", "masked_fill(ratio_BT >= high, high)"),
    "dual clip is ignored": ("if settings.dual_clip:", "if False:"),
    "dual clip takes the smaller": (
        "objective_BT.maximum(settings.dual_clip * advantages_BT)",
        "objective_BT.minimum(settings.dual_clip * advantages_BT)",
    ),
    "dual clip on positive advantages": (
        "floored_BT.where(advantages_BT < 0, objective_BT)",
        "floored_BT.where(advantages_BT > 0, objective_BT)",
    ),
    "dual clip whatever the sign": ("floored_BT.where(advantages_BT < 0, objective_BT)", "floored_BT"),
    "clipped below for positive advantages": (
        "(ratio_BT < low) & (advantages_BT < 0)",
        "(ratio_BT < low) & (advantages_BT > 0)",
    ),
    "clipped above whatever the sign": ("((ratio_BT > high) & (advantages_BT > 0))", "(ratio_BT > high)"),
    "clipped at the bound": ("((ratio_BT > high)", "((ratio_BT >= high)"),
    "the clipped loss is an objective": ("return -objective_BT, clipped_BT", "return objective_BT, clipped_BT"),
    "cispo: gradient through the weight": (
        "ratio_BT.detach().clamp(max=settings.cispo_max)",
        "ratio_BT.clamp(max=settings.cispo_max)",
    ),
    "cispo: no cap": ("ratio_BT.detach().clamp(max=settings.cispo_max)", "ratio_BT.detach()"),
    "cispo: cap above 1": (
        "ratio_BT.detach().clamp(max=settings.cispo_max)",
        "ratio_BT.detach().clamp(max=1 + settings.cispo_max)",
    ),
    "cispo: a floor": (
        "ratio_BT.detach().clamp(max=settings.cispo_max)",
        "ratio_BT.detach().clamp(1.0, settings.cispo_max)",
    ),
    "cispo: sign": ("return -weight_BT * advantages_BT * new_BT", "return weight_BT * advantages_BT * new_BT"),
    "cispo: without the log-prob": (
        "return -weight_BT * advantages_BT * new_BT",
        "return -weight_BT * advantages_BT * new_BT.exp()",
    ),
    "cispo: what counts as capped": ("ratio_BT > settings.cispo_max", "ratio_BT < settings.cispo_max"),
    "sapo: temperatures swapped": ("positive.where(advantages_BT > 0,", "positive.where(advantages_BT < 0,"),
    "sapo: one temperature": ("positive.where(advantages_BT > 0, settings.sapo_negative)", "positive"),
    "sapo: positive temperature is 1": ("new_tensor(settings.sapo_positive)", "new_tensor(1.0)"),
    "sapo: gate around 0": ("(temperature_BT * (ratio_BT - 1)).sigmoid()", "(temperature_BT * ratio_BT).sigmoid()"),
    "sapo: temperature only outside": ("(temperature_BT * (ratio_BT - 1)).sigmoid()", "(ratio_BT - 1).sigmoid()"),
    "sapo: not divided by the temperature": (".sigmoid() * 4 / temperature_BT", ".sigmoid() * 4"),
    "sapo: 2 in the place of 4": (".sigmoid() * 4 /", ".sigmoid() * 2 /"),
    "sapo: sign": ("return -gate_BT * advantages_BT", "return gate_BT * advantages_BT"),
    "sapo: everything counts as clipped": ("ratio_BT.isnan()  # nothing", "~ratio_BT.isnan()  # nothing"),
    "gspo by token": (
        '@objective("gspo", level="sequence", aggregation="sequence_mean", **_CLIP)',
        '@objective("gspo", level="token", aggregation="sequence_mean", **_CLIP)',
    ),
    "dr_grpo by sequence mean": (
        '@objective("dr_grpo", level="token", aggregation="constant", **_CLIP)',
        '@objective("dr_grpo", level="token", aggregation="sequence_mean", **_CLIP)',
    ),
    "an objective registers its level as its aggregation": (
        "Objective(term, **facts)",
        'Objective(term, **{**facts, "level": facts["aggregation"]})',
    ),
    "an objective forgets its settings": ('"settings": ("clip_low", "clip_high", ', '"settings": ("clip_low", '),
    "the clipped objectives say that they do not clip": ('{"clips": True,', '{"clips": False,'),
    "cispo says that it does not bound the ratio": ("bounds_ratio=True, detached=True", "detached=True"),
    "cispo says that its ratio has a gradient": ("bounds_ratio=True, detached=True", "bounds_ratio=True"),
    "sapo says that it does not bound the ratio": (
        '"sequence_mean", bounds_ratio=True, settings=',
        '"sequence_mean", settings=',
    ),
    "slope: by the ratio, not by its logarithm": ("/ (2 * SLOPE_STEP) * ratio_BT", "/ (2 * SLOPE_STEP)"),
    "slope: sign": ("(high_BT - low_BT)", "(low_BT - high_BT)"),
    "slope: twice": ("/ (2 * SLOPE_STEP)", "/ SLOPE_STEP"),
    "slope: from one side": ("step in (-SLOPE_STEP, 0.0,", "step in (0.0, 0.0,"),
    "slope: of a detached ratio": ("here_BT if self.detached else", "here_BT if not self.level else"),
    "slope: of a detached ratio at another log-prob": (
        "one_BT = advantages_BT.new_ones(advantages_BT.shape)",
        "one_BT = 2 * advantages_BT.new_ones(advantages_BT.shape)",
    ),
    "registering changes the function": (
        "        return term\n",
        "        return lambda r, a, n, s: term(r, -a, n, s)\n",
    ),
    "the registered decorator is lost": ("    return register\n", "    return lambda term: term\n"),
    # -------------------------------------------------------- aggregation
    "sequence mean over the padded width": (
        "mask_BT.sum(dim=1, keepdim=True).clamp(min=1) * totals.sequences",
        "mask_BT.shape[1] * totals.sequences",
    ),
    "sequence mean of an empty row is NaN": (
        "mask_BT.sum(dim=1, keepdim=True).clamp(min=1) * totals.sequences",
        "mask_BT.sum(dim=1, keepdim=True) * totals.sequences",
    ),
    "sequence mean over the rows of the micro-batch": (
        "clamp(min=1) * totals.sequences",
        "clamp(min=1) * len(mask_BT)",
    ),
    "sequence sum in the place of its mean": (
        "mask_BT.sum(dim=1, keepdim=True).clamp(min=1) * totals.sequences",
        "totals.sequences",
    ),
    "the aggregation is always the sequence mean": ("denominators[aggregation]", 'denominators["sequence_mean"]'),
    "the aggregation is always the token mean": ("denominators[aggregation]", 'denominators["token_mean"]'),
    "token mean over the micro-batch": (
        "max(totals.tokens, 1),",
        "mask_BT.sum().clamp(min=1),",
    ),
    "token mean divides by zero": ("max(totals.tokens, 1),", "totals.tokens,"),
    "rollout token mean over the update": ("max(totals.share_of_rollout_tokens, 1.0)", "max(totals.tokens, 1.0)"),
    "rollout token mean divides by zero": (
        "max(totals.share_of_rollout_tokens, 1.0)",
        "totals.share_of_rollout_tokens",
    ),
    "constant without the sequences": (
        "totals.sequences * totals.max_tokens",
        "totals.max_tokens",
    ),
    "constant is the padded width": (
        "totals.sequences * totals.max_tokens",
        "totals.sequences * mask_BT.shape[1]",
    ),
    "weights ignore the mask": ("return mask_BT / denominators", "return (mask_BT * 0 + 1) / denominators"),
    # -------------------------------------------------------- the loss
    "half precision is let through": ("old_BT.dtype.itemsize) < 4:", "old_BT.dtype.itemsize) < 2:"),
    "what stands under the mask leaks in": (
        "(x.where(mask_BT, 0.0) for x in (new_BT, old_BT, advantages_BT))",
        "(x for x in (new_BT, old_BT, advantages_BT))",
    ),
    "every objective by token": (
        "importance_ratio(new_BT, old_BT, mask_BT, chosen.level)",
        "importance_ratio(new_BT, old_BT, mask_BT)",
    ),
    "ratio against itself": (
        "importance_ratio(new_BT, old_BT, mask_BT, chosen.level)",
        "importance_ratio(new_BT, new_BT.detach(), mask_BT, chosen.level)",
    ),
    "the term sees the old log-probs": (
        "chosen.term(ratio_BT, advantages_BT, new_BT, settings)",
        "chosen.term(ratio_BT, advantages_BT, old_BT, settings)",
    ),
    "weights in float32": (
        "weights_BT = token_weights(mask_BT.to(new_BT.dtype), chosen",
        "weights_BT = token_weights(mask_BT, chosen",
    ),
    "every objective is a token mean": ("chosen.aggregation, totals)", '"token_mean", totals)'),
    "correction is always off": ('if settings.correction != "off":', "if False:"),
    "correction level is lost": ("level, low, high = settings.correction,", 'level, low, high = "token",'),
    "correction bounds are lost (low)": ("settings.correction, settings.correction_low,", "settings.correction, 0.0,"),
    "correction bounds are lost (high)": (
        "settings.correction_low, settings.correction_high",
        "settings.correction_low, 2.0",
    ),
    "correction compares new to the sampler": (
        "mismatch_BT = mismatch_weights(old_BT,",
        "mismatch_BT = mismatch_weights(new_BT,",
    ),
    "correction starts from zero": ("ratio_BT.new_ones(ratio_BT.shape)", "ratio_BT.new_zeros(ratio_BT.shape)"),
    "mismatch does not reach the loss": (
        "policy = (weights_BT * mismatch_BT * loss_BT).sum()",
        "policy = (weights_BT * loss_BT).sum()",
    ),
    "mismatch divides the loss": (
        "(weights_BT * mismatch_BT * loss_BT).sum()",
        "(weights_BT / mismatch_BT * loss_BT).sum()",
    ),
    "kl in the loss as well as in the reward": (
        'if settings.kl_coef and settings.kl_placement == "loss":',
        "if settings.kl_coef:",
    ),
    "kl is never added": ('if settings.kl_coef and settings.kl_placement == "loss":', "if False:"),
    "kl against old": (
        "kl_estimate(new_BT, ref_BT.where(mask_BT, 0.0)",
        "kl_estimate(new_BT, old_BT.where(mask_BT, 0.0)",
    ),
    "kl of the padding": ("kl_estimate(new_BT, ref_BT.where(mask_BT, 0.0)", "kl_estimate(new_BT, ref_BT"),
    "kl estimator is lost": ("ref_BT.where(mask_BT, 0.0), settings.kl_estimator)", "ref_BT.where(mask_BT, 0.0))"),
    "kl gradients swapped": ('if settings.kl_gradient == "unbiased":', 'if settings.kl_gradient == "naive":'),
    "kl ratio without gradient": ("kl_BT = kl_BT * ratio_BT", "kl_BT = kl_BT * ratio_BT.detach()"),
    "kl divided by the ratio": ("kl_BT = kl_BT * ratio_BT", "kl_BT = kl_BT / ratio_BT"),
    "kl weighed by the mismatch": (
        "settings.kl_coef * (weights_BT * kl_BT).sum()",
        "settings.kl_coef * (weights_BT * mismatch_BT * kl_BT).sum()",
    ),
    "kl with the wrong sign": ("kl = settings.kl_coef * (weights", "kl = -settings.kl_coef * (weights"),
    "kl without its coefficient": ("kl = settings.kl_coef * (weights", "kl = (weights"),
    "kl summed over tokens": ("settings.kl_coef * (weights_BT * kl_BT).sum()", "settings.kl_coef * kl_BT.sum()"),
    "entropy is never added": ("if settings.entropy_coef:", "if False:"),
    "entropy weighed like the policy": ('token_weights(mask_BT.to(new_BT.dtype), "token_mean", totals)', "weights_BT"),
    "entropy is a penalty": ("entropy = -settings.entropy_coef", "entropy = settings.entropy_coef"),
    "entropy of the padding": ("entropy_BT.where(mask_BT, 0.0)).sum()", "entropy_BT).sum()"),
    "kl starts from one": ("kl = policy.new_zeros(())", "kl = policy.new_ones(())"),
    "entropy starts from one": ("entropy = policy.new_zeros(())", "entropy = policy.new_ones(())"),
    "kl does not reach the total": ("total=policy + kl + entropy", "total=policy + entropy"),
    "entropy does not reach the total": ("total=policy + kl + entropy", "total=policy + kl"),
    "the policy part keeps its gradient": ("policy=policy.detach()", "policy=policy"),
    "the entropy part keeps its gradient": ("entropy=entropy.detach()", "entropy=entropy"),
    "the kl part keeps its gradient": ("kl=kl.detach()", "kl=kl"),
    "the recorded ratio keeps its gradient": ("ratio_BT=ratio_BT.detach()", "ratio_BT=ratio_BT"),
    "padding counts as clipped": ("clipped_BT=clipped_BT & mask_BT", "clipped_BT=clipped_BT"),
    "the recorded weight is not the one used": ("weight_BT=mismatch_BT", "weight_BT=weights_BT"),
}
