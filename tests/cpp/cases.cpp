// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/cases.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <ostream>
#include <random>
#include <sstream>
#include <stdexcept>

namespace torch_ext::test {
namespace {

// The numbers of "4x4" or "512:256".
std::vector<int64_t> numbers(const std::string& text, char separator) {
  std::vector<int64_t> values;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size()) throw std::invalid_argument("not a number: " + part);
    values.push_back(value);
  }
  return values;
}

// What a line says besides its name: "i" -> {4, 4}, "auto" -> same_upper, ...
struct Tokens {
  std::map<std::string, std::vector<int64_t>> values;
  std::string auto_pad = "none";
  bool large = false;

  const std::vector<int64_t>& at(const std::string& key, size_t size) const {
    const auto it = values.find(key);
    if (it == values.end()) throw std::invalid_argument("no " + key);
    if (it->second.size() != size) throw std::invalid_argument("length of " + key);
    return it->second;
  }
};

Tokens tokens_of(std::istream& stream) {
  Tokens tokens;
  for (std::string word; stream >> word && word[0] != '#';) {
    if (word == "large") {
      tokens.large = true;
    } else if (word.starts_with("auto=")) {
      tokens.auto_pad = word.substr(5);
    } else {
      const size_t digits = std::min(word.find_first_of("0123456789"), word.size());
      const std::string key = word.substr(0, digits);
      tokens.values[key] = numbers(word.substr(digits), key == "c" ? ':' : 'x');
    }
  }
  return tokens;
}

// The pads of one axis by the rule of auto_pad: (begin, end).
std::pair<int64_t, int64_t> pads(const std::string& auto_pad, const Axis& axis, int64_t begin, int64_t end) {
  if (auto_pad == "none") return {begin, end};
  if (auto_pad == "valid") return {0, 0};
  const int64_t total = std::max<int64_t>(dilated_extent(axis.w, axis.dilation) - axis.stride, 0), half = total / 2;
  if (auto_pad == "same_upper") return {half, total - half};
  if (auto_pad == "same_lower") return {total - half, half};
  throw std::invalid_argument("auto_pad " + auto_pad);
}

int64_t size_y(const Case& c, int a) {
  const Axis& axis = c.geometry.axis[a];
  return output_extent(axis.x, axis.w, axis.stride, axis.dilation, axis.offset, c.pads_end[a], c.output_padding[a]);
}

Case parse(const std::string& line) {
  std::istringstream stream(line);
  Case c;
  stream >> c.name;
  c.line = line;
  const Tokens tokens = tokens_of(stream);
  c.large = tokens.large;
  Geometry& g = c.geometry;
  g.batch = tokens.at("n", 1)[0];
  g.groups = tokens.at("g", 1)[0];
  const auto& channels = tokens.at("c", 2);
  if (g.groups < 1 || channels[0] % g.groups || channels[1] % g.groups) throw std::invalid_argument("groups");
  g.x_channels = channels[0] / g.groups, g.y_channels = channels[1] / g.groups;
  const size_t axes = tokens.values.count("i") ? tokens.values.at("i").size() : 0;
  if (axes < 1 || axes > kAxes) throw std::invalid_argument("number of axes");
  for (size_t k = 0; k < axes; ++k) {
    const auto value = [&](const char* key) { return tokens.at(key, axes)[k]; };
    const size_t a = kAxes - axes + k;
    Axis& axis = g.axis[a];
    axis.x = value("i"), axis.w = value("k"), axis.stride = value("s"), axis.dilation = value("d");
    if (axis.w < 1 || axis.stride < 1 || axis.dilation < 1) throw std::invalid_argument("k, s or d below 1");
    std::tie(axis.offset, c.pads_end[a]) = pads(tokens.auto_pad, axis, value("pb"), value("pe"));
    c.output_padding[a] = value("op");
    if (c.output_padding[a] >= std::max(axis.stride, axis.dilation)) throw std::invalid_argument("output_padding");
    axis.y = size_y(c, int(a));
    if (axis.y < 0) throw std::invalid_argument("negative output extent");
  }
  return c;
}

