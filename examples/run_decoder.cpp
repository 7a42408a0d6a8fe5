// SPDX-License-Identifier: Apache-2.0
// Runs a TorchScript file that uses torch_ext in a program without Python: run_decoder MODEL INPUT OUTPUT, where INPUT and OUTPUT
// are tensors as torch.save writes and torch.load reads them. Linking the library registers its operators.
#include <torch/script.h>

#include <fstream>
#include <iostream>
#include <iterator>

#include "csrc/ops/torch_ext.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: run_decoder MODEL INPUT OUTPUT\n";
    return 2;
  }
  try {
    torch::jit::Module model = torch::jit::load(argv[1]);
    model.eval();
    std::ifstream in(argv[2], std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    const c10::InferenceMode inference;
    const at::Tensor output = model.forward({torch::jit::pickle_load(bytes).toTensor()}).toTensor();
    const std::vector<char> pickled = torch::jit::pickle_save(output);
    std::ofstream(argv[3], std::ios::binary).write(pickled.data(), std::streamsize(pickled.size()));
    std::cout << "torch_ext " << torch_ext::version() << " in C++: " << argv[1] << " gave " << output.sizes() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "run_decoder: " << error.what() << "\n";
    return 1;
  }
}
