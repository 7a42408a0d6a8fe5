# SPDX-License-Identifier: Apache-2.0
"""torch_ext.functional and torch_ext.nn against torch's own."""

import inspect
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parametrizations, parametrize

import torch_ext
from cases import parse, reference

THEIRS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
OURS = {axes: getattr(torch_ext.functional, f"conv_transpose{axes}d") for axes in THEIRS}
MODULES = {axes: (getattr(torch_ext.nn, f"ConvTranspose{axes}d"), getattr(torch.nn, f"ConvTranspose{axes}d")) for axes in THEIRS}
every_axes = pytest.mark.parametrize("axes", (1, 2, 3))


def tensors(axes, groups=1, dtype=torch.float64):
    x = torch.randn(2, 4, *(5, 4, 3)[:axes], dtype=dtype)
    w = torch.randn(4, 6 // groups, *(3, 4, 2)[:axes], dtype=dtype)
    return x, w, torch.randn(6, dtype=dtype)


# ---- functional ------------------------------------------------------------------------------------------------------------

CALLS = (
    {},
    dict(stride=2),
    dict(stride=2, padding=1),
    dict(stride=3, padding=1, output_padding=2),
    dict(dilation=2),
    dict(stride=2, dilation=3, output_padding=2),
    dict(groups=2, padding=1),
)


@every_axes
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_functional_equals_torch(axes, call):
    x, w, bias = tensors(axes, call.get("groups", 1))
    for b in (bias, None):
        expected = THEIRS[axes](x, w, b, **call)
        torch.testing.assert_close(OURS[axes](x, w, b, **call), expected)
        torch.testing.assert_close(OURS[axes](x[0], w, b, **call), expected[0])  # unbatched
    per_axis = {k: [v] * axes if k != "groups" else v for k, v in call.items()}
    torch.testing.assert_close(OURS[axes](x, w, bias, **per_axis), THEIRS[axes](x, w, bias, **call))


@pytest.mark.parametrize("two", (np.int64(2), torch.tensor(2), torch.Size([2, 2]), (np.int32(2), torch.tensor(2))), ids=repr)
def test_functional_takes_ints_of_numpy_and_tensors(two):
    x, w, bias = tensors(2)
    pairs = (tuple(two),) * 2 if isinstance(two, tuple) else ((two, two), (two, two))
    expected = OURS[2](x, w, bias, stride=2, padding=2, dilation=2)
    for padding in (two, pairs):
        assert torch.equal(OURS[2](x, w, bias, stride=two, padding=padding, dilation=two), expected)


@every_axes
def test_functional_takes_torchs_positions(axes):
    x, w, bias = tensors(axes, 2)
    positional = (x, w, bias, 2, 1, 1, 2, 1)
    torch.testing.assert_close(OURS[axes](*positional), THEIRS[axes](*positional))
    names = list(inspect.signature(OURS[axes]).parameters)
    assert names == ["input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"]


@every_axes
@pytest.mark.parametrize("padding", ("valid", "same_upper", "same_lower"))
@pytest.mark.parametrize("stride", (1, 2))
def test_functional_padding_by_name(axes, padding, stride):
    x, w, bias = tensors(axes)
    spatial = lambda v: "x".join(map(str, v))
    case = parse(
        f"t n2 g1 c4:6 i{spatial(x.shape[2:])} k{spatial(w.shape[2:])} s{spatial([stride] * axes)} d{spatial([1] * axes)} "
        f"pb{spatial([0] * axes)} pe{spatial([0] * axes)} op{spatial([0] * axes)} auto={padding}"
    )
    expected = reference(x, w, bias, case.s, case.d, case.pads[0], case.o, 1)
    torch.testing.assert_close(OURS[axes](x, w, bias, stride=stride, padding=padding), expected)


@every_axes
def test_functional_padding_by_pairs(axes):
    x, w, bias = tensors(axes)
    pairs = [(0, 2), (3, 1), (1, 0)][:axes]
    o = [2 * (i - 1) + k - b - e for i, k, (b, e) in zip(x.shape[2:], w.shape[2:], pairs)]
    expected = reference(x, w, bias, [2] * axes, [1] * axes, [b for b, _ in pairs], o, 1)
    torch.testing.assert_close(OURS[axes](x, w, bias, stride=2, padding=pairs), expected)


def test_functional_differentiates_unbatched_input():
    x, w, bias = (t.requires_grad_() for t in tensors(2))
    function = lambda x, w, b: OURS[2](x, w, b, stride=2, padding=((0, 1), (2, 0)))
    torch.autograd.gradcheck(function, (x[0], w, bias), fast_mode=True)


# ---- nn --------------------------------------------------------------------------------------------------------------------

CONSTRUCTIONS = (
    dict(kernel_size=3),
    dict(kernel_size=4, stride=2, padding=1),
    dict(kernel_size=3, stride=2, padding=1, output_padding=1, groups=2, bias=False),
    dict(kernel_size=2, dilation=3, output_padding=2, dtype=torch.float64),
)


@every_axes
@pytest.mark.parametrize("construction", CONSTRUCTIONS, ids=str)
def test_module_is_a_drop_in(axes, construction):
    ours, theirs = (module(4, 6, **construction) for module in MODULES[axes])
    assert isinstance(ours, MODULES[axes][1])
    assert [(k, v.shape, v.dtype) for k, v in ours.state_dict().items()] == [
        (k, v.shape, v.dtype) for k, v in theirs.state_dict().items()
    ]
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 4, *(5, 4, 3)[:axes], dtype=construction.get("dtype", torch.float32))
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours(x[0]), theirs(x[0]))
    assert repr(ours) == repr(theirs)


