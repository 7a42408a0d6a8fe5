"""Times calls one beside the other: in turns, in one process, so that what disturbs the machine disturbs all of them alike."""

import math
import statistics
import time

from .peers import OURS_AGAINST, PEERS, LeftOut


def interleaved(calls: dict, seconds: float) -> dict[str, float]:
    """The median time of each call in seconds, from rounds in which each has its turn.

    In its turn a call is made twice and the second one is timed: the first one brings its own data and threads back, which those of the
    call before it (some spin for a while) have driven away.
    """
    times = {name: [] for name in calls}
    begin = time.perf_counter()
    while time.perf_counter() - begin < 2 * seconds * len(calls) or len(times[next(iter(times))]) < 5:
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(case, dtype, step: str, threads: int, seconds: float) -> dict:
    """Times, ratios and rate of one layer; peers that cannot take part are named with the reason."""
    calls, left_out = {}, {}
    for name, make in PEERS.items():
        try:
            calls[name] = make(case, dtype, step, threads)
        except LeftOut as reason:
            left_out[name] = str(reason)
    times = interleaved(calls, seconds)
    ratios = {peer: times[peer] / times[ours] for peer, ours in OURS_AGAINST.items() if peer in times}
    best_of_ours = min(t for name, t in times.items() if name.startswith("torch_ext"))
    ratios["best peer"] = min(times[peer] for peer in ratios) / best_of_ours
    flops = 2 * case.terms * (3 if step == "training" else 1)
    return dict(layer=case.name, step=step, threads=threads, milliseconds={k: 1e3 * v for k, v in times.items()}, ratios=ratios,
                gflops=flops / best_of_ours / 1e9, left_out=left_out)  # fmt: skip


def geometric_mean(values) -> float:
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))
