"""What users pass as ``stride`` or ``padding``, brought into the form that the operators take."""

from collections.abc import Sequence
from typing import Union

import torch

Ints = Union[int, Sequence[int]]
Padding = Union[str, int, Sequence[int], Sequence[Sequence[int]]]

PADDING_MODES = ("valid", "same_upper", "same_lower")


def _is_int(value) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _is_sequence(value) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def axes_list(op: str, name: str, value: Ints, axes: int) -> list[int]:
    """One value for each axis: an int stands for all of them, as does a sequence of one."""
    if _is_int(value):
        return [value] * axes
    if not _is_sequence(value) or not all(_is_int(v) for v in value):
        raise TypeError(f"{op}: {name} must be an int or a sequence of ints, got {value!r}")
    if len(value) not in (1, axes):
        raise ValueError(f"{op}: {name} must be one int or {axes} ints, one for each spatial axis, got {value!r}")
    return list(value) * (axes if len(value) == 1 else 1)


def pads(op: str, padding: Padding, axes: int) -> tuple[list[int], list[int], str]:
    """(pads_begin, pads_end, auto_pad) of ``padding``: ints, one (begin, end) pair for each axis, or the name of a mode."""
    if padding == "same":
        raise ValueError(
            f'{op}: padding="same" does not say which side gets the odd one: choose "same_upper" (the end, as TensorFlow and ONNX '
            'SAME_UPPER do) or "same_lower" (the begin)'
        )
    if isinstance(padding, str):
        if padding not in PADDING_MODES:
            raise ValueError(f"{op}: padding must be ints, (begin, end) pairs or one of {', '.join(PADDING_MODES)}, got {padding!r}")
        return [0] * axes, [0] * axes, padding
    if _is_sequence(padding) and any(_is_sequence(p) for p in padding):
        if len(padding) != axes or not all(_is_sequence(p) and len(p) == 2 and all(map(_is_int, p)) for p in padding):
            raise ValueError(f"{op}: padding must have one (begin, end) pair for each of the {axes} spatial axes, got {padding!r}")
        return [p[0] for p in padding], [p[1] for p in padding], "none"
    both = axes_list(op, "padding", padding, axes)
    return both, list(both), "none"


def same_pads(
    kernel_size: Sequence[int], stride: Sequence[int], dilation: Sequence[int], upper: bool
) -> tuple[list[int], list[int]]:
    """The explicit pads of a SAME mode, which depend on the kernel, the stride and the dilation alone."""
    totals = [max((k - 1) * d + 1 - s, 0) for k, s, d in zip(kernel_size, stride, dilation)]
    begin = [t // 2 if upper else t - t // 2 for t in totals]
    return begin, [t - b for t, b in zip(totals, begin)]
