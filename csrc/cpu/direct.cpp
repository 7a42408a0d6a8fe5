// SPDX-License-Identifier: Apache-2.0
// The last resort: every geometry, stride and type, one result element at a time, each a gather over the terms that reach it.
#include <vector>

#include "csrc/core/scalar.h"
#include "csrc/cpu/kernels.h"

namespace torch_ext::cpu {
namespace {

// One (index of the first operand, index of the second) pair along an axis that meets a given index of the result.
struct Meeting {
  int64_t first, second;
};

// For each axis and each index of the result along it, the terms of L that it sums: (x, w) for y, (y, w) for x, (x, y) for w.
class Meetings {
 public:
  Meetings(const Axis& axis, Operation operation) {
    const int64_t extent = operation == Operation::conv_transpose  ? axis.y
                           : operation == Operation::backward_data ? axis.x
                                                                   : axis.w;
    lists_.resize(extent);
    for (int64_t i = 0; i < axis.x; ++i)
      for (int64_t k = 0; k < axis.w; ++k) {
        const int64_t o = axis.reach(i, k);
        if (o < 0 || o >= axis.y) continue;
        if (operation == Operation::conv_transpose) lists_[o].push_back({i, k});
        if (operation == Operation::backward_data) lists_[i].push_back({o, k});
        if (operation == Operation::backward_weights) lists_[k].push_back({i, o});
      }
  }
  const std::vector<Meeting>& at(int64_t index) const { return lists_[index]; }
  int64_t extent() const { return int64_t(lists_.size()); }

 private:
  std::vector<std::vector<Meeting>> lists_;
};

class Direct final : public Plan {
 public:
  explicit Direct(const Problem& problem) : p_(problem) {
    for (int a = 0; a < kAxes; ++a) meetings_.emplace_back(p_.geometry.axis[a], p_.operation);
  }
  std::string describe() const override { return "one element at a time"; }
  int64_t workspace_bytes() const override { return 0; }

  void run(const Buffers& buffers, const Parallel& parallel) const override {
    visit(p_.type, [&](auto scalar) { run_as<decltype(scalar)>(buffers, parallel); });
  }

 private:
  // The result's strides, those of the two operands that are read, and what is summed besides the axes: (first operand's stride,
  // second operand's stride, count) of the channels (conv_transpose, backward_data) or of the batch (backward_weights).
  template <class T>
  void run_as(const Buffers& buffers, const Parallel& parallel) const {
    const Geometry& g = p_.geometry;
    const T* x = static_cast<const T*>(buffers.x);
    const T* w = static_cast<const T*>(buffers.w);
    const T* y = static_cast<const T*>(buffers.y);
    const T* bias = static_cast<const T*>(buffers.bias);
    switch (p_.operation) {
      case Operation::conv_transpose:
        return parallel.for_each(g.batch * g.groups * g.y_channels, [&](int64_t index, int) {
          const int64_t n = index / (g.groups * g.y_channels), oc = index % (g.groups * g.y_channels);
          const int64_t ic = oc / g.y_channels * g.x_channels;
          fill(static_cast<T*>(buffers.y) + n * p_.y.outer + oc * p_.y.channel, p_.y.axis, bias ? widen(bias[oc]) : 0,
               x + n * p_.x.outer + ic * p_.x.channel, p_.x.axis, p_.x.channel,
               w + ic * p_.w.outer + oc % g.y_channels * p_.w.channel, p_.w.axis, p_.w.outer, g.x_channels);
        });
      case Operation::backward_data:
        return parallel.for_each(g.batch * g.groups * g.x_channels, [&](int64_t index, int) {
          const int64_t n = index / (g.groups * g.x_channels), ic = index % (g.groups * g.x_channels);
          const int64_t oc = ic / g.x_channels * g.y_channels;
          fill(static_cast<T*>(buffers.x) + n * p_.x.outer + ic * p_.x.channel, p_.x.axis, 0,
               y + n * p_.y.outer + oc * p_.y.channel, p_.y.axis, p_.y.channel, w + ic * p_.w.outer, p_.w.axis, p_.w.channel,
               g.y_channels);
        });
      case Operation::backward_weights:
        return parallel.for_each(g.groups * g.x_channels * g.y_channels, [&](int64_t index, int) {
          const int64_t ic = index / g.y_channels, oc = index % g.y_channels;
          fill(static_cast<T*>(buffers.w) + ic * p_.w.outer + oc * p_.w.channel, p_.w.axis, 0, x + ic * p_.x.channel, p_.x.axis,
               p_.x.outer, y + (ic / g.x_channels * g.y_channels + oc) * p_.y.channel, p_.y.axis, p_.y.outer, g.batch);
        });
    }
  }

  // result[r] = start + sum over the meetings of r along the axes, and over c in [0, count), of first[...] * second[...].
  template <class T>
  void fill(T* result, const int64_t* result_axis, decltype(widen(T{})) start, const T* first, const int64_t* first_axis,
            int64_t first_step, const T* second, const int64_t* second_axis, int64_t second_step, int64_t count) const {
    for (int64_t r0 = 0; r0 < meetings_[0].extent(); ++r0)
      for (int64_t r1 = 0; r1 < meetings_[1].extent(); ++r1)
        for (int64_t r2 = 0; r2 < meetings_[2].extent(); ++r2) {
          auto sum = start;
          for (const Meeting& m0 : meetings_[0].at(r0))
            for (const Meeting& m1 : meetings_[1].at(r1))
              for (const Meeting& m2 : meetings_[2].at(r2)) {
                const T* f = first + m0.first * first_axis[0] + m1.first * first_axis[1] + m2.first * first_axis[2];
                const T* s = second + m0.second * second_axis[0] + m1.second * second_axis[1] + m2.second * second_axis[2];
                for (int64_t c = 0; c < count; ++c) sum += widen(f[c * first_step]) * widen(s[c * second_step]);
              }
          narrow(sum, result[r0 * result_axis[0] + r1 * result_axis[1] + r2 * result_axis[2]]);
        }
  }

  Problem p_;
  std::vector<Meetings> meetings_;
};

}  // namespace

std::shared_ptr<Plan> make_direct(const Problem& problem, const Request&) { return std::make_shared<Direct>(problem); }

}  // namespace torch_ext::cpu
