# SPDX-License-Identifier: Apache-2.0
"""Strides: any on the way in, torch's rule on the way out, the same under meta tensors."""

import itertools

import pytest
import torch

import cases
import operators
from cases import Case, parse, to_data, to_weights

ops = torch.ops.torch_ext

CASES = [
    parse("l2 n2 g2 c4:6 i3x5 k3x2 s2x3 d1x2 pb1x0 pe0x1 op1x0"),
    parse("l3 n2 g1 c3:5 i3x2x4 k2x3x2 s2x1x2 d1x1x1 pb0x1x1 pe0x1x0 op1x0x1"),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.axes}d")


def channels_last(t):
    return t.contiguous(memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d)


def is_channels_last(t):
    return t.is_contiguous(memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d)


@every_case
@pytest.mark.parametrize("last", list(itertools.product((False, True), repeat=2)), ids=str)
def test_ncx_results_are_channels_last_where_an_argument_suggests_it(case: Case, last):
    t = case.tensors()
    x, y = (channels_last(t[name]) if last[0] else t[name] for name in "xy")
    w = channels_last(t["w"]) if last[1] else t["w"]
    for result, exact in (
        (ops.conv_transpose(x, w, t["bias"], **case.attributes()), cases.conv_transpose(case, t)),
        (ops.conv_transpose_backward_data(y, w, **case.attributes()), cases.gradients(case, t)[0]),
    ):
        assert is_channels_last(result) if any(last) else result.is_contiguous()
        torch.testing.assert_close(result, exact, check_stride=False)
    if case.axes == 2:  # in 3-D torch's float64 forgets the rule
        assert is_channels_last(cases.TORCH[2](x, w, stride=case.s, groups=case.g)) == any(last), "torch's own rule"


@every_case
@pytest.mark.parametrize("formats", list(itertools.product(("NXC", "NCX"), ("XOI", "IOX", "XIO", "OIX", "IXO"))), ids="-".join)
def test_private_operators_take_formats_in_any_case(case: Case, formats):
    t = case.tensors()
    x, w = to_data(t["x"], formats[0]), to_weights(t["w"], formats[1])
    size = list(t["y"].shape[2:])
    upper, lower = (
        ops._conv_transpose(x, w, t["bias"], size, case.s, case.pb, case.d, case.g, *names)
        for names in (formats, [name.lower() for name in formats])
    )
    assert torch.equal(upper, lower) and upper.stride() == lower.stride()
    torch.testing.assert_close(upper, to_data(cases.conv_transpose(case, t), formats[0]), check_stride=False)


@every_case
def test_nxc_results_and_diff_weights_are_contiguous(case: Case):
    t = case.tensors()
    attributes = case.attributes("NXC", "XOI")
    x, y, w = to_data(t["x"], "NXC"), to_data(t["y"], "NXC"), to_weights(t["w"], "XOI")
    for permuted in (lambda v: v, lambda v: v.transpose(0, -1).contiguous().transpose(0, -1)):
        assert ops.conv_transpose(permuted(x), permuted(w), **attributes).is_contiguous()
        assert ops.conv_transpose_backward_data(permuted(y), permuted(w), **attributes).is_contiguous()
        dw = ops.conv_transpose_backward_weights(permuted(x), permuted(y), **attributes, weights_shape=list(w.shape))
        assert dw.is_contiguous()
    ncx = ops.conv_transpose_backward_weights(
        channels_last(t["x"]), channels_last(t["y"]), **case.attributes(), weights_shape=list(t["w"].shape)
    )
    assert ncx.is_contiguous()


