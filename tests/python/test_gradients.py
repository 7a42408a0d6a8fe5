# SPDX-License-Identifier: Apache-2.0
"""Derivatives of any order, reverse, forward and batched."""

import pytest
import torch
from torch.autograd import grad, gradcheck, gradgradcheck

import cases
import operators
import torch_ext
from cases import SMALL, Case, parse, to_data, to_weights

ops = torch.ops.torch_ext

# Few elements, so that gradcheck may look at each of them.
TINY = [
    parse(line)
    for line in (
        "plain_1d n2 g1 c2:3 i3 k3 s2 d1 pb1 pe0 op1",
        "dilated_1d n1 g2 c2:4 i3 k2 s2 d3 pb1 pe2 op2",
        "plain_2d n1 g1 c2:2 i2x3 k3x2 s2x1 d1x1 pb1x0 pe0x1 op1x0",
        "grouped_2d n2 g2 c2:2 i2x2 k2x3 s1x2 d2x1 pb0x1 pe1x0 op0x1",
        "same_2d n1 g1 c1:2 i2x3 k3x4 s2x1 d1x1 pb0x0 pe0x0 op0x0 auto=same_upper",
        "cropped_2d n1 g1 c1:2 i4x3 k2x2 s2x1 d1x1 pb3x1 pe2x1 op0x0",
        "plain_3d n1 g1 c1:2 i2x1x2 k2x2x1 s1x2x2 d1x1x1 pb0x1x0 pe1x0x0 op0x1x1",
    )
]
LAYOUTS = (("NXC", "XOI"), ("NCX", "IOX"))


