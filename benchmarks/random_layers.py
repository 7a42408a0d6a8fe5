"""Layers drawn at random, of sizes and kinds that models have, to find those on which a peer is faster."""

import random

CHANNELS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
KERNELS = ((1, 1), (1, 2), (2, 2), (3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 4), (5, 1), (5, 2), (5, 3), (6, 2), (6, 3), (7, 1),
           (7, 2), (8, 2), (8, 4), (9, 1), (9, 3), (10, 5), (11, 1), (16, 4), (16, 8))  # fmt: skip # and strides
EXTENTS = {
    1: (20, 50, 100, 200, 400, 1000, 4000, 16000),
    2: (1, 2, 4, 5, 7, 8, 10, 14, 16, 20, 28, 32, 40, 56, 64, 100, 128, 200, 256),
    3: (2, 4, 6, 8, 10, 12, 16, 24, 32, 48),
}
LONGEST_VOLUME_KERNEL = 6
LEAST_FLOPS, MOST_FLOPS = 2e6, 6e8  # between a call's overhead and a second of measuring
LEAST_BYTES, MOST_BYTES = 1e5, 6e7


def draw(draws: random.Random) -> str | None:
    """A line as those of tests/cases.txt; None where the layer is too small or too large."""
    axes = draws.choice((1, 2, 2, 2, 2, 3))
    kernel, stride = draws.choice(KERNELS)
    inputs, outputs = draws.choice(CHANNELS), draws.choice(CHANNELS)
    batch, extent = draws.choice((1, 1, 1, 2, 4, 8, 16)), draws.choice(EXTENTS[axes])
    dilation = 1 if draws.random() < 0.85 else 2
    groups = draws.choice((2, 4, 8, 16, 32)) if draws.random() < 0.12 else 1
    if draws.random() < 0.05:  # depthwise
        groups = outputs = inputs
    reach = (kernel - 1) * dilation + 1
    pad = draws.choice((0, *[max(reach - stride, 0) // 2] * 2))
    result = stride * (extent - 1) + reach - 2 * pad
    if inputs % groups or outputs % groups or result < 1 or (axes == 3 and kernel > LONGEST_VOLUME_KERNEL):
        return None
    weights = inputs * outputs // groups * kernel**axes
    flops = 2 * batch * weights * extent**axes
    size = 4 * (batch * (inputs * extent**axes + outputs * result**axes) + weights)
    if not (LEAST_FLOPS < flops < MOST_FLOPS and LEAST_BYTES < size < MOST_BYTES):
        return None

    def all_axes(value: int) -> str:
        return "x".join([str(value)] * axes)

    name = f"{axes}d_n{batch}_g{groups}_{inputs}_{outputs}_i{extent}_k{kernel}s{stride}d{dilation}p{pad}"
    return (f"{name} n{batch} g{groups} c{inputs}:{outputs} i{all_axes(extent)} k{all_axes(kernel)} s{all_axes(stride)} "
            f"d{all_axes(dilation)} pb{all_axes(pad)} pe{all_axes(pad)} op{all_axes(0)} large")  # fmt: skip


def lines(count: int, seed: int) -> list[str]:
    """So many different ones, the same for the same seed."""
    draws, found = random.Random(seed), {}
    while len(found) < count:
        if line := draw(draws):
            found[line] = None
    return list(found)
