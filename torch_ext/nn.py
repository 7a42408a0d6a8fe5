"""Modules with the constructors, parameters and state_dict of ``torch.nn.ConvTranspose*d``, computed by torch_ext.

They subclass torch's, so ``isinstance`` checks, initialisation, parametrisations and checkpoints work unchanged; they script, trace
and export. ``padding`` takes what :mod:`torch_ext.functional` takes.
"""

from typing import List, Optional

import torch
from torch import Tensor

from ._arguments import Padding, pads, same_pads

__all__ = ["ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

torch.fx.wrap("_forward")  # one node in a symbolic trace: tracers look into modules that are not torch.nn's


def _padding_for(
    input: Tensor,
    output_size: List[int],
    kernel_size: List[int],
    stride: List[int],
    dilation: List[int],
    pads_begin: List[int],
    pads_end: List[int],
) -> List[int]:
    """The output_padding that gives ``output_size``: the spatial extents, or the sizes of all dimensions."""
    axes = len(kernel_size)
    spatial = output_size
    if len(output_size) == input.dim():
        spatial = output_size[input.dim() - axes :]
    if len(spatial) != axes:
        raise ValueError(f"output_size must have {axes} values (the spatial extents) or {input.dim()}, got {output_size}")
    result: List[int] = []
    for a in range(axes):
        extent = input.size(input.dim() - axes + a)
        least = (extent - 1) * stride[a] - pads_begin[a] - pads_end[a] + (kernel_size[a] - 1) * dilation[a] + 1
        most = least + max(stride[a], dilation[a]) - 1
        if spatial[a] < least or spatial[a] > most:
            raise ValueError(
                f"output_size {output_size} is out of range: on spatial axis {a} an input of {extent} can give {least} to {most}"
            )
        result.append(spatial[a] - least)
    return result


def _forward(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    output_size: Optional[List[int]],
    kernel_size: List[int],
    stride: List[int],
    dilation: List[int],
    output_padding: List[int],
    groups: int,
    pads_begin: List[int],
    pads_end: List[int],
    packed: Optional[Tensor] = None,
) -> Tensor:
    axes = len(kernel_size)
    if input.dim() != axes + 1 and input.dim() != axes + 2:
        raise RuntimeError(f"ConvTranspose{axes}d: input must have {axes + 1} (unbatched) or {axes + 2} dimensions, got sizes {input.shape}")
    if output_size is not None:
        output_padding = _padding_for(input, output_size, kernel_size, stride, dilation, pads_begin, pads_end)
    unbatched = input.dim() == axes + 1
    if unbatched:
        input = input.unsqueeze(0)
    if packed is not None:
        output = torch.ops.torch_ext.conv_transpose_prepacked(
            input,
            weight,
            packed,
            bias,
            strides=stride,
            pads_begin=pads_begin,
            pads_end=pads_end,
            dilations=dilation,
            output_padding=output_padding,
            groups=groups,
            data_format="NCX",
            weights_format="IOX",
        )
    else:
        output = torch.ops.torch_ext.conv_transpose(
            input,
            weight,
            bias,
            strides=stride,
            pads_begin=pads_begin,
            pads_end=pads_end,
            dilations=dilation,
            output_padding=output_padding,
            groups=groups,
            data_format="NCX",
            weights_format="IOX",
        )
    return output.squeeze(0) if unbatched else output


class _ConvTranspose:
    """What the three modules share, put before torch's class in their order of bases."""

    packed: Optional[Tensor]

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding: Padding = 0,
        output_padding=0,
        groups=1,
        bias=True,
        dilation=1,
        padding_mode="zeros",
        device=None,
        dtype=None,
    ):
        super().__init__(
            in_channels, out_channels, kernel_size, stride, 0, output_padding, groups, bias, dilation, padding_mode, device, dtype
        )
        # Resolved once: the modes depend on the kernel, the stride and the dilation alone.
        begin, end, mode = pads(type(self).__name__, padding, len(self.kernel_size))
        if mode.startswith("same"):
            begin, end = same_pads(self.kernel_size, self.stride, self.dilation, mode == "same_upper")
        self.pads_begin: List[int] = list(begin)
        self.pads_end: List[int] = list(end)
        self.padding = mode if mode != "none" else tuple(begin) if begin == end else tuple(zip(begin, end))
        self.register_buffer("packed", None, persistent=False)  # the weights as torch_ext.prepack packs them

    def forward(self, input: Tensor, output_size: Optional[List[int]] = None) -> Tensor:
        return _forward(
            input,
            self.weight,
            self.bias,
            output_size,
            self.kernel_size,
            self.stride,
            self.dilation,
            self.output_padding,
            self.groups,
            self.pads_begin,
            self.pads_end,
            self.packed,
        )

    def _prepack(self, size: torch.Size, channels_last: bool) -> None:
        """Packs the weights for inputs (N, C, ...) of this size and layout; nothing is kept where that has no use."""
        self._packed_for = (size, channels_last)
        self.packed = None
        if self.weight.device.type != "cpu" or not self.weight.is_floating_point():
            return
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        sample = torch.empty(size, dtype=self.weight.dtype)
        if channels_last:
            sample = sample.to(memory_format=formats[len(size)])
        packed = torch.ops.torch_ext.conv_transpose_prepack(
            sample,
            self.weight.detach(),
            strides=self.stride,
            pads_begin=self.pads_begin,
            pads_end=self.pads_end,
            dilations=self.dilation,
            output_padding=self.output_padding,
            groups=self.groups,
            data_format="NCX",
            weights_format="IOX",
        )
        self.packed = packed if packed.numel() else None

    def _apply(self, fn, *args, **kwargs):  # .to(), .half(), .cuda() ...
        super()._apply(fn, *args, **kwargs)
        if "_packed_for" in self.__dict__:
            self._prepack(*self._packed_for)
        return self

    def _load_from_state_dict(self, *args, **kwargs):
        super()._load_from_state_dict(*args, **kwargs)
        if "_packed_for" in self.__dict__:
            self._prepack(*self._packed_for)


class ConvTranspose1d(_ConvTranspose, torch.nn.ConvTranspose1d):
    """:class:`torch.nn.ConvTranspose1d` computed by torch_ext; ``padding`` also takes modes and (begin, end) pairs."""


class ConvTranspose2d(_ConvTranspose, torch.nn.ConvTranspose2d):
    """:class:`torch.nn.ConvTranspose2d` computed by torch_ext; ``padding`` also takes modes and (begin, end) pairs."""


class ConvTranspose3d(_ConvTranspose, torch.nn.ConvTranspose3d):
    """:class:`torch.nn.ConvTranspose3d` computed by torch_ext; ``padding`` also takes modes and (begin, end) pairs."""
