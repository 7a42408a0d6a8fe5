"""Measures torch_ext beside torch, torch channels_last, onnxruntime, openvino and jax; prints a table, writes JSON and a plot."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))  # the list of problems is the tests'

DTYPES = ("float32", "bfloat16", "float16")
MOST_SECONDS = 600  # of one layer and step
STEPS = ("forward", "training")
QUICK = ("dcgan_256_128_8", "dcgan_64_3_32", "unet_256_128_64", "keras_same_128_64", "fsrcnn_56_1", "dwise_128_k4s2",
         "grouped_g4_128", "hifigan_256_128", "istft_1026_1", "unet3d_128_64_k3")  # fmt: skip


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ten layers, short: under three minutes")
    parser.add_argument("--filter", default="", help="only layers whose name contains this")
    parser.add_argument("--layers", help="these layers of tests/cases.txt and no others: names joined by commas")
    parser.add_argument("--random", type=int, help="so many layers drawn at random, with --seed, and no others")
    parser.add_argument("--seed", type=int, default=0, help="of the layers that --random draws")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, each in a process of its own")
    parser.add_argument("--steps", default=",".join(STEPS), help="forward without gradients, training with all of them")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--seconds", type=float, help="for each peer on each layer")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "out")
    # The file to which a process of one thread count adds a line for each layer and step that has none yet.
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.random is not None and arguments.random < 1:
        parser.error(f"--random: a number of layers, not {arguments.random}")
    try:
        arguments.cases = choose(arguments)
    except ValueError as error:
        parser.error(str(error))
    if not all(t.isdecimal() and int(t) > 0 for t in arguments.threads.split(",")):
        parser.error(f"--threads: numbers joined by commas, not {arguments.threads!r}")
    if not set(arguments.steps.split(",")) <= set(STEPS):
        parser.error(f"--steps: {' and '.join(STEPS)}, joined by commas, not {arguments.steps!r}")
    return arguments


def choose(arguments: argparse.Namespace) -> list:
    """The layers to measure."""
    from cases import BY_NAME, LARGE, parse

    if arguments.random:
        from .random_layers import lines

        cases = [c for c in map(parse, lines(arguments.random, arguments.seed)) if arguments.filter in c.name]
    elif arguments.layers:
        names = arguments.layers.split(",")
        if unknown := [name for name in names if name not in BY_NAME]:
            raise ValueError(f"--layers: tests/cases.txt has no {', '.join(unknown)}")
        return [BY_NAME[name] for name in names]
    else:
        cases = [c for c in LARGE if arguments.filter in c.name and (c.name in QUICK or not arguments.quick or arguments.filter)]
    if not cases:
        raise ValueError(f"--filter: no layer has {arguments.filter!r} in its name")
    return cases


def steps_of(arguments: argparse.Namespace) -> list:
    return [(case, step) for case in arguments.cases for step in arguments.steps.split(",")]


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines()


def work(arguments: argparse.Namespace) -> None:
    """One number of threads: measures, and writes each row as a line of JSON; null for what cannot be measured."""
    import torch
    from tqdm import tqdm

    from .measure import measure
    from .peers import LeftOut

    threads = int(arguments.threads)
    torch.set_num_threads(threads)
    seconds = arguments.seconds or (0.06 if arguments.quick else 0.03 if arguments.random else 0.3)
    todo, done = steps_of(arguments), lines_of(arguments.worker)
    with (
        tqdm(total=len(todo), initial=len(done), desc=f"{threads} thread{'s' * (threads > 1)}") as progress,
        open(arguments.worker, "a") as lines,
    ):
        for case, step in todo[len(done) :]:
            progress.set_postfix_str(f"{case.name} {step}")
            row = None
            try:
                row = measure(case, getattr(torch, arguments.dtype), step, threads, seconds)
            except LeftOut as reason:
                progress.write(f"left out: {reason}")
            print(json.dumps(row), file=lines, flush=True)
            progress.update()


def measure_all(arguments: argparse.Namespace, threads: str, lines: Path) -> list[dict]:
    """The rows of one number of threads, from a process that is started again behind a layer on which a peer crashes or does not
    return: torch 2.15's bfloat16 does both where there is AMX."""
    todo = steps_of(arguments)
    # NPROC is how many threads jax may use.
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "NPROC": threads}
    lines.touch()
    command = [sys.executable, "-m", "benchmarks", *sys.argv[1:], "--threads", threads, "--worker", str(lines)]
    while len(lines_of(lines)) < len(todo):
        process = subprocess.Popen(command, cwd=ROOT, env=environment)
        size, since = 0, time.monotonic()
        while process.poll() is None and time.monotonic() - since < MOST_SECONDS:
            time.sleep(0.2)
            if lines.stat().st_size != size:
                size, since = lines.stat().st_size, time.monotonic()
        if process.poll() is None:
            process.kill()
        if process.wait() > 0:
            raise SystemExit(f"measuring with {threads} threads failed; the reason is printed above")
        if process.returncode < 0:
            case, step = todo[len(lines_of(lines))]
            print(f"\nleft out: {case.name}, {step}: a call crashes or does not return", file=sys.stderr)
            with open(lines, "a") as file:
                print("null", file=file)
    rows = [json.loads(line) for line in lines_of(lines)]
    return [row for row in rows if row]


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker:
        return work(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for threads in arguments.threads.split(","):
            rows += measure_all(arguments, threads, Path(folder) / threads)
    from .measure import peaks
    from .report import write

    print(write(rows, arguments.out, arguments.dtype, peaks(rows)))
    print(f"\n{arguments.out / arguments.dtype}.json and .png")


if __name__ == "__main__":
    main()