std::vector<Case> read_cases() {
  std::ifstream file(TORCH_EXT_CASES);
  if (!file) throw std::runtime_error("cannot read " TORCH_EXT_CASES);
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') cases.push_back(parse_case(line));
  return cases;
}

std::vector<Case> select(bool large) {
  std::vector<Case> cases = read_cases();
  std::erase_if(cases, [=](const Case& c) { return c.large != large; });
  return cases;
}

// For each index of the result along an axis, how many (i, k, o) meet there; the largest of these counts.
int64_t most_meetings(const Axis& axis, Operation operation) {
  std::vector<int64_t> meetings(std::max({axis.x, axis.w, axis.y}) + 1);
  for (int64_t i = 0; i < axis.x; ++i)
    for (int64_t k = 0; k < axis.w; ++k) {
      const int64_t o = axis.reach(i, k);
      if (o >= 0 && o < axis.y)
        ++meetings[operation == Operation::conv_transpose ? o : operation == Operation::backward_data ? i : k];
    }
  return *std::max_element(meetings.begin(), meetings.end());
}

// Empty where the layer is too large, too small or none at all.
std::string draw_line(std::mt19937& random) {
  const auto one_of = [&](std::initializer_list<int64_t> values) { return values.begin()[random() % values.size()]; };
  const int64_t axes = one_of({1, 2, 2, 3}), batch = one_of({1, 1, 2, 4, 16}), dilation = one_of({1, 1, 1, 2});
  const int64_t channels[] = {one_of({1, 2, 3, 4, 8, 12, 20, 33, 64, 100, 160, 256, 320, 512}),
                              one_of({1, 2, 3, 4, 8, 12, 20, 33, 64, 100, 160, 256, 320, 512})};
  const int64_t groups = random() % 8 ? 1 : one_of({2, 4, channels[0]});
  const int64_t x = axes == 1 ? one_of({1, 7, 20, 50, 200, 999}) : one_of({1, 2, 4, 5, 7, 10, 17, 32});
  const int64_t w = one_of({1, 2, 3, 4, 4, 5, 6, 8, 9}), stride = one_of({1, 2, 2, 3, 4}), pad = one_of({0, 1, w / 3});
  int64_t terms = channels[0] * channels[1] / groups * batch;
  for (int64_t a = 0; a < axes; ++a) terms *= x * w;
  constexpr int64_t kLeastTerms = 10'000, kMostTerms = 1'500'000;
  const bool fits = channels[0] % groups == 0 && channels[1] % groups == 0 && (x - 1) * stride + dilation * (w - 1) >= 2 * pad;
  if (!fits || terms < kLeastTerms || terms > kMostTerms) return {};
  std::ostringstream line;
  line << "drawn n" << batch << " g" << groups << " c" << channels[0] << ':' << channels[1];
  const std::pair<const char*, int64_t> of_axis[] = {{"i", x},    {"k", w},    {"s", stride}, {"d", dilation},
                                                     {"pb", pad}, {"pe", pad}, {"op", 0}};
  for (const auto& [key, value] : of_axis) {
    line << ' ' << key << value;
    for (int64_t a = 1; a < axes; ++a) line << 'x' << value;
  }
  return line.str();
}

}  // namespace

Case parse_case(const std::string& line) try { return parse(line); } catch (const std::invalid_argument& error) {
  throw std::invalid_argument(std::string(error.what()) + " in \"" + line + "\"");
}

const std::vector<Case>& small_cases() {
  static const std::vector<Case> cases = select(false);
  return cases;
}

const std::vector<Case>& large_cases() {
  static const std::vector<Case> cases = select(true);
  return cases;
}

// Halves the batch, then the longest axis of x, until the problem is small enough; a kernel's tiles still see whole channels.
Case reduce(Case c, int64_t terms) {
  const Geometry& g = c.geometry;
  while (g.x_size() * g.y_channels * g.w_positions() > terms) {
    Case half = c;
    Geometry& h = half.geometry;
    Axis& longest = *std::max_element(h.axis, h.axis + kAxes, [](const Axis& a, const Axis& b) { return a.x < b.x; });
    int64_t& extent = h.batch > 2 ? h.batch : longest.x;
    if (extent == 1) return c;
    extent = (extent + 1) / 2;
    for (int a = 0; a < kAxes; ++a)
      if ((h.axis[a].y = size_y(half, a)) < 1) return c;
    c = half;
  }
  return c;
}

