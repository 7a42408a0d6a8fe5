# SPDX-License-Identifier: Apache-2.0
"""Bad input: one clear error for each, before anything is computed, the same for real, meta and fake tensors."""

import re
from typing import NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import operators
import torch_ext
from cases import parse, to_data, to_weights

ops = torch.ops.torch_ext

# Channels and extents all differ, so that an error cannot name the wrong one unnoticed.
CASE = parse("t n2 g2 c4:6 i3x5 k3x2 s2x3 d1x2 pb1x0 pe0x1 op1x0")


def arguments(operator: str) -> dict:
    """A good call of the operator, every argument by name."""
    t = {name: v.detach() for name, v in CASE.tensors(torch.float32).items()}
    x, y, w = to_data(t["x"], "NXC"), to_data(t["y"], "NXC"), to_weights(t["w"], "XOI")
    new, old = CASE.attributes("NXC", "XOI"), operators.old_attributes(CASE, "NXC", "XIO")
    return {
        "conv_transpose": dict(src=x, weights=w, bias=t["bias"], **new),
        "conv_transpose_backward_data": dict(diff_dst=y, weights=w, **new),
        "conv_transpose_backward_weights": dict(src=x, diff_dst=y, **new, weights_shape=list(w.shape)),
        "convolution_backprop_data": dict(output_delta=x, filter=w, **old),
        "conv_transpose_backprop_filters": dict(
            input_forward=x, output_delta=y, **old, filter_shape=list(to_weights(t["w"], "XIO").shape)
        ),
    }[operator]


OPERATORS = (
    "conv_transpose",
    "conv_transpose_backward_data",
    "conv_transpose_backward_weights",
    "convolution_backprop_data",
    "conv_transpose_backprop_filters",
)


class Reject(NamedTuple):
    what: str
    operator: str
    change: dict  # argument -> its bad value, or a function from the good value to the bad one
    says: str  # a regular expression that the message matches

    def arguments(self) -> dict:
        good = arguments(self.operator)
        assert self.change.keys() <= good.keys() | {"output_shape"}, self
        bad = {name: change(good[name]) if callable(change) else change for name, change in self.change.items()}
        return {**good, **bad}


def words(*parts: str) -> str:
    """All parts, in any order."""
    return "(?s)" + "".join(f"(?=.*{part})" for part in parts)


# ---- Attributes, the same for all operators --------------------------------------------------------------------------------

ATTRIBUTES = (
    ("short strides", dict(strides=[2]), words("strides", r"\b2\b")),
    ("long dilations", dict(dilations=[1, 1, 1]), words("dilations", r"\b3\b")),
    ("short pads_begin", dict(pads_begin=[]), words("pads_begin")),
    ("long pads_end", dict(pads_end=[0, 1, 1]), words("pads_end", r"\b3\b")),
    ("short output_padding", dict(output_padding=[1]), words("output_padding")),
    ("stride 0", dict(strides=[2, 0]), words(r"strides\[1\] = 0")),
    ("negative stride", dict(strides=[-1, 1]), words(r"strides\[0\] = -1")),
    ("dilation 0", dict(dilations=[0, 1]), words(r"dilations\[0\] = 0")),
    ("negative pads_begin", dict(pads_begin=[-1, 0]), words(r"pads_begin\[0\] = -1")),
    ("negative pads_end", dict(pads_end=[0, -2]), words(r"pads_end\[1\] = -2")),
    ("output_padding too large", dict(output_padding=[0, 3]), words(r"output_padding\[1\] = 3", "max", r"\b3\b")),
    ("output_padding negative", dict(output_padding=[-1, 0]), words(r"output_padding\[0\] = -1")),
    ("groups 0", dict(groups=0), words("groups", r"\b0\b")),
    ("groups negative", dict(groups=-2), words("groups", "-2")),
    ("channels not divisible", dict(groups=3), words("groups", r"\b3\b")),
    ("unknown auto_pad", dict(auto_pad="same"), words("auto_pad", "same", "same_upper")),
    ("unknown data_format", dict(data_format="NHWC"), words("data_format", "NHWC", "NXC")),
)


