// SPDX-License-Identifier: Apache-2.0
// What torch's settings say of the precision of float32, which no result shows on processors without matrix registers.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "csrc/ops/task.h"

namespace torch_ext::ops {
namespace {

using at::Float32Backend;
using at::Float32Op;
using Allowed = at::Float32Precision;

class Float32 : public testing::Test {
 protected:
  void TearDown() override { allow(Allowed::NONE, Allowed::NONE); }
  static void allow(Allowed conv, Allowed matmul) {
    at::globalContext().setFloat32Precision(Float32Backend::MKLDNN, Float32Op::CONV, conv);
    at::globalContext().setFloat32Precision(Float32Backend::MKLDNN, Float32Op::MATMUL, matmul);
  }
};

TEST_F(Float32, IsFullUnlessTorchAllowsLess) { EXPECT_EQ(float32_precision(), Precision::full); }

TEST_F(Float32, FollowsTheSettingOfMatmulsWhereConvolutionsHaveNone) {
  allow(Allowed::NONE, Allowed::TF32);
  EXPECT_EQ(float32_precision(), Precision::high);
  allow(Allowed::NONE, Allowed::BF16);
  EXPECT_EQ(float32_precision(), Precision::medium);
}

TEST_F(Float32, FollowsTheSettingOfConvolutionsFirst) {
  allow(Allowed::BF16, Allowed::TF32);
  EXPECT_EQ(float32_precision(), Precision::medium);
  allow(Allowed::IEEE, Allowed::BF16);
  EXPECT_EQ(float32_precision(), Precision::full);
  allow(Allowed::TF32, Allowed::NONE);
  EXPECT_EQ(float32_precision(), Precision::high);
}

}  // namespace
}  // namespace torch_ext::ops
