"""Transposed convolutions with the signatures and semantics of ``torch.nn.functional``.

Along each spatial axis, with input extent I, kernel K, stride s, dilation d, pads pb and pe, output_padding op::

    O = (I - 1)*s - pb - pe + (K - 1)*d + 1 + op
    output[n, oc, o] = bias[oc] + sum over ic in the group of oc, i, k with o = i*s - pb + k*d of input[n, ic, i] * weight[ic, oc', k]
"""

from typing import Optional

import torch
from torch import Tensor

from . import _script
from ._arguments import axes_list, pads
from ._script import Ints, Padding

__all__ = ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]

torch.fx.wrap("_conv_transpose")  # one node in a symbolic trace, as torch's own functions are


def _conv_transpose(
    axes: int,
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    stride: Ints,
    padding: Padding,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
) -> Tensor:
    op = f"conv_transpose{axes}d"
    if torch.jit.is_scripting():
        strides, dilations = _script.axes_list(stride, axes), _script.axes_list(dilation, axes)
        output_paddings = _script.axes_list(output_padding, axes)
        pads_begin, pads_end, auto_pad = _script.pads(op, padding, axes)
    else:
        if not isinstance(input, Tensor) and not hasattr(input, "__torch_function__"):
            raise TypeError(f"{op}: input must be a Tensor, got {type(input).__name__}")
        strides, dilations = axes_list(op, "stride", stride, axes), axes_list(op, "dilation", dilation, axes)
        output_paddings = axes_list(op, "output_padding", output_padding, axes)
        pads_begin, pads_end, auto_pad = pads(op, padding, axes)
    dims = input.dim()
    unbatched = dims == axes + 1
    if not unbatched and dims != axes + 2:
        raise RuntimeError(f"{op}: input must have {axes + 1} (unbatched) or {axes + 2} dimensions, got sizes {list(input.shape)}")
    output = torch.ops.torch_ext.conv_transpose(
        input.unsqueeze(0) if unbatched else input,
        weight,
        bias,
        strides=strides,
        pads_begin=pads_begin,
        pads_end=pads_end,
        dilations=dilations,
        auto_pad=auto_pad,
        output_padding=output_paddings,
        groups=groups,
        data_format="NCX",
        weights_format="IOX",
    )
    return output.squeeze(0) if unbatched else output


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """Transposed convolution over one spatial axis; see :func:`conv_transpose2d`, with one axis less.

    input is (N, IC, L) or (IC, L), weight (IC, OC/groups, K); the result is (N, OC, O) or (OC, O).
    """
    return _conv_transpose(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """Transposed convolution over two spatial axes, as ``torch.nn.functional.conv_transpose2d``, with more kinds of padding.

    Args:
        input: (N, IC, H, W) or (IC, H, W); contiguous, channels_last or of any strides.
        weight: (IC, OC/groups, KH, KW).
        bias: (OC,) or None.
        stride, dilation: one int, or one for each axis; >= 1.
        padding: how much of the full result is cut off. One int, one for each axis, one (begin, end) pair for each axis, or
            "valid" (nothing), "same_upper" or "same_lower" (max((K-1)*d + 1 - s, 0) in all; the odd one at the end or the begin).
        output_padding: added to the extent at the end; 0 <= output_padding < max(stride, dilation).
        groups: divides IC and OC.

    Returns:
        (N, OC, OH, OW) or (OC, OH, OW), channels_last where input or weight suggest it.

    Raises:
        RuntimeError, ValueError, TypeError: names the argument, its value and the rule, before anything is computed.
    """
    return _conv_transpose(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """Transposed convolution over three spatial axes; see :func:`conv_transpose2d`, with one axis more.

    input is (N, IC, D, H, W) or (IC, D, H, W), weight (IC, OC/groups, KD, KH, KW); the result is (N, OC, OD, OH, OW) or unbatched.
    """
    return _conv_transpose(3, input, weight, bias, stride, padding, output_padding, groups, dilation)
