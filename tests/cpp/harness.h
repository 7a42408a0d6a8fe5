// SPDX-License-Identifier: Apache-2.0
// Runs a plan on memory that notices what the plan must not touch, and hands back the result's bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/core/scalar.h"
#include "csrc/cpu/cpu.h"
#include "tests/cpp/cases.h"

namespace torch_ext::test {

// ---- Memory --------------------------------------------------------------------------------------------------------------

// Which end of the memory lies against a page that cannot be touched. There a single byte too far faults, read or written; at the
// other end guard bytes notice writes.
enum class Against { end, begin };

// One region of memory between two pages that cannot be touched. What it holds is poisoned: every byte is 0xff, a NaN in every
// type.
class Fence {
 public:
  Fence() = default;
  ~Fence();
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;
  std::byte* place(int64_t bytes, int64_t alignment, Against against);
  // Whether all bytes of the region outside of those placed are as they were.
  bool intact() const;

 private:
  void reserve(int64_t bytes);
  std::byte* begin_ = nullptr;
  std::byte* placed_ = nullptr;
  int64_t capacity_ = 0, placed_bytes_ = 0, guard_ = 0;
};

inline constexpr std::byte kPoison{0xff};

// Names what is being computed should a fault end the program.
void set_current(const std::string& what);

// ---- Values --------------------------------------------------------------------------------------------------------------

// Values of all operands in canonical order (see Extents). What the operation computes is there too, for the adjoint identity.
struct Data {
  std::vector<double> x, w, y, bias;
};
// Integers in [-3, 3]. Every product and every partial sum, in any order, of fewer than 2^24/9 of them is an integer that float32
// holds exactly, and so is any dyadic combination that a Winograd transform makes of them; so a kernel that rounds once, at the
// end, has exactly one right answer in every type. float16 holds no more than 65504: about 7000 terms, more than a result of
// small_cases() has.
Data integers(const Geometry& geometry);
// Values of `type` in [-scale, scale], without zeros.
Data reals(const Geometry& geometry, Type type, double scale);

double value_of(uint64_t bits, Type type);
// The root of the mean of squared errors, over that of the squared values.
double rms(const std::vector<uint64_t>& got, const std::vector<double>& exact, Type type);
// One rounding, as the kernels must do it.
uint64_t bits_of(double value, Type type);
// The values of a whole tensor by the loop nest of formula.h, summed in `Sum`, canonical order.
template <class Sum>
std::vector<double> formula(const Geometry& geometry, Operation operation, const Data& data, bool bias);
extern template std::vector<double> formula<double>(const Geometry&, Operation, const Data&, bool);
extern template std::vector<double> formula<long double>(const Geometry&, Operation, const Data&, bool);

// ---- Threads -------------------------------------------------------------------------------------------------------------

// All work on the calling thread, in an order, and under thread numbers, that no result may depend on.
cpu::Parallel shuffled(int threads);
// Real threads that race for the next index.
cpu::Parallel racing(int threads);

// ---- Running -------------------------------------------------------------------------------------------------------------

// A plan that packs its weights ahead, and runs without them.
class PackedAhead final : public cpu::Plan {
 public:
  explicit PackedAhead(std::shared_ptr<const cpu::Plan> plan) : plan_(std::move(plan)) { kernel = plan_->kernel; }
  std::string describe() const override { return plan_->describe() + ", packed ahead"; }
  int64_t workspace_bytes() const override { return plan_->workspace_bytes(); }
  void run(const cpu::Buffers& buffers, const cpu::Parallel& parallel) const override;

 private:
  std::shared_ptr<const cpu::Plan> plan_;
};

// The operand that the operation computes, and its layout.
Extents result_extents(const Problem& problem);

class Harness {
 public:
  // Runs the plan; the result's bits, canonical order. A violation (input changed, a byte written outside of the result, an
  // element not written) is reported as a failure of the running test. An operand of stride 0 gets the last of its values.
  std::vector<uint64_t> run(const cpu::Plan& plan, const Problem& problem, const Data& data, const cpu::Parallel& parallel,
                            Against against = Against::end);

  // What an earlier call may have left in the workspace: NaN, or with another byte ordinary numbers.
  std::byte stale = kPoison;
  // Of the tensors in memory, in bytes; 0: that of their elements.
  int64_t alignment = 0;

 private:
  struct Operand;
  Fence x_, w_, y_, bias_, workspace_;
};

}  // namespace torch_ext::test
