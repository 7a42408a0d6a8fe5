"""Installs what the build makes, in the ways that users install it, and uses it from there."""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command, env=None, cwd=None, expect=0):
    """The output of a command that must end with the given exit code."""
    result = subprocess.run([str(c) for c in command], env=env, cwd=cwd, capture_output=True, text=True)
    output = result.stdout + result.stderr
    assert (result.returncode == 0) == (expect == 0), f"{' '.join(map(str, command))} ended with {result.returncode}:\n{output}"
    return output


def build_in(build: Path) -> dict[str, str]:
    """The environment variables that have pip's build use an existing CMake build."""
    return {**os.environ, "TORCH_EXT_BUILD": str(build)}


def this_torch() -> Path:
    return Path(importlib.util.find_spec("torch").submodule_search_locations[0])


def environment_with_torch(folder: Path) -> Path:
    """The interpreter of a new environment that sees this one's torch, but not what is installed here as editable."""
    venv.create(folder, with_pip=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "torch_of_this_environment.pth").write_text(f"{this_torch().parent}\n")
    return folder / "bin" / "python"


def built_against(build: Path) -> Path:
    """The torch that the last build against `build` was configured with."""
    return Path(re.search(r"^TORCH_DIR:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)[1])


def check_wheel(folder: Path, build: Path):
    """pip wheel, isolated, builds against the torch of this environment; the wheel works in another environment and directory."""
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder / "wheels", ROOT, env=build_in(build))
    assert built_against(build) == this_torch(), f"pip built against another torch: {built_against(build)}"
    wheel = next((folder / "wheels").glob("torch_ext-*.whl"))
    assert re.fullmatch(r"torch_ext-[\d.]+-py3-none-.*\.whl", wheel.name), wheel.name
    python = environment_with_torch(folder / "env")
    run(python, "-m", "pip", "install", "--no-deps", wheel)
    output = run(python, "-m", "torch_ext", cwd=folder)
    assert output.count("passed") == 4, output
    where = run(python, "-c", "import torch_ext; print(torch_ext.__file__)", cwd=folder).strip()
    assert where.startswith(str(folder / "env")), where

    built_for = Path(where).parent / "lib" / "built_for_torch.txt"
    built_for.write_text("1.2.3\n")
    output = run(python, "-c", "import torch_ext", cwd=folder, expect=1)
    assert "torch_ext was built for torch 1.2.3, but torch " in output.splitlines()[-1], output


def check_editable(folder: Path, build: Path):
    """pip install -e, isolated: the checkout itself is imported, from any directory, with the torch that the environment sees."""
    python = environment_with_torch(folder / "editable")
    run(python, "-m", "pip", "install", "--no-deps", "--editable", ROOT, env=build_in(build))
    assert built_against(build) == this_torch(), f"pip built against another torch: {built_against(build)}"
    where = run(python, "-c", "import torch_ext; print(torch_ext.__file__)", cwd=folder).strip()
    assert where == str(ROOT / "torch_ext" / "__init__.py"), where


def check_sdist(folder: Path):
    """The source distribution has every file that the build reads."""
    hook = "import sys; sys.path.insert(0, 'build_support'); import backend; backend.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", hook, folder, cwd=ROOT)
    with tarfile.open(next(folder.glob("torch_ext-*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    sources = [p.relative_to(ROOT) for name in ("build_support", "cmake", "csrc", "torch_ext") for p in (ROOT / name).rglob("*")
               if p.is_file() and "__pycache__" not in p.parts]
    sources = [str(p) for p in sources if p.parts[:2] != ("torch_ext", "lib")]
    missing = {"CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "setup.py", *sources} - packed
    assert len(sources) > 20 and not missing, f"the source distribution lacks {sorted(missing)}"


def check_missing_compiler(folder: Path):
    """One sentence where there is no compiler."""
    cmake = run("which", "cmake").strip()
    (folder / "empty").mkdir()
    output = run(cmake, "-S", ROOT, "-B", folder / "no_compiler", "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
                 env={"PATH": str(folder / "empty")}, expect=1)
    assert "needs a C++20 compiler and found none" in " ".join(output.split()), output


def check_old_compiler(folder: Path):
    """One sentence where the compiler is too old for C++20, here one that says so of itself."""
    older = "-U__GNUC__ -D__GNUC__=9 -U__clang_major__ -D__clang_major__=9"
    output = run("cmake", "-S", ROOT, "-B", folder / "old_compiler", f"-DCMAKE_CXX_FLAGS={older}", expect=1)
    assert re.search(r"needs (GCC|Clang) \d+ or newer \(C\+\+20\), this is (GCC|Clang) 9\.", " ".join(output.split())), output


def check_missing_torch(folder: Path):
    """One sentence where TORCH_DIR is not torch's."""
    output = run("cmake", "-S", ROOT, "-B", folder / "no_torch", f"-DTORCH_DIR={folder}", expect=1)
    assert "is not the folder of an installed torch package" in " ".join(output.split()), output


def check_missing_nvcc(folder: Path):
    """TORCH_EXT_CUDA=1 is a sentence where there is no nvcc, auto builds without it, and other values are refused."""
    programs = {"CMAKE_CXX_COMPILER": os.environ.get("CXX", "c++"), "CMAKE_MAKE_PROGRAM": "make"}
    hidden = [f"-D{name}={run('which', program).strip()}" for name, program in programs.items()]
    hidden += ["-DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=ONLY", f"-DCMAKE_FIND_ROOT_PATH={folder}"]  # no other program is found
    configure = ["cmake", "-S", ROOT, "-G", "Unix Makefiles", "-DTORCH_EXT_TORCH=OFF", *hidden]
    output = run(*configure, "-B", folder / "no_nvcc", "-DTORCH_EXT_CUDA=1", expect=1)
    assert "TORCH_EXT_CUDA=1 needs nvcc, which is neither on the PATH" in " ".join(output.split()), output
    assert "CUDA kernels: not built" in run(*configure, "-B", folder / "auto_nvcc")
    output = run(*configure, "-B", folder / "wrong_nvcc", "-DTORCH_EXT_CUDA=yes", expect=1)
    assert "TORCH_EXT_CUDA=yes must be auto, 0 or 1" in " ".join(output.split()), output


def check_consumer(folder: Path, build: Path):
    """find_package(TorchExt) from a C++ project of its own; the program needs no Python."""
    run("cmake", "--install", build, "--component", "cpp", "--prefix", folder / "prefix")
    consumer = folder / "consumer"
    run("cmake", "-S", ROOT / "tests" / "consumer", "-B", consumer, f"-DCMAKE_PREFIX_PATH={folder / 'prefix'}")
    run("cmake", "--build", consumer)
    words = run(consumer / "consumer").split()
    assert words[1:] == ["48", "48"], words
    needed = run("readelf", "--dynamic", next((folder / "prefix").glob("lib*/**/libtorch_ext.so")))
    assert "libpython" not in needed and "libtorch_cpu" in needed, needed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="the CMake build to install from")
    build = parser.parse_args().build.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = [
            ("a wheel builds against this torch and works elsewhere", lambda: check_wheel(folder, build)),
            ("an editable install builds against this torch", lambda: check_editable(folder, build)),
            ("the source distribution is complete", lambda: check_sdist(folder)),
            ("a missing compiler is said in a sentence", lambda: check_missing_compiler(folder)),
            ("an old compiler is said in a sentence", lambda: check_old_compiler(folder)),
            ("a wrong TORCH_DIR is said in a sentence", lambda: check_missing_torch(folder)),
            ("a missing nvcc is said in a sentence", lambda: check_missing_nvcc(folder)),
            ("find_package(TorchExt) serves a C++ program", lambda: check_consumer(folder, build)),
        ]
        for what, step in steps:
            step()
            print(f"packaging: {what}: passed", flush=True)


if __name__ == "__main__":
    main()
