// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/direct.h"

#include <algorithm>

#include "csrc/cuda/planners.h"

namespace torch_ext::cuda {

std::shared_ptr<Plan> make_direct(const Problem& p, const Request& request) {
  constexpr int kThreads = 128, kWarp = 32;
  const Geometry& g = p.geometry;
  const bool weights = p.operation == Operation::backward_weights;
  const int64_t results = weights ? g.w_size() : p.operation == Operation::backward_data ? g.x_size() : g.y_size();
  const Strides& to = p.operation == Operation::conv_transpose ? p.y : p.x;
  DirectArguments arguments;
  arguments.problem = p;
  arguments.channels_fastest = to.channel < to.axis[kAxes - 1];
  // Threads walk over what is left where there are more results than threads: 64 blocks a multiprocessor fill it many times over.
  const int64_t most = int64_t(request.setting.device.multiprocessors) * 64;
  const Launch launch{std::clamp<int64_t>(divide_up(results * (weights ? kWarp : 1), kThreads), 1, most), kThreads, 0};
  auto plan = std::make_shared<Plan>();
  plan->description = weights                      ? "a warp for each weight"
                      : arguments.channels_fastest ? "a thread for each channel"
                                                   : "a thread for each position";
  plan->steps.push_back({"direct", launch, [arguments](const Buffers& b, const Launch& shape, Stream stream) {
                           DirectArguments a = arguments;
                           a.x = b.x, a.w = b.w, a.y = b.y, a.bias = b.bias;
                           a.result = a.problem.operation == Operation::conv_transpose  ? b.y
                                      : a.problem.operation == Operation::backward_data ? b.x
                                                                                        : b.w;
                           return launch_direct(a, shape, stream);
                         }});
  return plan;
}

}  // namespace torch_ext::cuda
