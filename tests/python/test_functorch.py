# SPDX-License-Identifier: Apache-2.0
"""torch.func: vmap by a batching rule of the operators, and the transforms built on it."""

import itertools
import warnings

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

import operators
from cases import parse, to_data, to_weights

ops = torch.ops.torch_ext

CASES = [
    parse("f1 n2 g2 c4:6 i4 k3 s2 d1 pb1 pe0 op1"),
    parse("f2 n2 g1 c2:3 i3x2 k2x3 s2x1 d1x2 pb0x1 pe1x0 op1x0"),
    parse("f3 n1 g3 c3:6 i2x2x3 k2x1x2 s1x2x2 d1x1x1 pb0x0x1 pe0x0x0 op0x1x1"),
]
LAYOUTS = list(itertools.product(("NXC", "NCX"), ("XOI", "IOX")))
BATCH = 3


@pytest.fixture(autouse=True)
def no_per_sample_fallback():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(performance drop|batching rule|vmap).*")
        yield


def operations(case, layouts):
    """Each operation as a function of its tensors, and those tensors."""
    data_format, weights_format = layouts
    attributes = case.attributes(*layouts)
    t = case.tensors()
    x, y, w = to_data(t["x"], data_format), to_data(t["y"], data_format), to_weights(t["w"], weights_format)
    shape = list(w.shape)
    return {
        "conv_transpose": (lambda x, w, bias: ops.conv_transpose(x, w, bias, **attributes), (x, w, t["bias"])),
        "backward_data": (lambda y, w: ops.conv_transpose_backward_data(y, w, **attributes), (y, w)),
        "backward_weights": (
            lambda x, y: ops.conv_transpose_backward_weights(x, y, **attributes, weights_shape=shape),
            (x, y),
        ),
    }


every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_operation = pytest.mark.parametrize("operation", ("conv_transpose", "backward_data", "backward_weights"))


@every_operation
@pytest.mark.parametrize("layouts", LAYOUTS, ids="-".join)
@every_case
def test_vmap_over_any_arguments_equals_a_loop(case, layouts, operation):
    function, tensors = operations(case, layouts)[operation]
    for batched in itertools.product((False, True), repeat=len(tensors)):
        if not any(batched):
            continue
        dims = tuple((k % t.dim() if b else None) for k, (b, t) in enumerate(zip(batched, tensors)))
        stacked = [torch.stack([t * (j + 1) for j in range(BATCH)], d) if b else t for b, d, t in zip(batched, dims, tensors)]
        got = vmap(function, in_dims=dims)(*stacked)
        for j in range(BATCH):
            expected = function(*[t * (j + 1) if b else t for b, t in zip(batched, tensors)])
            torch.testing.assert_close(got[j], expected, msg=lambda m: f"{dims}: {m}")


@every_operation
def test_nested_vmap(operation):
    function, tensors = operations(CASES[0], ("NXC", "XOI"))[operation]
    outer = torch.stack([tensors[0], 2 * tensors[0]])
    inner = torch.stack([tensors[1], 3 * tensors[1], 5 * tensors[1]])
    rest = tensors[2:]
    got = vmap(lambda a: vmap(lambda b: function(a, b, *rest))(inner))(outer)
    torch.testing.assert_close(got[1, 2], function(2 * tensors[0], 5 * tensors[1], *rest))


def test_vmap_of_an_empty_batch():
    function, tensors = operations(CASES[0], ("NCX", "IOX"))["conv_transpose"]
    got = vmap(function, in_dims=(0, None, None))(tensors[0].new_empty(0, *tensors[0].shape), *tensors[1:])
    assert got.shape == (0, *function(*tensors).shape)


@every_operation
@every_case
def test_jacobians_agree(case, operation):
    function, tensors = operations(case, ("NXC", "XOI"))[operation]
    for k in range(len(tensors)):
        reverse, forward = jacrev(function, argnums=k)(*tensors), jacfwd(function, argnums=k)(*tensors)
        torch.testing.assert_close(reverse, forward)
        exact = torch.autograd.functional.jacobian(lambda t: function(*tensors[:k], t, *tensors[k + 1 :]), tensors[k])
        torch.testing.assert_close(reverse, exact)


@every_operation
def test_hessian(operation):
    function, tensors = operations(CASES[1], ("NCX", "IOX"))[operation]
    scalar = lambda a, b: function(a, b, *tensors[2:]).pow(2).sum()
    got = hessian(scalar, argnums=(0, 1))(*tensors[:2])
    exact = torch.autograd.functional.hessian(scalar, tensors[:2])
    for i, j in itertools.product(range(2), repeat=2):
        torch.testing.assert_close(got[i][j], exact[i][j])


@every_operation
def test_jvp_is_the_product_rule(operation):
    function, tensors = operations(CASES[2], ("NXC", "IOX"))[operation]
    tangents = tuple(torch.randn_like(t) for t in tensors)
    _, got = jvp(function, tensors, tangents)
    rest = tensors[2:]
    zero = tuple(torch.zeros_like(t) for t in rest)
    expected = function(tangents[0], tensors[1], *zero) + function(tensors[0], tangents[1], *tangents[2:])
    torch.testing.assert_close(got, expected)


def test_per_sample_gradients():
    case = CASES[1]
    t = case.tensors()
    loss = lambda w, x: ops.conv_transpose(x[None], w, t["bias"], **case.attributes()).pow(2).sum()
    got = vmap(grad(loss), in_dims=(None, 0))(t["w"], t["x"])
    for n in range(case.n):
        torch.testing.assert_close(got[n], grad(loss)(t["w"], t["x"][n]))


def test_ensemble_of_modules():
    import torch_ext

    modules = [torch_ext.nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, groups=2) for _ in range(4)]
    parameters, buffers = torch.func.stack_module_state(modules)
    x = torch.randn(2, 2, 5, 4)
    got = vmap(lambda p, b: functional_call(modules[0], (p, b), (x,)))(parameters, buffers)
    for k, module in enumerate(modules):
        torch.testing.assert_close(got[k], module(x))


def test_vmap_of_the_older_operations():
    case = CASES[1]
    t = case.tensors()
    xs = torch.stack([t["x"], 2 * t["x"]])
    got = vmap(lambda x: operators.convolution_backprop_data(case, {**t, "x": x}))(xs)
    torch.testing.assert_close(got[1], operators.convolution_backprop_data(case, {**t, "x": xs[1]}))
    got = vmap(lambda x: operators.backprop_filters(case, {**t, "x": x}))(xs)
    torch.testing.assert_close(got[1], operators.backprop_filters(case, {**t, "x": xs[1]}))
