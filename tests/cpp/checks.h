// SPDX-License-Identifier: Apache-2.0
// Plans against the formula: small integers exactly, random values within an error bound.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "tests/cpp/harness.h"

namespace torch_ext::test {

inline constexpr int kThreads = 3;

// A bad kernel is wrong everywhere: a few reports are enough.
bool enough_failures();

// What is compared, for the messages of failures.
struct Subject {
  const cpu::Plan& plan;
  const Problem& problem;
  const std::string& line;
};
std::ostream& operator<<(std::ostream& os, const Subject& s);

// wrong(index) says whether an element is wrong, for the first of which describe(index) is printed.
template <class Wrong, class Describe>
void expect_all(const Subject& subject, int64_t size, Wrong wrong, Describe describe) {
  int64_t bad = 0, first = -1;
  for (int64_t k = 0; k < size; ++k)
    if (wrong(k) && ++bad == 1) first = k;
  if (bad)
    ADD_FAILURE() << bad << " of " << size << " elements are wrong, first " << first << ": " << describe(first) << "\n  "
                  << subject;
}
// Zeros may have either sign: which one depends on the order of a sum.
void expect_exact(const Subject& subject, const std::vector<uint64_t>& got, const std::vector<uint64_t>& expected);
std::vector<uint64_t> rounded(const std::vector<double>& values, Type type);

// What picks the plan: one kernel of the list, or the list under an instruction set.
using MakePlan = std::function<std::shared_ptr<const cpu::Plan>(const Problem&, int threads)>;

// Of all pairs of layouts a different one for each case and type, every pair for some case.
inline const Layouts& rotating(size_t k, Type type) { return kLayouts[(k + 3 * size_t(type)) % std::size(kLayouts)]; }

// Small integers, bit for bit, with every pair of layouts or one for each case. Returns how many problems were computed.
int compute_integers(const MakePlan& make_plan, Operation operation, const std::vector<Case>& cases, bool every_layout);
// Random data against a wider sum of the same values. Of large problems, whose formula takes long, in one type each.
int compute_reals(const MakePlan& make_plan, Operation operation, const std::vector<Case>& cases);

// The same bits for any number of threads and every time, wherever the tensors lie in memory and whatever an earlier call left in
// the workspace.
void expect_same_bits(Harness& harness, const MakePlan& make_plan, const Case& c, const Problem& p);

// ---- Values that are not finite ------------------------------------------------------------------------------------------

// Which elements of the result read element `index` (canonical) of the operand; and which share its sample or group.
struct Reach {
  std::vector<bool> reads;
  std::vector<bool> may_read;
};

enum class Place { x, w, y };

Reach reach_of(const Case& c, Operation operation, Place place, int64_t index);

}  // namespace torch_ext::test
