# SPDX-License-Identifier: Apache-2.0
"""The operators on a GPU: the values of every problem, and torch's rules for streams, graphs, devices, tf32 and determinism.

What can be said without a GPU (messages, fake tensors, what the library links) is tested everywhere.
"""

import contextlib
import itertools
import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import cases
import operators
import torch_ext
from cases import DATA_FORMATS, DTYPES, LARGE, SMALL, WEIGHTS_FORMATS, Case, parse

ops = torch.ops.torch_ext
LAYOUTS = tuple(itertools.product(DATA_FORMATS, WEIGHTS_FORMATS))
CASE = parse("cuda n2 g2 c16:24 i9x10 k4x3 s2x2 d1x1 pb1x0 pe1x1 op0x1")
BUILT = "CUDA kernels: not built" not in torch_ext.show_config()
on_gpu = pytest.mark.requires("cuda kernels")
each_small_case = pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)


def gpu(t: dict, dtype=None) -> dict:
    return {name: value.to("cuda", dtype) for name, value in t.items()}


def leaves(case: Case, device: str, dtype) -> list[torch.Tensor]:
    t = case.tensors()
    return [t[name].to(device, dtype).requires_grad_() for name in ("x", "w", "bias")]


@contextlib.contextmanager
def tf32(allowed: bool):
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    assert got.is_cuda and got.shape == exact.shape, f"{got.device} {tuple(got.shape)} {tuple(exact.shape)}"
    return float((got.cpu().double() - exact).norm() / exact.norm().clamp_min(1e-300))


# ---- Everywhere ------------------------------------------------------------------------------------------------------------


def test_the_cuda_kernel_is_registered_and_says_what_is_wrong_in_one_sentence():
    """By the dispatcher's back door CPU tensors reach it."""
    t = CASE.tensors(torch.float32)
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    form = (CASE.s, CASE.pb, CASE.d, CASE.g, "NCX", "IOX")
    for operator, size, arguments in (
        (ops._conv_transpose.default, CASE.o, (t["x"], t["w"], None)),
        (ops._conv_transpose_backward_data.default, CASE.i, (t["y"], t["w"])),
        (ops._conv_transpose_backward_weights.default, CASE.k, (t["x"], t["y"])),
    ):
        expected = "is on cpu, not on a GPU" if BUILT else "built without CUDA kernels.* TORCH_EXT_CUDA=1"
        with pytest.raises(RuntimeError, match=expected) as error:
            operator.redispatch(key, *arguments, size, *form)
        assert str(error.value).splitlines()[0].startswith(operator.name().removeprefix("torch_ext::_").split(".")[0] + ": ")


def test_show_config_names_the_architectures():
    line = next(line for line in torch_ext.show_config().splitlines() if line.startswith("CUDA kernels: "))
    assert not BUILT or ("sm_" in line and "nvcc" in line), line


def test_fake_tensors_stay_on_their_device():
    with FakeTensorMode():
        t = {name: torch.empty(v.shape, dtype=torch.float16, device="cuda") for name, v in CASE.tensors().items()}
        results = operators.conv_transpose(CASE, t), operators.backward_data(CASE, t), operators.backward_weights(CASE, t)
        for result, name in zip(results, "yxw"):
            assert (result.device, result.dtype, result.shape) == (t[name].device, torch.float16, t[name].shape)


@pytest.mark.parametrize("elsewhere", ("cpu", "cuda:1"))
@pytest.mark.parametrize("name", ("w", "bias"))
def test_operands_on_two_devices_are_named(monkeypatch, name, elsewhere):
    # Fake tensors would make themselves known to a second GPU, which the machine need not have.
    monkeypatch.setattr("torch._subclasses.fake_tensor.init_gpu_context", lambda device: None, raising=False)
    with FakeTensorMode():
        t = {key: torch.empty(v.shape, device="cuda:0") for key, v in CASE.tensors().items()}
        t[name] = torch.empty(t[name].shape, device=elsewhere)
        argument = {"w": "weights", "bias": "bias"}[name]
        with pytest.raises(RuntimeError, match=f"src is on cuda:0 and {argument} on {elsewhere}; they must be on one device"):
            operators.conv_transpose(CASE, t)


