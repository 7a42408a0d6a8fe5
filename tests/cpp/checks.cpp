// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/checks.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "csrc/core/formula.h"

namespace torch_ext::test {

bool enough_failures() { return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count() > 8; }

std::ostream& operator<<(std::ostream& os, const Subject& s) {
  return os << s.line << "\n  " << cpu::describe(s.problem) << "\n  " << s.plan.describe();
}

void expect_exact(const Subject& subject, const std::vector<uint64_t>& got, const std::vector<uint64_t>& expected) {
  const Type type = subject.problem.type;
  ASSERT_EQ(got.size(), expected.size()) << subject;
  expect_all(
      subject, int64_t(got.size()),
      [&](int64_t k) { return got[k] != expected[k] && (value_of(got[k], type) != 0 || value_of(expected[k], type) != 0); },
      [&](int64_t k) {
        std::ostringstream text;
        text << value_of(got[k], type) << " instead of " << value_of(expected[k], type);
        return text.str();
      });
}

namespace {

// Half a unit in the last place of `value` in `type`.
double rounding(double value, Type type) {
  const int digits = type == Type::f64 ? 53 : type == Type::f32 ? 24 : type == Type::f16 ? 11 : 8;
  const int lowest = type == Type::f64 ? -1022 : type == Type::f16 ? -14 : -126;  // exponent of the smallest normal number
  if (value == 0) return std::ldexp(1.0, lowest - digits);
  return std::ldexp(1.0, std::max(std::ilogb(value), lowest) - digits);
}

// |got - exact| <= eps * terms * max|a| * max|b| + one rounding of the result, with eps of the type in which sums are kept.
void expect_close(const Subject& subject, const std::vector<uint64_t>& got, const std::vector<double>& exact, double largest) {
  const Problem& p = subject.problem;
  const double eps = p.type == Type::f64 ? 0x1p-52 : 0x1p-23;
  const double bound = eps * (terms_of_one_result(p.geometry, p.operation) + p.bias) * largest;
  ASSERT_EQ(got.size(), exact.size()) << subject;
  const auto error = [&](int64_t k) { return std::abs(value_of(got[k], p.type) - exact[k]); };
  expect_all(
      subject, int64_t(got.size()), [&](int64_t k) { return !(error(k) <= bound + 1.001 * rounding(exact[k], p.type)); },
      [&](int64_t k) {
        std::ostringstream text;
        text << value_of(got[k], p.type) << " instead of " << exact[k] << ", error " << error(k) << ", bound " << bound;
        return text.str();
      });
}

}  // namespace

std::vector<uint64_t> rounded(const std::vector<double>& values, Type type) {
  std::vector<uint64_t> bits(values.size());
  for (size_t k = 0; k < values.size(); ++k) bits[k] = bits_of(values[k], type);
  return bits;
}

int compute_integers(const MakePlan& make_plan, Operation operation, const std::vector<Case>& cases, bool every_layout) {
  Harness harness;
  int computed = 0;
  for (size_t k = 0; k < cases.size(); ++k) {
    const Case& c = cases[k];
    const Data data = integers(c.geometry);
    for (bool bias : {false, true}) {
      if (bias && operation != Operation::conv_transpose) continue;
      const std::vector<double> exact = formula<double>(c.geometry, operation, data, bias);
      for (Type type : kTypes) {
        const std::vector<uint64_t> expected = rounded(exact, type);
        for (size_t l = 0; l < std::size(kLayouts); ++l) {
          // With and without bias: half of the layouts each, in turn.
          if (every_layout ? operation == Operation::conv_transpose && (k + l / 2) % 2 != bias
                           : &kLayouts[l] != &rotating(k, type))
            continue;
          const Problem p = make_problem(c, operation, type, kLayouts[l], bias);
          const auto plan = make_plan(p, kThreads);
          if (!plan) continue;
          ++computed;
          const Against against = (k + l) % 2 ? Against::begin : Against::end;
          expect_exact({*plan, p, c.line}, harness.run(*plan, p, data, shuffled(kThreads), against), expected);
          if (enough_failures()) return computed;
        }
      }
    }
  }
  return computed;
}

int compute_reals(const MakePlan& make_plan, Operation operation, const std::vector<Case>& cases) {
  Harness harness;
  int computed = 0;
  for (size_t k = 0; k < cases.size(); ++k) {
    const Case& c = cases[k];
    for (Type type : kTypes) {
      if (c.large && type != kTypes[k % std::size(kTypes)]) continue;
      // Of the layouts in turn, the first that the kernel accepts.
      Problem p;
      std::shared_ptr<const cpu::Plan> plan;
      for (size_t l = 0; l < std::size(kLayouts) && !plan; ++l) {
        p = make_problem(c, operation, type, rotating(k + l, type), k % 2);
        plan = make_plan(p, kThreads);
      }
      if (!plan) continue;
      ++computed;
      const double scale = k % 4 == 3 ? 0x1p-10 : 1;  // the square of 2^-10 is below float16's normal numbers
      const Data data = reals(c.geometry, type, scale);
      const std::vector<double> exact = type == Type::f64 ? formula<long double>(c.geometry, operation, data, p.bias)
                                                          : formula<double>(c.geometry, operation, data, p.bias);
      const double largest = std::max(scale * scale, p.bias ? scale : 0);
      expect_close({*plan, p, c.line}, harness.run(*plan, p, data, shuffled(kThreads)), exact, largest);
      if (enough_failures()) return computed;
    }
  }
  return computed;
}

void expect_same_bits(Harness& harness, const MakePlan& make_plan, const Case& c, const Problem& p) {
  const Data data = reals(c.geometry, p.type, 1);
  std::vector<uint64_t> first;
  const int threads[] = {1, 2, 5, 5};
  for (size_t run = 0; run < std::size(threads); ++run) {
    const auto plan = make_plan(p, threads[run]);
    ASSERT_TRUE(plan) << "accepted for one thread, not for " << threads[run] << ": " << c.line;
    harness.stale = run % 2 ? std::byte{0x3f} : kPoison;
    const Against against = run % 2 ? Against::begin : Against::end;
    const std::vector<uint64_t> bits = harness.run(*plan, p, data, racing(threads[run]), against);
    if (first.empty()) first = bits;
    EXPECT_TRUE(bits == first) << "run " << run << " on " << threads[run] << " threads differs: " << Subject{*plan, p, c.line};
  }
}

Reach reach_of(const Case& c, Operation operation, Place place, int64_t index) {
  const Geometry& g = c.geometry;
  const Problem p = make_problem(c, operation, Type::f64, {kNcx, kIox});
  const int64_t size = count(result_extents(p));
  Reach reach{std::vector<bool>(size), std::vector<bool>(size)};
  // Sample and group of each element, -1 where it belongs to all.
  const auto home = [&](Place of, int64_t k) -> std::pair<int64_t, int64_t> {
    if (of == Place::w) return {-1, k / std::max<int64_t>(g.w_size() / g.groups, 1)};
    const int64_t positions = of == Place::x ? g.x_positions() : g.y_positions();
    const int64_t channels = of == Place::x ? g.x_channels : g.y_channels;
    return {k / (positions * channels * g.groups), k / (positions * channels) % g.groups};
  };
  const Place result = operation == Operation::conv_transpose  ? Place::y
                       : operation == Operation::backward_data ? Place::x
                                                               : Place::w;
  const auto [sample, group] = home(place, index);
  for (int64_t k = 0; k < size; ++k) {
    const auto [s, h] = home(result, k);
    reach.may_read[k] = h == group && (s < 0 || sample < 0 || s == sample);
  }
  for_each_term(p, [&](int64_t X, int64_t W, int64_t Y, int64_t) {
    if ((place == Place::x ? X : place == Place::w ? W : Y) != index) return;
    reach.reads[result == Place::x ? X : result == Place::w ? W : Y] = true;
  });
  return reach;
}

}  // namespace torch_ext::test