def leaves(*tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


def forward_of(case, data_format, weights_format, t):
    attributes = case.attributes(data_format, weights_format)
    inputs = leaves(to_data(t["x"], data_format), to_weights(t["w"], weights_format), t["bias"])
    return (lambda x, w, bias: ops.conv_transpose(x, w, bias, **attributes)), inputs


def backward_data_of(case, data_format, weights_format, t):
    attributes = case.attributes(data_format, weights_format)
    inputs = leaves(to_data(t["y"], data_format), to_weights(t["w"], weights_format))
    return (lambda y, w: ops.conv_transpose_backward_data(y, w, **attributes)), inputs


def backward_weights_of(case, data_format, weights_format, t):
    attributes = case.attributes(data_format, weights_format)
    shape = list(to_weights(t["w"], weights_format).shape)
    inputs = leaves(to_data(t["x"], data_format), to_data(t["y"], data_format))
    return (lambda x, y: ops.conv_transpose_backward_weights(x, y, **attributes, weights_shape=shape)), inputs


every_operation = pytest.mark.parametrize(
    "operation", (forward_of, backward_data_of, backward_weights_of), ids=("conv_transpose", "backward_data", "backward_weights")
)


@every_operation
@pytest.mark.parametrize("layouts", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("case", TINY, ids=lambda case: case.name)
def test_first_and_second_derivatives(case: Case, layouts, operation):
    function, inputs = operation(case, *layouts, case.tensors())
    gradcheck(function, inputs, fast_mode=True)
    gradgradcheck(function, inputs, fast_mode=True)


@every_operation
@pytest.mark.parametrize("case", (TINY[1], TINY[3]), ids=lambda case: case.name)
def test_every_mode_of_differentiation(case: Case, operation):
    function, inputs = operation(case, "NXC", "XOI", case.tensors())
    gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    gradgradcheck(function, inputs, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True)


@every_operation
def test_third_derivative(operation):
    case = TINY[3]
    function, inputs = operation(case, "NXC", "XOI", case.tensors())
    first = lambda *t: grad(function(*t).pow(3).sum(), t[0], create_graph=True)[0]
    second = lambda *t: grad(first(*t).pow(2).sum(), t[1], create_graph=True)[0]
    gradcheck(second, inputs, fast_mode=True)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_derivatives_of_integers_are_exact(case: Case):
    """First and second derivatives equal those of torch's own graph of the reference, exactly, in every problem."""
    t = case.tensors(integers=True)

    def derivatives(function):
        x, w, bias, gy = leaves(t["x"], t["w"], t["bias"], t["y"])
        y = function({"x": x, "w": w, "bias": bias})
        first = grad(y, (x, w, bias), gy, create_graph=True)
        # The derivatives are linear in gy and in each other's operand; those of the bias are linear in gy alone.
        total = (first[0] * x.detach()).sum() + (first[1] * w.detach()).sum() + (first[2] * bias.detach()).sum()
        # Without a term the reference's derivatives do not depend on every tensor: then zeros.
        return [*first, *grad(total, (x, w, gy), allow_unused=True, materialize_grads=True)]

    got = derivatives(lambda u: operators.conv_transpose(case, u, "NXC", "XOI"))
    exact = derivatives(lambda u: cases.conv_transpose(case, u))
    for name, a, b in zip(("x", "w", "bias", "x twice", "w twice", "gy"), got, exact):
        assert torch.equal(a, b), f"derivative by {name} of {case.line}"


def test_only_the_derivatives_that_are_needed_are_computed():
    case = cases.BY_NAME["plain_2d"]
    t = case.tensors()
    for needed in ((True, False, False), (False, True, False), (False, False, True), (True, False, True)):
        tensors = [v.clone().requires_grad_(n) for v, n in zip((t["x"], t["w"], t["bias"]), needed)]
        with torch.profiler.profile() as profile:
            ops.conv_transpose(*tensors, **case.attributes()).sum().backward()
        names = {event.name for event in profile.events()}
        assert ("torch_ext::_conv_transpose_backward_data" in names) == needed[0]
        assert ("torch_ext::_conv_transpose_backward_weights" in names) == needed[1]
        assert [v.grad is not None for v in tensors] == list(needed)


def test_inference_keeps_no_graph():
    case = cases.BY_NAME["plain_2d"]
    t = case.tensors()
    w = t["w"].requires_grad_()
    with torch.no_grad():
        assert not ops.conv_transpose(t["x"], w, **case.attributes()).requires_grad
    with torch.inference_mode():
        assert ops.conv_transpose(t["x"], w, **case.attributes()).is_inference()


def test_changing_a_saved_tensor_in_place_is_noticed():
    case = cases.BY_NAME["plain_2d"]
    t = case.tensors()
    x, w = leaves(t["x"], t["w"])
    y = ops.conv_transpose(x, w, **case.attributes())
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# Gradients as layers hand them back: planes, channels_last, a part of a concatenation, every second position, a sum's, turned.
IN_MEMORY = {
    "contiguous": lambda g: g,
    "channels_last": lambda g: g.contiguous(memory_format=torch.channels_last),
    "part of channels_last": lambda g: torch.cat((g, g), 1).contiguous(memory_format=torch.channels_last)[:, : g.shape[1]],
    "part of planes": lambda g: torch.cat((g, g), 1)[:, g.shape[1] :],
    "every second position": lambda g: g.repeat_interleave(2, 3)[..., ::2],
    "expanded": lambda g: g[:1, :1, :1, :1].expand_as(g),
    "axes turned": lambda g: g.transpose(2, 3).contiguous().transpose(2, 3),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("in_memory", IN_MEMORY)
@pytest.mark.parametrize("shape", ((2, 5, 6, 7), (3, 1, 9, 4), (4, 3, 1, 1), (1, 40, 33, 17)), ids=str)
def test_bias_gradient_is_the_sum_of_each_channel(shape, in_memory, dtype):
    gradient = IN_MEMORY[in_memory](torch.randint(-3, 4, shape).to(dtype))
    bias = torch.zeros(shape[1], dtype=dtype, requires_grad=True)
    y = torch_ext.functional.conv_transpose2d(
        torch.zeros(shape[0], 1, *shape[2:], dtype=dtype), torch.zeros(1, shape[1], 1, 1, dtype=dtype), bias
    )
    (got,) = torch.autograd.grad(y, bias, gradient)
    torch.testing.assert_close(got, gradient.double().sum((0, 2, 3)).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_bias_gradient_accumulates_in_float32(dtype):
    x, w = torch.ones(1, 1, 4096, dtype=dtype), torch.ones(1, 1, 1, dtype=dtype)
    bias = torch.zeros(1, dtype=dtype, requires_grad=True)
    attributes = dict(strides=[1], pads_begin=[0], pads_end=[0], dilations=[1], data_format="NCX", weights_format="IOX")
    ops.conv_transpose(x, w, bias, **attributes).sum().backward()
    assert bias.grad.item() == 4096


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_sums_of_16_bit_types_accumulate_in_float32(dtype):
    x, w = torch.ones(1, 4095, 1, dtype=dtype), torch.ones(4095, 1, 1, dtype=dtype)
    attributes = dict(strides=[1], pads_begin=[0], pads_end=[0], dilations=[1], data_format="NCX", weights_format="IOX")
    expected = torch.tensor(4095.0).to(dtype)
    assert ops.conv_transpose(x, w, **attributes).item() == expected


def test_gradients_of_expanded_and_sliced_tensors():
    case = cases.BY_NAME["plain_2d"]
    t = case.tensors(integers=True)
    y = operators.conv_transpose(case, t)
    x, w = leaves(t["x"], t["w"])
    got = ops.conv_transpose(x, w, **case.attributes())
    torch.autograd.backward(got, torch.ones((), dtype=y.dtype).expand_as(got))
    exact = cases.gradients(case, {**t, "y": torch.ones_like(t["y"])})
    assert torch.equal(x.grad, exact[0]) and torch.equal(w.grad, exact[1])
    wide = t["x"].repeat_interleave(2, -1)[..., ::2]
    assert torch.equal(operators.conv_transpose(case, {**t, "x": wide}), y)