@pytest.mark.requires("cuda")
@pytest.mark.skipif(BUILT, reason="built with CUDA kernels")
def test_a_cuda_tensor_without_kernels_is_refused_in_one_sentence():
    with pytest.raises(RuntimeError, match="src is on a GPU, but this torch_ext was built without CUDA kernels"):
        operators.conv_transpose(CASE, gpu(CASE.tensors()))


# ---- Values ----------------------------------------------------------------------------------------------------------------


@on_gpu
@each_small_case
def test_integers_are_exact(case: Case):
    """Small integers are exact in every type, tf32 too: one rounding of the exact value is the only right answer."""
    t = case.tensors(integers=True)
    exact = {bias: cases.conv_transpose(case, t, bias).cuda() for bias in (True, False)}
    exact_x, exact_w = (v.cuda() for v in cases.gradients(case, t))
    for dtype, layouts in itertools.product(DTYPES, LAYOUTS):
        u = gpu(t, dtype)
        got = {f"conv_transpose bias={b}": (operators.conv_transpose(case, u, *layouts, bias=b), e) for b, e in exact.items()}
        got["backward_data"] = operators.backward_data(case, u, *layouts), exact_x
        got["backward_weights"] = operators.backward_weights(case, u, *layouts), exact_w
        for operation, (result, expected) in got.items():
            what = f"{operation} {case.line} {dtype} {layouts}"
            assert result.is_cuda and result.shape == expected.shape, what
            assert torch.equal(result, expected.to(dtype)), f"{what}: {int((result != expected.to(dtype)).sum())} are wrong"


@on_gpu
@pytest.mark.parametrize("kernel", ("fold", "few", "gemm", "outer", "direct"))
def test_integers_are_exact_by_each_kernel(kernel):
    """Small problems go to the kernels for few channels: here the others compute them too, wherever they can."""
    names = "plain or plane or mixed or g4 or dw_8 or oc_3 or pointwise"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", f"test_integers_are_exact and ({names})"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TORCH_EXT_KERNEL": kernel})
    assert done.returncode == 0, done.stdout[-3000:]


PRECISION = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3, "tf32": 1e-3}


@on_gpu
@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
def test_layers_of_models_are_as_precise_as_their_type(case: Case):
    t = {name: value.bfloat16().double() for name, value in case.tensors().items()}  # exact in every type
    exact = cases.conv_transpose(case, t), *cases.gradients(case, t)
    for precision, bound in PRECISION.items():
        u = gpu(t, torch.float32 if precision == "tf32" else precision)
        with tf32(precision == "tf32"):
            for layouts in (("NCX", "IOX"), ("NXC", "XOI")):
                got = (operators.conv_transpose(case, u, *layouts), operators.backward_data(case, u, *layouts),
                       operators.backward_weights(case, u, *layouts))  # fmt: skip
                for operation, result, expected in zip(("conv_transpose", "backward_data", "backward_weights"), got, exact):
                    error = relative_error(result, expected)
                    assert error <= bound, f"{operation} {case.line} {precision} {layouts}: {error:.1e} above {bound:.0e}"


@on_gpu
def test_float32_is_not_rounded_to_tf32_where_torch_forbids_it():
    """The flag is read at each call. Values with all 24 bits show what is done; random ones that tf32 was used, or not needed."""
    case = parse("t n4 g1 c128:128 i32x32 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0")
    t = case.tensors(torch.float32)
    exact = cases.conv_transpose(case, {k: v.double() for k, v in t.items()})
    u = gpu({name: v.contiguous(memory_format=torch.channels_last) if v.dim() == 4 else v for name, v in t.items()})
    for allowed, bound in ((False, 2e-6), (True, 1e-3), (False, 2e-6)):
        with tf32(allowed):
            assert relative_error(operators.conv_transpose(case, u), exact) <= bound, allowed


