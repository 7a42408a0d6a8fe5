# SPDX-License-Identifier: Apache-2.0
"""Threads of one process and processes of one job."""

import concurrent.futures
import pathlib
import subprocess
import sys

import pytest
import torch

import cases
import operators
from cases import SMALL

OPERATIONS = (operators.conv_transpose, operators.backward_data, operators.backward_weights)
MIXED = [case for case in SMALL if case.terms > 3000] + [
    cases.parse("wide n2 g1 c96:80 i12x12 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0"),
    cases.parse("long n1 g1 c64:32 i900 k16 s8 d1 pb4 pe4 op0"),
]


def results(dtype=torch.float32):
    return [f(case, case.tensors(dtype), *layouts) for case in MIXED for f, layouts in zip(OPERATIONS, LAYOUTS)]


LAYOUTS = (("NXC", "XOI"), ("NCX", "IOX"), ("NXC", "IOX"))


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_same_bits_for_any_number_of_threads_and_every_time(dtype, restore_threads):
    torch.set_num_threads(1)
    one = results(dtype)
    for threads in (2, 2, 3):
        torch.set_num_threads(threads)
        for a, b in zip(one, results(dtype)):
            assert torch.equal(a, b)


def test_python_threads_may_call_at_once():
    expected = results()

    def work(_):
        return all(torch.equal(a, b) for a, b in zip(results(), expected))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(4)))


def test_backward_passes_may_run_at_once():
    case = cases.BY_NAME["plain_2d"]
    exact = cases.gradients(case, case.tensors(integers=True))

    def work(_):
        t = case.tensors(integers=True)
        x, w = t["x"].requires_grad_(), t["w"].requires_grad_()
        operators.conv_transpose(case, {**t, "x": x, "w": w}).backward(t["y"])
        return torch.equal(x.grad, exact[0]) and torch.equal(w.grad, exact[1])

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(200)))


def test_set_num_threads_1_keeps_to_one_thread(restore_threads):
    """With one thread no worker computes: the process uses no more time than the wall clock."""
    import time

    case = cases.parse("t n2 g1 c128:128 i32x32 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0")
    t = case.tensors(torch.float32)
    torch.set_num_threads(1)
    operators.conv_transpose(case, t)
    wall, process = time.perf_counter(), time.process_time()
    for _ in range(3):
        operators.conv_transpose(case, t)
    wall, process = time.perf_counter() - wall, time.process_time() - process
    assert process <= 1.2 * wall + 0.01


def test_distributed_data_parallel_equals_one_process(tmp_path):
    worker = pathlib.Path(__file__).with_name("ddp_worker.py")

    def launch(processes):
        out = tmp_path / f"{processes}.pt"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        done = subprocess.run([*command, str(worker), str(out)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return torch.load(out)

    one, two = launch(1), launch(2)
    assert one.keys() == two.keys() and one
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-12, atol=1e-12)
