"""PEP 517 backend: setuptools, building against the torch that is already installed.

Build isolation hides the environment that ``pip install .`` installs into: pip prepends a sitecustomize through PYTHONPATH, uv builds in
an environment of its own. Asking that environment's interpreter in a process without those settings finds its torch, so torch is
a build requirement only where none is installed yet. CMake is one where it is missing.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

_WHERE = (
    "import importlib.util as u, sys; s = u.find_spec('torch'); "
    "print(*sys.version_info[:2], s.submodule_search_locations[0] if s else '', sep='\\n')"
)


def _torch_of(python: str) -> str:
    """The folder of the torch package of another interpreter of this Python version, or an empty string."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    answer = subprocess.run([python, "-c", _WHERE], env=env, capture_output=True, text=True).stdout.splitlines()
    same_python = answer[:2] == [str(v) for v in sys.version_info[:2]]
    return answer[2] if same_python and len(answer) > 2 else ""


def torch_dir() -> str | None:
    """The folder of the torch package to build against, or None."""
    spec = importlib.util.find_spec("torch")  # without isolation, or with torch among the build requirements
    if spec:
        return spec.submodule_search_locations[0]
    homes = [Path(sys.prefix, "bin")] + [Path(os.environ[v], "bin") for v in ("VIRTUAL_ENV", "CONDA_PREFIX") if v in os.environ]
    homes += [Path(d) for d in os.environ.get("PATH", "").split(os.pathsep)]  # an activated environment stays on PATH
    for python in [sys.executable] + [str(home / "python") for home in homes]:
        if Path(python).exists() and (found := _torch_of(python)):
            return found
    return None


def _requirements(base: list[str]) -> list[str]:
    return base + ([] if torch_dir() else ["torch"]) + ([] if shutil.which("cmake") else ["cmake>=3.25"])


def get_requires_for_build_wheel(config_settings=None):
    return _requirements(build_meta.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings=None):
    return _requirements(build_meta.get_requires_for_build_editable(config_settings))
