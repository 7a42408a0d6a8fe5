"""The README's first examples in one file."""

import torch

import torch_ext

# ---- The operators: NXC data, weights (spatial..., OC/groups, IC) ----
x = torch.randn(2, 16, 16, 64)
w = torch.randn(4, 4, 32, 64)
y = torch.ops.torch_ext.conv_transpose(x, w, strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1])
print("torch.ops:", tuple(y.shape))
assert y.shape == (2, 32, 32, 32)

# ---- The functional interface: torch.nn.functional's, with the import changed ----
x = torch.randn(2, 64, 16, 16)
w = torch.randn(64, 32, 4, 4)
y = torch_ext.functional.conv_transpose2d(x, w, stride=2, padding=1)
torch.testing.assert_close(y, torch.nn.functional.conv_transpose2d(x, w, stride=2, padding=1), rtol=1e-4, atol=1e-4)
print("functional:", tuple(y.shape))

# ---- Training ----
torch.manual_seed(0)
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
