"""Wrong versions of assay/grpo.py, from rewards to KL: name -> (a piece of its source that occurs exactly
once, what stands there instead). Each is a bug somebody could write; test_mutants.py
demands that a test notices it.
"""

MUTANTS: dict[str, tuple[str, str]] = {
    # -------------------------------------------------------- the support of a token
    "the support is what is ruled out": ("masked_fill(~allowed_BTV,", "masked_fill(allowed_BTV,"),
    "what is ruled out keeps some probability": (
        'masked_fill(~allowed_BTV, -float("inf"))',
        "masked_fill(~allowed_BTV, -1.0)",
    ),
    "only half of the support is allowed": ("scatter(2, support_BTK, True)", "scatter(2, support_BTK[..., :1], True)"),
    # -------------------------------------------------------- advantages
    "batch scale is read as group scale": (
        'if scale == "group" else rewards_PG.reshape(1, -1)',
        "if scale else rewards_PG",
    ),
    "group scale uses the std of the batch": (
        'rewards_PG if scale == "group" else rewards_PG.reshape(1, -1)',
        "rewards_PG.reshape(1, -1)",
    ),
    "baseline is always the mean": (
        "_divided_by_std(_centred(rewards_PG, baseline),",
        '_divided_by_std(_centred(rewards_PG, "mean"),',
    ),
    "unscored rollouts keep a NaN advantage": (
        "return advantages_PG.where(~rewards_PG.isnan(), 0.0)",
        "return advantages_PG",
    ),
    "unscored rollouts get a positive advantage": (
        "return advantages_PG.where(~rewards_PG.isnan(), 0.0)",
        "return advantages_PG.where(~rewards_PG.isnan(), 1.0)",
    ),
    "default std is the population's": (
        'rewards_PG: Tensor, *, baseline: str = "mean", std: str = "sample"',
        'rewards_PG: Tensor, *, baseline: str = "mean", std: str = "population"',
    ),
    "default epsilon of another trainer": (
        'scale: str = "group", epsilon: float = 1e-4\n',
        'scale: str = "group", epsilon: float = 1e-6\n',
    ),
    "mean is not subtracted": ("rewards_PG - rewards_PG.nanmean(dim=1, keepdim=True)", "rewards_PG * 1.0"),
    "mean is added": (
        "rewards_PG - rewards_PG.nanmean(dim=1, keepdim=True)",
        "rewards_PG + rewards_PG.nanmean(dim=1, keepdim=True)",
    ),
    "mean of the whole batch": (
        "rewards_PG - rewards_PG.nanmean(dim=1, keepdim=True)",
        "rewards_PG - rewards_PG.nanmean()",
    ),
    "mean counts unscored rollouts as 0": (
        "rewards_PG - rewards_PG.nanmean(dim=1, keepdim=True)",
        "rewards_PG - rewards_PG.nan_to_num().mean(dim=1, keepdim=True)",
    ),
    "median in the place of the mean": (
        "rewards_PG - rewards_PG.nanmean(dim=1, keepdim=True)",
        "rewards_PG - rewards_PG.nanmedian(dim=1, keepdim=True).values",
    ),
    "leave one out is never taken": ('if baseline == "leave_one_out":', 'if baseline == "never":'),
    "leave one out counts unscored rollouts": (
        "(r_i - mean) * n / (n - 1); the 0 / 0 of a single score is replaced below\n"
        "        scored_P1 = (~rewards_PG.isnan()).sum(dim=1, keepdim=True)",
        "\n        scored_P1 = rewards_PG.new_full((len(rewards_PG), 1), rewards_PG.shape[1])",
    ),
    "leave one out upside down": (
        "centred_PG * scored_P1 / (scored_P1 - 1)",
        "centred_PG * (scored_P1 - 1) / scored_P1",
    ),
    "leave one out with n": ("centred_PG * scored_P1 / (scored_P1 - 1)", "centred_PG * scored_P1 / scored_P1"),
    "equal rewards are not recognised": ("centred_PG.where(highest_P1 > lowest_P1, 0.0)", "centred_PG"),
    "unscored rollouts make equal rewards unequal (from above)": (
        'rewards_PG.where(~rewards_PG.isnan(), -float("inf")).amax',
        'rewards_PG.where(~rewards_PG.isnan(), float("inf")).amax',
    ),
    "unscored rollouts make equal rewards unequal (from below)": (
        'rewards_PG.where(~rewards_PG.isnan(), float("inf")).amin',
        'rewards_PG.where(~rewards_PG.isnan(), -float("inf")).amin',
    ),
    "std none is ignored": ('if std == "none":', 'if std == "never":'),
    "centred rewards are lost without a std": (
        "        return centred_PG\n    spread_P1",
        "        return rewards_PG\n    spread_P1",
    ),
    "the kind of std is lost": ("spread_P1 = _std(rewards_PG, std)", 'spread_P1 = _std(rewards_PG, "sample")'),
    "the std of the advantages' own rows": ("spread_P1 = _std(rewards_PG, std)", "spread_P1 = _std(centred_PG, std)"),
    "division by zero with epsilon 0": (".where(spread_P1 > 0, 1.0)", ""),
    "epsilon is forgotten": ("(spread_P1 + epsilon)", "(spread_P1 + 0.0)"),
    "epsilon is a floor": ("(spread_P1 + epsilon)", "spread_P1.clamp(min=epsilon)"),
    "multiplied by the std": ("return centred_PG / (spread_P1", "return centred_PG * (spread_P1"),
    "absolute deviations in the place of squares": (
        ".square().nansum(dim=1, keepdim=True)",
        ".abs().nansum(dim=1, keepdim=True)",
    ),
    "std around zero": ('_centred(rewards_PG, "mean").square()', "rewards_PG.square()"),
    "std around the mean of the others": (
        '_centred(rewards_PG, "mean").square()',
        '_centred(rewards_PG, "leave_one_out").square()',
    ),
    "std counts unscored rollouts": (
        "scored_P1 = (~rewards_PG.isnan()).sum(dim=1, keepdim=True)\n    return (squares",
        "scored_P1 = rewards_PG.new_full((len(rewards_PG), 1), rewards_PG.shape[1])\n    return (squares",
    ),
    "sample and population std swapped": ('(1 if kind == "sample" else 0)', '(0 if kind == "sample" else 1)'),
    "variance in the place of the std": ("else 0))).sqrt()", "else 0)))"),
    "a group of one is let through": ("if rewards_PG.shape[1] < 2:", "if rewards_PG.shape[1] < 1:"),
    "infinite rewards are let through": (".abs() > REWARD_LIMIT).any()", ".abs() > REWARD_LIMIT).all()"),
    "only large positive rewards are refused": ("(rewards_PG.abs() > REWARD_LIMIT)", "(rewards_PG > REWARD_LIMIT)"),
    "rewards whose squares overflow are let through": ("REWARD_LIMIT = 1e15", "REWARD_LIMIT = 1e25"),
    "choices are not checked": ("if value not in choices:", "if not value:"),
    # -------------------------------------------------------- GDPO, process rewards, length
    "gdpo: one missing component unscores a rollout": (
        "unscored_PG = rewards_PGK.isnan().all(dim=2)",
        "unscored_PG = rewards_PGK.isnan().any(dim=2)",
    ),
    "gdpo: starts from one": (
        "summed_PG = rewards_PGK.new_zeros(",
        "summed_PG = rewards_PGK[..., 0].nan_to_num() + rewards_PGK.new_zeros(",
    ),
    "gdpo: weights are ignored": ("summed_PG + weight * group_advantages", "summed_PG + group_advantages"),
    "gdpo: only the last reward counts": ("summed_PG = summed_PG + weight *", "summed_PG = weight *"),
    "gdpo: the kind of std is lost": (
        "group_advantages(component_PG, std=std, epsilon=epsilon)",
        "group_advantages(component_PG, epsilon=epsilon)",
    ),
    "gdpo: epsilon is lost within the group": (
        "group_advantages(component_PG, std=std, epsilon=epsilon)",
        "group_advantages(component_PG, std=std)",
    ),
    "gdpo: unscored rollouts stay in the batch": (
        'summed_PG.where(~unscored_PG, float("nan")).reshape(1, -1)',
        "summed_PG.reshape(1, -1)",
    ),
    "gdpo: second score within the group": (
        'summed_PG.where(~unscored_PG, float("nan")).reshape(1, -1)',
        'summed_PG.where(~unscored_PG, float("nan"))',
    ),
    "gdpo: no second score": (
        '_divided_by_std(_centred(summed_1N, "mean"), summed_1N, std, epsilon)',
        '_centred(summed_1N, "mean")',
    ),
    "gdpo: unscored rollouts keep NaN": (
        ".reshape(summed_PG.shape).where(~unscored_PG, 0.0)",
        ".reshape(summed_PG.shape)",
    ),
    "process: a group of one with many steps": (
        "_refuse_unusable_rewards(step_rewards_PGS)",
        "_refuse_unusable_rewards(step_rewards_PGS.reshape(groups, size * steps))",
    ),
    "process: scored over all groups": (
        "flat = step_rewards_PGS.reshape(groups, size * steps)",
        "flat = step_rewards_PGS.reshape(1, -1)",
    ),
    "process: not divided by the std": (
        'scores = _divided_by_std(_centred(flat, "mean"), flat, std, epsilon)',
        'scores = _centred(flat, "mean")',
    ),
    "process: missing steps count": ("scores.where(~flat.isnan(), 0.0).reshape(groups", "scores.reshape(groups"),
    "process: tokens counted from 1": (".new_ones(num_tokens).cumsum(0) - 1", ".new_ones(num_tokens).cumsum(0)"),
    "process: a step rewards the tokens after it": (
        "step_ends_PGS.unsqueeze(3) >= token_T",
        "step_ends_PGS.unsqueeze(3) <= token_T",
    ),
    "process: a step does not reward its last token": (
        "step_ends_PGS.unsqueeze(3) >= token_T",
        "step_ends_PGS.unsqueeze(3) > token_T",
    ),
    "overlong: rewards length": ("return -((length_B", "return ((length_B"),
    "overlong: starts at the limit": ("(length_B - (max_tokens - penalty_tokens))", "(length_B - max_tokens)"),
    "overlong: grows beyond 1": (".clamp(0.0, 1.0)", ".clamp(min=0.0)"),
    "overlong: pays for short answers": (".clamp(0.0, 1.0)", ".clamp(max=1.0)"),
    "overlong: slope over the whole limit": ("/ penalty_tokens)", "/ max_tokens)"),
    # -------------------------------------------------------- log-probs, entropy, ratio
    "logprobs at the wrong temperature": (
        "scaled_BTV = logits_BTV.float() / temperature\n    return",
        "scaled_BTV = logits_BTV.float() * temperature\n    return",
    ),
    "logprobs without temperature": (
        "scaled_BTV = logits_BTV.float() / temperature\n    return",
        "scaled_BTV = logits_BTV.float()\n    return",
    ),
    "logprobs in the precision of the logits": (
        "scaled_BTV = logits_BTV.float() / temperature\n    return",
        "scaled_BTV = logits_BTV / temperature\n    return",
    ),
    "logprobs are not normalised": (".squeeze(2) - scaled_BTV.logsumexp(dim=2)", ".squeeze(2)"),
    "logprobs normalised over the tokens": (
        ".squeeze(2) - scaled_BTV.logsumexp(dim=2)",
        ".squeeze(2) - scaled_BTV.logsumexp(dim=1)[:, :1]",
    ),
    "logprobs by exp and log": (
        ".squeeze(2) - scaled_BTV.logsumexp(dim=2)",
        ".squeeze(2) - scaled_BTV.exp().sum(dim=2).log()",
    ),
    "entropy at the wrong temperature": (
        "(logits_BTV.float() / temperature).clamp(min=-1e30)",
        "(logits_BTV.float() * temperature).clamp(min=-1e30)",
    ),
    "entropy NaN for a ruled-out token": (
        "(logits_BTV.float() / temperature).clamp(min=-1e30)",
        "(logits_BTV.float() / temperature)",
    ),
    "entropy with the wrong sign": (
        "scaled_BTV.logsumexp(dim=2) - (scaled_BTV.softmax",
        "-scaled_BTV.logsumexp(dim=2) + (scaled_BTV.softmax",
    ),
    "entropy as a cross term": ("(scaled_BTV.softmax(dim=2) * scaled_BTV).sum(dim=2)", "scaled_BTV.mean(dim=2)"),
    "ratio upside down": ("(new_BT - old_BT).where(mask_BT, 0.0)", "(old_BT - new_BT).where(mask_BT, 0.0)"),
    "ratio uses masked tokens": ("(new_BT - old_BT).where(mask_BT, 0.0)", "(new_BT - old_BT)"),
    "ratio without gradient": (
        "(new_BT - old_BT).where(mask_BT, 0.0)",
        "(new_BT - old_BT).where(mask_BT, 0.0).detach()",
    ),
    "sequence ratio is never taken": (
        '    if level == "sequence":\n        lengths',
        '    if level == "never":\n        lengths',
    ),
    "sequence ratio over the padded width": (
        "lengths_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)",
        "lengths_B1 = mask_BT.shape[1]",
    ),
    "sequence ratio of an empty row is NaN": (
        "lengths_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)",
        "lengths_B1 = mask_BT.sum(dim=1, keepdim=True)",
    ),
    "sequence ratio is the product": (
        "(log_ratio_BT.sum(dim=1, keepdim=True) / lengths_B1)",
        "(log_ratio_BT.sum(dim=1, keepdim=True))",
    ),
    "sequence ratio sums over rows": (
        "(log_ratio_BT.sum(dim=1, keepdim=True) / lengths_B1)",
        "(log_ratio_BT.sum(dim=0, keepdim=True) / lengths_B1)",
    ),
    "ratio may overflow": ("log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()", "log_ratio_BT.exp()"),
    "ratio is the log ratio": (
        "log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()",
        "1 + log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)",
    ),
    # -------------------------------------------------------- KL
    "kl the other way round": ("(new_BT - ref_BT).clamp(-LOG_RATIO_LIMIT", "(ref_BT - new_BT).clamp(-LOG_RATIO_LIMIT"),
    "kl may overflow": ("(new_BT - ref_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)", "(new_BT - ref_BT)"),
    "k1 is taken as k2": ('"k1": lambda d_BT: d_BT,', '"k1": lambda d_BT: d_BT.square() / 2,'),
    "the estimator is always k1": ("return KL_ESTIMATORS[estimator]", 'return KL_ESTIMATORS["k1"]'),
    "the estimator is always k3": ("return KL_ESTIMATORS[estimator]", 'return KL_ESTIMATORS["k3"]'),
    "k2 without its half": ("d_BT.square() / 2", "d_BT.square()"),
    "k3 of the other direction": ("(-d_BT).expm1() + d_BT", "d_BT.expm1() - d_BT"),
    "k3 loses its small values": (
        "(-d_BT).expm1() + d_BT",
        "(-d_BT).exp() - 1 + d_BT",
    ),
    "k3 loses its linear part": ("(-d_BT).expm1() + d_BT", "(-d_BT).expm1()"),
    "sequence kl counts padding": (
        "kl_estimate(old_BT, ref_BT, estimator).where(mask_BT, 0.0).sum(dim=1)",
        "kl_estimate(old_BT, ref_BT, estimator).nan_to_num().sum(dim=1)",
    ),
    "sequence kl is a mean": (
        "estimator).where(mask_BT, 0.0).sum(dim=1)",
        "estimator).where(mask_BT, 0.0).sum(dim=1) / mask_BT.sum(dim=1)",
    ),
    "sequence kl ignores its estimator": (
        "return kl_estimate(old_BT, ref_BT, estimator)",
        "return kl_estimate(old_BT, ref_BT, 'k1')",
    ),
    # -------------------------------------------------------- engine mismatch
    "mismatch upside down": ("(old_BT - sampler_BT).where(mask_BT &", "(sampler_BT - old_BT).where(mask_BT &"),
    "mismatch of an unreported token is NaN": (".where(mask_BT & ~sampler_BT.isnan(), 0.0)", ".where(mask_BT, 0.0)"),
    "mismatch counts masked tokens": (".where(mask_BT & ~sampler_BT.isnan(), 0.0)", ".where(~sampler_BT.isnan(), 0.0)"),
    "sequence mismatch is never taken": ('if level in ("sequence", "geometric"):', 'if level in ("geometric",):'),
    "geometric mismatch is never taken": ('if level == "geometric":', 'if level == "never":'),
    "sequence mismatch is a mean of logs": (
        "log_weight_B1 = log_weight_BT.sum(dim=1, keepdim=True)",
        "log_weight_B1 = log_weight_BT.mean(dim=1, keepdim=True)",
    ),
    "geometric mismatch over the padded width": (
        "log_weight_B1 / mask_BT.sum(dim=1, keepdim=True)",
        "log_weight_B1 / mask_BT.shape[1]",
    ),
    "sequence mismatch stays with the first token": (
        "log_weight_BT = log_weight_B1.expand_as(log_weight_BT)",
        "log_weight_BT = log_weight_BT * 0 + log_weight_B1 * (log_weight_BT == log_weight_BT[:, :1])",
    ),
    "mismatch has a gradient": ("log_weight_BT.detach().exp()", "log_weight_BT.exp()"),
    "mismatch is not an exponential": (
        "log_weight_BT.detach().exp()",
        "log_weight_BT.detach() + 1",
    ),
    "mismatch modes swapped": ('correction_mode == "truncate":', 'correction_mode == "mask":'),
    "truncation without a lower bound": ("weight_BT.clamp(low, high)", "weight_BT.clamp(max=high)"),
    "truncation without an upper bound": ("weight_BT.clamp(low, high)", "weight_BT.clamp(min=low)"),
    "masking keeps what is too small": ("(weight_BT >= low) & (weight_BT <= high)", "(weight_BT <= high)"),
    "masking keeps what is too large": ("(weight_BT >= low) & (weight_BT <= high)", "(weight_BT >= low)"),
    "masking drops what is at the bound": ("(weight_BT <= high), 0.0)", "(weight_BT < high), 0.0)"),
    "masking keeps a weight of 1": ("(weight_BT <= high), 0.0)", "(weight_BT <= high), 1.0)"),
    "mismatch of masked tokens is not 1": (
        "return weight_BT.where(mask_BT, 1.0)",
        "return weight_BT.where(weight_BT == weight_BT, 1.0)",
    ),
}
