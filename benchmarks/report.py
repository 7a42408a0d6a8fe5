"""What a run ends in: a table, a JSON file and a plot."""

import json
import platform
import textwrap
from datetime import date
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import torch_ext

from .measure import geometric_mean
from .peers import OURS_AGAINST


INSTRUCTION_SETS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")


def environment() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    info = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    has = [name for name in INSTRUCTION_SETS if name in info.get("flags", "").split()]
    cpu = f"{info.get('model name', platform.processor())} ({' '.join(has)})"
    config = dict(line.split(": ", 1) for line in torch_ext.show_config().splitlines())
    versions = {"torch_ext": torch_ext.__version__, "torch": torch.__version__}
    for name in ("onnxruntime", "openvino", "jax"):
        try:
            versions[name] = __import__(name).__version__.split("-")[0]
        except ImportError:
            versions[name] = "not installed"
    return {"cpu": cpu, "instruction set in use": config["instruction set in use"], "date": str(date.today()), **versions}


def peers_of(rows: list[dict]) -> list[str]:
    """Who took part, in one order for every table and plot."""
    return [peer for peer in OURS_AGAINST if any(peer in r["ratios"] for r in rows)]


def table(rows: list[dict]) -> str:
    """Markdown: a line for each layer, the worst against the best peer first, and the geometric means."""
    text = []
    for step, threads in dict.fromkeys((r["step"], r["threads"]) for r in rows):
        chosen = sorted((r for r in rows if (r["step"], r["threads"]) == (step, threads)), key=lambda r: r["ratios"]["best peer"])
        peers = [*peers_of(chosen), "best peer"]
        peers += [key for key in chosen[0]["ratios"] if key.endswith(", packed")]
        plural = "thread" if threads == 1 else "threads"
        text += ["", f"**{step}, {threads} {plural}**: times faster than", ""]
        text += ["| layer | ms | GFLOP/s | % of peak | % of limit | " + " | ".join(peers) + " |", "|---" * (5 + len(peers)) + "|"]
        for r in chosen:
            ms = min(v for k, v in r["milliseconds"].items() if k in OURS_AGAINST.values())
            cells = [r["layer"], f"{ms:.3f}", f"{r['gflops']:.0f}", f"{100 * r['gflops'] / r['peak_gflops']:.0f}",
                     f"{100 * r['of_limit']:.0f}"]  # fmt: skip
            text.append("| " + " | ".join(cells + [f"{r['ratios'][p]:.2f}" if p in r["ratios"] else "" for p in peers]) + " |")
        means = [f"**{geometric_mean(r['ratios'][p] for r in chosen if p in r['ratios']):.2f}**" for p in peers]
        text.append("| **geometric mean** | | | | | " + " | ".join(means) + " |")
    return "\n".join(text[1:])


def left_out(rows: list[dict]) -> str:
    """Who did not take part, and why."""
    reasons = {(peer, reason): None for r in rows for peer, reason in r["left_out"].items() if peer in OURS_AGAINST}
    return "; ".join(f"{peer}: {reason}" for peer, reason in reasons) or "nobody"


def plot(rows: list[dict], path: Path, title: str) -> None:
    """Bars of the ratios to each peer, layer by layer, up from 1 or down from it on a logarithmic axis."""
    groups = list(dict.fromkeys((r["step"], r["threads"]) for r in rows))
    layers = list(dict.fromkeys(r["layer"] for r in rows))
    peers = peers_of(rows)
    figure, axes = plt.subplots(len(groups), 1, figsize=(max(8, 0.5 * len(layers)), 3.2 * len(groups)), squeeze=False)
    for (step, threads), ax in zip(groups, axes[:, 0]):
        chosen = sorted((r for r in rows if (r["step"], r["threads"]) == (step, threads)), key=lambda r: r["ratios"]["best peer"])
        for i, peer in enumerate(peers):
            at = [j + (i - len(peers) / 2 + 0.5) * 0.8 / len(peers) for j, r in enumerate(chosen) if peer in r["ratios"]]
            above = [r["ratios"][peer] - 1 for r in chosen if peer in r["ratios"]]
            ax.bar(at, above, 0.8 / len(peers), bottom=1, color=f"C{i}", label=peer)
        ax.axhline(1, color="black", linewidth=0.8)
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.grid(axis="y", linewidth=0.3)
        ax.set_xticks(range(len(chosen)), [r["layer"] for r in chosen], rotation=60, ha="right", fontsize=7)
        ax.set_ylabel("times faster than")
        ax.set_title(f"{step}, {threads} thread{'s' * (threads > 1)}", fontsize=9)
    axes[0, 0].legend(fontsize=7, ncols=len(peers), loc="lower center", bbox_to_anchor=(0.5, 1.1))
    figure.suptitle(textwrap.fill(title, 130), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write(rows: list[dict], out: Path, name: str) -> str:
    """Writes NAME.json and NAME.png into `out`; returns the table with a line that says where it was measured."""
    where = environment()
    for threads in dict.fromkeys(r["threads"] for r in rows):
        peaks = [r["peak_gflops"] for r in rows if r["threads"] == threads]
        bandwidths = [r["copy_gigabytes"] for r in rows if r["threads"] == threads]
        where[f"copy of {threads} thread{'s' * (threads > 1)}"] = f"{min(bandwidths):.0f} to {max(bandwidths):.0f} GB/s"
        where[f"peak of {threads} thread{'s' * (threads > 1)}"] = f"{min(peaks):.0f} to {max(peaks):.0f} GFLOP/s"
    where["peak by"] = rows[0]["peak_by"]
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(dict(environment=where, layers=rows), indent=1))
    line = ", ".join(f"{k} {v}" for k, v in where.items())
    plot(rows, out / f"{name}.png", line)
    return f"{table(rows)}\n\nMeasured: {line}.\n\nLeft out: {left_out(rows)}."
