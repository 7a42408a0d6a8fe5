// SPDX-License-Identifier: Apache-2.0
// Runs and trains a scripted module in a process without Python; tests/python/test_script.py writes its input and checks its
// output.
//   test_script <library of torch_ext> <scripted module> <scripted holder of the input> <results to write>
#include <dlfcn.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/script.h>

#include <fstream>
#include <iostream>
#include <string>

namespace {

// Whether a line of the process's memory map names libpython.
bool python_is_mapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("libpython") != std::string::npos) return true;
  return false;
}

torch::Tensor loss_of(torch::jit::Module& module, const torch::Tensor& x) { return module.forward({x}).toTensor().pow(2).mean(); }

void run(const char* module_path, const char* input_path, const char* results_path) {
  torch::jit::Module module = torch::jit::load(module_path);
  module.train();
  const torch::Tensor x = torch::jit::load(input_path).attr("x").toTensor().clone().requires_grad_();
  c10::Dict<std::string, torch::Tensor> results;
  results.insert("y", module.forward({x}).toTensor().detach());
  {
    torch::NoGradGuard inference;  // where weights that are packed ahead are used
    results.insert("inference", module.forward({x}).toTensor());
  }

  loss_of(module, x).backward();
  results.insert("x.grad", x.grad());
  const torch::Tensor x2 = x.detach().clone().requires_grad_();
  const torch::Tensor first = torch::autograd::grad({loss_of(module, x2)}, {x2}, {}, true, true)[0];
  results.insert("second", torch::autograd::grad({first.pow(2).sum()}, {x2})[0]);

  torch::NoGradGuard no_grad;
  for (const auto& parameter : module.named_parameters()) {
    results.insert(parameter.name + ".grad", parameter.value.grad().clone());
    parameter.value.sub_(0.01 * parameter.value.grad());  // a step of gradient descent
    results.insert(parameter.name, parameter.value.detach().clone());
  }
  const std::vector<char> bytes = torch::jit::pickle_save(results);
  std::ofstream(results_path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: test_script <library> <module> <input> <results>\n";
    return 2;
  }
  if (!dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)) {
    std::cerr << dlerror() << "\n";
    return 1;
  }
  try {
    run(argv[2], argv[3], argv[4]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  std::cout << "libpython: " << (python_is_mapped() ? "mapped" : "not mapped") << "\n";
}
