"""For the tests of kernels: random numbers, how close float32 must come to float64, and flash attention in torch."""

import fixtures.interpreted  # noqa: F401  before triton
import torch


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_close(ours, exact, tolerance=2e-6):
    error = (ours.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-6)
    assert error <= tolerance, f"{error:.1e}"


def _scores(queries, keys, causal, scale):
    """scores_HQK of one sequence; each head of keys serves several of queries."""
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
    scores = torch.einsum("qhw,khw->hqk", queries, keys) * scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -float("inf"))
    return scores


def _ranges(boundaries):
    return [slice(first, last) for first, last in zip(boundaries.tolist(), boundaries.tolist()[1:], strict=False)]


def flash_forward(queries, keys, values, of_queries, of_keys, *rest, scale):
    """What torch's flash attention for sequences of different lengths gives, as documented: outputs, log-sum-exps."""
    longest_queries, longest_keys, _, causal, _ = rest
    assert all(part.stop - part.start <= longest_queries for part in _ranges(of_queries))
    assert all(part.stop - part.start <= longest_keys for part in _ranges(of_keys))
    outputs = torch.zeros_like(queries)
    logsumexps = torch.full((queries.shape[1], queries.shape[0]), float("inf"))  # where there are no keys
    for these, those in zip(_ranges(of_queries), _ranges(of_keys), strict=True):
        if these.stop > these.start and those.stop > those.start:
            scores = _scores(queries[these], keys[those], causal, scale)
            spread = values[those].repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
            outputs[these] = torch.einsum("hqk,khw->qhw", scores.softmax(-1), spread)
            logsumexps[:, these] = scores.logsumexp(-1).float()
    return outputs, logsumexps, torch.zeros(2), torch.zeros(0), torch.zeros(0)


def flash_backward(doutputs, queries, keys, values, outputs, logsumexps, of_queries, of_keys, *rest, scale):
    """dscores = p (dp - rowsum(doutputs * outputs)) with p = e^(scores - log-sum-exp), both as they are given."""
    _, _, _, causal, *_ = rest
    dqueries, dkeys, dvalues = torch.zeros_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
    share = queries.shape[1] // keys.shape[1]
    for these, those in zip(_ranges(of_queries), _ranges(of_keys), strict=True):
        if these.stop == these.start or those.stop == those.start:
            continue
        shares = (_scores(queries[these], keys[those], causal, scale) - logsumexps[:, these].unsqueeze(2)).exp()
        spread = values[those].repeat_interleave(share, dim=1)
        dshares = torch.einsum("qhw,khw->hqk", doutputs[these], spread)
        sums = (doutputs[these] * outputs[these]).sum(-1).T.unsqueeze(2)
        dscores = shares * (dshares - sums) * scale
        dqueries[these] = torch.einsum("hqk,khw->qhw", dscores, keys[those].repeat_interleave(share, dim=1))
        dkeys[those] = torch.einsum("hqk,qhw->khw", dscores, queries[these]).unflatten(1, (-1, share)).sum(2)
        dvalues[those] = torch.einsum("hqk,qhw->khw", shares, doutputs[these]).unflatten(1, (-1, share)).sum(2)
    return dqueries, dkeys, dvalues
