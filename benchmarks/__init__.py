"""``python -m benchmarks``: torch_ext beside what people use today, on the real layers of tests/cases.txt."""
