"""What the README and the examples show, run."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments, cwd=ROOT):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_quickstart():
    assert "second derivative" in run(ROOT / "examples" / "quickstart.py")


def test_readme(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 5
    (tmp_path / "readme.py").write_text("\n".join(blocks))
    run("readme.py", cwd=tmp_path)
    assert (tmp_path / "decoder.pt").exists()


def test_digits_autoencoder(tmp_path):
    arguments = ["--quick", "--out", tmp_path]
    runner = Path(os.environ.get("TORCH_EXT_BUILD", ROOT / "build" / ".venv")) / "examples" / "run_decoder"
    if runner.exists():
        arguments += ["--runner", runner]
    else:
        print(f"{runner} is not built: the decoder is not run in C++")
    output = run(ROOT / "examples" / "digits_autoencoder.py", *arguments)
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    if runner.exists():
        assert "the same in C++ as in Python" in output
