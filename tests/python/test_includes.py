# SPDX-License-Identifier: Apache-2.0
"""The layers of csrc: each folder includes the layers below it, and nothing of what it must not know; any compiler takes them."""

import re
import subprocess

import pytest

from cases import ROOT

# What `#include` may name in each folder, besides its own folder and the C++ standard library.
OWN = {
    "core": (r"csrc/core/",),
    "cpu": (r"csrc/(core|cpu)/", r"\w*intrin\.h$", r"(unistd|cpuid)\.h$", r"sys/\w+\.h$", r"asm/\w+\.h$"),
    "cuda": (r"csrc/(core|cuda)/", r"cuda\w*\.h(pp)?$", r"cuda/.*", r"mma\.h$", r"cooperative_groups.*"),
    "ops": (r".*",),
}
STANDARD = re.compile(r"[a-z_]+$|(stdint|stddef|math|string)\.h$")  # <vector>, <cstdint>, ...


def sources(folder):
    return [p for p in (ROOT / "csrc" / folder).rglob("*") if p.suffix in (".h", ".cpp", ".inc", ".inl", ".cu", ".cuh")]


@pytest.mark.parametrize("folder", OWN)
def test_includes_keep_to_the_layers(folder):
    files = sources(folder)
    if not files:
        assert folder == "cuda", f"csrc/{folder} is gone"
    allowed = [re.compile(pattern) for pattern in OWN[folder]]
    wrong = []
    for path in files:
        for line in path.read_text().splitlines():
            include = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
            if include and not STANDARD.match(include[1]) and not any(p.match(include[1]) for p in allowed):
                wrong.append(f"{path.relative_to(ROOT)}: {include[1]}")
    assert not wrong, "\n".join(wrong)


def test_no_folder_but_ops_names_torch():
    for folder in ("core", "cpu", "cuda"):
        for path in sources(folder):
            code = re.sub(r"//.*", "", path.read_text())
            assert not re.search(r"\b(at|c10|torch)::", code), path


@pytest.mark.parametrize("folder", OWN)
def test_sources_state_their_license(folder):
    for path in sources(folder):
        if path.suffix != ".inc":
            assert path.read_text().startswith("// SPDX-License-Identifier: Apache-2.0"), path


@pytest.mark.requires("clang++")
@pytest.mark.parametrize("path", sorted((ROOT / "csrc" / "cpu").glob("tiles_*.cpp")), ids=lambda path: path.stem)
def test_clang_compiles_the_tiles(path, tmp_path):
    """Where a compiler differs: how the instructions of a region are enabled."""
    command = ["clang++", "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}", "-c", path, "-o", tmp_path / "tiles.o"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
