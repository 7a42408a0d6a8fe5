"""On a machine with a GPU: builds, tests the operators on it, and measures them beside torch's cuDNN, in under ten minutes.

Needs torch, pytest, numpy, CMake, nvcc and a C++ compiler, and no network. Writes gpu.json, gpu.png and gpu.txt.
"""

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))  # the list of problems is the tests'

STEPS = ("forward", "training")
PRECISIONS = ("bfloat16", "float32", "float16", "tf32")  # in the order in which they are measured
SANITIZED = "test_integers_are_exact and (plain_1d or plain_2d or plain_3d or dw_s1)"  # few: instrumented kernels take their time
SANITIZER_SECONDS = 120
NO_GPU = "benchmarks.gpu needs a GPU, and torch finds none on this machine: torch.cuda.is_available() is False."


def parse_arguments() -> argparse.Namespace:
    from cases import BY_NAME, LARGE

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--layers", default=",".join(c.name for c in LARGE), help="layers of tests/cases.txt, joined by commas")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="of these, joined by commas: " + ", ".join(PRECISIONS))
    parser.add_argument("--steps", default=",".join(STEPS), help="forward without gradients, training with all of them")
    parser.add_argument("--batch", type=int, default=1, help="multiplies the batch of each layer")
    parser.add_argument("--seconds", type=float, default=0.04, help="for each call on each layer")
    parser.add_argument("--minutes", type=float, default=4.0, help="after which no further layer is begun")
    parser.add_argument("--only", choices=("build", "test", "measure", "sanitize"), help="one part of the run")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out")
    arguments = parser.parse_args()
    for option, known in (("layers", BY_NAME), ("precisions", PRECISIONS), ("steps", STEPS)):
        if unknown := [name for name in getattr(arguments, option).split(",") if name not in known]:
            parser.error(f"--{option}: there is no {', '.join(unknown)}")
    if arguments.batch < 1:
        parser.error(f"--batch: at least 1, not {arguments.batch}")
    return arguments