@every_axes
def test_modules_start_from_the_same_parameters(axes):
    built = []
    for module in MODULES[axes]:
        torch.manual_seed(3)
        built.append(module(4, 6, 3, stride=2))
    for a, b in zip(built[0].parameters(), built[1].parameters()):
        assert torch.equal(a, b)


@every_axes
def test_output_size_has_torchs_range(axes):
    ours, theirs = (module(4, 6, 3, stride=3, padding=1) for module in MODULES[axes])
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 4, *(5, 4, 3)[:axes])
    smallest = theirs(x).shape[2:]
    for extra in itertools.product(range(-1, 4), repeat=axes):
        size = [s + e for s, e in zip(smallest, extra)]
        try:
            expected = theirs(x, output_size=size)
        except ValueError:
            with pytest.raises((ValueError, RuntimeError)):
                ours(x, output_size=size)
            continue
        torch.testing.assert_close(ours(x, output_size=size), expected)
        torch.testing.assert_close(ours(x, output_size=[2, 6, *size]), expected)


@every_axes
@pytest.mark.parametrize("padding", ("valid", "same_upper", "same_lower"))
def test_module_padding_by_name(axes, padding):
    module = MODULES[axes][0](4, 6, 3, stride=2, padding=padding)
    x = torch.randn(2, 4, *(5, 4, 3)[:axes])
    expected = OURS[axes](x, module.weight, module.bias, stride=2, padding=padding)
    torch.testing.assert_close(module(x), expected)
    assert padding in repr(module)


def test_module_padding_by_pairs():
    module = MODULES[2][0](4, 6, 3, stride=2, padding=((0, 1), (2, 0)))
    x = torch.randn(2, 4, 5, 4)
    expected = OURS[2](x, module.weight, module.bias, stride=2, padding=((0, 1), (2, 0)))
    torch.testing.assert_close(module(x), expected)


def test_weight_is_read_once_in_a_forward():
    """A parametrisation may have state that steps each time it is computed."""
    module = MODULES[2][0](4, 6, 3)
    reads = []

    class Counting(torch.nn.Module):
        def forward(self, w):
            reads.append(1)
            return w

    parametrize.register_parametrization(module, "weight", Counting())
    reads.clear()
    module(torch.randn(1, 4, 5, 5))
    assert len(reads) == 1
    reads.clear()
    module(torch.randn(1, 4, 5, 5), output_size=[7, 7])
    assert len(reads) == 1


@pytest.mark.parametrize("norm", (parametrizations.weight_norm, parametrizations.spectral_norm), ids=lambda f: f.__name__)
def test_parametrised_weights(norm):
    built = []
    for module in MODULES[2]:
        torch.manual_seed(3)
        built.append(norm(module(4, 6, 3, stride=2)))
    x = torch.randn(2, 4, 5, 5)
    for _ in range(3):  # spectral_norm steps in training mode
        torch.testing.assert_close(built[0](x), built[1](x))


def test_module_learns_like_torchs():
    ours, theirs = (module(4, 6, 3, stride=2, padding=1, groups=2) for module in MODULES[2])
    theirs.load_state_dict(ours.state_dict())
    x, target = torch.randn(2, 4, 5, 5), torch.randn(2, 6, 9, 9)
    optimizers = [torch.optim.Adam(module.parameters(), lr=0.01) for module in (ours, theirs)]
    for _ in range(5):
        losses = []
        for module, optimizer in zip((ours, theirs), optimizers):
            optimizer.zero_grad()
            loss = F.mse_loss(module(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        torch.testing.assert_close(*losses)


def test_lazy_and_meta_construction():
    with torch.device("meta"):
        module = MODULES[2][0](4, 6, 3, stride=2)
    assert module(torch.empty(1, 4, 5, 5, device="meta")).shape == (1, 6, 11, 11)
    real = module.to_empty(device="cpu")
    assert real(torch.randn(1, 4, 5, 5)).shape == (1, 6, 11, 11)
