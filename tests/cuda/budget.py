"""Holds what nvcc made of the kernels of csrc/cuda against budget.txt, as cuobjdump reads it from the library: registers, bytes of stack
(exactly, as spilled registers go there too), and no static shared memory. Exits with 77, and says why, where that cannot be read."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ARCHITECTURES = ("sm_80", "sm_90")
SKIPPED = 77


def kernels(said: str) -> dict[tuple[str, str], dict[str, int]]:
    """(kernel, architecture) -> registers, bytes of stack and of shared memory, from what cuobjdump --dump-resource-usage says."""
    names = sorted(set(re.findall(r"Function (\w+):", said)))
    plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    short = {m: re.search(r"(\w+(?:<.*>)?)\(", re.sub(r"\(anonymous namespace\)|torch_ext::(?!cuda)| \([\w:]+\)(?=\d)", "", p)).group(1) for m, p in zip(names, plain)}
    found = {}
    for architecture, part in re.findall(r"^arch = (\w+)$(.*?)(?=^arch = |\Z)", said, re.MULTILINE | re.DOTALL):
        if architecture not in ARCHITECTURES:
            continue  # it allocates registers in a way of its own
        for name, registers, stack, shared in re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", part):
            reserved = 1024 if int(architecture[3:]) >= 90 else 0  # by the system, of each block
            found[short[name], architecture] = dict(registers=int(registers), stack=int(stack), shared=int(shared) - reserved)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", nargs="?", help="with the kernels; none: they were not built")
    parser.add_argument("--cuobjdump", default="", help="the program of the CUDA toolkit")
    arguments = parser.parse_args()
    if not arguments.library or not Path(arguments.cuobjdump).is_file():
        lacks = "cuobjdump is not on this machine" if arguments.library else "the CUDA kernels were not built"
        print(f"skipped: {lacks}, so the registers of the kernels are not known")
        return SKIPPED
    said = subprocess.run([arguments.cuobjdump, "--dump-resource-usage", arguments.library], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in Path(__file__).with_name("budget.txt").read_text().splitlines() if line and line[0] != "#"]
    budget = {name: dict(registers=int(registers), stack=int(stack), shared=0) for name, registers, stack in lines}
    found = kernels(said)
    wrong = [f"{name} is in budget.txt and not among the kernels" for name in budget.keys() - {n for n, _ in found}]
    for (name, architecture), used in sorted(found.items()):
        print(f"{architecture} {name:28} {used['registers']:3} registers, {used['stack']} bytes of stack, {used['shared']} shared")
        if name not in budget:
            wrong.append(f"{name} for {architecture} is not in budget.txt")
            continue
        wrong += [f"{name} for {architecture}: {used[k]} {k}, the budget is {most}" for k, most in budget[name].items()
                  if used[k] > most or (k == "stack" and used[k] != most)]
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
