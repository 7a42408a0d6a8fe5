# SPDX-License-Identifier: Apache-2.0
"""The one rule by which a test is skipped: the machine lacks what the test names by `requires`, and the reason says so."""

import os
import pathlib
import shutil

import pytest
import torch

import torch_ext
from cases import ROOT


def build_folder() -> pathlib.Path:
    """Where CMake built the C++ tests."""
    return pathlib.Path(os.environ.get("TORCH_EXT_BUILD", ROOT / "build"))


def find_program(name: str) -> pathlib.Path | None:
    found = (path for path in sorted(build_folder().rglob(name)) if path.is_file() and os.access(path, os.X_OK))
    return next(found, None)


def has_cuda_kernels() -> bool:
    return torch.cuda.is_available() and "CUDA kernels: not built" not in torch_ext.show_config()


def has_much_gpu_memory() -> bool:
    return torch.cuda.is_available() and torch.cuda.mem_get_info()[0] > 16 << 30


REQUIREMENTS = {
    "cuda": (torch.cuda.is_available, "no CUDA device"),
    "cuda kernels": (has_cuda_kernels, "no CUDA device, or torch_ext was built without CUDA kernels"),
    "two GPUs": (lambda: torch.cuda.device_count() > 1, "fewer than two CUDA devices"),
    "much GPU memory": (has_much_gpu_memory, "less than 16 GB of free GPU memory"),
    "readelf": (lambda: shutil.which("readelf"), "no readelf on this machine"),
    "compiler": (lambda: shutil.which(os.environ.get("CXX", "c++")), "no C++ compiler for torch.compile's default backend"),
    "test_script": (lambda: find_program("test_script"), "build the C++ tests with CMake first; TORCH_EXT_BUILD names the folder"),
    "run_decoder": (lambda: find_program("run_decoder"), "build the examples with CMake first; TORCH_EXT_BUILD names the folder"),
    "clang++": (lambda: shutil.which("clang++"), "clang++ is not installed"),
    "proc": (lambda: os.path.exists("/proc/self/maps"), "no /proc: not Linux"),
}


def pytest_runtest_setup(item):
    for mark in item.iter_markers("requires"):
        present, reason = REQUIREMENTS[mark.args[0]]
        if not present():
            pytest.skip(reason)


@pytest.fixture(scope="session")
def test_program():
    """The path of a program of tests/cpp or examples by its name."""
    return find_program


@pytest.fixture(autouse=True)
def same_seed():
    torch.manual_seed(0)


@pytest.fixture
def restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
