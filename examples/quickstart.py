"""The README's first examples in one file, from one operator to a file for C++."""

import tempfile
import warnings
from pathlib import Path

import torch

import torch_ext

torch.manual_seed(0)

# ---- The operators: NXC data, weights (spatial..., OC/groups, IC) ----
src, weights = torch.randn(2, 16, 16, 64), torch.randn(4, 4, 32, 64)
attributes = dict(strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1])
dst = torch.ops.torch_ext.conv_transpose(src, weights, **attributes)
diff_src = torch.ops.torch_ext.conv_transpose_backward_data(dst, weights, **attributes)
diff_weights = torch.ops.torch_ext.conv_transpose_backward_weights(src, dst, weights_shape=weights.shape, **attributes)
print("torch.ops:", tuple(dst.shape))
assert dst.shape == (2, 32, 32, 32) and diff_src.shape == src.shape and diff_weights.shape == weights.shape
# The operators are derivatives of one trilinear form, so all three give its value.
value = dst.square().sum()
torch.testing.assert_close((diff_src * src).sum(), value, rtol=1e-4, atol=0)
torch.testing.assert_close((diff_weights * weights).sum(), value, rtol=1e-4, atol=0)

# ---- The functional interface: torch.nn.functional's, with the import changed ----
x = torch.randn(2, 64, 16, 16)
w = torch.randn(64, 32, 4, 4)
y = torch_ext.functional.conv_transpose2d(x, w, stride=2, padding=1)
torch.testing.assert_close(y, torch.nn.functional.conv_transpose2d(x, w, stride=2, padding=1), rtol=1e-4, atol=1e-4)
print("functional:", tuple(y.shape))

# ---- Training ----
model = torch.nn.Sequential(
    torch_ext.nn.ConvTranspose2d(8, 16, 4, stride=2, padding=1),
    torch.nn.ReLU(),
    torch_ext.nn.ConvTranspose2d(16, 1, 3, stride=2, padding="same_upper"),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
latent, target = torch.randn(32, 8, 4, 4), torch.rand(32, 1, 16, 16)
losses = []
for step in range(20):
    loss = torch.nn.functional.mse_loss(model(latent), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"training: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
assert losses[-1] < losses[0]

# ---- Second derivatives, as in a gradient penalty ----
z = torch.randn(1, 8, 4, 4, requires_grad=True)
(gradient,) = torch.autograd.grad(model(z).square().sum(), z, create_graph=True)
gradient.square().sum().backward()
print("second derivative:", tuple(z.grad.shape))

# ---- TorchScript: the file that a C++ program loads (examples/run_decoder.cpp) ----
warnings.filterwarnings("ignore", message=".*torch.jit.*")  # deprecated in favour of torch.export, and what C++ programs load
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.pt"
    torch.jit.script(model).save(str(path))
    print("TorchScript:", path.stat().st_size, "bytes")
    assert torch.equal(torch.jit.load(str(path))(latent), model(latent))
