"""``python -m torch_ext``: prints the configuration and checks the operators against torch on small problems."""

import sys

import torch

import torch_ext

_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def self_check() -> bool:
    """Forward and both gradients of one layer in every type against float64; prints a line for each."""
    torch.manual_seed(0)
    passed = True
    for dtype, tolerance in _TOLERANCE.items():
        ours = [torch.randn(shape).to(dtype).requires_grad_() for shape in ((2, 6, 7, 5), (6, 4, 3, 4), (8,))]
        reference = [t.detach().double().requires_grad_() for t in ours]
        arguments = dict(stride=2, padding=1, output_padding=(1, 0), groups=2, dilation=(1, 2))
        y = torch_ext.functional.conv_transpose2d(*ours, **arguments)
        expected = torch.nn.functional.conv_transpose2d(*reference, **arguments)
        gradient = torch.randn_like(expected).to(dtype)
        results = (y, *torch.autograd.grad(y, ours, gradient))
        expected = (expected, *torch.autograd.grad(expected, reference, gradient.double()))
        error = max(float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in zip(results, expected))
        ok = error <= tolerance
        passed = passed and ok
        print(f"{str(dtype):15} relative error {error:.1e}, at most {tolerance:.0e}: {'passed' if ok else 'FAILED'}")
    return passed


if __name__ == "__main__":
    print(torch_ext.show_config())
    sys.exit(0 if self_check() else 1)
