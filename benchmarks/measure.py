"""Times calls one beside the other: in turns, in one process, so that what disturbs the machine disturbs all of them alike."""

import math
import multiprocessing
import random
import statistics
import time

import numpy as np
import torch

from .peak import copy_gigabytes, how, peak_gflops
from .peers import OURS_AGAINST, PEERS, PREPACKED, LeftOut

TIMED = 3  # calls of a turn
MOST_SECONDS = 100  # of one call
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def tensors_of(result) -> list[torch.Tensor]:
    result = result if isinstance(result, tuple) else (result,)
    return [torch.as_tensor(r if torch.is_tensor(r) else np.array(r, np.float64)).detach().double() for r in result]


def agrees(result, expected: list[torch.Tensor], tolerance: float) -> bool:
    pairs = zip(tensors_of(result), expected, strict=True)
    return all(a.shape == b.shape and (a - b).norm() <= tolerance * b.norm() for a, b in pairs)


def check(calls: dict, tolerance: float, what: str) -> None:
    """A time counts only for the same result: all must agree with the first, in the Euclidean norm."""
    first, *others = calls
    expected = tensors_of(calls[first]())
    for name in others:
        if not agrees(calls[name](), expected, tolerance):
            raise RuntimeError(f"{name} and {first} disagree on {what}")


def survives(call, expected: list[torch.Tensor], tolerance: float) -> bool:
    """Whether a call returns what it should, tried in a child process with one thread: torch 2.15's oneDNN writes beyond its memory
    in the backward pass of some small bfloat16 layers where there is AMX, and would take the benchmark with it."""

    def attempt():
        torch.set_num_threads(1)
        raise SystemExit(0 if agrees(call(), expected, tolerance) else 1)

    child = multiprocessing.get_context("fork").Process(target=attempt)
    child.start()
    child.join(MOST_SECONDS)
    child.kill()
    child.join()
    return child.exitcode == 0


def interleaved(calls: dict, seconds: float) -> dict[str, float]:
    """The median time of each call in seconds, from rounds in which each has its turn.

    In its turn a call is made four times, and all but the first are timed: that one brings its own data and threads back, which
    the others' turns have driven away. More than one is timed because a call may have to pay for what another has left behind: the
    allocator gives back the memory that it has needed, which took 8 ms in the second call of one of 1.5. A pause lets threads go
    to sleep that spin after their turn, and the order changes all the time.
    """
    order = random.Random(0)
    times = {name: [] for name in calls}
    begin = time.perf_counter()
    while time.perf_counter() - begin < 2 * seconds * len(calls) or len(times[next(iter(times))]) < 5 * TIMED:
        for name in order.sample(list(calls), len(calls)):
            time.sleep(0.002)
            calls[name]()
            for _ in range(TIMED):
                start = time.perf_counter()
                calls[name]()
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
    if dtype != torch.float32 and step == "training":
        expected = tensors_of(PEERS["torch"](case, torch.float32, step, threads)())
        for name in [n for n in calls if n.startswith("torch") and n in OURS_AGAINST]:
            if not survives(calls[name], expected, TOLERANCE[dtype]):
                left_out[name] = "crashes, does not return, or returns something else"
                del calls[name]
    if not any(peer in calls for peer in OURS_AGAINST):
        raise LeftOut(f"no peer can compute {case.name}, {step}: {left_out}")
    check(calls, TOLERANCE[dtype], f"{case.name}, {step}")
    before, bandwidth = peak_gflops(threads, dtype), copy_gigabytes()
    times = interleaved(calls, seconds)
    peak = (before + peak_gflops(threads, dtype)) / 2
    ratios = {peer: times[peer] / times[ours] for peer, ours in OURS_AGAINST.items() if peer in times}
    best_of_ours = min(times[ours] for ours in OURS_AGAINST.values() if ours in times)
    best_peer = min(times[peer] for peer in ratios)
    ratios["best peer"] = best_peer / best_of_ours
    if step == "forward":
        ratios |= {f"{peer}, packed": times[peer] / times[ours] for peer, ours in PREPACKED.items() if peer in times}
        ratios["best peer, packed"] = best_peer / min(t for name, t in times.items() if name.startswith("torch_ext"))
    passes = 3 if step == "training" else 1  # each of the three operations reads two tensors and writes one
    flops, bytes = passes * 2 * case.terms, passes * sum(t.numel() for t in case.tensors(dtype).values()) * dtype.itemsize
    limit = max(flops / (peak * 1e9), bytes / (bandwidth * 1e9))
    gflops = flops / best_of_ours / 1e9
    return dict(layer=case.name, group=f"{step}, {threads} thread{'s' * (threads > 1)}", step=step, threads=threads,
                milliseconds={k: 1e3 * v for k, v in times.items()}, ratios=ratios, gflops=gflops, peak_gflops=peak,
                copy_gigabytes=bandwidth, percent_of_peak=100 * gflops / peak, percent_of_limit=100 * limit / best_of_ours,
                left_out=left_out)  # fmt: skip


def peaks(rows: list[dict]) -> dict[str, str]:
    """What the percentages refer to, for the line below the table."""
    where = {}
    for threads in dict.fromkeys(r["threads"] for r in rows):
        plural = f"{threads} thread{'s' * (threads > 1)}"
        for what, key, unit in (("peak", "peak_gflops", "GFLOP/s"), ("copy", "copy_gigabytes", "GB/s")):
            found = [r[key] for r in rows if r["threads"] == threads]
            where[f"{what} of {plural}"] = f"{min(found):.0f} to {max(found):.0f} {unit}"
    return {**where, "peak by": how()}


def geometric_mean(values) -> float:
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))
