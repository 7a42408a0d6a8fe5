"""Measures torch_ext beside torch, torch channels_last, onnxruntime and openvino; prints a table, writes JSON and a plot."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))  # the list of problems is the tests'

DTYPES = ("float32", "bfloat16", "float16")
QUICK = ("dcgan_256_128_8", "dcgan_64_3_32", "unet_256_128_64", "keras_same_128_64", "fsrcnn_56_1", "dwise_128_k4s2",
         "grouped_g4_128", "hifigan_256_128", "istft_1026_1", "unet3d_128_64_k3")  # fmt: skip


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ten layers, short: under three minutes")
    parser.add_argument("--filter", default="", help="only layers whose name contains this")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, each in a process of its own")
    parser.add_argument("--steps", default="forward,training")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--seconds", type=float, help="for each peer on each layer")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)  # the file that a process of one thread count writes
    return parser.parse_args()


def work(arguments: argparse.Namespace) -> None:
    """One number of threads: measures, and writes the rows as JSON."""
    import torch
    from cases import LARGE
    from tqdm import tqdm

    from .measure import measure

    threads = int(arguments.threads)
    torch.set_num_threads(threads)
    seconds = arguments.seconds or (0.06 if arguments.quick else 0.3)
    layers = [c for c in LARGE if arguments.filter in c.name and (c.name in QUICK or not arguments.quick or arguments.filter)]
    steps = arguments.steps.split(",")
    rows = []
    with tqdm(total=len(layers) * len(steps), desc=f"{threads} thread{'s' * (threads > 1)}") as progress:
        for case in layers:
            for step in steps:
                progress.set_postfix_str(f"{case.name} {step}")
                rows.append(measure(case, getattr(torch, arguments.dtype), step, threads, seconds))
                progress.update()
    arguments.worker.write_text(json.dumps(rows))


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker:
        return work(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for threads in arguments.threads.split(","):
            result = Path(folder) / f"{threads}.json"
            command = [sys.executable, "-m", "benchmarks", *sys.argv[1:], "--threads", threads, "--worker", str(result)]
            subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": threads}, check=True)
            rows += json.loads(result.read_text())
    from .report import write

    print(write(rows, arguments.out, arguments.dtype))
    print(f"\n{arguments.out / arguments.dtype}.json and .png")


if __name__ == "__main__":
    main()
