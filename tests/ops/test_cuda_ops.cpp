// SPDX-License-Identifier: Apache-2.0
// The way of a CUDA tensor through the library where there is no GPU: torch's devices, streams and allocator are made up here,
// over the memory of the host, and the kernels run on the emulator. What is tested is csrc/ops/cuda.cpp and what it asks of both.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <cstring>

#include "csrc/cuda/cuda.h"
#include "csrc/ops/private.h"
#include "tests/cpp/cases.h"

namespace torch_ext {
namespace {

using at::Tensor;
using c10::Device;
using c10::Stream;

constexpr c10::DeviceIndex kDevices = 3;

// What the library asked for, in one call.
struct Asked {
  int64_t allocations = 0;
  std::vector<c10::DeviceIndex> streams_of, used;
} asked;

c10::DeviceIndex current_device = 0;

struct MadeUpDevices final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  Device getDevice() const override { return {c10::kCUDA, current_device}; }
  void setDevice(Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = device.index(); }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Stream getStream(Device device) const override {
    asked.streams_of.push_back(device.index());
    return Stream(Stream::UNSAFE, device, 7);
  }
  Stream exchangeStream(Stream stream) const override { return stream; }
  void* getStreamNativeHandle(const Stream) const override { return nullptr; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
};
C10_REGISTER_GUARD_IMPL(CUDA, MadeUpDevices)

// Memory of the host, aligned as that of a GPU, full of NaN, and said to be the current device's.
struct MadeUpMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    ++asked.allocations;
    const size_t whole = (bytes + 511) / 512 * 512;
    void* data = whole ? std::aligned_alloc(512, whole) : nullptr;
    if (data) std::memset(data, 0xff, whole);
    return {data, data, &std::free, getDevice()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  static Device getDevice() { return {c10::kCUDA, current_device}; }
} memory;

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  EXPECT_EQ(device->index(), current_device) << "memory of a device that is not the current one";
  return at::detail::empty_generic(c10::asIntArrayRefUnchecked(size), &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA), *type,
                                   format);
}

// The same memory, said to be a GPU's, and back.
Tensor on(Device device, const Tensor& t) {
  return at::for_blob(const_cast<void*>(t.const_data_ptr()), t.sizes())
      .strides(t.strides())
      .context(new Tensor(t), [](void* kept) { delete static_cast<Tensor*>(kept); })
      .options(t.options().device(device))
      .target_device(device)
      .make_tensor();
}

