# SPDX-License-Identifier: Apache-2.0
"""What the operators compute, on every problem of cases.txt."""

import itertools

import pytest
import torch

import cases
import operators
from cases import DATA_FORMATS, DTYPES, LARGE, SMALL, TORCH, WEIGHTS_FORMATS, Case

every_small_case = pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
LAYOUTS = tuple(itertools.product(DATA_FORMATS, WEIGHTS_FORMATS))


def expect_equal(got: torch.Tensor, exact: torch.Tensor, what: str):
    """Small integers: every sum is exact in float32, so one rounding of the exact value is the only right answer."""
    assert got.shape == exact.shape, f"{what}: shape {tuple(got.shape)} instead of {tuple(exact.shape)}"
    expected = exact.to(got.dtype)
    wrong = (got != expected).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise AssertionError(f"{what}: {len(wrong)} elements are wrong, {at} is {got[at]} instead of {expected[at]}")


def casted(t, dtype):
    return {name: value.to(dtype) for name, value in t.items()}


@every_small_case
def test_conv_transpose_of_integers_is_exact(case: Case):
    t = case.tensors(integers=True)
    for bias in (True, False):
        exact = cases.conv_transpose(case, t, bias)
        for dtype, layouts in itertools.product(DTYPES, LAYOUTS):
            got = operators.conv_transpose(case, casted(t, dtype), *layouts, bias=bias)
            expect_equal(got, exact, f"{case.line} {dtype} {layouts} bias={bias}")


@every_small_case
def test_backward_operations_of_integers_are_exact(case: Case):
    t = case.tensors(integers=True)
    exact_x, exact_w = cases.gradients(case, t)
    for dtype, layouts in itertools.product(DTYPES, LAYOUTS):
        what = f"{case.line} {dtype} {layouts}"
        expect_equal(operators.backward_data(case, casted(t, dtype), *layouts), exact_x, what)
        expect_equal(operators.backward_weights(case, casted(t, dtype), *layouts), exact_w, what)


@every_small_case
def test_older_operations_of_integers_are_exact(case: Case):
    t = case.tensors(integers=True)
    if case.auto == "none":  # the rule of auto_pad is another one: test_specification.py
        exact = cases.conv_transpose(case, t, bias=False)
        for layouts in LAYOUTS:
            got = operators.convolution_backprop_data(case, casted(t, torch.float32), *layouts)
            expect_equal(got, exact, f"{case.line} {layouts}")
    exact_w = cases.gradients(case, t)[1]
    for layouts in itertools.product(DATA_FORMATS, ("XIO", "OIX", "XOI", "IOX")):
        got = operators.backprop_filters(case, casted(t, torch.float32), *layouts)
        expect_equal(got, exact_w, f"{case.line} {layouts}")


# ---- Against torch's own accuracy ------------------------------------------------------------------------------------------


def expect_as_good_as_torch(got, theirs, exact, what: str):
    """At most twice torch's own error in the same type, or one rounding of the largest value where torch happens to have less."""
    assert got.shape == exact.shape, what
    if exact.numel() == 0:
        return
    error, their_error = ((v.double() - exact).abs().max().item() for v in (got, theirs))
    floor = torch.finfo(got.dtype).eps * exact.abs().max().item()
    assert error <= 2 * their_error + floor, f"{what}: error {error:g}, torch's {their_error:g}, one rounding {floor:g}"


def compare_with_torch(case: Case, dtype: torch.dtype, layouts=("NCX", "IOX"), gradients=True):
    attributes = case.torch_attributes()
    t = case.tensors(dtype)
    x, w = t["x"].clone().requires_grad_(gradients), t["w"].clone().requires_grad_(gradients)
    theirs = TORCH[case.axes](x, w, t["bias"], **attributes)
    exact = cases.conv_transpose(case, casted(t, torch.float64))
    what = f"{case.line} {dtype} {layouts}"
    expect_as_good_as_torch(operators.conv_transpose(case, t, *layouts), theirs.detach(), exact, what)
    if not gradients:
        return
    their_x, their_w = torch.autograd.grad(theirs, (x, w), t["y"])
    exact_x, exact_w = cases.gradients(case, t)
    expect_as_good_as_torch(operators.backward_data(case, t, *layouts), their_x, exact_x, "backward_data " + what)
    expect_as_good_as_torch(operators.backward_weights(case, t, *layouts), their_w, exact_w, "backward_weights " + what)


@pytest.mark.parametrize("case", [case for case in SMALL if case.torch_attributes()], ids=lambda case: case.name)
def test_error_is_at_most_twice_that_of_torch(case: Case):
    for k, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16)):  # torch in float64 is the reference itself
        compare_with_torch(case, dtype, LAYOUTS[(len(case.name) + k) % len(LAYOUTS)])


@pytest.mark.parametrize("case", [case for case in LARGE if case.torch_attributes()], ids=lambda case: case.name)
def test_error_on_layers_of_models_is_at_most_twice_that_of_torch(case: Case):
    compare_with_torch(case, torch.float32)
    compare_with_torch(case, torch.bfloat16, ("NXC", "XOI"), gradients=False)


@pytest.mark.parametrize("case", [case for case in LARGE if not case.torch_attributes()], ids=lambda case: case.name)
def test_layers_that_torch_cannot_express(case: Case):
    t = case.tensors()
    torch.testing.assert_close(operators.conv_transpose(case, t), cases.conv_transpose(case, t))
    exact = cases.gradients(case, t)
    torch.testing.assert_close((operators.backward_data(case, t), operators.backward_weights(case, t)), exact)


def test_most_cases_can_be_compared_with_torch():
    assert sum(case.torch_attributes() is not None for case in SMALL + LARGE) > 200


# ---- The reference itself ----------------------------------------------------------------------------------------------------


def test_reference_is_torch_where_torch_can():
    for case in SMALL:
        if case.torch_attributes():
            t = case.tensors()
            theirs = TORCH[case.axes](t["x"], t["w"], t["bias"], **case.torch_attributes())
            torch.testing.assert_close(cases.conv_transpose(case, t), theirs, msg=case.line)
