"""One process of benchmarks.gpu: times torch_ext beside torch's cuDNN on a GPU, with cudnn.benchmark on or off.

cuDNN's plans are cached for the life of a process whether they were searched for or guessed, so each way has a process of its own.
"""

import argparse
import functools
import json
import random
import statistics
import time
from pathlib import Path

import torch

from cases import BY_NAME, Case

from . import peers
from .measure import check

# What the columns of the table are called, the type of the tensors, whether tf32 is allowed, and how far results may be apart.
PRECISIONS = {
    "float32": (torch.float32, False, 1e-4),
    "tf32": (torch.float32, True, 3e-3),
    "bfloat16": (torch.bfloat16, True, 5e-2),
    "float16": (torch.float16, True, 1e-2),
}
FLUSH_BYTES = 256 << 20  # more than any cache
HEADSTART = 600_000  # cycles that the GPU sleeps while a call is queued, so that its time is the GPU's and not the processor's


class Layer(Case):
    """A case that draws its tensors once."""

    @functools.cache
    def tensors(self, dtype=torch.float32, integers=False):
        return super().tensors(dtype, integers)


def layer(name: str, batch: int) -> Layer:
    """The case of this name, with `batch` times its samples."""
    values = vars(BY_NAME[name])
    return Layer(**{**values, "n": batch * values["n"]})


def calls_of(case, dtype, step: str) -> tuple[dict, dict]:
    """The calls to time by name, and why others are missing."""
    calls, left_out = {}, {}
    for name, call in (("torch_ext", peers.our_call), ("torch", peers.torch_call)):
        for suffix, channels_last in (("", False), (" channels_last", True)):
            try:
                calls[name + suffix] = peers.eager(call, channels_last, "cuda")(case, dtype, step, 1)
            except peers.LeftOut as reason:
                left_out[name + suffix] = str(reason)
            except RuntimeError as error:  # what cuDNN does not support, in words of its own
                if name == "torch_ext":
                    raise
                left_out[name + suffix] = str(error).splitlines()[0]
    return calls, left_out


def interleaved(calls: dict, seconds: float) -> dict[str, float]:
    """The median time of each call in seconds on the GPU, from rounds in which each has its turn, with nothing in its caches."""
    order, flush = random.Random(0), torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times = {name: [] for name in calls}
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds * len(calls) or len(times[next(iter(times))]) < 7:
        marks = {}
        for name in order.sample(list(calls), len(calls)):
            marks[name] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            flush.zero_()
            torch.cuda._sleep(HEADSTART)
            marks[name][0].record()
            calls[name]()
            marks[name][1].record()
        torch.cuda.synchronize()
        for name, (start, end) in marks.items():
            times[name].append(start.elapsed_time(end) / 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def kernels_of(call) -> list[str]:
    """The names of the kernels that a call launches, in their order."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    kernels = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return [e.name for e in sorted(kernels, key=lambda e: e.time_range.start)]


def limits(seconds: float = 0.2) -> dict[str, float]:
    """What this GPU reaches: bytes a second of a copy (read and written) and operations a second of matrix products."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    calls = {"copy": lambda: target.copy_(source)}
    for name, (dtype, tf32, _) in PRECISIONS.items():
        size = 4096 if name == "float32" else 8192
        a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))

        def product(a=a, b=b, tf32=tf32):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            return torch.mm(a, b)

        calls[name] = product
        product()
    times = interleaved(calls, seconds)
    found = {"copy": 2 * source.numel() * source.element_size() / times.pop("copy")}
    return {**found, **{name: 2 * (4096 if name == "float32" else 8192) ** 3 / t for name, t in times.items()}}


def bound(case, precision: str, step: str, limits: dict[str, float]) -> tuple[float, str]:
    """The least time that memory and arithmetic allow in seconds, and which of them does; a training step is three operations."""
    elements = sum(v.numel() for v in case.tensors(torch.float32).values())
    operations = 3 if step == "training" else 1
    memory = operations * elements * PRECISIONS[precision][0].itemsize / limits["copy"]
    math = operations * 2 * case.terms / limits[precision]
    return (memory, "memory") if memory > math else (math, "math")


def measure(case, precision: str, step: str, benchmark: bool, seconds: float, limit: dict[str, float], profiled: bool) -> dict:
    dtype, tf32, tolerance = PRECISIONS[precision]
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = benchmark
    calls, left_out = calls_of(case, dtype, step)
    check(calls, tolerance, f"{case.name}, {precision}, {step}")
    times = interleaved(calls, seconds)
    ours = {name: t for name, t in times.items() if name.startswith("torch_ext")}
    suffix = " benchmark" if benchmark else ""
    ratios = {name + suffix: t / ours[name.replace("torch", "torch_ext")] for name, t in times.items() if name not in ours}
    if ratios:
        ratios["best peer"] = min(t for name, t in times.items() if name not in ours) / min(ours.values())
    least, limited_by = bound(case, precision, step, limit)
    kernels = {name + suffix: kernels_of(call) for name, call in calls.items() if profiled and name not in ours}
    return dict(layer=case.name, group=f"{step}, {precision}", step=step, precision=precision, ratios=ratios, left_out=left_out,
                milliseconds={name + suffix: 1e3 * t for name, t in times.items()},
                gflops=2 * case.terms * (3 if step == "training" else 1) / min(ours.values()) / 1e9,
                percent_of_limit=100 * least / min(ours.values()), limited_by=limited_by, kernels=kernels)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--benchmark", type=int)
    parser.add_argument("--layers")
    parser.add_argument("--precisions")
    parser.add_argument("--steps")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--until", type=float)  # of time.time()
    parser.add_argument("--result", type=Path)
    a = parser.parse_args()
    limit = limits()
    rows, missing, failures = [], [], []
    for step in a.steps.split(","):
        for precision in a.precisions.split(","):
            for name in a.layers.split(","):
                what = f"{name}, {precision}, {step}"
                if time.time() > a.until:
                    missing.append(what)
                    continue
                profiled = step == "forward" or "forward" not in a.steps
                try:
                    rows.append(measure(layer(name, a.batch), precision, step, bool(a.benchmark), a.seconds, limit, profiled))
                except RuntimeError as error:  # one layer that fails must not hide the others
                    failures.append(f"{what}: {str(error).splitlines()[0]}")
    a.result.write_text(json.dumps(dict(rows=rows, limits=limit, missing=missing, failures=failures)))


if __name__ == "__main__":
    main()
