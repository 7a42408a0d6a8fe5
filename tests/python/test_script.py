# SPDX-License-Identifier: Apache-2.0
"""TorchScript: script, trace, save and load in Python, and forward and training in a C++ program without Python."""

import subprocess

import pytest
import torch

import operators
import torch_ext
from cases import parse

ops = torch.ops.torch_ext


class Net(torch.nn.Module):
    """A module layer, an operator with attributes, and one of the older operations."""

    def __init__(self):
        super().__init__()
        self.up = torch_ext.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.w = torch.nn.Parameter(torch.randn(3, 2, 5, 6) / 6)
        self.b = torch.nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.up(x)).permute(0, 2, 3, 1)
        y = torch.ops.torch_ext.conv_transpose(
            y, self.w, self.b, strides=[2, 1], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1], auto_pad="same_upper"
        )
        return torch.ops.torch_ext.convolution_backprop_data(
            y, self.w.transpose(2, 3), strides=[1, 1], pads_begin=[0, 1], pads_end=[1, 0], dilations=[1, 2], output_shape=[9, 9]
        )


def scripted(tmp_path):
    net = Net()
    path = tmp_path / "net.pt"
    torch.jit.script(net).save(str(path))
    return net, path


def test_scripted_module_equals_eager_before_and_after_saving(tmp_path):
    net, path = scripted(tmp_path)
    loaded = torch.jit.load(str(path))
    for shape in ((2, 4, 5, 6), (1, 4, 3, 3), (3, 4, 8, 2)):
        x = torch.randn(shape)
        assert torch.equal(loaded(x), net(x))
    for _ in range(4):  # the profiling executor specialises after a few calls
        loaded(x).sum().backward()
        net(x).sum().backward()
    for a, b in zip(loaded.parameters(), net.parameters()):
        torch.testing.assert_close(a.grad, b.grad)


def test_frozen_and_optimised_modules_equal_eager():
    net = Net().eval()
    x = torch.randn(2, 4, 5, 6)
    assert torch.equal(torch.jit.freeze(torch.jit.script(net))(x), net(x))
    torch.testing.assert_close(torch.jit.optimize_for_inference(torch.jit.script(net))(x), net(x))


def test_traced_module_takes_other_batches(tmp_path):
    net = Net()
    x = torch.randn(2, 4, 5, 6)
    path = str(tmp_path / "traced.pt")
    torch.jit.trace(net, (x,)).save(path)
    traced = torch.jit.load(path)
    assert torch.equal(traced(x), net(x))
    more = torch.randn(5, 4, 5, 6)
    assert torch.equal(traced(more), net(more))


@pytest.mark.parametrize("axes", (1, 2, 3))
@pytest.mark.parametrize("padding", (1, "same_lower", "valid"), ids=str)
def test_every_module_scripts(axes, padding):
    module = getattr(torch_ext.nn, f"ConvTranspose{axes}d")(4, 6, 3, stride=2, padding=padding, groups=2)
    script = torch.jit.script(module)
    x = torch.randn(2, 4, *(5, 4, 3)[:axes])
    assert torch.equal(script(x), module(x))
    assert torch.equal(script(x[0]), module(x[0]))
    size = [n + 1 for n in module(x).shape[2:]]
    assert torch.equal(script(x, size), module(x, size))


def paddings(axes):
    """Every form of padding, over `axes` axes."""
    ints = [1, 0, 2][:axes]
    pairs = ((1, 0),) * axes, [(0, 1)] * axes, [[0, 1]] * axes
    return 1, (1,), [1], tuple(ints), ints, "valid", "same_upper", "same_lower", *pairs


@pytest.mark.parametrize("axes", (1, 2, 3))
def test_functional_scripts(axes):
    function = getattr(torch_ext.functional, f"conv_transpose{axes}d")
    script = torch.jit.script(function)
    x, w, bias = torch.randn(2, 4, *(6, 5, 4)[:axes]), torch.randn(4, 3, *(3, 2, 3)[:axes]), torch.randn(6)
    for padding in paddings(axes):
        for stride in (2, (2,), [2], (2, 3, 2)[:axes], [2, 3, 2][:axes]):
            call = dict(stride=stride, padding=padding, output_padding=(1,) * axes, groups=2)
            assert torch.equal(script(x, w, bias, **call), function(x, w, bias, **call)), call
            assert torch.equal(script(x[0], w, bias, **call), function(x[0], w, bias, **call)), call
    for bad in ("same", "full", [[1]] * axes, [[1, 1]] * (axes + 1), [1] * (axes + 1)):
        with pytest.raises((RuntimeError, torch.jit.Error), match="pad"):
            script(x, w, bias, padding=bad, groups=2)