@on_gpu
def test_results_are_channels_last_where_an_argument_suggests_it():
    t = gpu(CASE.tensors(), torch.float16)
    last = {name: v.contiguous(memory_format=torch.channels_last) if v.dim() == 4 else v for name, v in t.items()}
    for operation in (operators.conv_transpose, operators.backward_data):
        result = operation(CASE, last)
        assert result.is_contiguous(memory_format=torch.channels_last) and operation(CASE, t).is_contiguous()
        torch.testing.assert_close(result, operation(CASE, t), check_stride=False, rtol=2e-3, atol=2e-3)


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_strides_and_any_alignment(dtype):
    t = gpu(CASE.tensors(integers=True), dtype)
    views = (lambda v: v.repeat_interleave(2, -1)[..., ::2], lambda v: torch.nn.functional.pad(v, (1, 2))[..., 1:-2],
             lambda v: v.transpose(0, -1).contiguous().transpose(0, -1))  # fmt: skip
    for view in views:
        u = {name: view(v) for name, v in t.items()}
        for operation in (operators.conv_transpose, operators.backward_data, operators.backward_weights):
            assert torch.equal(operation(CASE, u), operation(CASE, t))
    flat = torch.cat([t["x"].new_zeros(1), t["x"].flatten()])[1:].view_as(t["x"])  # begins between two aligned addresses
    assert torch.equal(operators.conv_transpose(CASE, {**t, "x": flat}), operators.conv_transpose(CASE, t))


@on_gpu
@pytest.mark.requires("much GPU memory")
@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_more_than_2_to_the_31_elements(data_format):
    """A pointwise layer, so that any part of the result is that of the same part of the input."""
    shape = (1, 40000, 7000, 8) if data_format == "NXC" else (1, 8, 40000, 7000)
    x = torch.randint(-3, 4, shape, dtype=torch.float16, device="cuda")
    w = torch.randint(-3, 4, (1, 1, 8, 8), device="cuda").half()
    attributes = dict(strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1], data_format=data_format)
    y = ops.conv_transpose(x, w, **attributes)
    axis = 1 if data_format == "NXC" else 2
    assert y.numel() > 2**31
    for begin in (0, 20000, 39999):
        part = x.narrow(axis, begin, 1).contiguous()
        assert torch.equal(y.narrow(axis, begin, 1), ops.conv_transpose(part, w, **attributes))


# ---- Gradients -------------------------------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_derivatives_are_those_of_the_cpu(dtype):
    def derivatives(device):
        x, w, bias = leaves(CASE, device, dtype)
        y = ops.conv_transpose(x, w, bias, **CASE.attributes())
        first = torch.autograd.grad(y.pow(3).sum(), (x, w, bias), create_graph=True)
        second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), (x, w, bias))
        return [v.detach().cpu() for v in (y, *first, *second)]

    with tf32(False):
        for got, expected in zip(derivatives("cuda"), derivatives("cpu")):
            assert (got - expected).norm() <= 1e-4 * expected.norm()


@on_gpu
def test_gradcheck():
    case = parse("g n2 g2 c4:6 i3x4 k3x2 s2x1 d1x2 pb1x0 pe0x1 op1x0")
    x, w, bias = leaves(case, "cuda", torch.float64)

    def function(x, w, bias):
        return ops.conv_transpose(x, w, bias, **case.attributes())

    assert torch.autograd.gradcheck(function, (x, w, bias), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, (x, w, bias))


@on_gpu
def test_a_module_trains_and_compiles():
    module = torch_ext.nn.ConvTranspose2d(16, 8, 4, stride=2, padding="same_upper").cuda()
    x = torch.randn(2, 16, 8, 8, device="cuda")
    expected = module(x)
    expected.square().sum().backward()
    gradient, module.weight.grad = module.weight.grad, None
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    compiled(x).square().sum().backward()
    torch.testing.assert_close((compiled(x), module.weight.grad), (expected, gradient))


