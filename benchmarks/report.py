"""What a run ends in: a table, a JSON file and a plot."""

import contextlib
import json
import platform
import textwrap
from datetime import date
from pathlib import Path

import torch

import torch_ext

from .measure import geometric_mean

INSTRUCTION_SETS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")


def environment() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    info = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    has = [name for name in INSTRUCTION_SETS if name in info.get("flags", "").split()]
    cpu = f"{info.get('model name', platform.processor())} ({' '.join(has)})"
    config = dict(line.split(": ", 1) for line in torch_ext.show_config().splitlines())
    versions = {"torch_ext": torch_ext.__version__, "torch": torch.__version__}
    for name in ("onnxruntime", "openvino", "jax"):
        with contextlib.suppress(ImportError):
            versions[name] = __import__(name).__version__.split("-")[0]
    return {"cpu": cpu, "instruction set in use": config["instruction set in use"], "date": str(date.today()), **versions}


# Columns, and where rows have them: of the peak of multiply-adds, and of what these and the bandwidth of memory allow together.
PERCENTS = (("% of peak", "percent_of_peak"), ("% of limit", "percent_of_limit"))
MOST_PLOTTED = 80  # layers, the worst
PACKED = ", packed"  # ends the name of a ratio whose two sides have packed their weights beforehand


def peers_of(rows: list[dict]) -> list[str]:
    """Who took part, in one order for every table and plot."""
    names = dict.fromkeys(p for r in rows for p in r["ratios"])
    return [peer for peer in names if not peer.startswith("best peer") and not peer.endswith(PACKED)]


def groups_of(rows: list[dict]) -> dict[str, list[dict]]:
    """The rows of each group, the worst against the best peer first."""
    names = dict.fromkeys(r["group"] for r in rows)
    return {name: sorted((r for r in rows if r["group"] == name), key=lambda r: r["ratios"]["best peer"]) for name in names}


def table(rows: list[dict]) -> str:
    """Markdown: for each group a line for each layer, and the geometric means."""
    text = []
    for group, chosen in groups_of(rows).items():
        peers = [*peers_of(chosen), "best peer"]
        peers += [key for key in chosen[0]["ratios"] if key.endswith(PACKED)]
        text += ["", f"**{group}**: times faster than", ""]
        percents = [(name, key) for name, key in PERCENTS if key in chosen[0]]
        columns = ["layer", "ms", "GFLOP/s", *(name for name, _ in percents), *peers]
        text += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        for r in chosen:
            ms = min(v for k, v in r["milliseconds"].items() if k.startswith("torch_ext") and "prepacked" not in k)
            cells = [r["layer"], f"{ms:.3f}", f"{r['gflops']:.0f}", *(f"{r[key]:.0f}" for _, key in percents)]
            text.append("| " + " | ".join(cells + [f"{r['ratios'][p]:.2f}" if p in r["ratios"] else "" for p in peers]) + " |")
        means = [f"**{geometric_mean(r['ratios'][p] for r in chosen if p in r['ratios']):.2f}**" for p in peers]
        text.append("| **geometric mean** |" + " |" * (2 + len(percents)) + " " + " | ".join(means) + " |")
    return "\n".join(text[1:])


def left_out(rows: list[dict]) -> str:
    """Who did not take part, and why."""
    reasons = {(peer, reason): None for r in rows for peer, reason in r["left_out"].items() if not peer.startswith("torch_ext")}
    return "; ".join(f"{peer}: {reason}" for peer, reason in reasons) or "nobody"


def plot(rows: list[dict], path: Path, title: str) -> None:
    """Bars of the ratios to each peer, layer by layer, up from 1 or down from it on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    groups = {name: chosen[:MOST_PLOTTED] for name, chosen in groups_of(rows).items()}
    layers = max(map(len, groups.values()))
    peers = peers_of(rows)
    figure, axes = plt.subplots(len(groups), 1, figsize=(max(8, 0.5 * layers), 3.2 * len(groups)), squeeze=False)
    for (group, chosen), ax in zip(groups.items(), axes[:, 0]):
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
        ax.set_title(group, fontsize=9)
    axes[0, 0].legend(fontsize=7, ncols=len(peers), loc="lower center", bbox_to_anchor=(0.5, 1.1))
    figure.suptitle(textwrap.fill(title, 130), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write(rows: list[dict], out: Path, name: str, where: dict[str, str]) -> str:
    """Writes NAME.json and NAME.png into `out`; returns the table with a line that says where it was measured."""
    where = {**environment(), **where}
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(dict(environment=where, layers=rows), indent=1))
    line = ", ".join(f"{k} {v}" for k, v in where.items())
    text = f"{table(rows)}\n\nMeasured: {line}.\n\nLeft out: {left_out(rows)}."
    try:
        plot(rows, out / f"{name}.png", line)
    except ImportError as error:
        text += f"\n\nNo plot: {error}."
    return text
