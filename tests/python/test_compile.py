# SPDX-License-Identifier: Apache-2.0
"""torch.compile, torch.export and compiled autograd."""

import io

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import operators
import torch_ext
from cases import parse, to_data, to_weights

ops = torch.ops.torch_ext

CASE = parse("t n2 g2 c4:6 i3x4 k3x2 s2x3 d1x2 pb1x0 pe0x1 op1x0")
# (batch, extents). In the first line no size equals another one of any tensor, or torch would take them for one symbol; and none is
# 0 or 1, on which it specialises.
SIZES = ((13, (5, 7)), (3, (9, 8)), (7, (11, 13)), (5, (3, 17)))


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def arguments(n, i, layouts):
    case = parse(f"t n{n} g2 c4:6 i{i[0]}x{i[1]} k3x2 s2x3 d1x2 pb1x0 pe0x1 op1x0")
    t = case.tensors(torch.float32)
    x, y, w = to_data(t["x"], layouts[0]), to_data(t["y"], layouts[0]), to_weights(t["w"], layouts[1])
    return tuple(v.clone().requires_grad_() for v in (x, w, t["bias"], y))


def functions(layouts):
    attributes = CASE.attributes(*layouts)
    shape = list(to_weights(torch.empty(CASE.w_shape), layouts[1]).shape)
    old = operators.old_attributes(CASE, layouts[0], operators.OLD_NAMES[layouts[1]])
    return {
        "conv_transpose": lambda x, w, bias, y: ops.conv_transpose(x, w, bias, **attributes),
        "backward_data": lambda x, w, bias, y: ops.conv_transpose_backward_data(y, w, **attributes),
        "backward_weights": lambda x, w, bias, y: ops.conv_transpose_backward_weights(
            x, y, **attributes, weights_shape=shape
        ),
        "convolution_backprop_data": lambda x, w, bias, y: ops.convolution_backprop_data(x, w, **old),
        "backprop_filters": lambda x, w, bias, y: ops.conv_transpose_backprop_filters(
            x, y, **{**old, "filter_format": layouts[1]}, filter_shape=shape
        ),
    }


@pytest.mark.parametrize("layouts", (("NXC", "XOI"), ("NCX", "IOX")), ids="-".join)
@pytest.mark.parametrize("name", functions(("NXC", "XOI")))
def test_one_graph_serves_every_size(name, layouts):
    function = functions(layouts)[name]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for n, i in SIZES:
        inputs = arguments(n, i, layouts)
        got, expected = compiled(*inputs), function(*inputs)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        assert got.stride() == expected.stride()
        grads = [torch.autograd.grad(v.pow(2).sum(), inputs, allow_unused=True) for v in (got, expected)]
        torch.testing.assert_close(*grads)
    assert counter.frame_count == 1, "recompiled for another size"


@pytest.mark.requires("compiler")
def test_default_backend_trains():
    module = torch.nn.Sequential(
        torch_ext.nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1, groups=2),
        torch.nn.ReLU(),
        torch_ext.nn.ConvTranspose2d(6, 3, 3, padding="same_upper", stride=2),
    )
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for n, i in SIZES[:3]:
        x = torch.randn(n, 4, *i, requires_grad=True)
        results = [f(x) for f in (compiled, module)]
        torch.testing.assert_close(*results)
        leaves = [x, *module.parameters()]
        torch.testing.assert_close(*[torch.autograd.grad(y.pow(2).mean(), leaves) for y in results])


def test_channels_last_survives_compilation():
    module = torch_ext.nn.ConvTranspose2d(4, 6, 3)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 4, 5, 7).contiguous(memory_format=torch.channels_last)
    assert compiled(x).stride() == module(x).stride()
    assert module(x).is_contiguous(memory_format=torch.channels_last)


def test_output_size_compiles():
    module = torch_ext.nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 2, 5, 7)
    torch.testing.assert_close(compiled(x, output_size=[10, 13]), module(x, output_size=[10, 13]))


def test_compiled_autograd():
    x, w, bias, _ = arguments(2, (5, 7), ("NXC", "XOI"))
    function = lambda: ops.conv_transpose(x, w, bias, **CASE.attributes("NXC", "XOI")).pow(2).sum()
    expected = torch.autograd.grad(function(), (x, w, bias))
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        function().backward()
    torch.testing.assert_close((x.grad, w.grad, bias.grad), expected)


def test_compiled_under_autocast():
    module = torch_ext.nn.ConvTranspose2d(4, 6, 3, stride=2)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 4, 5, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = compiled(x), module(x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected)


def test_symbolic_trace_sees_one_node_a_layer():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch_ext.nn.ConvTranspose2d(4, 6, 3, stride=2, padding="same_upper")
            self.weight = torch.nn.Parameter(torch.randn(6, 3, 2, 2))

        def forward(self, x):
            return torch_ext.functional.conv_transpose2d(self.up(x), self.weight, stride=2, padding=((1, 0), (0, 1)))

    net = Net()
    traced = torch.fx.symbolic_trace(net)
    assert len([node for node in traced.graph.nodes if node.op == "call_function"]) == 2, traced.code
    x = torch.randn(2, 4, 5, 6)
    assert torch.equal(traced(x), net(x))


@pytest.mark.parametrize("strict", (False, True))
def test_export_round_trip_with_dynamic_shapes(strict):
    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch_ext.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)

        def forward(self, x):
            y = torch.relu(self.up(x)).movedim(1, -1)
            w = self.up.weight[:, :, 0:2].permute(2, 3, 1, 0)[:, :, :, :2].repeat(1, 1, 1, 3)
            return ops.conv_transpose(
                y, w, strides=[1, 2], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1], auto_pad="same_lower"
            )

    module = Decoder().eval()
    dims = ({0: torch.export.Dim("n", min=2, max=64), 2: torch.export.Dim("h", min=2, max=64)},)
    program = torch.export.export(module, (torch.randn(2, 4, 5, 6),), dynamic_shapes=dims, strict=strict)
    assert "torch_ext.conv_transpose" in program.graph_module.code
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for n, h in ((2, 5), (3, 9), (7, 2)):
        x = torch.randn(n, 4, h, 6)
        torch.testing.assert_close(loaded(x), module(x))
    decomposed = program.run_decompositions().module()
    torch.testing.assert_close(decomposed(x), module(x))