# ---- torch's rules ---------------------------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("to", (torch.float16, torch.bfloat16), ids=str)
def test_autocast_casts_as_torch_does(to):
    x, w, bias = leaves(CASE, "cuda", torch.float32)
    with torch.autocast("cuda", dtype=to):
        y = ops.conv_transpose(x, w, bias, **CASE.attributes())
        theirs = torch.nn.functional.conv_transpose2d(x, w, bias, **CASE.torch_attributes())
        assert ops.conv_transpose(x.double(), w.double(), **CASE.attributes()).dtype == torch.float64
    assert y.dtype == theirs.dtype == to
    torch.testing.assert_close(y, theirs, rtol=0.02, atol=0.05)
    y.float().square().sum().backward()
    assert [v.grad.dtype for v in (x, w, bias)] == [torch.float32] * 3


@on_gpu
def test_work_is_queued_on_the_current_stream():
    """The default stream sleeps: who waited for it, or ran on it, would see the values of before."""
    t = gpu(CASE.tensors(integers=True), torch.float32)
    expected = operators.conv_transpose(CASE, t)
    x = torch.zeros_like(t["x"])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    torch.cuda._sleep(200_000_000)
    asleep = torch.cuda.Event()
    asleep.record()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.copy_(t["x"])
        y = operators.conv_transpose(CASE, {**t, "x": x})
    stream.synchronize()
    assert not asleep.query(), "the default stream was waited for"
    with torch.cuda.stream(stream):
        same = torch.equal(y, expected)
    assert same


@on_gpu
def test_nothing_waits_for_the_gpu():
    t = gpu(CASE.tensors(), torch.float16)
    operators.conv_transpose(CASE, t), operators.backward_data(CASE, t), operators.backward_weights(CASE, t)
    torch.cuda._sleep(200_000_000)
    asleep = torch.cuda.Event()
    asleep.record()
    torch.cuda.set_sync_debug_mode("error")
    try:
        operators.conv_transpose(CASE, t), operators.backward_data(CASE, t), operators.backward_weights(CASE, t)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not asleep.query()


@on_gpu
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16), ids=str)
def test_calls_are_captured_in_graphs(dtype):
    """Forward and all gradients, replayed on other values."""
    static = leaves(CASE, "cuda", dtype)

    def step(x, w, bias):
        y = ops.conv_transpose(x, w, bias, **CASE.attributes())
        return [y, *torch.autograd.grad(y, (x, w, bias), torch.ones_like(y))]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(*static)
    for _ in range(3):
        with torch.no_grad():
            for leaf in static:
                leaf.copy_(torch.randint_like(leaf, -3, 4))
        graph.replay()
        for got, expected in zip(captured, step(*static)):
            assert torch.equal(got, expected)


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_the_same_bits_each_time(dtype):
    """Under torch.use_deterministic_algorithms and without."""
    t = gpu(CASE.tensors(), dtype)
    results = []
    for deterministic in (False, False, True):
        torch.use_deterministic_algorithms(deterministic)
        try:
            results.append([f(CASE, t) for f in (operators.conv_transpose, operators.backward_data, operators.backward_weights)])
        finally:
            torch.use_deterministic_algorithms(False)
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], again))


@on_gpu
@pytest.mark.requires("two GPUs")
def test_the_device_is_that_of_the_tensors():
    t = CASE.tensors(torch.float32, integers=True)
    exact = cases.conv_transpose(CASE, t)
    for device in range(torch.cuda.device_count()):
        result = operators.conv_transpose(CASE, {name: v.to(f"cuda:{device}") for name, v in t.items()})
        assert result.device.index == device and torch.cuda.current_device() == 0
        assert torch.equal(result.cpu(), exact)


@on_gpu
def test_operands_on_cpu_and_gpu_are_named():
    t = CASE.tensors()
    with pytest.raises(RuntimeError, match="src is on cuda:0 and weights on cpu; they must be on one device"):
        operators.conv_transpose(CASE, {**t, "x": t["x"].cuda()})
    with pytest.raises(RuntimeError, match="src is on cpu and weights on cuda:0; they must be on one device"):
        operators.conv_transpose(CASE, {**t, "w": t["w"].cuda()})
