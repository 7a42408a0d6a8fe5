# SPDX-License-Identifier: Apache-2.0
"""Registration: torch.library.opcheck for every operator, and the schemas of the specification."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import operators
import torch_ext
from cases import parse, to_data, to_weights

ops = torch.ops.torch_ext

CASE = parse("t n2 g2 c4:6 i3x4 k3x2 s2x3 d1x2 pb1x0 pe0x1 op1x0")

ATTRIBUTES = (
    "SymInt[] strides, SymInt[] pads_begin, SymInt[] pads_end, SymInt[] dilations, str auto_pad=\"none\", "
    "SymInt[]? output_padding=None, SymInt groups=1, str data_format=\"NXC\", "
)
NEW, OLD = ATTRIBUTES + 'str weights_format="XOI"', ATTRIBUTES + 'str filter_format="XIO"'
SCHEMAS = (
    f"conv_transpose(Tensor src, Tensor weights, Tensor? bias=None, *, {NEW}) -> Tensor",
    f"conv_transpose_backward_data(Tensor diff_dst, Tensor weights, *, {NEW}) -> Tensor",
    f"conv_transpose_backward_weights(Tensor src, Tensor diff_dst, *, {NEW}, SymInt[]? weights_shape=None) -> Tensor",
    f"conv_transpose_backward_weights.shape_tensor(Tensor src, Tensor diff_dst, Tensor weights_shape, *, {NEW}, "
    "SymInt[]? weights_shape_attr=None) -> Tensor",
    f"convolution_backprop_data(Tensor output_delta, Tensor filter, *, {OLD}, SymInt[]? output_shape=None) -> Tensor",
    f"convolution_backprop_data.shape_tensor(Tensor output_delta, Tensor filter, Tensor output_shape, *, {OLD}, "
    "SymInt[]? output_shape_attr=None) -> Tensor",
    f"conv_transpose_backprop_filters(Tensor input_forward, Tensor output_delta, *, {OLD}, "
    "SymInt[]? filter_shape=None) -> Tensor",
    "conv_transpose_backprop_filters.shape_tensor(Tensor input_forward, Tensor output_delta, Tensor filter_shape, *, "
    f"{OLD}, SymInt[]? filter_shape_attr=None) -> Tensor",
)


def overload(schema):
    name, _, which = schema.split("(")[0].partition(".")
    return getattr(getattr(ops, name), which or "default")


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.split("(")[0])
def test_schema(schema):
    registered = overload(schema)._schema
    expected = torch._C.parse_schema("torch_ext::" + schema)
    assert str(registered) == str(expected)


def calls(case, dtype=torch.float64):
    """(operator, arguments, attributes) of one call of each public overload."""
    t = {name: v.requires_grad_() for name, v in case.tensors(dtype).items()}
    new, old = case.attributes("NXC", "XOI"), operators.old_attributes(case, "NXC", "XIO")
    with torch.no_grad():
        x, y, w = to_data(t["x"], "NXC"), to_data(t["y"], "NXC"), to_weights(t["w"], "XOI")
        filters = to_weights(t["w"], "XIO")
    x, y, w = (v.requires_grad_() for v in (x, y, w))
    shape, filter_shape, output_shape = list(w.shape), list(filters.shape), list(case.o)
    return {
        "conv_transpose": (ops.conv_transpose.default, (x, w, t["bias"]), new),
        "conv_transpose without bias": (ops.conv_transpose.default, (x, w), new),
        "backward_data": (ops.conv_transpose_backward_data.default, (y, w), new),
        "backward_weights": (ops.conv_transpose_backward_weights.default, (x, y), {**new, "weights_shape": shape}),
        "backward_weights.shape_tensor": (
            ops.conv_transpose_backward_weights.shape_tensor,
            (x, y, torch.tensor(shape)),
            new,
        ),
        "convolution_backprop_data": (ops.convolution_backprop_data.default, (x, w), old),
        "convolution_backprop_data with output_shape": (
            ops.convolution_backprop_data.default,
            (x, w),
            {**old, "output_shape": output_shape},
        ),
        "convolution_backprop_data.shape_tensor": (
            ops.convolution_backprop_data.shape_tensor,
            (x, w, torch.tensor(output_shape)),
            old,
        ),
        "backprop_filters": (ops.conv_transpose_backprop_filters.default, (x, y), {**old, "filter_shape": filter_shape}),
        "backprop_filters.shape_tensor": (
            ops.conv_transpose_backprop_filters.shape_tensor,
            (x, y, torch.tensor(filter_shape)),
            old,
        ),
    }


@pytest.mark.parametrize("call", calls(CASE))
def test_opcheck(call):
    operator, arguments, attributes = calls(CASE)[call]
    torch.library.opcheck(operator, arguments, attributes)


class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the calls that reach the backends."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "torch_ext":
            self.calls.append((function, args, kwargs or {}))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", ("conv_transpose", "conv_transpose without bias", "backward_data", "backward_weights"))
def test_opcheck_of_the_private_operator(call):
    operator, arguments, attributes = calls(CASE)[call]
    with Recorder() as recorder:
        operator(*arguments, **attributes)
    ((private, args, kwargs),) = recorder.calls
    assert private.name().startswith("torch_ext::_conv_transpose")
    args = [a.detach().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]
    torch.library.opcheck(private, tuple(args), kwargs)


@pytest.mark.parametrize("call", [name for name in calls(CASE) if "shape_tensor" in name])
def test_shape_tensors_under_fake_tensors_give_unbacked_sizes_or_torchs_own_error(call):
    operator, arguments, attributes = calls(CASE)[call]
    arguments = [a.detach() for a in arguments]
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=False)
    fake = [mode.from_tensor(a) for a in arguments]
    with mode:
        try:
            result = operator(*fake, **attributes)
        except (DataDependentOutputException, torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode):
            return
    assert result.dim() == operator(*arguments, **attributes).dim()


def test_public_operators_are_pt2_compliant():
    for schema in SCHEMAS:
        assert torch.Tag.pt2_compliant_tag in overload(schema).tags


def test_a_large_call_does_not_leave_its_small_neighbour_with_freed_memory():
    """A thread keeps the workspace of a call for its next one, up to 32 MB: one that is not kept must not leave the one before."""
    x, w = torch.ones(1, 32, 24, 24), torch.ones(32, 32, 4, 4)
    large = torch.ones(1, 1024, 12, 12), torch.ones(1024, 576, 4, 4)  # its packed weights alone are 37 MB
    expected = torch_ext.functional.conv_transpose2d(x, w, stride=2)
    for _ in range(3):
        torch_ext.functional.conv_transpose2d(*large, stride=2)
        others = [torch.full((size,), 7, dtype=torch.uint8) for size in range(1 << 10, 1 << 20, 1 << 12)]
        assert torch.equal(torch_ext.functional.conv_transpose2d(x, w, stride=2), expected)
        assert all(torch.all(other == 7) for other in others)
