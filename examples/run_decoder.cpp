// SPDX-License-Identifier: Apache-2.0
// Runs a TorchScript file that uses torch_ext in a program without Python: run_decoder MODEL INPUT OUTPUT, where INPUT and OUTPUT
// are tensors as torch.save writes and torch.load reads them. Linking the library registers its operators.
#include <torch/script.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "csrc/ops/torch_ext.h"

namespace {

at::Tensor read_tensor(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return torch::jit::pickle_load({std::istreambuf_iterator<char>(file), {}}).toTensor();
}

void write_tensor(const at::Tensor& tensor, const std::string& path) {
  const std::vector<char> bytes = torch::jit::pickle_save(tensor);
  std::ofstream file(path, std::ios::binary);
  if (!file.write(bytes.data(), std::streamsize(bytes.size())).flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: run_decoder MODEL INPUT OUTPUT\n";
    return 2;
  }
  try {
    torch::jit::Module model = torch::jit::load(argv[1]);
    model.eval();
    const c10::InferenceMode inference;
    const at::Tensor output = model.forward({read_tensor(argv[2])}).toTensor();
    write_tensor(output, argv[3]);
    std::cout << "torch_ext " << torch_ext::version() << " in C++: " << argv[1] << " gave " << output.sizes() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "run_decoder: " << error.what() << "\n";
    return 1;
  }
}
