# SPDX-License-Identifier: Apache-2.0
"""Sentences of the specification that other implementations get wrong, or that no list of problems shows."""

import pytest
import torch

import cases
import operators
from cases import parse, reference

ops = torch.ops.torch_ext


def backward_equals_reference(case):
    t = case.tensors(integers=True)
    exact_x, exact_w = cases.gradients(case, t)
    for layouts in (("NXC", "XOI"), ("NCX", "IOX")):
        assert torch.equal(operators.backward_data(case, t, *layouts), exact_x)
        assert torch.equal(operators.backward_weights(case, t, *layouts), exact_w)


# ---- What oneDNN gets wrong ----------------------------------------------------------------------------------------------


def test_dilation_counts_in_backward_data():
    backward_equals_reference(parse("t n1 g1 c3:2 i4x5 k3x3 s2x1 d2x3 pb1x2 pe1x2 op0x0"))


@pytest.mark.parametrize("auto_pad", ("same_upper", "same_lower"))
def test_same_pads_of_backward_weights_do_not_depend_on_the_extent(auto_pad):
    backward_equals_reference(parse(f"t n1 g1 c2:2 i5x7 k4x3 s2x3 d1x2 pb0x0 pe0x0 op0x0 auto={auto_pad}"))  # 5 % 2, 7 % 3


@pytest.mark.parametrize("auto_pad", ("same_upper", "same_lower"))
def test_same_with_output_padding_goes_backward(auto_pad):
    backward_equals_reference(parse(f"t n1 g2 c2:4 i4x3 k3x5 s2x3 d1x1 pb0x0 pe0x0 op1x2 auto={auto_pad}"))


def base():
    case = parse("t n1 g1 c2:3 i4x5 k3x3 s2x2 d1x1 pb1x1 pe1x1 op0x0")
    return case, case.tensors(integers=True)


def test_stride_0_is_an_error():
    case, t = base()
    with pytest.raises(RuntimeError, match=r"strides\[1\] = 0"):
        ops.conv_transpose(t["x"], t["w"], **{**case.attributes(), "strides": [2, 0]})


def test_short_output_padding_is_an_error():
    case, t = base()
    with pytest.raises(RuntimeError, match="output_padding"):
        ops.conv_transpose(t["x"], t["w"], **{**case.attributes(), "output_padding": [1]})


# ---- auto_pad, output_padding --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ("none", "None", "NONE", "notset", "NOTSET", "NotSet"))
def test_spellings_of_none(word):
    case, t = base()
    expected = ops.conv_transpose(t["x"], t["w"], **case.attributes())
    assert torch.equal(ops.conv_transpose(t["x"], t["w"], **{**case.attributes(), "auto_pad": word}), expected)
    assert torch.equal(older(case, t, auto_pad=word), expected)


@pytest.mark.parametrize("word", ("valid", "same_upper", "same_lower"))
@pytest.mark.parametrize("spelling", (str.upper, str.lower), ids=("upper", "lower"))
def test_spellings_of_auto_pad_and_formats(word, spelling):
    case = parse(f"t n1 g1 c2:3 i4x5 k4x3 s2x1 d1x1 pb1x1 pe1x1 op0x0 auto={word}")
    t = case.tensors(integers=True)
    attributes = {k: spelling(v) if isinstance(v, str) else v for k, v in case.attributes().items()}
    assert torch.equal(ops.conv_transpose(t["x"], t["w"], **attributes), cases.conv_transpose(case, t, bias=False))


def test_defaults_are_those_of_the_specification():
    case, t = base()
    got = ops.conv_transpose(
        cases.to_data(t["x"], "NXC"),
        cases.to_weights(t["w"], "XOI"),
        strides=[2, 2],
        pads_begin=[1, 1],
        pads_end=[1, 1],
        dilations=[1, 1],
    )
    assert torch.equal(cases.from_data(got, "NXC"), cases.conv_transpose(case, t, bias=False))


def without_output_padding(case):
    return {**case.attributes(), "output_padding": None}


def test_backward_data_without_output_padding_takes_the_remainder_for_it():
    case = parse("t n1 g1 c2:3 i4x5 k3x3 s2x3 d1x1 pb1x0 pe1x1 op1x2")
    t = case.tensors(integers=True)
    got = ops.conv_transpose_backward_data(t["y"], t["w"], **without_output_padding(case))
    assert torch.equal(got, cases.gradients(case, t)[0])


