"""Who is measured. Each peer turns a layer into a function to call, or into a reason why it is left out."""

import importlib
import io

import torch
import torch.nn.functional as F

import torch_ext

CHANNELS_LAST = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}
TORCH = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
OURS = {
    1: torch_ext.functional.conv_transpose1d,
    2: torch_ext.functional.conv_transpose2d,
    3: torch_ext.functional.conv_transpose3d,
}

MODULES = {1: torch_ext.nn.ConvTranspose1d, 2: torch_ext.nn.ConvTranspose2d, 3: torch_ext.nn.ConvTranspose3d}


class LeftOut(Exception):
    """Why a peer is not measured on a layer."""


def torch_call(case, x, w, b):
    """What a user of torch writes: where the pads are not the same on both sides, a larger result, cut."""
    padding, output_padding, crop = [], [], []
    for begin, end, op, s, d in zip(*case.pads, case.op, case.s, case.d):
        extra = begin - end + op
        fits = 0 <= extra < max(s, d)
        if not fits and op > end:
            raise LeftOut("torch cannot extend a result by so much")
        padding.append(begin if fits else 0)
        output_padding.append(extra if fits else 0)
        crop.append(None if fits else (begin, end - op))
    y = TORCH[case.axes](x, w, b, case.s, padding, output_padding, case.g, case.d)
    for a, cut in enumerate(crop):
        if cut:
            y = y.narrow(2 + a, cut[0], y.shape[2 + a] - cut[0] - cut[1])
    return y


def our_call(case, x, w, b):
    return OURS[case.axes](x, w, b, case.s, tuple(zip(*case.pads)), case.op, case.g, case.d)


def _tensors(case, dtype, channels_last, device="cpu"):
    t = case.tensors(torch.float32)
    x, w, b = (v.to(device, dtype) for v in (t["x"], t["w"] * 0.1, t["bias"]))
    if channels_last:
        if case.axes == 1:
            raise LeftOut("torch has no channels_last for one axis")
        x, w = (v.contiguous(memory_format=CHANNELS_LAST[case.axes]) for v in (x, w))
    return x, w, b


def eager(call, channels_last, device="cpu"):
    """Forward and training step of a function (case, x, w, b) in one memory format."""

    def make(case, dtype, step, threads):
        leaves = _tensors(case, dtype, channels_last, device)

        @torch.no_grad()
        def forward():
            return call(case, *leaves)

        y = forward()
        if step == "forward":
            return forward
        for leaf in leaves:
            leaf.requires_grad_()
        gradient = torch.empty_like(y).copy_(case.tensors(torch.float32)["y"])  # in the memory format of y
        return lambda: torch.autograd.grad(call(case, *leaves), leaves, gradient)

    return make


def prepacked(channels_last):
    """Our layer as a module whose weights are packed beforehand, as onnxruntime and openvino do for constants."""

    def make(case, dtype, step, threads):
        if step != "forward":
            raise LeftOut("inference alone")
        x, w, b = _tensors(case, dtype, channels_last)
        layer = MODULES[case.axes](case.ci, case.co, case.k, case.s, tuple(zip(*case.pads)), case.op, case.g, dilation=case.d)
        layer.weight, layer.bias = torch.nn.Parameter(w), torch.nn.Parameter(b)
        torch_ext.prepack(layer, x)

        @torch.no_grad()
        def forward():
            return layer(x)

        return forward

    return make


def _need(module):
    """Leaves a peer out where its module is not installed."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise LeftOut(str(error)) from None


def _onnx_model(case):
    _need("onnx")
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    x, w, b = _tensors(case, torch.float32, False)
    begin, end = case.pads
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], kernel_shape=case.k, strides=case.s, dilations=case.d,
                            group=case.g, pads=[*begin, *end], output_padding=case.op)  # fmt: skip
    graph = helper.make_graph(
        [node], "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w.numpy(), "w"), numpy_helper.from_array(b.numpy(), "b")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    buffer = io.BytesIO()
    onnx.save(model, buffer)
    return buffer.getvalue(), x.numpy()


def onnxruntime(case, dtype, step, threads):
    """Weights packed beforehand, as onnxruntime does for constants."""
    if dtype != torch.float32 or step != "forward":
        raise LeftOut("float32 inference alone")
    _need("onnxruntime")
    import onnxruntime as ort

    model, x = _onnx_model(case)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # Its threads would otherwise spin between its turns, on the cores of whoever is measured next; within a turn they may.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        session.run(None, {"x": x})
    except Exception as error:  # what it cannot run it says in exceptions of its own
        raise LeftOut(str(error).splitlines()[0]) from None
    return lambda: session.run(None, {"x": x})[0]


def openvino(case, dtype, step, threads):
    """Weights packed beforehand, as openvino does for constants."""
    if dtype != torch.float32 or step != "forward":
        raise LeftOut("float32 inference alone")
    _need("openvino")
    import openvino as ov

    model, x = _onnx_model(case)
    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})
    try:
        request = core.compile_model(core.read_model(model), "CPU").create_infer_request()
        request.infer({0: x})
    except Exception as error:
        raise LeftOut(str(error).splitlines()[0]) from None
    return lambda: request.infer({0: x}, share_inputs=True, share_outputs=True)[0]  # shared: without copies


def jax(case, dtype, step, threads):
    """The convolution that a transposed convolution is: of the dilated input, the kernel turned. Compiled, with what it fuses."""
    _need("jax")
    import jax
    import jax.numpy as jnp

    spatial = tuple(range(2, 2 + case.axes))
    begin, end = case.pads
    pads = [(e - 1 - b, e - 1 - t + op) for e, b, t, op in zip(case.reach, begin, end, case.op)]

    def forward(x, w, b):
        w = w.reshape(case.g, case.ci // case.g, *w.shape[1:]).swapaxes(1, 2).reshape(case.co, case.ci // case.g, *case.k)
        y = jax.lax.conv_general_dilated(x, jnp.flip(w, spatial), (1,) * case.axes, pads, lhs_dilation=case.s,
                                         rhs_dilation=case.d, feature_group_count=case.g)  # fmt: skip
        return y + b.reshape(-1, *[1] * case.axes)

    def training(x, w, b, gradient):
        y, gradients = jax.vjp(forward, x, w, b)
        return y, gradients(gradient)  # y too, or the forward pass would be left out

    name = str(dtype).removeprefix("torch.")
    operands = [jnp.asarray(t.float().numpy()).astype(name) for t in _tensors(case, dtype, False)]
    if step == "forward":
        call = jax.jit(forward)
        return lambda: call(*operands).block_until_ready()
    gradient = jnp.asarray(case.tensors(torch.float32)["y"].numpy()).astype(name)
    call = jax.jit(training)
    return lambda: jax.block_until_ready(call(*operands, gradient))[1]


# Ours in the memory format of the peer it is compared with, then the peers.
PEERS = {
    "torch_ext": eager(our_call, False),
    "torch_ext channels_last": eager(our_call, True),
    "torch_ext prepacked": prepacked(False),
    "torch_ext channels_last prepacked": prepacked(True),
    "torch": eager(torch_call, False),
    "torch channels_last": eager(torch_call, True),
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "jax": jax,
}
# Each ratio: (peer's time) / (our time).
OURS_AGAINST = {
    "torch": "torch_ext",
    "torch channels_last": "torch_ext channels_last",
    "onnxruntime": "torch_ext",
    "openvino": "torch_ext",
    "jax": "torch_ext",
}
# Those that pack weights beforehand, compared a second time with ours that does.
PREPACKED = {"onnxruntime": "torch_ext prepacked", "openvino": "torch_ext prepacked"}
