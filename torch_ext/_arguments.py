"""What users pass as ``stride`` or ``padding``, brought into the form that the operators take."""

import operator
from collections.abc import Sequence
from typing import Optional

import torch

from ._script import Ints, Padding

PADDING_MODES = ("valid", "same_upper", "same_lower")


def _as_int(value) -> Optional[int]:
    """An int, also from NumPy or a tensor of one; None for anything else."""
    if isinstance(value, (int, torch.SymInt)):
        return None if isinstance(value, bool) else value
    try:
        return operator.index(value)
    except TypeError:
        return None


def _as_ints(value) -> Optional[list[int]]:
    """A sequence of ints as a list; None for anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    ints = [_as_int(v) for v in value]
    return None if any(v is None for v in ints) else ints


def _are_ints(value, count: int) -> bool:
    """Whether value is a tuple or list of so many ints and of nothing that stands for one. Nearly always it is, and to see it takes
    a fifth of a microsecond. What takes ten costs thirty in a loop of large layers, which leave no cache to the interpreter."""
    if type(value) not in (tuple, list) or len(value) != count:
        return False
    for v in value:
        if type(v) is not int:
            return False
    return True


def axes_list(op: str, name: str, value: Ints, axes: int) -> Sequence[int]:
    """One value for each axis: an int stands for all of them, as does a sequence of one."""
    if type(value) is int:
        return [value] * axes
    if _are_ints(value, axes):
        return value
    one = _as_int(value)
    if one is not None:
        return [one] * axes
    ints = _as_ints(value)
    if ints is None:
        raise TypeError(f"{op}: {name} must be an int or a sequence of ints, got {value!r}")
    if len(ints) not in (1, axes):
        raise ValueError(f"{op}: {name} must be one int or {axes} ints, one for each spatial axis, got {value!r}")
    return ints * axes if len(ints) == 1 else ints


def _are_pairs(value, count: int) -> bool:
    if type(value) not in (tuple, list) or len(value) != count:
        return False
    for pair in value:
        if not _are_ints(pair, 2):
            return False
    return True


def pads(op: str, padding: Padding, axes: int) -> tuple[Sequence[int], Sequence[int], str]:
    """(pads_begin, pads_end, auto_pad) of ``padding``: ints, one (begin, end) pair for each axis, or the name of a mode."""
    if type(padding) is int:
        both = [padding] * axes
        return both, both, "none"
    if _are_ints(padding, axes):
        return padding, padding, "none"
    if _are_pairs(padding, axes):
        begin, end = zip(*padding)
        return begin, end, "none"
    if isinstance(padding, str):
        if padding == "same":
            raise ValueError(
                f'{op}: padding="same" does not say which side gets the odd one: choose "same_upper" (the end, as TensorFlow '
                'and ONNX SAME_UPPER do) or "same_lower" (the begin)'
            )
        if padding not in PADDING_MODES:
            modes = ", ".join(PADDING_MODES)
            raise ValueError(f"{op}: padding must be ints, (begin, end) pairs or one of {modes}, got {padding!r}")
        return [0] * axes, [0] * axes, padding
    if isinstance(padding, Sequence) and any(isinstance(p, Sequence) for p in padding):
        pairs = [_as_ints(p) for p in padding]
        if len(pairs) != axes or any(p is None or len(p) != 2 for p in pairs):
            raise ValueError(
                f"{op}: padding must have one (begin, end) pair for each of the {axes} spatial axes, got {padding!r}"
            )
        return [p[0] for p in pairs], [p[1] for p in pairs], "none"
    both = axes_list(op, "padding", padding, axes)
    return both, both, "none"


def same_pads(
    kernel_size: Sequence[int], stride: Sequence[int], dilation: Sequence[int], upper: bool
) -> tuple[list[int], list[int]]:
    """The explicit pads of a SAME mode, which depend on the kernel, the stride and the dilation alone."""
    totals = [max((k - 1) * d + 1 - s, 0) for k, s, d in zip(kernel_size, stride, dilation)]
    begin = [t // 2 if upper else t - t // 2 for t in totals]
    return begin, [t - b for t, b in zip(totals, begin)]
