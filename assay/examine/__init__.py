"""What is measured of an update, for the trainer, an adapter, `assay watch` and `assay.observe` alike.

    part.py         one micro-batch as its loss saw it; several of them as the arrays of a record Batch
    inputs.py       what the model is given in a forward pass, and how much dropout is active in it
    loss_probes.py  token gradients, and the loss computed again in ways that must not matter
    weights.py      what an optimizer step did to the weights
    guard.py        measuring never breaks the training

A caller brings its data in these types and hands the Batch to the doctor. Plain log-probs are policy/plain.py.
"""
