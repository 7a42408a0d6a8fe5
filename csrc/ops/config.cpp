// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "build_config.h"
#include "csrc/cpu/cpu.h"
#include "csrc/ops/torch_ext.h"

namespace torch_ext {

const char* version() { return TORCH_EXT_VERSION; }

namespace {

// What show_config prints, one "name: value" a line.
std::string config() {
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text.append(name).append(": ").append(value).append("\n");
  };
  line("torch_ext", TORCH_EXT_VERSION);
  line("built for torch", TORCH_EXT_BUILT_FOR_TORCH);
  line("compiler", TORCH_EXT_COMPILER);
  line("instruction set found", cpu::name_of(cpu::detected_isa()));
  line("instruction set in use", cpu::name_of(cpu::active_isa()));
  line("threads", std::to_string(at::get_num_threads()));
  const std::string code = TORCH_EXT_CUDA_CODE;
  line("CUDA kernels", code.empty() ? "not built" : code);
  return text;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_ext, library) { library.def("_config() -> str", config); }

}  // namespace torch_ext
