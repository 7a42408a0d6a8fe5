# SPDX-License-Identifier: Apache-2.0
"""torch.autocast casts as it does for torch's own conv_transpose."""

import pytest
import torch
import torch.nn.functional as F

import operators
from cases import parse

ops = torch.ops.torch_ext
CASE = parse("t n2 g2 c4:6 i3x5 k3x3 s2x2 d1x1 pb1x1 pe1x1 op0x0")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("to", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("x_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("w_dtype", FLOATS, ids=str)
def test_mixed_arguments_are_cast(to, x_dtype, w_dtype):
    t = CASE.tensors()
    x, w = t["x"].to(x_dtype).requires_grad_(), t["w"].to(w_dtype).requires_grad_()
    bias = t["bias"].to(w_dtype).requires_grad_()
    with torch.autocast("cpu", dtype=to):
        y = ops.conv_transpose(x, w, bias, **CASE.attributes())
        theirs = F.conv_transpose2d(x, w, bias, stride=2, padding=1, groups=2)
    assert y.dtype == theirs.dtype == to
    torch.testing.assert_close(y, theirs, rtol=0.02, atol=0.05)
    y.float().pow(2).sum().backward()
    assert [v.grad.dtype for v in (x, w, bias)] == [x_dtype, w_dtype, w_dtype]


def test_float64_is_left_alone():
    t = CASE.tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = operators.conv_transpose(CASE, t)
        assert F.conv_transpose2d(t["x"], t["w"]).dtype == torch.float64, "torch's own rule"
    assert y.dtype == torch.float64
    assert torch.equal(y, operators.conv_transpose(CASE, t))


def test_disabled_regions_compute_in_float32():
    t = {k: v.float() for k, v in CASE.tensors().items()}
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert operators.conv_transpose(CASE, t).dtype == torch.float32


@pytest.mark.parametrize("function", (operators.conv_transpose, operators.backward_data, operators.backward_weights,
                                      operators.convolution_backprop_data, operators.backprop_filters), ids=lambda f: f.__name__)
def test_every_operator_is_cast(function):
    t = {k: v.float() for k, v in CASE.tensors().items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert function(CASE, t).dtype == torch.bfloat16


def test_second_derivative_under_autocast():
    t = {k: v.float().requires_grad_() for k, v in CASE.tensors().items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = operators.conv_transpose(CASE, t)
        first = torch.autograd.grad(y.float().pow(2).sum(), t["x"], create_graph=True)[0]
        second = torch.autograd.grad(first.pow(2).sum(), t["w"])[0]
    exact = {k: v.detach().double().requires_grad_() for k, v in t.items()}
    first = torch.autograd.grad(operators.conv_transpose(CASE, exact).pow(2).sum(), exact["x"], create_graph=True)[0]
    expected = torch.autograd.grad(first.pow(2).sum(), exact["w"])[0]
    assert (second - expected).abs().max() < 0.05 * expected.abs().max()