def attribute_rows():
    for operator in OPERATORS:
        for what, change, says in ATTRIBUTES:
            yield Reject(what, operator, change, says)
        old = operator in ("convolution_backprop_data", "conv_transpose_backprop_filters")
        name, bad = ("filter_format", "HWIO") if old else ("weights_format", "HWIO")
        yield Reject(f"unknown {name}", operator, {name: bad}, words(name, bad))


# ---- Tensors ---------------------------------------------------------------------------------------------------------------

TENSORS = {
    "conv_transpose": ("src", "weights"),
    "conv_transpose_backward_data": ("diff_dst", "weights"),
    "conv_transpose_backward_weights": ("src", "diff_dst"),
    "convolution_backprop_data": ("output_delta", "filter"),
    "conv_transpose_backprop_filters": ("input_forward", "output_delta"),
}


def flatten(t):
    return t.flatten(1)


def deepen(t):
    return t[None, None]


def tensor_rows():
    for operator, (first, second) in TENSORS.items():
        yield Reject("rank too low", operator, {first: flatten}, words(first))
        yield Reject("rank too high", operator, {first: deepen, second: deepen}, words(first, "6"))
        yield Reject("ranks differ", operator, {second: lambda t: t[0]}, words(second))
        types = words(first, second, "[Ff]loat", "BFloat16|bfloat16")
        yield Reject("mixed types", operator, {second: lambda t: t.bfloat16()}, types)
        for dtype in (torch.int64, torch.complex64, torch.bool, torch.int8):
            both = {name: (lambda t, dtype=dtype: t.to(dtype)) for name in (first, second)}
            yield Reject(f"type {dtype}", operator, both, words(first, "float32|Float"))
        yield Reject("sparse", operator, {first: lambda t: t.to_sparse()}, words(first, "[Ss]parse|strided"))
    conv = "conv_transpose"
    twice = dict(src=lambda t: torch.cat([t, t], -1))
    yield Reject("channels of src", conv, twice, words("src", "weights", r"\b8\b", r"\b4\b"))
    yield Reject("short bias", conv, dict(bias=lambda t: t[:3]), words("bias", r"\b3\b", r"\b6\b"))
    yield Reject("bias of rank 2", conv, dict(bias=lambda t: t[None]), words("bias"))
    yield Reject("type of bias", conv, dict(bias=lambda t: t.double()), words("bias"))
    yield Reject("kernel of extent 0", conv, dict(weights=lambda t: t[:0]), words("weights", r"\b0\b"))
    # in_channels / groups where the layout has all input channels, as the published texts' notes have it.
    noted = lambda t: torch.zeros(3, 2, 6, 2)  # (sp..., OC, IC/g)
    yield Reject("grouped form of the notes", conv, dict(weights=noted), words("weights", r"\b2\b", r"in_channels/groups", "specification"))
    yield Reject("negative output", conv, dict(pads_begin=[9, 0]), words("src|dst|output", r"-\d"))
    yield Reject("huge output", conv, dict(strides=[2**62, 2**62]), words("overflow|large|range|int64"))
    yield Reject("huge pads", conv, dict(pads_end=[2**63 - 1, 2**63 - 1]), words("pads_end|dst|output"))
    yield Reject("bytes overflow", conv, dict(strides=[2**30, 2**30], output_padding=[0, 0]), words("overflow|large|bytes|int64"))
    data = "conv_transpose_backward_data"
    yield Reject("channels of diff_dst", data, dict(diff_dst=lambda t: t[..., :4]), words("diff_dst", "weights", r"\b4\b", r"\b6\b"))
    yield Reject("no exact division", data, dict(output_padding=[0, 0]), words("output_padding"))
    small = dict(diff_dst=lambda t: t[:, :1], weights=lambda t: torch.cat([t, t]), output_padding=None)
    yield Reject("diff_dst too small", data, small, words("diff_dst", "negative"))
    for operator, shape, source, delta in (
        ("conv_transpose_backward_weights", "weights_shape", "src", "diff_dst"),
        ("conv_transpose_backprop_filters", "filter_shape", "input_forward", "output_delta"),
    ):
        yield Reject("no shape", operator, {shape: None}, words(shape))
        yield Reject("rank of shape", operator, {shape: [3, 2, 3]}, words(shape))
        yield Reject("kernel 0", operator, {shape: lambda s: [0, *s[1:]]}, words(shape, r"\b0\b"))
        yield Reject("negative kernel", operator, {shape: lambda s: [-3, *s[1:]]}, words(shape, "-3"))
        yield Reject("wrong kernel", operator, {shape: lambda s: [5, *s[1:]]}, words(delta, "kernel 5"))
        yield Reject("wrong channels", operator, {shape: lambda s: [*s[:-1], s[-1] + 1]}, words(shape))
        yield Reject("batches differ", operator, {delta: lambda t: torch.cat([t, t])}, words(source, delta, r"\b2\b", r"\b4\b"))
        yield Reject("delta too long", operator, {delta: lambda t: torch.cat([t, t], 1)}, words(delta))
        yield Reject("output_padding does not fit", operator, {"output_padding": [0, 0]}, words("output_padding 0", delta))
    old = "convolution_backprop_data"
    for bad in ([8], [8, 9, 10], [1, 8, 10, 3], [-1, 9]):
        yield Reject(f"output_shape {bad}", old, dict(output_shape=bad), words("output_shape"))


