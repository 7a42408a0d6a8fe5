"""Builds the Python package by running the CMake build; CMakeLists.txt is the only list of sources."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT / "build_support"))
from backend import torch_dir  # noqa: E402


def run(*command):
    """Runs a step of the build; its own messages say what is wrong."""
    if subprocess.run(command).returncode:
        raise SystemExit(f"torch_ext: {' '.join(map(str, command[:2]))} failed; the reason is printed above.")


class CMakeBuild(build_ext):
    """Library and the version of torch that it belongs to, into torch_ext/lib."""

    def run(self):
        torch = torch_dir()
        if torch is None:
            raise SystemExit("torch_ext: no torch is installed for this Python: pip install torch first.")
        if not shutil.which("cmake"):
            raise SystemExit("torch_ext needs CMake 3.25 or newer to build: pip install cmake, or your system's package.")
        build = Path(os.environ.get("TORCH_EXT_BUILD", ROOT / "build" / "package"))
        generator = ["-G", "Ninja"] if shutil.which("ninja") and not (build / "CMakeCache.txt").exists() else []
        cuda = [f"-DTORCH_EXT_CUDA={os.environ['TORCH_EXT_CUDA']}"] if os.environ.get("TORCH_EXT_CUDA") else []
        run("cmake", "-S", ROOT, "-B", build, *generator, f"-DTORCH_DIR={torch}", *cuda)
        run("cmake", "--build", build, "--parallel", str(len(os.sched_getaffinity(0))))
        into = ROOT if self.editable_mode or self.inplace else Path(self.build_lib).resolve()
        run("cmake", "--install", build, "--component", "python", "--prefix", into / "torch_ext")

    def get_outputs(self):
        return []

    def get_output_mapping(self):
        return {}


class PlatformWheel(bdist_wheel):
    """The library has no Python in it: one wheel serves every Python version of a platform."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    version=re.search(r"VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text().split("project(torch_ext")[1])[1],
    packages=["torch_ext"],
    package_data={"torch_ext": ["py.typed"]},
    ext_modules=[Extension("torch_ext.lib.libtorch_ext", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": PlatformWheel},
)