constexpr at::ScalarType kScalars[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
struct Formats {
  const char *data, *weights;
};
constexpr Formats kFormats[] = {{"NXC", "XOI"}, {"NCX", "IOX"}, {"NXC", "IOX"}, {"NCX", "XOI"}};

// Small integers in the order of a format.
Tensor draw(std::vector<int64_t> sizes, bool last, at::ScalarType type) {
  if (last) sizes.push_back(sizes[1]), sizes.erase(sizes.begin() + 1);
  return at::randint(-3, 4, sizes, at::kFloat).to(type);
}
Tensor draw_weights(const std::vector<int64_t>& axes, int64_t in, int64_t out, bool axes_first, at::ScalarType type) {
  std::vector<int64_t> sizes = axes_first ? axes : std::vector<int64_t>{in, out};
  axes_first ? sizes.insert(sizes.end(), {out, in}) : sizes.insert(sizes.end(), axes.begin(), axes.end());
  return at::randint(-3, 4, sizes, at::kFloat).to(type);
}

// The operators on a GPU against those on the CPU, which have tests of their own.
void compare(const test::Case& c, at::ScalarType type, const Formats& formats, Device device) {
  const Geometry& g = c.geometry;
  std::vector<int64_t> x_size{g.batch, g.groups * g.x_channels}, y_size{g.batch, g.groups * g.y_channels}, w_axes;
  std::vector<c10::SymInt> extents[3], strides, offset, dilations;
  for (const Axis& a : g.axis) {
    x_size.push_back(a.x), y_size.push_back(a.y), w_axes.push_back(a.w);
    extents[0].push_back(a.x), extents[1].push_back(a.w), extents[2].push_back(a.y);
    strides.push_back(a.stride), offset.push_back(a.offset), dilations.push_back(a.dilation);
  }
  const bool last = !std::strcmp(formats.data, "NXC"), axes_first = !std::strcmp(formats.weights, "XOI");
  const Tensor x = draw(x_size, last, type), y = draw(y_size, last, type), bias = draw({g.groups * g.y_channels}, false, type);
  const Tensor w = draw_weights(w_axes, g.groups * g.x_channels, g.y_channels, axes_first, type);
  const c10::SymInt groups = g.groups;
  for (Operation operation : test::kOperations) {
    const bool forward = operation == Operation::conv_transpose, data = operation == Operation::backward_data;
    const auto& size = extents[forward ? 2 : data ? 0 : 1];
    const ops::Form form{size, strides, offset, dilations, groups, formats.data, formats.weights};
    const Tensor &first = data ? y : x, &second = forward || data ? w : y;
    std::optional<Tensor> here, there;
    if (forward) here = bias, there = on(device, bias);
    const Tensor expected = ops::call(operation, first, second, here, form);
    asked = {};
    const Tensor got = ops::call(operation, on(device, first), on(device, second), there, form);
    ASSERT_EQ(got.device(), device);
    ASSERT_EQ(current_device, 0) << "the current device was not put back";
    ASSERT_EQ(got.sizes(), expected.sizes());
    ASSERT_EQ(got.strides(), expected.strides());
    if (got.numel() == 0) continue;
    ASSERT_EQ(asked.streams_of, std::vector{device.index()});
    ASSERT_EQ(asked.used, std::vector{device.index()});
    const Tensor seen = at::from_blob(got.mutable_data_ptr(), got.sizes(), got.strides(), expected.options());
    ASSERT_TRUE(at::equal(seen, expected)) << c.line << " " << test::name_of(operation) << " " << type << " " << formats.data
                                           << " " << formats.weights;
  }
}

TEST(CudaOps, EqualThoseOfTheCpuOnEveryCase) {
  at::manual_seed(0);
  size_t i = 0;
  for (const test::Case& c : test::small_cases()) {  // each with one type and format, in turns
    compare(c, kScalars[i % 4], kFormats[i / 4 % 4], {c10::kCUDA, c10::DeviceIndex(i % kDevices)});
    if (HasFatalFailure()) return;
    ++i;
  }
  EXPECT_GT(i, 200u);
}

TEST(CudaOps, NameAnOperandOnAnotherDevice) {
  const Tensor x = at::ones({1, 2, 3}), w = at::ones({2, 3, 2});
  const std::vector<c10::SymInt> size{4}, one{1}, zero{0};
  const c10::SymInt groups = 1;
  const ops::Form form{size, one, zero, one, groups, "NCX", "IOX"};
  const Device first(c10::kCUDA, 1), second(c10::kCUDA, 2);
  for (const auto& [a, b] : {std::pair{on(first, x), on(second, w)}, std::pair{on(first, x), w}, std::pair{x, on(first, w)}}) {
    try {
      ops::call(Operation::conv_transpose, a, b, std::nullopt, form);
      FAIL() << "not refused";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("src is on " + a.device().str() + " and weights on " + b.device().str()),
                std::string::npos)
          << error.what();
    }
    EXPECT_EQ(current_device, 0);
  }
}

}  // namespace

// Stands for the CUDA runtime.
cuda::Device cuda::use_device(int index) {
  asked.used.push_back(c10::DeviceIndex(index));
  EXPECT_EQ(index, current_device);
  return {};
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) { library.impl("empty.memory_format", empty); }

}  // namespace torch_ext
