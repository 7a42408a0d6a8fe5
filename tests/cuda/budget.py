"""Compiles the kernels of csrc/cuda with nvcc and holds what ptxas says of each against budget.txt: registers, static shared memory,
and no spills. Exits with 77, and says so, where there is no nvcc."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = ("sm_80", "sm_90")
SKIPPED = 77


def find_nvcc(given: str) -> str | None:
    for candidate in (given, "nvcc", "/usr/local/cuda/bin/nvcc"):
        if candidate and shutil.which(candidate):
            return candidate
    return None


def compile_all(nvcc: str) -> str:
    """What ptxas prints for all sources and architectures."""
    said = ""
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted((ROOT / "csrc" / "cuda").glob("*.cu")):
            code = [f"-gencode=arch=compute_{a[3:]},code={a}" for a in ARCHITECTURES]
            command = [nvcc, "-std=c++20", "-O3", "-Xptxas", "-v", *code, "-I", str(ROOT), "-c", str(source), "-o", f"{folder}/out.o"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stdout + done.stderr)
            said += done.stderr
    return said


def kernels(said: str) -> dict[tuple[str, str], dict[str, int]]:
    """(kernel, architecture) -> registers, shared and spilled bytes."""
    names = sorted(set(re.findall(r"entry function '(\w+)'", said)))
    plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    short = {m: re.search(r"(\w+(?:<.*>)?)\(", re.sub(r"\(anonymous namespace\)|torch_ext::(?!cuda)| \([\w:]+\)(?=\d)", "", p)).group(1) for m, p in zip(names, plain)}
    found = {}
    for part in re.split(r"(?=Compiling entry function)", said)[1:]:
        name, architecture = re.match(r"Compiling entry function '(\w+)' for '(\w+)'", part).groups()
        spills = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
        registers = int(re.search(r"Used (\d+) registers", part).group(1))
        shared = re.search(r"(\d+) bytes smem", part)
        found[short[name], architecture] = dict(registers=registers, shared=int(shared.group(1)) if shared else 0, spilled=spills)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", default="")
    arguments = parser.parse_args()
    nvcc = find_nvcc(arguments.nvcc)
    if not nvcc:
        print("skipped: there is no nvcc, so the registers of the kernels are not known")
        return SKIPPED
    lines = [line.split() for line in Path(__file__).with_name("budget.txt").read_text().splitlines() if line and line[0] != "#"]
    budget = {name: dict(registers=int(registers), shared=int(shared), spilled=0) for name, registers, shared in lines}
    found = kernels(compile_all(nvcc))
    wrong = [f"{name} is in budget.txt and not among the kernels" for name in budget.keys() - {n for n, _ in found}]
    for (name, architecture), used in sorted(found.items()):
        print(f"{architecture} {name:28} {used['registers']:3} registers, {used['shared']} bytes shared, {used['spilled']} spilled")
        if name not in budget:
            wrong.append(f"{name} for {architecture} is not in budget.txt")
            continue
        wrong += [f"{name} for {architecture}: {used[k]} {k}, the budget is {most}" for k, most in budget[name].items() if used[k] > most]
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
