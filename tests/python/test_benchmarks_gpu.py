# SPDX-License-Identifier: Apache-2.0
"""What of benchmarks.gpu needs no GPU: its arguments, its report, and what it says where there is none."""

import importlib
import json
import os
import subprocess
import sys

import pytest

from cases import BY_NAME, ROOT


@pytest.fixture
def benchmarks(monkeypatch):
    """The package, which is not installed."""
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module


def row(layer, precision, benchmark, peers):
    """A row of benchmarks.events: torch_ext takes one millisecond."""
    suffix = " benchmark" if benchmark else ""
    return dict(layer=layer, group=f"forward, {precision}", step="forward", precision=precision, left_out={}, gflops=1000.0,
                ratios={**{k + suffix: v for k, v in peers.items()}, "best peer": min(peers.values())},
                milliseconds={"torch_ext": 1.0, **{k + suffix: v for k, v in peers.items()}}, percent_of_limit=40.0, limited_by="math",
                kernels={k + suffix: ["sm90_dgrad", "add_bias"] for k in peers})  # fmt: skip


def result(benchmark, faster):
    rows = [row("dcgan_64_3_32", precision, benchmark, {"torch": 4.0 / faster, "torch channels_last": 3.0 / faster})
            for precision in ("bfloat16", "tf32")]  # fmt: skip
    limits = {"copy": 4.3e12, "float32": 5e13, "tf32": 4e14, "bfloat16": 7.9e14, "float16": 7.9e14}
    return dict(rows=rows, limits=limits, missing=["istft_1026_1, tf32, forward"] * benchmark, failures=[])


def test_without_a_gpu_one_sentence_is_said():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.strip() == (
        "benchmarks.gpu needs a GPU, and torch finds none on this machine: torch.cuda.is_available() is False."
    )


@pytest.mark.parametrize("wrong", (["--layers", "no_such"], ["--precisions", "int8"], ["--steps", "backward"], ["--batch", "0"]))
def test_wrong_arguments_are_named(benchmarks, monkeypatch, capsys, wrong):
    monkeypatch.setattr(sys, "argv", ["gpu", *wrong])
    with pytest.raises(SystemExit):
        benchmarks("benchmarks.gpu").parse_arguments()
    said = capsys.readouterr().err.splitlines()[-1]
    assert wrong[0] in said and wrong[1] in said


def test_every_layer_is_measured_unless_said_otherwise(benchmarks, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu"])
    arguments = benchmarks("benchmarks.gpu").parse_arguments()
    assert {case.name for case in BY_NAME.values() if case.large} == set(arguments.layers.split(","))
    assert set(arguments.precisions.split(",")) == set(benchmarks("benchmarks.events").PRECISIONS)


def test_a_step_that_takes_too_long_is_ended(benchmarks):
    run = benchmarks("benchmarks.gpu").run
    assert run(sys.executable, "-c", "import time; time.sleep(60)", timeout=0.5) == 124
    assert run(sys.executable, "-c", "import sys; sys.exit(3)") == 3


def test_the_report_joins_both_processes(benchmarks, tmp_path):
    text = benchmarks("benchmarks.gpu").report([result(0, 1), result(1, 2)], tmp_path, {"gpu": "made up"})
    saved = json.loads((tmp_path / "gpu.json").read_text())
    assert saved["environment"]["gpu"] == "made up" and saved["environment"]["peak of copy"] == "4.30 to 4.30 TB/s"
    assert [r["group"] for r in saved["layers"]] == ["forward, bfloat16", "forward, tf32"]
    for r in saved["layers"]:
        assert r["ratios"] == {"torch": 4.0, "torch channels_last": 3.0, "best peer": 1.5, "torch benchmark": 2.0,
                               "torch channels_last benchmark": 1.5}  # fmt: skip
    assert "| dcgan_64_3_32 | 1.000 | 1000 | 40 | 4.00 | 3.00 | 2.00 | 1.50 | 1.50 |" in text
    assert "dcgan_64_3_32, forward, tf32, torch benchmark: sm90_dgrad + add_bias" in text
    assert "the time was up: istft_1026_1, tf32, forward." in text
    assert (tmp_path / "gpu.png").stat().st_size > 10_000 and "sm90_dgrad" in (tmp_path / "gpu.txt").read_text()


def test_a_report_of_nothing_says_why(benchmarks, tmp_path):
    nothing = {**result(0, 1), "rows": [], "failures": ["dcgan_64_3_32, tf32, forward: out of memory"]}
    assert "out of memory" in benchmarks("benchmarks.gpu").report([nothing, nothing], tmp_path, {})


def test_the_bound_is_that_of_memory_or_of_arithmetic(benchmarks):
    events = benchmarks("benchmarks.events")
    limits = {"copy": 1e12, "float16": 1e12, "float32": 1e15}
    layer = events.layer("dcgan_64_3_32", batch=2)
    assert layer.n == 2 * BY_NAME["dcgan_64_3_32"].n and layer.tensors() is layer.tensors()
    elements = sum(v.numel() for v in layer.tensors().values())
    assert events.bound(layer, "float32", "forward", limits) == (4 * elements / 1e12, "memory")
    assert events.bound(layer, "float16", "training", limits) == (6 * layer.terms / 1e12, "math")
