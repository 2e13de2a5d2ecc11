"""oneDNN's products against float64, for every shape that parts of the inputs can have."""

import pytest
import torch

from assay.llama.kernels import onednn
from assay.llama.kernels.onednn import Cut

pytestmark = pytest.mark.skipif(not onednn.usable(torch.zeros(2, 2)), reason="torch has no such oneDNN here")
WHOLE = Cut(4096)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("inputs", [1, 7, 288, 289, 576, 1000])
@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize(("with_bias", "outputs_at_a_time"), [(True, None), (True, 11), (False, 20), (False, 33)])
def test_a_product_is_that_of_float64(inputs, rows, with_bias, outputs_at_a_time):
    inputs_NI, weight_OI = random(rows, inputs), random(33, inputs, seed=1)
    bias_O = 100 * random(33, seed=2) if with_bias else None
    expected_NO = inputs_NI.double() @ weight_OI.double().T
    if bias_O is not None:
        expected_NO += bias_O
    outputs_NO = onednn.product(inputs_NI, onednn.lay_out(weight_OI, Cut(288, outputs_at_a_time)), bias_O)
    torch.testing.assert_close(outputs_NO.double(), expected_NO, rtol=1e-6, atol=1e-6 * inputs)


def test_blocks_of_outputs_are_written_to_the_room_that_is_given():
    inputs_NI, weight_OI, room_NO = random(3, 8), random(10, 8, seed=1), torch.full((3, 10), 7.0)
    found_NO = onednn.product(inputs_NI, onednn.lay_out(weight_OI, Cut(8, 4)), None, room_NO)
    assert found_NO is room_NO
    torch.testing.assert_close(room_NO, inputs_NI @ weight_OI.T, rtol=1e-6, atol=1e-6)


def test_parts_are_as_long_as_was_asked_and_blocks_as_high():
    copy = onednn.lay_out(random(10, 600), Cut(288, 4))
    assert [[tuple(part.shape) for part in parts] for parts in copy.blocks] == [
        [(4, 200)] * 3,
        [(4, 200)] * 3,
        [(2, 200)] * 3,
    ]
    assert copy.outputs == 10


def test_a_copy_does_not_follow_the_weight():
    weight_OI = random(3, 5)
    copy = onednn.lay_out(weight_OI, WHOLE)
    before = onednn.product(torch.eye(5), copy, None)
    weight_OI.zero_()
    assert torch.equal(onednn.product(torch.eye(5), copy, None), before)
    assert before.abs().min() > 0


def test_the_gradient_of_inputs_is_that_of_float64():
    doutputs_NO, weight_OI = random(9, 33), random(33, 40, seed=1)
    found_NI = onednn.gradient_of_inputs(doutputs_NO, weight_OI)
    torch.testing.assert_close(found_NI.double(), doutputs_NO.double() @ weight_OI.double(), rtol=1e-6, atol=1e-5)


def test_what_it_is_slow_at_or_cannot_do_is_refused():
    weight_OI = random(4, 8)
    assert onednn.usable(weight_OI)
    assert not onednn.usable(weight_OI[:, :4])
    assert not onednn.usable(weight_OI.double())
    assert not onednn.usable(weight_OI.bfloat16())
    assert not onednn.usable(weight_OI.to("meta"))


def error(inputs_NI, weight_OI, cut):
    exact_NO = inputs_NI.double() @ weight_OI.double().T
    found_NO = onednn.product(inputs_NI, onednn.lay_out(weight_OI, cut), None)
    return (found_NO - exact_NO).square().mean().sqrt()


def test_short_parts_are_rounded_hardly_more_coarsely_than_torch_does_it():
    inputs_NI, weight_OI = random(64, 1536), random(256, 1536, seed=1)
    theirs = (inputs_NI @ weight_OI.T - inputs_NI.double() @ weight_OI.double().T).square().mean().sqrt()
    assert error(inputs_NI, weight_OI, Cut(288)) < 1.5 * theirs
    assert error(inputs_NI, weight_OI, Cut(288)) < 0.8 * error(inputs_NI, weight_OI, WHOLE)