@every_case
@pytest.mark.parametrize("last", list(itertools.product((False, True), repeat=2)), ids=str)
def test_gradients_of_weights_have_the_memory_format_of_the_weights(case: Case, last):
    t = case.tensors(integers=True)
    x, w = (channels_last(t[name]) if yes else t[name] for name, yes in zip("xw", last))
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    exact = cases.gradients(case, t)

    def function(x, w):
        return ops.conv_transpose(x, w, **case.attributes())

    y = function(x, w)
    g = torch.empty_like(y).copy_(t["y"]).requires_grad_()
    dx, dw = torch.autograd.grad(y, (x, w), g, create_graph=True)
    assert is_channels_last(dw) if last[1] else dw.is_contiguous()
    again = torch.autograd.grad(dw, (x, g), w)  # of L(x, w, g), which is linear in each: by x and by g
    for a, b in zip((dx, dw, *again), (*exact, exact[0], cases.conv_transpose(case, t, bias=False))):
        assert torch.equal(a, b)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    of_compiled = torch.autograd.grad(compiled(x, w), w, g)[0]
    assert of_compiled.stride() == dw.stride() and torch.equal(of_compiled, exact[1])


# What a view may look like: the values of the result must not care.
VIEWS = {
    "sliced": lambda v: v.repeat_interleave(2, -1)[..., ::2],
    "sliced first": lambda v: torch.cat([v, v])[: len(v)],
    "offset": lambda v: torch.nn.functional.pad(v, (1, 2))[..., 1:-2],
    "transposed": lambda v: v.transpose(0, -1).contiguous().transpose(0, -1),
    "turned": lambda v: v.permute(*reversed(range(v.dim()))).contiguous().permute(*reversed(range(v.dim()))),
}


@every_case
@pytest.mark.parametrize("view", VIEWS)
def test_any_strides_are_accepted(case: Case, view):
    t = case.tensors(integers=True)
    exact = cases.conv_transpose(case, t), *cases.gradients(case, t)
    for data_format, weights_format in itertools.product(cases.DATA_FORMATS, cases.WEIGHTS_FORMATS):
        attributes = case.attributes(data_format, weights_format)
        x, y = (VIEWS[view](to_data(t[name], data_format)) for name in "xy")
        w = VIEWS[view](to_weights(t["w"], weights_format))
        shape = list(w.shape)
        bias = VIEWS[view](t["bias"])
        got = (
            cases.from_data(ops.conv_transpose(x, w, bias, **attributes), data_format),
            cases.from_data(ops.conv_transpose_backward_data(y, w, **attributes), data_format),
            cases.from_weights(ops.conv_transpose_backward_weights(x, y, **attributes, weights_shape=shape), weights_format),
        )
        for a, b in zip(got, exact):
            assert torch.equal(a, b)


@every_case
def test_expanded_tensors_are_accepted(case: Case):
    t = case.tensors(integers=True)
    u = {name: v[tuple(slice(1) for _ in v.shape)].expand_as(v) for name, v in t.items()}
    assert torch.equal(operators.conv_transpose(case, u), cases.conv_transpose(case, u))
    exact_x, exact_w = cases.gradients(case, u)
    assert torch.equal(operators.backward_data(case, u), exact_x)
    assert torch.equal(operators.backward_weights(case, u), exact_w)


@pytest.mark.parametrize("dim", (3, 4, 5))
@pytest.mark.parametrize("data_format", cases.DATA_FORMATS)
def test_meta_results_have_the_strides_of_real_ones(dim, data_format):
    case = parse("m n2 g1 c3:4 i" + "x".join("456"[: dim - 2]) + "".join(f" {k}" + "x".join([v] * (dim - 2)) for k, v in
                 (("k", "3"), ("s", "2"), ("d", "1"), ("pb", "1"), ("pe", "1"), ("op", "1"))))
    t = case.tensors(torch.float32)
    attributes = case.attributes(data_format)
    formats = [lambda v: v] + ([channels_last] if dim > 3 else [])
    for data, weights in itertools.product(formats, formats):
        x, y, w = data(to_data(t["x"], data_format)), data(to_data(t["y"], data_format)), weights(t["w"])
        shape = list(w.shape)
        for function in (
            lambda x, y, w: ops.conv_transpose(x, w, **attributes),
            lambda x, y, w: ops.conv_transpose_backward_data(y, w, **attributes),
            lambda x, y, w: ops.conv_transpose_backward_weights(x, y, **attributes, weights_shape=shape),
        ):
            real, meta = function(x, y, w), function(x.to("meta"), y.to("meta"), w.to("meta"))
            assert (real.shape, real.stride(), real.dtype) == (meta.shape, meta.stride(), meta.dtype)
