"""Laws: what every correct update obeys, whatever its code looks like.

An illness is one known form in which a law is broken. A law is asked of the numbers that really flowed, row by row and
token by token; if it is broken and no illness explains it, the law itself is the finding.

    identity.py   LAW02  the tokens that are trained are those that were sampled
    scoring.py    LAW03  log-probs in the loss are the model's
    credit.py     LAW04  advantages follow from the rewards of the prompt's group
    support.py    LAW06  the loss covers the sampled tokens, all of them and no others
    gradient.py   LAW05  the gradient of every token is the objective's
    step.py       LAW07  the step of the optimizer follows the gradient
    sampling.py   LAW01  sampled tokens are draws from the distribution that is trained
    reference.py  LAW08  the reference is the frozen policy of the start
    freshness.py  LAW09  the sampler has the weights that are trained
    reward.py     LAW10  a reward belongs to its row
    supply.py     LAW11  prompts vary, groups hold one prompt each, random numbers differ
    pattern.py    which rows and tokens break a law, in words
"""
