"""Transposed convolution for PyTorch: five operators, their derivatives of any order, functional and module interfaces.

Importing the package loads the operators as ``torch.ops.torch_ext.*``. The functional interface mirrors ``torch.nn.functional``, the
modules mirror ``torch.nn``.
"""

from pathlib import Path as _Path

import torch as _torch

_LIBRARY = _Path(__file__).parent / "lib" / "libtorch_ext.so"


def _load():
    if not _LIBRARY.exists():
        raise ImportError(f"torch_ext: {_LIBRARY} is missing: build the package first, with pip install . or make venv")
    built_for = (_LIBRARY.parent / "built_for_torch.txt").read_text().strip()
    if built_for.split("+")[0] != _torch.__version__.split("+")[0]:
        raise ImportError(
            f"torch_ext was built for torch {built_for}, but torch {_torch.__version__} is installed: "
            "build torch_ext again in this environment, with pip install --force-reinstall --no-deps ."
        )
    _torch.ops.load_library(str(_LIBRARY))


_load()

from . import functional, nn  # noqa: E402
from ._config import __version__, show_config  # noqa: E402
from ._prepack import prepack  # noqa: E402

__all__ = ["__version__", "functional", "nn", "prepack", "show_config"]
