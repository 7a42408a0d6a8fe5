// SPDX-License-Identifier: Apache-2.0
// For C++ programs that link the library. Loading it, by linking or with dlopen, registers the operators torch_ext::*; a program
// that uses nothing else of it can call version() so that the linker keeps the dependency.
#pragma once

namespace torch_ext {
__attribute__((visibility("default"))) const char* version();
}
