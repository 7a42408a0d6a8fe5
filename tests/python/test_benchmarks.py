# SPDX-License-Identifier: Apache-2.0
"""A short run of the benchmark ends in a table, a JSON file and a plot, and a wrong result or a wrong argument in an error."""

import importlib
import json
import os
import subprocess
import sys
import time

import pytest
import torch

from cases import ROOT, parse


@pytest.fixture
def benchmarks(monkeypatch):
    """The package, which is not installed."""
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module


def test_a_short_run_ends_in_a_table_a_file_and_a_plot(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--layers", "keras_same_128_64", "--threads", "1", "--seconds", "0.001"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run([*command, "--out", tmp_path], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    for text in ("| layer | ms |", "| keras_same_128_64 |", "geometric mean", "Measured: cpu", "Left out: "):
        assert text in result.stdout, result.stdout
    rows = json.loads((tmp_path / "float32.json").read_text())["layers"]
    assert {row["step"] for row in rows} == {"forward", "training"}
    for row in rows:
        assert {"torch", "torch channels_last", "best peer"} <= row["ratios"].keys()
        assert all(ratio > 0 for ratio in row["ratios"].values())
        # More than the peak is possible, by fewer multiplications than the formula has.
        assert 0 < row["gflops"] < 4 * row["peak_gflops"]
    assert (tmp_path / "float32.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "wrong",
    (
        ["--layers", "no_such"],
        ["--filter", "no_such"],
        ["--filter", "no_such", "--random", "5"],
        ["--random", "-1"],
        ["--threads", "0"],
        ["--steps", "backward"],
    ),
)
def test_wrong_arguments_are_named(benchmarks, monkeypatch, capsys, wrong):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *wrong])
    with pytest.raises(SystemExit):
        benchmarks("benchmarks.__main__").parse_arguments()
    said = capsys.readouterr().err.splitlines()[-1]
    assert wrong[0] in said and wrong[1] in said


def test_peers_that_disagree_are_not_timed(benchmarks):
    check = benchmarks("benchmarks.measure").check
    y = torch.randn(3, 4)
    check({"a": lambda: y, "b": lambda: y.numpy() * 1.00001}, 1e-4, "a layer")
    for wrong in (y + 0.01, y[:2], y * float("nan")):
        with pytest.raises(RuntimeError, match="b and a disagree on a layer"):
            check({"a": lambda: (y, y), "b": lambda: (y, wrong)}, 1e-4, "a layer")


def test_each_call_has_its_turns_and_its_own_median(benchmarks):
    turns = []
    calls = {seconds: lambda seconds=seconds: (turns.append(seconds), time.sleep(seconds)) for seconds in (0.001, 0.05)}
    medians = benchmarks("benchmarks.measure").interleaved(calls, 0.01)
    assert 0.001 <= medians[0.001] < 0.05 <= medians[0.05]
    assert turns.count(0.001) == turns.count(0.05) >= 10


def test_the_peak_is_measured_with_and_without_a_compiler(benchmarks, monkeypatch, restore_threads):
    peak = benchmarks("benchmarks.peak")
    torch.set_num_threads(1)
    with_compiler = peak.peak_gflops(1, torch.float32)
    assert 0.5 < peak.peak_gflops(1, torch.bfloat16) / with_compiler < 40
    monkeypatch.setattr(peak, "_loop", lambda: None)
    assert "torch.mm" in peak.how()
    # Two rates of the same processor: far apart only where one of them measures something else.
    assert 0.02 < peak.peak_gflops(1, torch.float32) / with_compiler < 10


def test_a_layer_that_crashes_is_left_out_and_the_others_are_measured(benchmarks, monkeypatch, tmp_path, capsys):
    main = benchmarks("benchmarks.__main__")
    names = ["keras_same_128_64", "fsrcnn_56_1", "dwise_128_k4s2"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--layers", ",".join(names), "--steps", "forward"])
    starts = []

    class Worker:
        """Crashes on the second layer."""

        def __init__(self, command, **_):
            with open(command[command.index("--worker") + 1], "a+") as lines:
                lines.seek(0)
                done = len(lines.readlines())
                starts.append(done)
                measured = names[:1] if done == 0 else names[done:]
                lines.writelines(json.dumps({"layer": name}) + "\n" for name in measured)
            self.returncode = -11 if done == 0 else 0

        def poll(self):
            return self.returncode

        wait = poll

    monkeypatch.setattr(main.subprocess, "Popen", Worker)
    rows = main.measure_all(main.parse_arguments(), "1", tmp_path / "lines")
    assert [row["layer"] for row in rows] == [names[0], names[2]]
    assert starts == [0, 2]
    assert "left out: fsrcnn_56_1, forward" in capsys.readouterr().err


def test_random_layers_are_those_of_their_seed_and_neither_small_nor_large(benchmarks):
    layers = benchmarks("benchmarks.random_layers")
    lines = layers.lines(60, 3)
    assert lines == layers.lines(60, 3) and not set(lines) & set(layers.lines(60, 4))
    cases = [parse(line) for line in lines]
    assert len({case.name for case in cases}) == 60
    assert len({case.axes for case in cases}) == 3 and any(case.g > 1 for case in cases)
    for case in cases:
        assert layers.LEAST_FLOPS < 2 * case.terms < layers.MOST_FLOPS
        assert case.torch_attributes() is not None
