# SPDX-License-Identifier: Apache-2.0
"""The problems of tests/cases.txt, their tensors in every layout, and what torch itself says about them in float64."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
import zlib

import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases.txt"
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DATA_FORMATS = ("NXC", "NCX")
WEIGHTS_FORMATS = ("XOI", "IOX")


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    line: str
    n: int
    g: int
    ci: int
    co: int
    i: tuple[int, ...]
    k: tuple[int, ...]
    s: tuple[int, ...]
    d: tuple[int, ...]
    pb: tuple[int, ...]
    pe: tuple[int, ...]
    op: tuple[int, ...]
    auto: str = "none"
    large: bool = False

    @property
    def axes(self) -> int:
        return len(self.i)

    @property
    def reach(self) -> tuple[int, ...]:
        """E = (K-1)*d + 1 along every axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.k, self.d))

    @property
    def pads(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """pads_begin and pads_end after the rule of auto_pad."""
        if self.auto == "none":
            return self.pb, self.pe
        if self.auto == "valid":
            return (0,) * self.axes, (0,) * self.axes
        totals = [max(e - s, 0) for e, s in zip(self.reach, self.s)]
        smaller, larger = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
        return (smaller, larger) if self.auto == "same_upper" else (larger, smaller)

    @property
    def o(self) -> tuple[int, ...]:
        begin, end = self.pads
        return tuple(
            s * (i - 1) + e + op - b - t for s, i, e, op, b, t in zip(self.s, self.i, self.reach, self.op, begin, end)
        )

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.n, self.ci, *self.i)

    @property
    def w_shape(self) -> tuple[int, ...]:
        return (self.ci, self.co // self.g, *self.k)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (self.n, self.co, *self.o)

    @property
    def terms(self) -> int:
        return self.n * self.ci * (self.co // self.g) * math.prod(self.i) * math.prod(self.k)

    def attributes(self, data_format: str = "NCX", weights_format: str = "IOX") -> dict:
        return dict(
            strides=list(self.s),
            pads_begin=list(self.pb),
            pads_end=list(self.pe),
            dilations=list(self.d),
            auto_pad=self.auto,
            output_padding=list(self.op),
            groups=self.g,
            data_format=data_format,
            weights_format=weights_format,
        )

    def torch_attributes(self) -> dict | None:
        """The same for torch.nn.functional.conv_transpose*, None where torch cannot express the problem."""
        begin, end = self.pads
        # What torch calls output_padding lies behind a padding that is the same on both sides.
        extra = tuple(op + b - e for op, b, e in zip(self.op, begin, end))
        expressible = all(0 <= x < max(s, d) for x, s, d in zip(extra, self.s, self.d))
        if not expressible or 0 in (self.n, self.ci, self.co, *self.i, *self.o):
            return None
        return dict(stride=self.s, padding=begin, output_padding=extra, groups=self.g, dilation=self.d)

    def tensors(self, dtype: torch.dtype = torch.float64, integers: bool = False) -> dict[str, torch.Tensor]:
        """x, w, y and bias in NCX and IOX, the same ones at every call."""
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))

        def draw(*shape: int) -> torch.Tensor:
            if integers:
                return torch.randint(-3, 4, shape, generator=generator).to(dtype)
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        return dict(x=draw(*self.x_shape), w=draw(*self.w_shape), y=draw(*self.y_shape), bias=draw(self.co))


def parse(line: str) -> Case:
    name, *tokens = line.split("#")[0].split()
    values: dict = {"large": "large" in tokens}
    for token in tokens:
        if token.startswith("auto="):
            values["auto"] = token[5:]
        elif token != "large":
            key, numbers = re.fullmatch(r"([a-z]+)([0-9x:]+)", token).groups()
            numbers = tuple(int(v) for v in re.split("[x:]", numbers))
            if key == "c":
                values["ci"], values["co"] = numbers
            else:
                values[key] = numbers[0] if key in "ng" else numbers
    return Case(name=name, line=line.split("#")[0].strip(), **values)


ALL = [parse(line) for line in CASES.read_text().splitlines() if line and not line.startswith("#")]
SMALL = [case for case in ALL if not case.large]
LARGE = [case for case in ALL if case.large]
BY_NAME = {case.name: case for case in ALL}


# ---- Layouts -------------------------------------------------------------------------------------------------------------


def to_data(t: torch.Tensor, data_format: str) -> torch.Tensor:
    """NCX -> data_format, contiguous."""
    return t.movedim(1, -1).contiguous() if data_format == "NXC" else t


def from_data(t: torch.Tensor, data_format: str) -> torch.Tensor:
    return t.movedim(-1, 1) if data_format == "NXC" else t


def to_weights(t: torch.Tensor, weights_format: str) -> torch.Tensor:
    """IOX -> weights_format, contiguous. XIO and OIX are those of conv_transpose_backprop_filters, IXO is for the private operators."""
    spatial = range(2, t.dim())
    order = {"IOX": (0, 1, *spatial), "XOI": (*spatial, 1, 0), "XIO": (*spatial, 0, 1), "OIX": (1, 0, *spatial),
             "IXO": (0, *spatial, 1)}
    return t.permute(order[weights_format]).contiguous()


def from_weights(t: torch.Tensor, weights_format: str) -> torch.Tensor:
    last = t.dim()
    order = {
        "IOX": tuple(range(last)),
        "XOI": (last - 1, last - 2, *range(last - 2)),
        "XIO": (last - 2, last - 1, *range(last - 2)),
        "OIX": (1, 0, *range(2, last)),
    }
    return t.permute(order[weights_format])


# ---- The reference -------------------------------------------------------------------------------------------------------

TORCH = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def reference(x, w, bias, s, d, pads_begin, o, g):
    """y by torch: its full transposed convolution without pads, cropped, and extended by zeros, to what is asked for.

    torch refuses empty extents; then no term is left and y is the bias alone.
    """
    axes = len(s)
    shape = (x.shape[0], w.shape[1] * g, *o)
    if 0 in x.shape or 0 in w.shape or 0 in shape:
        y = x.sum() * 0 + w.sum() * 0 + torch.zeros(shape, dtype=x.dtype)
    else:
        full = TORCH[axes](x, w, stride=s, dilation=d, groups=g)
        pads = [(-b, b + extent - reach) for b, extent, reach in zip(pads_begin, o, full.shape[2:])]
        # A crop and a zero extension by one call; where a crop leaves nothing of `full`, pad must see the crop first.
        y = full
        for axis, (begin, end) in enumerate(pads):
            size = y.shape[2 + axis]
            y = y.narrow(2 + axis, min(-begin, size), max(0, min(size, size + end) - min(-begin, size)))
            missing = o[axis] - y.shape[2 + axis]
            y = torch.cat([y, y.new_zeros(*y.shape[: 2 + axis], missing, *y.shape[3 + axis :])], 2 + axis)
    return y if bias is None else y + bias.reshape(-1, *[1] * axes)


def conv_transpose(case: Case, t: dict[str, torch.Tensor], bias: bool = True) -> torch.Tensor:
    return reference(t["x"], t["w"], t["bias"] if bias else None, case.s, case.d, case.pads[0], case.o, case.g)


def gradients(case: Case, t: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The references of backward_data and backward_weights: torch's derivatives of the reference, in float64."""
    x, w = (t[name].detach().double().requires_grad_() for name in "xw")  # detached: the caller's tensors stay as they are
    y = reference(x, w, None, case.s, case.d, case.pads[0], case.o, case.g)
    return torch.autograd.grad(y, (x, w), t["y"].double())
