// SPDX-License-Identifier: Apache-2.0
#include "csrc/ops/checks.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

namespace torch_ext::ops {
namespace {

bool supported(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kDouble;
}

// A dense tensor of a type that is computed.
void check_kind(const char* op, const char* name, const Tensor& t) {
  TORCH_CHECK(!t.is_nested(), op, ": ", name, " must be a dense (strided) tensor, got a nested one");
  TORCH_CHECK(t.layout() == at::kStrided, op, ": ", name, " must be a dense (strided) tensor, got layout ", t.layout());
  TORCH_CHECK(supported(t.scalar_type()), op, ": ", name, " must be float32, float64, bfloat16 or float16, got ",
              t.scalar_type());
}

}  // namespace

void check_alike(const char* op, const char* name, const Tensor& t, const char* first_name, const Tensor& first) {
  TORCH_CHECK(t.scalar_type() == first.scalar_type(), op, ": ", first_name, " is ", first.scalar_type(), " and ", name, " is ",
              t.scalar_type(), "; they must have one type");
  TORCH_CHECK(t.device() == first.device(), op, ": ", first_name, " is on ", first.device(), " and ", name, " on ", t.device(),
              "; they must be on one device");
}

void check_alike_or_cast(const char* op, const char* name, const Tensor& t, const char* first_name, const Tensor& first) {
  const c10::DeviceType device = first.device().type();
  if (at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device)) return;
  check_alike(op, name, t, first_name, first);
}

int64_t check_data_rank(const char* op, const char* name, const Tensor& t) {
  TORCH_CHECK(t.dim() >= 3 && t.dim() <= 5, op, ": ", name,
              " must have 3, 4 or 5 dimensions (batch, channels and 1 to 3 spatial axes), got ", t.dim(), " of sizes ",
              t.sym_sizes());
  return t.dim();
}

int64_t check_operands(const char* op, const char* first_name, const Tensor& first, const char* second_name, const Tensor& second,
                       decltype(check_alike)* alike) {
  check_kind(op, first_name, first);
  check_kind(op, second_name, second);
  alike(op, second_name, second, first_name, first);
  const int64_t rank = check_data_rank(op, first_name, first);
  TORCH_CHECK(second.dim() == rank, op, ": ", second_name, " must have as many dimensions as ", first_name, " (", rank, "), got ",
              second.dim());
  return rank;
}

void check_length(const char* op, const char* name, SymInts values, int64_t axes) {
  TORCH_CHECK(int64_t(values.size()) == axes, op, ": ", name, " must have one value for each of the ", axes,
              " spatial axes, got ", values.size(), " values ", values);
}

void check_at_least(const char* op, const char* name, SymInts values, int64_t least) {
  for (size_t a = 0; a < values.size(); ++a)
    TORCH_EXT_CHECK_SYM(values[a].sym_ge(least), op, ": ", name, "[", a, "] = ", values[a], " must be >= ", least);
}

void check_kernel(const char* op, const char* name, const SymSizes& kernel) {
  for (size_t a = 0; a < kernel.size(); ++a)
    TORCH_EXT_CHECK_SYM(kernel[a].sym_ge(1), op, ": kernel extent ", a, " of ", name, " = ", kernel[a], " must be >= 1");
}

void check_groups_divide(const char* op, const char* name, const SymInt& channels, const SymInt& groups) {
  TORCH_EXT_CHECK_SYM((channels % groups).sym_eq(0), op, ": ", name, " has ", channels, " channels, which groups = ", groups,
                      " must divide");
}

void check_in_channels(const char* op, const char* src, const SymInt& channels, const char* weights, const WeightsSizes& w,
                       const SymInt& groups) {
  check_groups_divide(op, src, channels, groups);
  const auto in = w.in.maybe_as_int(), all = channels.maybe_as_int(), group_count = groups.maybe_as_int();
  TORCH_CHECK(!(in && all && group_count && *group_count > 1 && *in != *all && *in * *group_count == *all), op, ": ", weights,
              " has ", w.in,
              " input channels, the form (in_channels/groups, out_channels, ...) that the notes of the specification "
              "describe by mistake; it must have all ",
              channels, " input channels of ", src, " and out_channels/groups output channels");
  TORCH_EXT_CHECK_SYM(w.in.sym_eq(channels), op, ": ", weights, " has ", w.in, " input channels, which must equal the ", channels,
                      " channels of ", src);
}

void check_out_channels(const char* op, const char* dst, const SymInt& channels, const char* weights, const WeightsSizes& w,
                        const SymInt& groups) {
  check_groups_divide(op, dst, channels, groups);
  const SymInt all = w.out_of_all(op, groups);
  TORCH_EXT_CHECK_SYM(all.sym_eq(channels), op, ": ", weights, " has ", w.out, " output channels in each of ", groups,
                      " groups, ", all, " in all, which must equal the ", channels, " channels of ", dst);
}

void check_bias(const char* op, const Tensor& bias, const SymInt& channels) {
  check_kind(op, "bias", bias);
  TORCH_CHECK(bias.dim() == 1, op, ": bias must be 1-D with one value for each output channel, got sizes ", bias.sym_sizes());
  TORCH_EXT_CHECK_SYM(bias.sym_size(0).sym_eq(channels), op, ": bias has ", bias.sym_size(0), " values, which must equal the ",
                      channels, " output channels");
}

}  // namespace torch_ext::ops
