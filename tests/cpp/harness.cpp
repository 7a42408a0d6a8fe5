// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/harness.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <new>
#include <random>
#include <thread>

#include "csrc/core/formula.h"

namespace torch_ext::test {

// ---- Memory --------------------------------------------------------------------------------------------------------------

namespace {

char current[512];

#if !defined(TORCH_EXT_SANITIZE)  // which has a better report of its own
void report_fault(int signal) {
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, "memory fault in: ", 17);
  written = write(STDERR_FILENO, current, std::strlen(current));
  written = write(STDERR_FILENO, "\n", 1);
  ::signal(signal, SIG_DFL);
  raise(signal);
}
const bool reporting = [] {
  for (int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) ::signal(fault, report_fault);
  return true;
}();
#endif

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

bool poisoned(const std::byte* begin, const std::byte* end) {
  return begin == end || (*begin == kPoison && !std::memcmp(begin, begin + 1, size_t(end - begin - 1)));
}

}  // namespace

void set_current(const std::string& what) { std::snprintf(current, sizeof current, "%s", what.c_str()); }

void Fence::reserve(int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  if (begin_) munmap(begin_ - page, capacity_ + 2 * page);
  capacity_ = std::max<int64_t>(round_up(bytes, page), 1 << 20);
  void* region = mmap(nullptr, capacity_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) throw std::bad_alloc();
  begin_ = static_cast<std::byte*>(region) + page;
  mprotect(begin_, capacity_, PROT_READ | PROT_WRITE);
}

Fence::~Fence() {
  const int64_t page = sysconf(_SC_PAGESIZE);
  if (begin_) munmap(begin_ - page, capacity_ + 2 * page);
}

std::byte* Fence::place(int64_t bytes, int64_t alignment, Against against) {
  constexpr int64_t kGuard = 1024;  // as far as a tile's row could reach
  const int64_t end_slack = round_up(bytes, alignment) - bytes;
  if (bytes + end_slack + kGuard > capacity_) reserve(2 * bytes + kGuard + alignment);
  placed_bytes_ = bytes;
  placed_ = against == Against::end ? begin_ + capacity_ - bytes - end_slack : begin_;
  guard_ = kGuard;
  std::byte* first = std::max(placed_ - guard_, begin_);
  std::byte* last = std::min(placed_ + bytes + guard_, begin_ + capacity_);
  std::memset(first, int(kPoison), last - first);
  return placed_;
}

bool Fence::intact() const {
  return poisoned(std::max(placed_ - guard_, begin_), placed_) &&
         poisoned(placed_ + placed_bytes_, std::min(placed_ + placed_bytes_ + guard_, begin_ + capacity_));
}

// ---- Values --------------------------------------------------------------------------------------------------------------

namespace {

// One rounding to the type that stores elements.
template <class Stored>
Stored narrowed(double value) {
  Stored stored;
  narrow(decltype(widen(stored))(value), stored);
  return stored;
}

}  // namespace

double value_of(uint64_t bits, Type type) {
  return visit(type, [&](auto v) {
    std::memcpy(&v, &bits, sizeof v);
    return double(widen(v));
  });
}

uint64_t bits_of(double value, Type type) {
  return visit(type, [&](auto v) {
    v = narrowed<decltype(v)>(value);
    uint64_t bits = 0;
    std::memcpy(&bits, &v, sizeof v);
    return bits;
  });
}

namespace {

template <class Draw>
Data draw(const Geometry& g, Draw draw) {
  Data data;
  data.x.resize(g.x_size()), data.w.resize(g.w_size()), data.y.resize(g.y_size()), data.bias.resize(g.groups * g.y_channels);
  for (auto* values : {&data.x, &data.w, &data.y, &data.bias}) std::generate(values->begin(), values->end(), draw);
  return data;
}

}  // namespace

// Its high bits are the random ones; the engines of the standard by name divide, which took a tenth of the time of the tests.
using Random = std::linear_congruential_engine<uint64_t, 6364136223846793005u, 1442695040888963407u, 0>;

Data integers(const Geometry& g) {
  Random random(12345);
  return draw(g, [&] { return double(int(random() >> 48) % 7 - 3); });
}

Data reals(const Geometry& g, Type type, double scale) {
  Random random(54321);
  return visit(type, [&](auto v) {
    return draw(g, [&] {
      const uint64_t drawn = random();
      const double magnitude = scale * (0.03125 + 0.96875 * double(drawn << 1 >> 12) * 0x1p-52);
      return double(widen(narrowed<decltype(v)>(drawn >> 63 ? magnitude : -magnitude)));
    });
  });
}

template <class Sum>
std::vector<double> formula(const Geometry& g, Operation operation, const Data& data, bool bias) {
  const Case canonical{"", "", false, g, {}, {}};
  const Problem p = make_problem(canonical, operation, Type::f64, {kNcx, kIox});
  std::vector<Sum> sums(operation == Operation::conv_transpose  ? g.y_size()
                        : operation == Operation::backward_data ? g.x_size()
                                                                : g.w_size());
  if (bias && operation == Operation::conv_transpose)
    for (size_t k = 0; k < sums.size(); ++k) sums[k] = data.bias[k / g.y_positions() % data.bias.size()];
  accumulate(p, data.x.data(), data.w.data(), data.y.data(), sums.data());
  return {sums.begin(), sums.end()};
}
template std::vector<double> formula<double>(const Geometry&, Operation, const Data&, bool);
template std::vector<double> formula<long double>(const Geometry&, Operation, const Data&, bool);

// ---- Threads -------------------------------------------------------------------------------------------------------------

