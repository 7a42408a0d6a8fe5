# SPDX-License-Identifier: Apache-2.0
"""Random problems, beyond those that somebody thought of."""

import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import cases
import operators
from cases import Case

extent = st.integers(1, 6)


@st.composite
def problems(draw) -> Case:
    axes = draw(st.integers(1, 3))
    per_axis = lambda strategy: draw(st.tuples(*[strategy] * axes))
    largest = {1: 40, 2: 9, 3: 5}[axes]
    i, k = per_axis(st.integers(0, largest)), per_axis(st.integers(1, {1: 9, 2: 5, 3: 3}[axes]))
    s, d = per_axis(st.integers(1, 5)), per_axis(st.integers(1, 5))
    groups = draw(st.integers(1, 4))
    ci, co = groups * draw(st.integers(0, 9)), groups * draw(st.integers(0, 9))
    op = tuple(draw(st.integers(0, max(a, b) - 1)) for a, b in zip(s, d))
    pb, pe = per_axis(st.integers(0, 7)), per_axis(st.integers(0, 7))
    auto = draw(st.sampled_from(("none", "none", "valid", "same_upper", "same_lower")))
    case = Case("random", "", draw(st.integers(0, 3)), groups, ci, co, i, k, s, d, pb, pe, op, auto)
    assume(all(o >= 0 for o in case.o))
    return case


layouts = st.tuples(st.sampled_from(cases.DATA_FORMATS), st.sampled_from(cases.WEIGHTS_FORMATS))
dtypes = st.sampled_from(cases.DTYPES)
thorough = settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@thorough
@given(problems(), layouts, dtypes)
def test_random_problems_are_exact_on_integers(case, layouts, dtype):
    t = case.tensors(integers=True)
    cast = {name: v.to(dtype) for name, v in t.items()}
    assert torch.equal(operators.conv_transpose(case, cast, *layouts), cases.conv_transpose(case, t).to(dtype))
    exact_x, exact_w = cases.gradients(case, t)
    assert torch.equal(operators.backward_data(case, cast, *layouts), exact_x.to(dtype))
    assert torch.equal(operators.backward_weights(case, cast, *layouts), exact_w.to(dtype))


@thorough
@given(problems(), layouts)
def test_adjoint_identity(case, layouts):
    """<y, T(x, w)> = <x, C(y, w)> = <w, B(x, y)>, which needs no reference."""
    t = case.tensors(integers=True)
    form = (t["y"] * operators.conv_transpose(case, t, *layouts, bias=False)).sum()
    assert form == (t["x"] * operators.backward_data(case, t, *layouts)).sum()
    assert form == (t["w"] * operators.backward_weights(case, t, *layouts)).sum()


@settings(thorough, max_examples=150)
@given(problems(), layouts)
def test_meta_agrees_with_real(case, layouts):
    real, meta = case.tensors(torch.float32), {k: v.to("meta") for k, v in case.tensors(torch.float32).items()}
    for function in (operators.conv_transpose, operators.backward_data, operators.backward_weights):
        a, b = function(case, real, *layouts), function(case, meta, *layouts)
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


@settings(thorough, max_examples=300)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), min_size=0, max_size=3),
    st.sampled_from(("strides", "pads_begin", "pads_end", "dilations", "output_padding")),
    st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 5),
)
def test_no_attribute_crashes_or_hangs(values, name, groups):
    """Whatever the attributes are, meta tensors give a shape or a RuntimeError, and small results are computed."""
    case = cases.BY_NAME["plain_2d"]
    t = case.tensors(torch.float32)
    attributes = {**case.attributes(), name: values, "groups": groups}
    try:
        meta = operators.ops.conv_transpose(t["x"].to("meta"), t["w"].to("meta"), **attributes)
    except RuntimeError:
        return
    if meta.numel() < 1_000_000:
        assert operators.ops.conv_transpose(t["x"], t["w"], **attributes).shape == meta.shape
