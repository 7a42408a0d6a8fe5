# SPDX-License-Identifier: Apache-2.0
"""A short run of the benchmark ends in a table, a JSON file and a plot."""

import json
import os
import subprocess
import sys

from cases import ROOT


def test_benchmark(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--filter", "pix2pix", "--threads", "1", "--seconds", "0.01", "--out", tmp_path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run([str(c) for c in command], cwd=ROOT, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "geometric mean" in result.stdout and "pix2pix_512_1" in result.stdout
    rows = json.loads((tmp_path / "float32.json").read_text())["layers"]
    assert {row["step"] for row in rows} == {"forward", "training"}
    assert all(ratio > 0 for row in rows for ratio in row["ratios"].values())
    assert (tmp_path / "float32.png").stat().st_size > 10_000
