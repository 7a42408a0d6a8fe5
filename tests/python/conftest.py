# SPDX-License-Identifier: Apache-2.0
"""The one rule by which a test is skipped: the machine lacks what the test names by `requires`, and the reason says so."""

import os
import pathlib
import shutil

import pytest
import torch

import torch_ext  # noqa: F401  loads the operators
from cases import ROOT


def build_folder() -> pathlib.Path:
    """Where CMake built the C++ tests."""
    return pathlib.Path(os.environ.get("TORCH_EXT_BUILD", ROOT / "build"))


def find_program(name: str) -> pathlib.Path | None:
    found = (path for path in sorted(build_folder().rglob(name)) if path.is_file() and os.access(path, os.X_OK))
    return next(found, None)


REQUIREMENTS = {
    "cuda": (torch.cuda.is_available, "no CUDA device"),
    "readelf": (lambda: shutil.which("readelf"), "no readelf on this machine"),
    "compiler": (lambda: shutil.which(os.environ.get("CXX", "c++")), "no C++ compiler for torch.compile's default backend"),
    "test_script": (lambda: find_program("test_script"), "build the C++ tests with CMake first; TORCH_EXT_BUILD names the folder"),
    "run_decoder": (lambda: find_program("run_decoder"), "build the examples with CMake first; TORCH_EXT_BUILD names the folder"),
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
