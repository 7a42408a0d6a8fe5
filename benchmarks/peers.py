"""Who is measured. Each peer turns a layer into a function to call, or into a reason why it is left out."""

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


class LeftOut(Exception):
    """Why a peer is not measured on a layer."""


def torch_call(case, x, w, b):
    """What a user of torch writes: where the pads are not the same on both sides, a larger result, cut."""
    padding, output_padding, crop = [], [], []
    for begin, end, op, s, d in zip(*case.pads, case.op, case.s, case.d):
        extra = begin - end + op
        fits = 0 <= extra < max(s, d)
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


def _tensors(case, dtype, channels_last):
    t = case.tensors(torch.float32)
    x, w, b = t["x"].to(dtype), (t["w"] * 0.1).to(dtype), t["bias"].to(dtype)
    if channels_last:
        if case.axes == 1:
            raise LeftOut("torch has no channels_last for one axis")
        x, w = (v.contiguous(memory_format=CHANNELS_LAST[case.axes]) for v in (x, w))
    return x, w, b


def eager(call, channels_last):
    """Forward and training step of a function (case, x, w, b) in one memory format."""

    def make(case, dtype, step, threads):
        x, w, b = _tensors(case, dtype, channels_last)
        if step == "forward":

            def forward():
                with torch.no_grad():
                    return call(case, x, w, b)

            return forward
        leaves = [v.requires_grad_() for v in (x, w, b)]
        gradient = torch.randn_like(call(case, *leaves))
        return lambda: torch.autograd.grad(call(case, *leaves), leaves, gradient)

    return make


def _onnx_model(case):
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise LeftOut(str(error)) from None
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
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise LeftOut(str(error)) from None
    model, x = _onnx_model(case)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # Its threads would otherwise spin between its turns, on the cores of whoever is measured next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # what it cannot run it says in exceptions of its own
        raise LeftOut(str(error).splitlines()[0]) from None
    return lambda: session.run(None, {"x": x})


def openvino(case, dtype, step, threads):
    """Weights packed beforehand, as openvino does for constants."""
    if dtype != torch.float32 or step != "forward":
        raise LeftOut("float32 inference alone")
    try:
        import openvino as ov
    except ImportError as error:
        raise LeftOut(str(error)) from None
    model, x = _onnx_model(case)
    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})
    try:
        request = core.compile_model(core.read_model(model), "CPU").create_infer_request()
    except Exception as error:
        raise LeftOut(str(error).splitlines()[0]) from None
    return lambda: request.infer({0: x})


# Ours in the memory format of the peer it is compared with, then the peers.
PEERS = {
    "torch_ext": eager(our_call, False),
    "torch_ext channels_last": eager(our_call, True),
    "torch": eager(torch_call, False),
    "torch channels_last": eager(torch_call, True),
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}
# Each ratio: (peer's time) / (our time).
OURS_AGAINST = {
    "torch": "torch_ext",
    "torch channels_last": "torch_ext channels_last",
    "onnxruntime": "torch_ext",
    "openvino": "torch_ext",
}