cpu::Parallel shuffled(int threads) {
  return {threads, [threads](int64_t count, const std::function<void(int64_t, int)>& task) {
            const auto run = [&](int64_t index) { task(index, int((index * 7 + 3) % threads)); };
            for (int64_t index = count - 1; index >= 0; --index)
              if (index % 3 == 1) run(index);
            for (int64_t index = 0; index < count; ++index)
              if (index % 3 != 1) run(index);
          }};
}

cpu::Parallel racing(int threads) {
  return {threads, [threads](int64_t count, const std::function<void(int64_t, int)>& task) {
            std::atomic<int64_t> next{0};
            const auto work = [&](int thread) {
              for (int64_t index; (index = next.fetch_add(1)) < count;) task(index, thread);
            };
            std::vector<std::thread> team;
            for (int thread = 1; thread < std::min<int64_t>(threads, count); ++thread) team.emplace_back(work, thread);
            work(0);
            for (std::thread& thread : team) thread.join();
          }};
}

// ---- Running -------------------------------------------------------------------------------------------------------------

// One tensor in its fence.
struct Harness::Operand {
  Fence& fence;
  Extents extents;
  Strides strides;
  Type type;
  std::byte* memory = nullptr;
  std::vector<std::byte> before;

  Operand(Fence& region, const Extents& shape, const Strides& steps, Type element, int64_t alignment, Against against)
      : fence(region), extents(shape), strides(steps), type(element) {
    memory = fence.place(span(extents, strides) * bytes_of(type), std::max(alignment, bytes_of(type)), against);
  }

  // Calls f(index, address, value of the element's type to use) for every element.
  template <class F>
  void for_each(F f) const {
    visit(type, [&](auto v) {
      for_each_element(extents, strides,
                       [&](int64_t index, int64_t offset) { f(index, memory + offset * int64_t(sizeof v), v); });
    });
  }

  void write(const std::vector<double>& values) {
    for_each([&](int64_t index, std::byte* at, auto v) {
      v = narrowed<decltype(v)>(values[index]);
      std::memcpy(at, &v, sizeof v);
    });
    before.assign(memory, memory + span(extents, strides) * bytes_of(type));
  }

  bool unchanged() const { return fence.intact() && (before.empty() || !std::memcmp(before.data(), memory, before.size())); }

  // The elements' bits; leaves poison in their place, so that afterwards nothing else may be in the memory.
  std::vector<uint64_t> take() {
    std::vector<uint64_t> bits(test::count(extents));
    for_each([&](int64_t index, std::byte* at, auto v) {
      std::memcpy(&bits[index], at, sizeof v);
      std::memset(at, int(kPoison), sizeof v);
    });
    return bits;
  }
};

void PackedAhead::run(const cpu::Buffers& buffers, const cpu::Parallel& parallel) const {
  Fence memory;
  cpu::Buffers with = buffers, weights;
  weights.w = buffers.w;
  std::byte* packed = memory.place(plan_->packed_bytes(), 64, Against::end);
  plan_->pack(weights, parallel, packed);
  with.w = nullptr, with.packed = packed;
  plan_->run(with, parallel);
  EXPECT_TRUE(memory.intact()) << plan_->describe();
}

Extents result_extents(const Problem& p) {
  return p.operation == Operation::conv_transpose  ? y_extents(p.geometry)
         : p.operation == Operation::backward_data ? x_extents(p.geometry)
                                                   : w_extents(p.geometry);
}

std::vector<uint64_t> Harness::run(const cpu::Plan& plan, const Problem& p, const Data& data, const cpu::Parallel& parallel,
                                   Against against) {
  set_current(std::string(plan.kernel) + ": " + cpu::describe(p));
  Operand operands[] = {{x_, x_extents(p.geometry), p.x, p.type, alignment, against},
                        {w_, w_extents(p.geometry), p.w, p.type, alignment, against},
                        {y_, y_extents(p.geometry), p.y, p.type, alignment, against}};
  const std::vector<double>* values[] = {&data.x, &data.w, &data.y};
  const int result = p.operation == Operation::conv_transpose ? 2 : p.operation == Operation::backward_data ? 0 : 1;
  for (int k = 0; k < 3; ++k)
    if (k != result) operands[k].write(*values[k]);
  const Extents channels = {1, p.bias ? p.geometry.groups * p.geometry.y_channels : 0, 1, 1, 1};
  Operand bias(bias_, channels, {0, 1, {0, 0, 0}}, p.type, alignment, against);
  if (p.bias) bias.write(data.bias);
  void* workspace = workspace_.place(plan.workspace_bytes(), 64, against);
  std::memset(workspace, int(stale), plan.workspace_bytes());

  plan.run({operands[0].memory, operands[1].memory, operands[2].memory, p.bias ? bias.memory : nullptr, workspace}, parallel);

  const char* const names[] = {"x", "w", "y"};
  for (int k = 0; k < 3; ++k)
    if (k != result && !operands[k].unchanged()) ADD_FAILURE() << names[k] << ", which the operation only reads, has changed";
  EXPECT_TRUE(bias.unchanged()) << "the bias has changed";
  EXPECT_TRUE(workspace_.intact()) << "bytes outside of the workspace have changed";
  std::vector<uint64_t> bits = operands[result].take();
  const int64_t bytes = span(operands[result].extents, operands[result].strides) * bytes_of(p.type);
  EXPECT_TRUE(operands[result].fence.intact() && poisoned(operands[result].memory, operands[result].memory + bytes))
      << "bytes that are no element of the result have changed";
  return bits;
}

double rms(const std::vector<uint64_t>& got, const std::vector<double>& exact, Type type) {
  double errors = 0, values = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    errors += std::pow(value_of(got[i], type) - exact[i], 2);
    values += exact[i] * exact[i];
  }
  return std::sqrt(errors / values);
}

}  // namespace torch_ext::test
