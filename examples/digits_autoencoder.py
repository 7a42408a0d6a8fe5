"""Trains a convolutional autoencoder on scikit-learn's digits, draws what it makes of them, and runs its decoder in C++.

The decoder upsamples with torch_ext's layers, 2x2 to 8x8. Ends with a picture of originals beside reconstructions, the decoder as
TorchScript, and the C++ program's answer beside Python's.
"""

import argparse
import subprocess
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from tqdm import trange

import torch_ext

warnings.filterwarnings("ignore", message=".*torch.jit.*")  # TorchScript is what C++ programs load


def make_model() -> tuple[nn.Module, nn.Module]:
    """Encoder (N, 1, 8, 8) -> (N, 8, 2, 2) and decoder back."""
    encoder = nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(64, 8, 1)
    )
    decoder = nn.Sequential(
        torch_ext.nn.ConvTranspose2d(8, 64, 4, stride=2, padding=1),
        nn.ReLU(),
        torch_ext.nn.ConvTranspose2d(64, 32, 3, stride=2, padding="same_upper"),
        nn.ReLU(),
        torch_ext.nn.ConvTranspose2d(32, 1, 3, padding="same_upper"),
        nn.Sigmoid(),
    )
    return encoder, decoder


def train(encoder: nn.Module, decoder: nn.Module, images: torch.Tensor, epochs: int) -> list[float]:
    """The mean squared error of each epoch."""
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)
    losses = []
    with trange(epochs, desc="training", unit="epoch") as progress:
        for _ in progress:
            total = 0.0
            for batch in images[torch.randperm(len(images))].split(128):
                loss = nn.functional.mse_loss(decoder(encoder(batch)), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(batch)
            losses.append(total / len(images))
            progress.set_postfix(loss=f"{losses[-1]:.4f}")
    return losses


def draw(originals: torch.Tensor, reconstructions: torch.Tensor, losses: list[float], path: Path) -> None:
    """Originals above reconstructions, and the loss below."""
    count = len(originals)
    figure = plt.figure(figsize=(count, 4.5))
    grid = figure.add_gridspec(3, count, height_ratios=(1, 1, 1.6))
    for row, (name, images) in enumerate((("original", originals), ("decoded", reconstructions))):
        for i, image in enumerate(images):
            axes = figure.add_subplot(grid[row, i])
            axes.imshow(image[0], cmap="gray_r", vmin=0, vmax=1)
            axes.set_xticks([]), axes.set_yticks([])
            if i == 0:
                axes.set_ylabel(name)
    axes = figure.add_subplot(grid[2, :])
    axes.semilogy(range(1, len(losses) + 1), losses)
    axes.set_xlabel("epoch"), axes.set_ylabel("mean squared error")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def run_in_cpp(runner: Path, script: Path, latent: torch.Tensor, expected: torch.Tensor, out: Path) -> float:
    """The largest difference between the C++ program's output and `expected`."""
    torch.save(latent, out / "latent.pt")
    subprocess.run([runner, script, out / "latent.pt", out / "decoded.pt"], check=True)
    return (torch.load(out / "decoded.pt") - expected).abs().max().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", type=Path, help="the C++ program run_decoder; without it that part is left out")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the results")
    parser.add_argument("--quick", action="store_true", help="few epochs, for tests")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    images = torch.from_numpy(load_digits().images).float().unsqueeze(1) / 16
    encoder, decoder = make_model()
    losses = train(encoder, decoder, images, epochs=12 if arguments.quick else 100)
    # A decoder that ignored its input could do no better than the mean image, whose error is the variance.
    left = losses[-1] / (images - images.mean(0)).square().mean().item()
    most = 0.4 if arguments.quick else 0.05
    assert left < most, f"the model leaves {left:.1%} of the images' variance unexplained, {most:.0%} is the most that is allowed"

    with torch.no_grad():
        latent = encoder(images[:12])
        decoded = decoder(latent)
    picture = arguments.out / "digits.png"
    draw(images[:12], decoded, losses, picture)
    script = arguments.out / "decoder.pt"
    torch.jit.script(decoder).save(str(script))
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}: {left:.1%} of the variance is left; picture: {picture}; decoder: {script}")

    if arguments.runner is None:
        print("no --runner given: the decoder was not run in C++")
        return
    difference = run_in_cpp(arguments.runner, script, latent, decoded, arguments.out)
    print(f"largest difference between C++ and Python: {difference:.1e}")
    assert difference < 1e-5, "C++ and Python disagree"
    print("the autoencoder trained, and its decoder gives the same in C++ as in Python")


if __name__ == "__main__":
    main()
