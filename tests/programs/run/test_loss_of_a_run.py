"""The roles of a loss, what its advantages are multiplied by, and how that moves with the new log-probs."""

import numpy as np
import pytest
from fixtures.made_run import Grpo, MadeRun

from assay.programs.once import once
from assay.programs.run.ratio import factors, slope, without_sign
from assay.programs.run.roles import bounds, find_roles, flows, is_corrected
from assay.programs.run.watched import as_of_now


def made_update(**how):
    made = MadeRun({"is_trained": True})
    loss = Grpo(made, **how)
    loss.backward()
    return loss


def test_the_roles_of_a_clipped_surrogate():
    loss = made_update()
    (piece,) = loss.made.run.backwards[0].pieces
    assert (piece.new, piece.old, piece.ratio) == (loss.new, loss.old, loss.ratio)
    assert (piece.advantages, piece.product, piece.clamp) == (loss.advantages, loss.product, loss.clamp)
    assert (piece.mask, piece.mask_is_inverted, piece.clip) == (loss.mask, False, (0.8, 1.2))
    assert piece.ids.tolist() == [[2, 3], [3, 1]]
    assert piece.forward is loss.made.run.forwards[1]
    assert (piece.ref, piece.correction, piece.unsure) == (None, None, set())
    assert not is_corrected(loss.made.run.backwards)


def test_a_loss_without_log_probs_has_no_roles():
    made = MadeRun({})
    weights = made.value("given", np.array([1.0, 2.0]), grad=True)
    loss = made.value("sum", np.array(3.0), grad=True, input=weights)
    assert find_roles(loss, made.run.kinds) is None
    assert made.backward(loss).pieces == ()
    ((_, flow),) = flows(made.run)
    assert flow.values == [weights, loss]


def test_bounds_are_read_from_constants_and_from_tensors_of_one_number():
    made = MadeRun()
    low = made.value("given", np.array([0.5]))
    clamp = made.value("clamp", np.ones(2), input=made.value("given", np.ones(2)), min=low, max=2)
    assert bounds(clamp) == (0.5, 2.0)
    assert bounds(made.value("clamp", np.ones(2), input=clamp, max=3)) == (None, 3.0)


def of(op, numbers):
    """A ratio that is one operation on new and old."""

    def ratio(loss):
        new, old = loss.new.thing.data, loss.old.thing.data
        return loss.made.value(op, numbers(new, old), grad=True, input=loss.new, other=loss.old)

    return ratio


def exp_twice(loss):
    new, old = loss.new.thing.data, loss.old.thing.data
    difference = loss.made.value("sub", new - old, grad=True, input=loss.new, other=loss.old)
    first = loss.made.value("exp", np.exp(new - old), grad=True, input=difference)
    return loss.made.value("exp", np.exp(np.exp(new - old)), grad=True, input=first)


FORMS = {
    "new / old": None,
    "new - old, the logarithm of the ratio": of("sub", lambda new, old: new - old),
    "the quotient of the log-probs": of("div", lambda new, old: new / old),
    "exp of the ratio": exp_twice,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_factor_of_the_advantages_is_known_by_its_numbers(form):
    loss = made_update(ratio=FORMS[form], clip=None)
    (factor,) = factors(loss.made.run)
    assert (factor.value, factor.forms) == (loss.ratio, {form})


def test_a_form_must_fit_in_every_update():
    made = MadeRun({"is_trained": True})
    first = Grpo(made, clip=None)
    first.backward()
    second = Grpo(made, clip=None)
    second.ratio.thing.data = second.ratio.thing.data + 1.0
    second.ratio.place = first.ratio.place
    second.backward()
    (factor,) = factors(made.run)
    assert (factor.value, factor.forms) == (second.ratio, frozenset())


def test_the_slope_goes_through_signs_differences_and_quotients():
    loss = made_update(clip=None)
    made, run = loss.made, loss.made.run
    (piece,), flow = run.backwards[0].pieces, run.backwards[0].roles.flow
    assert slope(loss.ratio, piece, flow) == 1
    assert slope(loss.product, piece, flow) is None  # advantages have either sign
    turned = made.value("sub", loss.old.thing.data, grad=True, input=loss.old, other=loss.new)
    negative = made.value("neg", loss.new.thing.data, grad=True, input=loss.new)
    quotient = made.value("div", loss.new.thing.data, grad=True, input=loss.new, other=loss.old)  # old is below 0
    for value in (turned, negative, quotient):
        flow.depends[id(value)] = frozenset({id(loss.new)})
    assert [slope(value, piece, flow) for value in (turned, negative, quotient)] == [-1, -1, -1]
    assert without_sign(made.value("cast", loss.new.thing.data, input=negative)) is loss.new


def test_an_importance_weight_without_a_gradient_corrects():
    def weighed(loss):
        new, old = loss.new.thing.data, loss.old.thing.data
        gap = loss.made.value("sub", new - old, input=loss.old, other=loss.old)
        weight = loss.made.value("exp", np.exp(new - old), input=gap)
        return loss.made.value("mul", new * np.exp(new - old), grad=True, input=loss.new, other=weight)

    assert is_corrected(made_update(ratio=weighed, clip=None).made.run.backwards)


def test_a_fact_is_computed_once_for_a_run_and_not_shared_with_an_earlier_moment():
    asked = []

    @once
    def steps(run):
        asked.append(run)
        return len(run.updates)

    made = MadeRun()
    made.update()
    earlier = as_of_now(made.run)
    made.update()
    assert (steps(made.run), steps(made.run), steps(earlier), len(asked)) == (2, 2, 1, 2)
