"""The part of :mod:`torch_ext._arguments` that TorchScript compiles, where a program calls :mod:`torch_ext.functional`.

TorchScript knows no Sequence and no tuple of any length, so the types spell out each length. Lengths and values are checked by
the operators.
"""

from typing import List, Tuple, Union

_Pair = Tuple[int, int]

# One value, or one for each spatial axis.
Ints = Union[int, List[int], Tuple[int], Tuple[int, int], Tuple[int, int, int]]
# Such values for both ends, or a (begin, end) pair for each spatial axis, or the name of a mode.
Padding = Union[
    str,
    int,
    List[int],
    Tuple[int],
    Tuple[int, int],
    Tuple[int, int, int],
    List[List[int]],
    List[_Pair],
    Tuple[_Pair],
    Tuple[_Pair, _Pair],
    Tuple[_Pair, _Pair, _Pair],
]


def axes_list(value: Ints, axes: int) -> List[int]:
    if isinstance(value, int):
        ints = [value]
    elif isinstance(value, List[int]):
        ints = value
    elif isinstance(value, Tuple[int]):
        ints = [value[0]]
    elif isinstance(value, Tuple[int, int]):
        ints = [value[0], value[1]]
    else:
        ints = [value[0], value[1], value[2]]
    return ints * axes if len(ints) == 1 else ints


def pads(op: str, padding: Padding, axes: int) -> Tuple[List[int], List[int], str]:
    mode = "none"
    # The order matters: what remains of the union must not hold two kinds of tuples of one length.
    if isinstance(padding, Tuple[_Pair]):
        begin, end = [padding[0][0]], [padding[0][1]]
    elif isinstance(padding, Tuple[_Pair, _Pair]):
        begin, end = [padding[0][0], padding[1][0]], [padding[0][1], padding[1][1]]
    elif isinstance(padding, Tuple[_Pair, _Pair, _Pair]):
        begin = [padding[0][0], padding[1][0], padding[2][0]]
        end = [padding[0][1], padding[1][1], padding[2][1]]
    elif isinstance(padding, List[_Pair]):
        begin, end = [p[0] for p in padding], [p[1] for p in padding]
    elif isinstance(padding, List[List[int]]):
        for p in padding:
            if len(p) != 2:
                raise ValueError(f"{op}: padding must have one (begin, end) pair for each spatial axis, got {padding}")
        begin, end = [p[0] for p in padding], [p[1] for p in padding]
    elif isinstance(padding, str):
        if padding not in ["valid", "same_upper", "same_lower"]:
            raise ValueError(
                f"{op}: padding must be ints, (begin, end) pairs or one of valid, same_upper, same_lower, got {padding}"
            )
        mode = padding
        begin = [0] * axes
        end = begin
    else:
        begin = axes_list(padding, axes)
        end = begin
    return begin, end, mode
