"""What fractions of a limit refer to: multiply-adds and bytes a second, measured in the process that measures the layers."""

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import torch_ext

ISAS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")  # numbered as cpu::Isa


@functools.cache
def _loop():
    """peak.cpp, compiled; None where there is no compiler."""
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if not compiler:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "peak.so"
        flags = ["-O3", "-std=c++20", "-ffp-contract=fast", "-shared", "-fPIC"]
        source = Path(__file__).with_name("peak.cpp")
        subprocess.run([*shlex.split(compiler), *flags, str(source), "-o", str(library)], check=True)
        loop = ctypes.CDLL(str(library)).torch_ext_peak
    loop.restype, loop.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_double]
    return loop


def _product(seconds: float) -> float:
    """The rate of the fastest of torch's matrix products."""
    a, best, begin = torch.randn(1024, 1024), 0.0, time.perf_counter()
    while (start := time.perf_counter()) - begin < seconds:
        torch.mm(a, a)
        best = max(best, 2 * 1024**3 / (time.perf_counter() - start))
    return best


def how() -> str:
    loop = "a loop of multiply-adds in registers; those of AMX, of values from L1"
    return loop if _loop() else "torch.mm, 1024 x 1024: no C++ compiler was found"


def peak_gflops(threads: int, dtype: torch.dtype, seconds: float = 0.02) -> float:
    """Of all threads together, under the instruction set that torch_ext uses: of float32, or of bfloat16 where that has its own
    and they are faster: some processors multiply pairs of bf16 at half of the rate."""
    loop = _loop()
    if not loop:
        return _product(seconds) / 1e9
    config = dict(line.split(": ", 1) for line in torch_ext.show_config().splitlines())
    isa = ISAS.index(config["instruction set in use"])
    vectors = min(isa, ISAS.index("avx512"))
    with ThreadPoolExecutor(threads) as pool:  # ctypes lets go of Python's lock
        rates = [
            sum(pool.map(lambda _, isa=isa: loop(isa, seconds), range(threads)))
            for isa in {vectors, isa if dtype == torch.bfloat16 else vectors}
        ]
    return max(rates) / 1e9


def copy_gigabytes(seconds: float = 0.02) -> float:
    """Bytes read and written a second, in GB, by torch's copy between tensors beyond every cache, with torch's threads."""
    source, target = torch.ones(1 << 24), torch.empty(1 << 24)
    target.copy_(source)  # maps the pages
    best, begin = 0.0, time.perf_counter()
    while (start := time.perf_counter()) - begin < seconds:
        target.copy_(source)
        best = max(best, 2 * source.nbytes / (time.perf_counter() - start))
    return best / 1e9
