// SPDX-License-Identifier: Apache-2.0
// Calls an operator through PyTorch's dispatcher, differentiates it, and prints version, sum of the result and sum of the
// gradient.
#include <torch/torch.h>
#include <torch_ext/torch_ext.h>

#include <iostream>

int main() {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("torch_ext::_conv_transpose", "")
                      .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                        c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymIntArrayRef,
                                        c10::SymInt, std::string_view, std::string_view)>();
  const auto x = torch::ones({1, 2, 3}).requires_grad_(), w = torch::ones({2, 4, 2});
  const auto y = op.call(x, w, std::nullopt, {6}, {2}, {0}, {1}, 1, "NCX", "IOX");
  y.sum().backward();
  std::cout << torch_ext::version() << " " << y.sum().item<float>() << " " << x.grad().sum().item<float>() << "\n";
}
