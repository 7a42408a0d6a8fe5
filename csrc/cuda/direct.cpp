// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/direct.h"

#include "csrc/cuda/transpose.h"

namespace torch_ext::cuda {

Step direct_step(const Problem& p, const Device& device, bool repair) {
  constexpr int kThreads = 128, kWarp = 32;
  const Geometry& g = p.geometry;
  const bool weights = p.operation == Operation::backward_weights;
  const int64_t results = weights ? g.w_size() : p.operation == Operation::backward_data ? g.x_size() : g.y_size();
  const Strides& to = p.operation == Operation::conv_transpose ? p.y : p.x;
  DirectArguments arguments;
  arguments.problem = p, arguments.repair = repair;
  for (int k = 0; k < kAxes; ++k) arguments.gather[k] = Gather(p.operation, g.axis[k]);
  arguments.channels_fastest = to.channel < to.axis[kAxes - 1];
  return {repair ? "repair" : "direct", walk(results * (weights ? kWarp : 1), kThreads, device),
          [arguments](const Buffers& b, const Launch& shape, Stream stream) {
            DirectArguments a = arguments;
            a.x = b.x, a.w = b.w, a.y = b.y, a.bias = b.bias;
            a.result = a.problem.operation == Operation::conv_transpose  ? b.y
                       : a.problem.operation == Operation::backward_data ? b.x
                                                                         : b.w;
            return launch_direct(a, shape, stream);
          }};
}

std::shared_ptr<Plan> make_direct(const Problem& p, const Request& request) {
  auto plan = std::make_shared<Plan>();
  plan->steps.push_back(direct_step(p, request.setting.device));
  plan->description = p.operation == Operation::backward_weights ? "a warp for each weight" : "a thread for each result";
  return plan;
}

}  // namespace torch_ext::cuda