REJECTS = [*attribute_rows(), *tensor_rows()]
every_reject = pytest.mark.parametrize("reject", REJECTS, ids=lambda r: f"{r.operator}-{r.what}")


def convert(arguments: dict, f) -> dict:
    return {name: f(v) if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}


def message(reject: Reject, bad: dict) -> str:
    with pytest.raises(RuntimeError) as error:
        getattr(ops, reject.operator)(**bad)
    text = str(error.value).split("\nException raised")[0].split("\n\nWhile executing")[0]
    return text


def expect_message(reject: Reject, bad: dict):
    text = message(reject, bad)
    assert re.search(reject.says, text), f"the message does not match {reject.says}:\n{text}"
    assert reject.operator in text, f"the message does not name {reject.operator}:\n{text}"


def test_good_arguments_are_good():
    for operator in OPERATORS:
        getattr(ops, operator)(**arguments(operator))


@every_reject
def test_rejected(reject):
    expect_message(reject, reject.arguments())


@every_reject
def test_rejected_under_meta_tensors(reject):
    expect_message(reject, convert(reject.arguments(), lambda t: t.to("meta")))


@every_reject
def test_rejected_under_fake_tensors(reject):
    with FakeTensorMode() as mode:
        pass
    bad = convert(reject.arguments(), mode.from_tensor)
    with mode:
        expect_message(reject, bad)


@every_reject
def test_rejected_with_gradients(reject):
    def require_grad(t):
        return t.requires_grad_() if t.is_floating_point() or t.is_complex() else t

    expect_message(reject, convert(reject.arguments(), require_grad))


# ---- What the table cannot say ---------------------------------------------------------------------------------------------


def test_mixed_devices():
    bad = arguments("conv_transpose")
    bad["weights"] = bad["weights"].to("meta")
    with pytest.raises(RuntimeError, match=words("weights|device", "meta", "cpu")):
        ops.conv_transpose(**bad)


def test_nested_tensors():
    bad = arguments("conv_transpose")
    bad["src"] = torch.nested.nested_tensor(list(bad["src"]))
    with pytest.raises(RuntimeError, match=words("conv_transpose", "src", "dense", "nested")):
        ops.conv_transpose(**bad)


@pytest.mark.parametrize("device", ("cpu", "meta"))
def test_channels_of_all_groups_overflow(device):
    """groups divides zero channels, whatever it is."""
    x, w = torch.empty(1, 0, 3, device=device), torch.empty(0, 8, 3, device=device)
    attributes = dict(strides=[1], pads_begin=[0], pads_end=[0], dilations=[1], data_format="NCX", weights_format="IOX")
    with pytest.raises(RuntimeError, match=words("conv_transpose", "groups", "8", str(2**62), "overflow")):
        ops.conv_transpose(x, w, **attributes, groups=2**62)


