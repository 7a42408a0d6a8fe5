"""What the README and the examples show, run."""

import os
import re
import subprocess
import sys

import pytest

from cases import ROOT


def run(*arguments, cwd=ROOT):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_quickstart():
    output = run(ROOT / "examples" / "quickstart.py")
    assert [line.split(":")[0] for line in output.splitlines()] == [
        "torch.ops",
        "functional",
        "training",
        "second derivative",
        "TorchScript",
    ]


def test_readme(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 5
    (tmp_path / "readme.py").write_text("\n".join(blocks))
    run("readme.py", cwd=tmp_path)
    assert (tmp_path / "decoder.pt").exists()


@pytest.fixture(scope="module")
def autoencoder(tmp_path_factory, test_program):
    """What the example prints, and the folder of its results."""
    folder = tmp_path_factory.mktemp("digits")
    runner = test_program("run_decoder")
    in_cpp = ["--runner", runner] if runner else []
    return run(ROOT / "examples" / "digits_autoencoder.py", "--quick", "--out", folder, *in_cpp), folder


def test_digits_autoencoder(autoencoder):
    output, folder = autoencoder
    assert re.search(r"loss [\d.]+ -> [\d.]+: [\d.]+% of the variance is left", output), output
    assert (folder / "digits.png").stat().st_size > 10_000
    assert (folder / "decoder.pt").exists()


@pytest.mark.requires("run_decoder")
def test_digits_decoder_in_cpp(autoencoder):
    output, folder = autoencoder
    assert output.splitlines()[-1] == "the autoencoder trained, and its decoder gives the same in C++ as in Python"
    assert (folder / "decoded.pt").exists()


@pytest.mark.requires("run_decoder")
@pytest.mark.parametrize("missing", ["model", "input", "output"])
def test_runner_names_the_file_it_cannot_use(missing, autoencoder, test_program, tmp_path):
    _, folder = autoencoder
    files = {"model": folder / "decoder.pt", "input": folder / "latent.pt", "output": tmp_path / "out.pt"}
    files[missing] = tmp_path / "missing" / "file.pt"
    result = subprocess.run([test_program("run_decoder"), *files.values()], capture_output=True, text=True)
    assert result.returncode == 1 and str(files[missing]) in result.stderr, result.stderr
