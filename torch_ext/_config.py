"""What the library was built with and what it found on this machine."""

import torch


def _native() -> dict[str, str]:
    return dict(line.split(": ", 1) for line in torch.ops.torch_ext._config().splitlines())


__version__ = _native()["torch_ext"]


def show_config() -> str:
    """Versions, compiler, instruction sets found and in use, threads and CUDA, one ``name: value`` a line."""
    values = {
        **_native(),
        "torch": torch.__version__,
        "CUDA of torch": torch.version.cuda or "none",
        "CUDA devices": str(torch.cuda.device_count()),
    }
    return "\n".join(f"{name}: {value}" for name, value in values.items())