const std::vector<Case>& drawn_cases() {
  static const std::vector<Case> cases = [] {
    constexpr size_t kCount = 200;
    std::mt19937 random;  // the same numbers from every library
    std::vector<Case> drawn;
    while (drawn.size() < kCount)
      if (const std::string line = draw_line(random); !line.empty()) drawn.push_back(parse_case(line));
    return drawn;
  }();
  return cases;
}

const std::vector<Case>& reduced_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> cases = large_cases();
    for (Case& c : cases) c = reduce(c, kReducedTerms);
    return cases;
  }();
  return cases;
}

void PrintTo(const Case& c, std::ostream* os) { *os << c.line; }

int64_t count_terms(const Geometry& g) {
  int64_t terms = g.batch * g.groups * g.x_channels * g.y_channels;
  for (const Axis& axis : g.axis) {
    int64_t inside = 0;
    for (int64_t i = 0; i < axis.x; ++i)
      for (int64_t k = 0; k < axis.w; ++k) inside += axis.reach(i, k) >= 0 && axis.reach(i, k) < axis.y;
    terms *= inside;
  }
  return terms;
}

int64_t terms_of_one_result(const Geometry& g, Operation operation) {
  int64_t terms = operation == Operation::conv_transpose  ? g.x_channels
                  : operation == Operation::backward_data ? g.y_channels
                                                          : g.batch;
  for (const Axis& axis : g.axis) terms *= most_meetings(axis, operation);
  return terms;
}

const char* name_of(Operation operation) {
  static const char* const names[] = {"conv_transpose", "backward_data", "backward_weights"};
  return names[int(operation)];
}

const char* name_of(Type type) {
  static const char* const names[] = {"f32", "f64", "bf16", "f16"};
  return names[int(type)];
}

int64_t count(const Extents& extents) {
  int64_t product = 1;
  for (int64_t extent : extents) product *= extent;
  return product;
}

Extents x_extents(const Geometry& g) { return {g.batch, g.groups * g.x_channels, g.axis[0].x, g.axis[1].x, g.axis[2].x}; }
Extents w_extents(const Geometry& g) { return {g.groups * g.x_channels, g.y_channels, g.axis[0].w, g.axis[1].w, g.axis[2].w}; }
Extents y_extents(const Geometry& g) { return {g.batch, g.groups * g.y_channels, g.axis[0].y, g.axis[1].y, g.axis[2].y}; }

namespace {
Strides strides_of(const std::array<int64_t, 2 + kAxes>& s) { return {s[0], s[1], {s[2], s[3], s[4]}}; }
}  // namespace

Strides dense(const Extents& extents, const Order& order) {
  std::array<int64_t, 2 + kAxes> strides{};
  int64_t step = 1;
  for (int k = int(order.size()) - 1; k >= 0; --k) {
    strides[order[k]] = step;
    step *= std::max<int64_t>(extents[order[k]], 1);
  }
  return strides_of(strides);
}

Strides sliced(const Extents& extents, const Order& order) {
  Extents larger = extents;
  for (int64_t& extent : larger) extent = 2 * extent + 1;
  Strides s = dense(larger, order);
  for (int64_t* stride : {&s.outer, &s.channel, &s.axis[0], &s.axis[1], &s.axis[2]}) *stride *= 2;
  return s;
}

int64_t span(const Extents& e, const Strides& s) {
  if (count(e) == 0) return 0;
  return 1 + (e[0] - 1) * s.outer + (e[1] - 1) * s.channel + (e[2] - 1) * s.axis[0] + (e[3] - 1) * s.axis[1] +
         (e[4] - 1) * s.axis[2];
}

Problem make_problem(const Case& c, Operation operation, Type type, const Layouts& layouts, bool bias) {
  const Geometry& g = c.geometry;
  return {operation,
          type,
          bias && operation == Operation::conv_transpose,
          g,
          dense(x_extents(g), layouts.data),
          dense(w_extents(g), layouts.weights),
          dense(y_extents(g), layouts.data),
          /*transforms_allowed=*/true};
}

}  // namespace torch_ext::test