def test_functional_in_a_scripted_module_survives_saving(tmp_path):
    class Up(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 3, 3, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch_ext.functional.conv_transpose2d(x, self.weight, stride=2, padding=((1, 0), (0, 1)))
            strides = [2, x.size(1) // 2]
            return y + torch_ext.functional.conv_transpose2d(x, self.weight, None, strides, (1, 1), output_padding=(1, 1))

    module = Up()
    x = torch.randn(2, 4, 5, 6)
    path = str(tmp_path / "up.pt")
    torch.jit.script(module).save(path)
    assert torch.equal(torch.jit.load(path)(x), module(x))


@pytest.mark.parametrize("axes", (1, 2, 3))
def test_functional_traces(axes):
    function = getattr(torch_ext.functional, f"conv_transpose{axes}d")
    example = torch.randn(1, 2, *[3] * axes), torch.randn(2, 3, *[2] * axes)
    script = torch.jit.trace(lambda x, w: function(x, w, stride=2), example)
    x, w = torch.randn(2, 2, *[3] * axes), torch.randn(2, 3, *[2] * axes)
    assert torch.equal(script(x, w), function(x, w, stride=2))


def test_backward_operators_script():
    case = parse("t n2 g1 c2:3 i4x5 k3x3 s2x2 d1x1 pb1x1 pe1x1 op0x0")
    t = case.tensors()

    @torch.jit.script
    def both(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, shape: torch.Tensor):
        dx = torch.ops.torch_ext.conv_transpose_backward_data(
            y, w, strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1], data_format="NCX", weights_format="IOX"
        )
        dw = torch.ops.torch_ext.conv_transpose_backward_weights(
            x, y, shape, strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1], data_format="NCX",
            weights_format="IOX",
        )
        return dx, dw

    dx, dw = both(t["x"], t["y"], t["w"], torch.tensor(case.w_shape))
    assert torch.equal(dx, operators.backward_data(case, t)) and torch.equal(dw, operators.backward_weights(case, t))


@pytest.mark.requires("test_script")
@pytest.mark.parametrize("prepacked", (False, True))
def test_cpp_program_runs_and_trains_a_saved_module(tmp_path, test_program, prepacked):
    """The program gets the library, the module and inputs; it writes outputs, gradients and the parameters after a step."""
    net, path = scripted(tmp_path)
    x = torch.randn(2, 4, 5, 6)
    if prepacked:
        net = torch_ext.prepack(torch_ext.nn.ConvTranspose2d(4, 40, 3, 2), x).requires_grad_()
        assert net.packed is not None
        torch.jit.script(net).save(str(path))
    inputs = tmp_path / "input.pt"
    torch.jit.save(torch.jit.script(Holder(x)), str(inputs))
    library = next(iter(torch.ops.loaded_libraries))
    results = tmp_path / "results.pt"
    command = [str(test_program("test_script")), library, str(path), str(inputs), str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "libpython: not mapped" in done.stdout

    got = torch.load(results, weights_only=False)  # a file of our own program
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x.requires_grad_()
    y = net(x)
    loss = y.pow(2).mean()
    loss.backward()
    torch.testing.assert_close(got["y"], y.detach())
    with torch.no_grad():
        torch.testing.assert_close(got["inference"], net(x))
    torch.testing.assert_close(got["x.grad"], x.grad)
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(got[name + ".grad"], parameter.grad)
    optimizer.step()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(got[name], parameter.detach())
    # The second derivative of the loss by x, summed: double backward in C++.
    x2 = x.detach().requires_grad_()
    first = torch.autograd.grad(net(x2).pow(2).mean(), x2, create_graph=True)[0]
    torch.testing.assert_close(got["second"], torch.autograd.grad(first.pow(2).sum(), x2)[0])


class Holder(torch.nn.Module):
    """Carries a tensor to C++ in a file that torch::jit::load reads."""

    def __init__(self, x):
        super().__init__()
        self.register_buffer("x", x)

    def forward(self):
        return self.x
