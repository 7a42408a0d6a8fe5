# SPDX-License-Identifier: Apache-2.0
"""The shared library and the package: what they depend on, what they say about themselves."""

import os
import re
import subprocess
import sys

import pytest
import torch

import torch_ext


def library() -> str:
    return next(iter(torch.ops.loaded_libraries))


def run(*command, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})


@pytest.mark.requires("readelf")
def test_library_depends_on_neither_python_nor_a_toolkit():
    dynamic = run("readelf", "--dynamic", "--wide", library()).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert any(name.startswith("libtorch") for name in needed), dynamic
    assert not [name for name in needed if "python" in name], needed
    # With or without kernels for GPUs it loads beside a torch without CUDA, and where there is no driver.
    assert not [name for name in needed if "cuda" in name or "nv" in name], needed
    for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic):
        outside = [p for p in path.split(":") if p and not p.startswith("$ORIGIN") and "cuda" in p.lower()]
        assert not outside, path


@pytest.mark.requires("readelf")
def test_library_asks_for_no_symbol_of_python():
    undefined = run("readelf", "--dyn-syms", "--wide", library()).stdout
    assert not re.findall(r"UND\s+_?Py[A-Z_]\w*", undefined)


@pytest.mark.requires("readelf")
def test_library_exports_what_its_header_says_and_no_kernel():
    """A program may link the kernels and load the library: neither may take the other's. Nor is a CUDA runtime shared with torch."""
    symbols = run("readelf", "--dyn-syms", "--wide", "--demangle", library()).stdout
    assert not re.findall(r"\bcuda[A-Z]\w*|\b__cuda\w+", symbols), symbols
    assert re.findall(r"torch_ext::\S+", symbols) == ["torch_ext::version()"], symbols


@pytest.mark.requires("proc")
def test_one_openmp_runtime_is_mapped():
    code = (
        "import torch, torch_ext\n"
        "m = torch_ext.nn.ConvTranspose2d(8, 8, 4, stride=2)\n"
        "m(torch.randn(2, 8, 16, 16)).sum().backward()\n"
        "paths = {line.split()[-1] for line in open('/proc/self/maps') if '.so' in line}\n"
        "print('\\n'.join(p for p in paths if any(n in p for n in ('libgomp', 'libiomp', 'libomp'))))\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    runtimes = done.stdout.split()
    assert len(runtimes) == 1 and "torch" in runtimes[0], runtimes


def test_show_config_names_what_matters():
    text = torch_ext.show_config()
    text = text if isinstance(text, str) else str(text)
    assert torch.__version__.split("+")[0] in text
    for word in ("torch", "compiler|gcc|clang|g\\+\\+", "portable|avx|amx", "threads", "[Cc][Uu][Dd][Aa]"):
        assert re.search(word, text), f"{word} is not in:\n{text}"


def test_running_the_package_prints_the_configuration_and_checks_itself():
    done = run(sys.executable, "-m", "torch_ext")
    assert done.returncode == 0, done.stderr
    assert torch.__version__.split("+")[0] in done.stdout
    assert re.search(r"\bok\b|passed|correct", done.stdout.lower()), done.stdout


@pytest.mark.parametrize("isa", ("portable", "avx2", "avx512", "avx512_bf16", "amx"))
def test_instruction_set_is_capped_by_the_environment(isa):
    done = run(sys.executable, "-m", "torch_ext", TORCH_EXT_ISA=isa)
    assert done.returncode == 0, done.stdout + done.stderr


def test_verbose_prints_problem_and_kernel_of_a_call():
    code = "import torch, torch_ext; torch_ext.nn.ConvTranspose2d(4, 6, 3, stride=2)(torch.randn(2, 4, 5, 7))"
    done = run(sys.executable, "-c", code, TORCH_EXT_VERBOSE="1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"torch_ext: conv_transpose f32 n2 g1 c4:6 i1x5x7 k1x3x3 .*\+bias: \w+", done.stderr), done.stderr


def test_forced_kernel_is_used():
    code = "import torch, torch_ext; torch_ext.nn.ConvTranspose2d(4, 6, 3, stride=2)(torch.randn(2, 4, 5, 7))"
    done = run(sys.executable, "-c", code, TORCH_EXT_VERBOSE="1", TORCH_EXT_KERNEL="direct__portable")
    assert "direct__portable" in done.stderr, done.stderr


def test_another_torch_than_the_one_built_against_is_named_in_one_sentence():
    code = "import torch; torch.__version__ = '1.0.0'; import torch_ext"
    done = run(sys.executable, "-c", code)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "ImportError" in last and "1.0.0" in last and torch.__version__.split("+")[0] in last, done.stderr


def test_types_are_marked():
    assert os.path.exists(os.path.join(os.path.dirname(torch_ext.__file__), "py.typed"))
    for module in (torch_ext.functional, torch_ext.nn):
        assert module.__doc__
    for axes in (1, 2, 3):
        assert getattr(torch_ext.functional, f"conv_transpose{axes}d").__doc__
        assert getattr(torch_ext.nn, f"ConvTranspose{axes}d").__doc__