def run(*command, timeout: float | None = None, **environment: str) -> int:
    """The exit code of a step, whose output goes to the terminal; 124 where it takes too long."""
    path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "tests" / "python"), os.environ.get("PYTHONPATH"))))
    print("+", *command, flush=True)
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    process = subprocess.Popen(list(map(str, command)), cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has started itself
            process.wait()


# ---- The parts. Each returns what went wrong, or nothing. ------------------------------------------------------------------


def build() -> str:
    """The library for this Python's torch, into the checkout."""
    folder = ROOT / "build" / "gpu"
    here = Path(importlib.util.find_spec("torch").submodule_search_locations[0])
    ninja = ["-G", "Ninja"] if shutil.which("ninja") and not (folder / "CMakeCache.txt").exists() else []
    if not shutil.which("cmake"):
        return "CMake is not installed"
    for command in (
        ["cmake", "-S", ROOT, "-B", folder, *ninja, f"-DTORCH_DIR={here}", "-DTORCH_EXT_CUDA=1"],
        ["cmake", "--build", folder, "--parallel", len(os.sched_getaffinity(0))],
        ["cmake", "--install", folder, "--component", "python", "--prefix", ROOT / "torch_ext"],
    ):
        if run(*command):
            return "the build failed"
    return ""


def test() -> str:
    """The tests that need a GPU."""
    code = run(sys.executable, "-m", "pytest", "tests/python/test_cuda.py", "-q", "--maxfail=30", timeout=180)
    return "" if code == 0 else "the tests took too long" if code == 124 else "tests failed"


def sanitize() -> str:
    """A few tests under compute-sanitizer, where that works; every allocation is torch's own, so that their ends are seen."""
    homes = [Path(home) / "bin" for home in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda") if home]
    tool = shutil.which("compute-sanitizer") or next((str(p) for h in homes if (p := h / "compute-sanitizer").exists()), None)
    if not tool:
        print("compute-sanitizer: not installed, left out")
        return ""
    python = [sys.executable, "-c", "import torch; torch.zeros(8, device='cuda').add_(1).sum().item()"]
    end = time.monotonic() + SANITIZER_SECONDS
    if run(tool, "--error-exitcode", "9", *python, timeout=SANITIZER_SECONDS / 3):
        print("compute-sanitizer: does not work on this machine (it fails on a sum of torch), left out")
        return ""
    pytest = [sys.executable, "-m", "pytest", "tests/python/test_cuda.py", "-q", "-x", "-k", SANITIZED]
    for checker in ("memcheck", "racecheck", "synccheck"):
        options = ["--tool", checker, "--error-exitcode", "9"]
        code = run(tool, *options, *pytest, timeout=max(1, end - time.monotonic()), PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        if code == 124:
            print(f"compute-sanitizer: {checker} was cut short, all checks together may take {SANITIZER_SECONDS} seconds")
        elif code:
            return f"compute-sanitizer {checker} found something"
    return ""


def measure(arguments: argparse.Namespace) -> str:
    """The table, from one process with cudnn.benchmark off and one with it on."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        begin = time.time()
        for benchmark in (0, 1):
            result = Path(folder) / f"{benchmark}.json"
            until = begin + 60 * arguments.minutes * (benchmark + 1) / 2
            options = {"benchmark": benchmark, "layers": arguments.layers, "precisions": arguments.precisions, "steps": arguments.steps,
                       "batch": arguments.batch, "seconds": arguments.seconds, "until": until, "result": result}  # fmt: skip
            if run(sys.executable, "-m", "benchmarks.events", *(f"--{name}={value}" for name, value in options.items())):
                return "measuring failed"
            results.append(json.loads(result.read_text()))
    print(report(results, arguments.out, gpu_environment(arguments.batch)))
    return "; ".join(failure for r in results for failure in r["failures"])


# ---- The report ------------------------------------------------------------------------------------------------------------


def gpu_environment(batch: int) -> dict[str, str]:
    return {"gpu": torch.cuda.get_device_name(), "CUDA of torch": torch.version.cuda,
            "cuDNN": str(torch.backends.cudnn.version()), "batches times": str(batch)}  # fmt: skip


def merged(off: list[dict], on: list[dict]) -> list[dict]:
    """One row for each layer of the rows with cudnn.benchmark off and on. Each ratio is of times of one process."""
    rows = {(r["layer"], r["group"]): dict(r) for r in off}
    for r in on:
        row = rows.setdefault((r["layer"], r["group"]), dict(r))
        for name in ("ratios", "left_out", "kernels", "milliseconds"):
            # Our own times come from both processes: the first ones stay.
            row[name] = row[name] | r[name] | row[name]
        row["ratios"]["best peer"] = min(x["ratios"].get("best peer", float("inf")) for x in (row, r))
    return [row for row in rows.values() if row["ratios"].get("best peer", float("inf")) < float("inf")]


def kernel_names(rows: list[dict]) -> str:
    """What cuDNN launches for each layer, one line a peer."""
    lines = []
    for r in rows:
        for peer, names in r["kernels"].items():
            lines.append(f"{r['layer']}, {r['group']}, {peer}: " + (" + ".join(names) or "the profiler saw no kernel"))
    return "\n".join(lines)


def report(results: list[dict], out: Path, where: dict[str, str]) -> str:
    from .report import write

    off, on = results
    rows = merged(off["rows"], on["rows"])
    if not rows:
        return "Nothing was measured: " + "; ".join(off["failures"] + on["failures"] + off["missing"])
    limits = {name: [r["limits"][name] for r in results] for name in off["limits"]}
    where |= {f"peak of {name}": f"{min(v) / 1e12:.2f} to {max(v) / 1e12:.2f} T{'B' if name == 'copy' else 'FLOP'}/s"
              for name, v in limits.items()}  # fmt: skip
    text = write(rows, out, "gpu", where)
    missing = sorted(set(off["missing"] + on["missing"]))
    text += f"\n\nNot measured, the time was up: {'; '.join(missing) or 'nothing'}."
    text += "\n\nPercentages are of the least time that a copy or a matrix product of the type needs for the bytes and the products."
    (out / "gpu.txt").write_text(f"{text}\n\n{kernel_names(rows)}\n")
    return f"{kernel_names(rows)}\n\n{text}\n\n{out / 'gpu'}.json, .png and .txt"


def main() -> None:
    arguments = parse_arguments()
    if not torch.cuda.is_available():
        raise SystemExit(NO_GPU)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}", flush=True)
    parts = {"build": build, "test": test, "measure": lambda: measure(arguments), "sanitize": sanitize}
    wrong = {}
    for name, part in parts.items():
        if arguments.only in (None, name):
            begin = time.perf_counter()
            wrong[name] = part()
            print(f"== {name}: {wrong[name] or 'passed'}, {time.perf_counter() - begin:.0f} s", flush=True)
            if name == "build" and wrong[name]:
                break
    if any(wrong.values()):
        raise SystemExit("benchmarks.gpu: " + "; ".join(f"{name}: {what}" for name, what in wrong.items() if what))


if __name__ == "__main__":
    main()