def test_backward_data_with_output_padding_must_divide():
    case = parse("t n1 g1 c2:3 i4x5 k3x3 s2x2 d1x1 pb1x1 pe1x1 op0x1")
    t = case.tensors()
    with pytest.raises(RuntimeError, match=r"axis 1 .*diff_dst extent 10 .*output_padding 0 = 9 must be a multiple of the stride 2"):
        ops.conv_transpose_backward_data(t["y"], t["w"], **{**case.attributes(), "output_padding": [0, 0]})


def test_backward_data_of_a_size_that_floors_has_an_exact_adjoint():
    attributes = dict(strides=[2], pads_begin=[0], pads_end=[0], dilations=[1], data_format="NCX", weights_format="IOX")
    y = torch.randn(1, 2, 6, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    x = ops.conv_transpose_backward_data(y, w, **attributes)
    assert x.shape == (1, 3, 2)
    torch.autograd.gradcheck(lambda y, w: ops.conv_transpose_backward_data(y, w, **attributes), (y, w))


def test_backward_weights_takes_any_implied_output_padding():
    for op in (0, 1, 2):
        case = parse(f"t n2 g1 c2:3 i4 k3 s3 d2 pb1 pe0 op{op}")
        t = case.tensors(integers=True)
        got = ops.conv_transpose_backward_weights(
            t["x"], t["y"], **without_output_padding(case), weights_shape=list(case.w_shape)
        )
        assert torch.equal(got, cases.gradients(case, t)[1])


def test_backward_weights_needs_a_shape():
    case, t = base()
    with pytest.raises(RuntimeError, match="weights_shape"):
        ops.conv_transpose_backward_weights(t["x"], t["y"], **case.attributes())


@pytest.mark.parametrize("dtype", (torch.int32, torch.int64))
def test_shape_tensor_wins_over_the_attribute(dtype):
    case, t = base()
    exact = cases.gradients(case, t)[1]
    shape = torch.tensor(case.w_shape, dtype=dtype)
    wrong = [2, 3, 9, 9]
    got = ops.conv_transpose_backward_weights(t["x"], t["y"], shape, **case.attributes(), weights_shape_attr=wrong)
    assert torch.equal(got, exact)
    old = operators.old_attributes(case, "NCX", "IOX")
    got = ops.conv_transpose_backprop_filters(t["x"], t["y"], shape, **old, filter_shape_attr=wrong)
    assert torch.equal(got, exact)


# ---- ConvolutionBackpropData-1 -------------------------------------------------------------------------------------------


def older(case, t, **changes):
    attributes = {**operators.old_attributes(case, "NCX", "OIX"), **changes}
    shape = attributes.pop("shape_tensor", None)
    if shape is not None:
        return ops.convolution_backprop_data(t["x"], t["w"], shape, **attributes)
    return ops.convolution_backprop_data(t["x"], t["w"], **attributes)


@pytest.mark.parametrize("auto_pad", ("none", "valid"))
@pytest.mark.parametrize("extents", ((9, 11), (7, 8), (12, 20), (4, 5)), ids=str)
def test_output_shape_without_same_fixes_the_extents(auto_pad, extents):
    case, t = base()
    pads = (0, 0) if auto_pad == "valid" else case.pb
    exact = reference(t["x"], t["w"], None, case.s, case.d, pads, extents, case.g)
    assert torch.equal(older(case, t, auto_pad=auto_pad, output_shape=list(extents)), exact)


@pytest.mark.parametrize("auto_pad", ("same_upper", "same_lower"))
@pytest.mark.parametrize("output_padding", ((0, 0), (1, 1)), ids=str)
@pytest.mark.parametrize("extents", ((8, 10), (7, 10), (6, 12), (9, 11), (12, 20)), ids=str)
def test_output_shape_with_same_fixes_the_pads(auto_pad, output_padding, extents):
    case, t = base()
    totals = [max(s * (i - 1) + e + op - o, 0) for s, i, e, op, o in zip(case.s, case.i, case.reach, output_padding, extents)]
    begin = [total - total // 2 if auto_pad == "same_upper" else total // 2 for total in totals]
    exact = reference(t["x"], t["w"], None, case.s, case.d, begin, extents, case.g)
    got = older(case, t, auto_pad=auto_pad, output_padding=list(output_padding), output_shape=list(extents))
    assert torch.equal(got, exact)


@pytest.mark.parametrize("auto_pad", ("valid", "same_upper", "same_lower"))
def test_auto_pad_without_output_shape_means_no_pads(auto_pad):
    case, t = base()
    no_pads = parse("t n1 g1 c2:3 i4x5 k3x3 s2x2 d1x1 pb0x0 pe0x0 op0x0")
    assert torch.equal(older(case, t, auto_pad=auto_pad), cases.conv_transpose(no_pads, t, bias=False))


def test_output_shape_may_be_the_full_shape():
    case, t = base()
    spatial = older(case, t, output_shape=[8, 10])
    assert torch.equal(older(case, t, output_shape=[1, 3, 8, 10]), spatial)
    nxc = ops.convolution_backprop_data(
        cases.to_data(t["x"], "NXC"),
        cases.to_weights(t["w"], "XOI"),
        **{**operators.old_attributes(case, "NXC", "XIO"), "output_shape": [1, 8, 10, 3]},
    )
    assert torch.equal(cases.from_data(nxc, "NXC"), spatial)
    with pytest.raises(RuntimeError, match="output_shape"):
        older(case, t, output_shape=[1, 8, 10, 3])


@pytest.mark.parametrize("dtype", (torch.int32, torch.int64))
def test_output_shape_tensor_wins_over_the_attribute(dtype):
    case, t = base()
    expected = older(case, t, output_shape=[8, 10])
    assert torch.equal(older(case, t, shape_tensor=torch.tensor([8, 10], dtype=dtype)), expected)
    both = older(case, t, shape_tensor=torch.tensor([8, 10], dtype=dtype), output_shape_attr=[4, 4])
    assert torch.equal(both, expected)


def test_older_operations_differentiate():
    case, t = base()
    x, w = t["x"].requires_grad_(), t["w"].requires_grad_()
    torch.autograd.gradcheck(lambda x, w: older(case, {"x": x, "w": w}, output_shape=[9, 10]), (x, w), fast_mode=True)
    old = {**operators.old_attributes(case, "NCX", "XIO"), "filter_shape": list(cases.to_weights(t["w"], "XIO").shape)}
    function = lambda x, y: ops.conv_transpose_backprop_filters(x, y, **old)
    torch.autograd.gradcheck(function, (x, t["y"].requires_grad_()), fast_mode=True)
    torch.autograd.gradgradcheck(function, (x, t["y"]), fast_mode=True)


# ---- Values at the time of the call --------------------------------------------------------------------------------------


def test_weights_changed_behind_the_version_counter_count_at_once():
    case, t = base()
    w = t["w"].float()
    x = t["x"].float()
    call = lambda: ops.conv_transpose(x, w, **case.attributes())
    before = call()
    w.data.mul_(2)
    assert torch.equal(call(), 2 * before)
    w.numpy()[:] *= 2
    assert torch.equal(call(), 4 * before)
    w.detach().untyped_storage().copy_(torch.zeros_like(w).untyped_storage())
    assert torch.equal(call(), torch.zeros_like(before))


def test_recycled_addresses_are_not_confused():
    case, t = base()
    x = t["x"].float()
    for k in range(20):
        w = torch.full(case.w_shape, float(k))  # freed each time, so its address comes back
        ones = torch.ones(case.w_shape)
        assert torch.equal(ops.conv_transpose(x, w, **case.attributes()), k * ops.conv_transpose(x, ones, **case.attributes()))


@pytest.mark.parametrize("operand", ("x", "w"))
def test_nan_stays_in_its_sample_and_group(operand):
    case = parse("t n3 g2 c8:8 i9x9 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0")
    for dtype in cases.DTYPES:
        t = case.tensors(dtype)
        t[operand][0, 0, 1, 1] = float("nan")  # sample 0 of x; group 0 of both
        y = operators.conv_transpose(case, t)
        assert y[0, :4].isnan().any()
        assert y[:, 4:].isfinite().all()
        assert operand == "w" or y[1:].isfinite().all()