def test_quantized_tensors():
    bad = arguments("conv_transpose")
    bad["src"] = torch.quantize_per_tensor(bad["src"], 0.1, 0, torch.qint8)
    with pytest.raises(RuntimeError, match="src|quantized|Quantized"):
        ops.conv_transpose(**bad)


@pytest.mark.parametrize("shape", ([8.0, 9.0], [[8, 9]], [8], [8, 9, 10], [-1, 9]), ids=str)
def test_bad_shape_tensors(shape):
    good = arguments("convolution_backprop_data")
    with pytest.raises(RuntimeError, match="output_shape"):
        ops.convolution_backprop_data(good.pop("output_delta"), good.pop("filter"), torch.tensor(shape), **good)


def test_shape_tensor_of_a_wrong_kernel():
    good = arguments("conv_transpose_backward_weights")
    shape = torch.tensor([5, *good.pop("weights_shape")[1:]])
    with pytest.raises(RuntimeError, match=words("diff_dst", "kernel 5")):
        ops.conv_transpose_backward_weights(good.pop("src"), good.pop("diff_dst"), shape, **good)


def functional_rejects():
    x, w = torch.randn(1, 2, 5, 5), torch.randn(2, 3, 3, 3)
    return {
        "same": (dict(input=x, weight=w, padding="same"), words("padding", "same", "same_upper")),
        "unknown padding": (dict(input=x, weight=w, padding="full"), words("padding", "full")),
        "short stride": (dict(input=x, weight=w, stride=(1, 2, 3)), words("stride")),
        "float stride": (dict(input=x, weight=w, stride=2.0), words("stride", "2.0", "int")),
        "bool in a stride": (dict(input=x, weight=w, stride=(1, True)), words("stride", "True", "int")),
        "float in pairs of pads": (dict(input=x, weight=w, padding=((1, 1), (1, 1.0))), words("padding", "1.0", "pair")),
        "bool dilation": (dict(input=x, weight=w, dilation=True), words("dilation", "True", "int")),
        "no tensor": (dict(input=x.tolist(), weight=w), words("input", "Tensor", "list")),
        "stride 0": (dict(input=x, weight=w, stride=0), words("stride", "0")),
        "negative padding": (dict(input=x, weight=w, padding=-1), words("pad", "-1")),
        "output_padding": (dict(input=x, weight=w, output_padding=1), words("output_padding", "1")),
        "rank": (dict(input=x[0, 0], weight=w), words("input", "2")),
        "channels": (dict(input=x, weight=w[:1]), words("input|weight")),
    }


@pytest.mark.parametrize("what", functional_rejects())
def test_functional_rejects(what):
    bad, says = functional_rejects()[what]
    with pytest.raises((RuntimeError, ValueError, TypeError), match=says):
        torch_ext.functional.conv_transpose2d(**bad)


@pytest.mark.parametrize(
    "change, says",
    (
        (dict(padding="same"), words("padding", "same_upper")),
        (dict(padding="full"), words("padding", "full")),
        (dict(groups=3), "groups|divisible"),
        (dict(padding_mode="reflect"), "padding.mode"),
    ),
    ids=str,
)
def test_module_rejects(change, says):
    with pytest.raises((RuntimeError, ValueError, TypeError), match=says):
        torch_ext.nn.ConvTranspose2d(4, 6, 3, **change)


@pytest.mark.parametrize("size", ([20, 20], [1], [10, 10, 10, 10, 10]), ids=str)
def test_module_rejects_output_sizes_out_of_torchs_range(size):
    module, theirs = (nn.ConvTranspose2d(4, 6, 3, stride=2) for nn in (torch_ext.nn, torch.nn))
    x = torch.randn(1, 4, 5, 5)
    for m in (module, theirs):
        with pytest.raises((RuntimeError, ValueError)):
            m(x, output_size=size)
