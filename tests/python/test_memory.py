# SPDX-License-Identifier: Apache-2.0
"""The memory of large results is used again, up to a limit, and such results are tensors as any other."""

import copy
import io
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import torch_ext.functional as F

X, W = torch.ones(1, 4, 64, 64), torch.ones(4, 64, 2, 2)  # to a result of 4 MB


def result() -> torch.Tensor:
    return F.conv_transpose2d(X, W, stride=2)


def test_memory_is_used_again_when_nobody_holds_it():
    y = result()
    place, view = y.data_ptr(), y[0, 0]
    del y
    other = result()
    assert other.data_ptr() != place, "a view still holds it"
    assert (view == 4).all()
    del view, other
    first, second = result(), result()
    assert place in (first.data_ptr(), second.data_ptr())


def test_large_results_copy_save_and_resize_as_any_tensor():
    y = result()
    file = io.BytesIO()
    torch.save(y, file)
    file.seek(0)
    assert torch.equal(torch.load(file), y)
    assert torch.equal(copy.deepcopy(y), y)
    size = y.untyped_storage().nbytes()
    y.untyped_storage().resize_(2 * size)
    assert y.untyped_storage().nbytes() == 2 * size and (y == 4).all()
    y.untyped_storage().resize_(0)
    shared = result().share_memory_()
    assert shared.is_shared() and (shared == 4).all()


def test_large_results_take_part_in_autograd_and_are_written_in_place():
    x = X.clone().requires_grad_()
    F.conv_transpose2d(x, W, stride=2).mul_(2).sum().backward()
    assert (x.grad == 2 * 64 * 4).all()


@pytest.mark.requires("proc")
@pytest.mark.parametrize("limit, kept", [("0", 0), ("64", 64), ("", 256)])
def test_no_more_than_the_limit_is_kept(limit, kept):
    program = """
        import os, torch, torch_ext.functional as F
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
        x, w = torch.ones(1, 4, 256, 256), torch.ones(4, 60, 2, 2)  # to a result of 60 MB
        F.conv_transpose2d(x[:, :, :8, :8], w, stride=2)
        before = resident()
        results = [F.conv_transpose2d(x, w, stride=2) for _ in range(6)]
        assert resident() - before > 300
        del results
        print(round(resident() - before))
    """
    environment = {**os.environ, "TORCH_EXT_KEPT_MB": limit}
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert kept - 61 <= int(run.stdout) <= kept + 30
