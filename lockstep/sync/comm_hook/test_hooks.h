// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/sync/comm_hook/comm_hook.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/sync/test_gradients.h"

namespace lockstep {

/// Regression by a net of two layers, of targets another such net gave.
struct Mlp {
  at::Tensor w1 = wave({24, 32}, 0.11).requires_grad_();
  at::Tensor b1 = at::zeros({32}).requires_grad_();
  at::Tensor w2 = wave({32, 16}, 0.23).requires_grad_();
  at::Tensor b2 = at::zeros({16}).requires_grad_();

  static at::Tensor wave(std::vector<int64_t> shape, double pace) {
    return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble).pow(1.3) * pace)
               .to(at::kFloat)
               .view(shape) *
           0.3;
  }
  NamedTensors named() const { return {{"w1", w1}, {"b1", b1}, {"w2", w2}, {"b2", b2}}; }
  std::vector<at::Tensor> all() const { return {w1, b1, w2, b2}; }
  static at::Tensor inputs(int rank, int step) {
    return wave({20, 24}, 0.31 + 0.07 * rank + 0.013 * (step % 5)) * 3;
  }
  static at::Tensor targets(const at::Tensor& x) {
    return at::tanh(x.matmul(wave({24, 32}, 0.17))).matmul(wave({32, 16}, 0.41));
  }
  at::Tensor loss(const at::Tensor& x) const {
    return (at::tanh(x.matmul(w1) + b1).matmul(w2) + b2 - targets(x)).pow(2).mean();
  }
  /// Plain SGD.
  void step(int rank, int step) const {
    zero_grad(all());
    loss(inputs(rank, step)).backward();
    const c10::AutoGradMode no_grad(false);
    for (const at::Tensor& parameter : all()) {
      parameter.data().sub_(parameter.grad(), 0.3);
    }
  }
  double total_loss(int size) const {
    const c10::AutoGradMode no_grad(false);
    double sum = 0;
    for (int rank = 0; rank < size; ++rank) {
      for (int step = 0; step < 5; ++step) {
        sum += loss(inputs(rank, step)).item<double>() / (5 * size);
      }
    }
    return sum;
  }
};

using Runner = std::function<void(int, const std::function<void(Group)>&)>;

inline Runner runner(const std::string& transport) {
  if (transport == "gloo") {
    return [](int size, const auto& body) { gloo_ranks(size, body); };
  }
  return [](int size, const auto& body) { ranks(size, body); };
}

struct HookCase {
  const char* name;
  CommHookOptions options;
  double band;  ///< Largest relative distance from the loss of uncompressed training.
};

inline PowerSgdOptions low_rank(int64_t rank) {
  return {.matrix_approximation_rank = rank, .start_iter = 10, .min_compression_rate = 1.5};
}

inline const std::vector<HookCase>& hook_cases() {
  using enum CommHookType;
  static const std::vector<HookCase> cases = {
      {"fp16", {.type = kFp16}, 1e-4},
      {"fp16_feedback", {.type = kFp16, .use_error_feedback = true}, 1e-4},
      {"bf16", {.type = kBf16}, 5e-4},
      {"bf16_feedback", {.type = kBf16, .use_error_feedback = true}, 5e-4},
      {"power_sgd_rank_2", {.type = kPowerSgd, .power_sgd = low_rank(2)}, 0.05},
      {"power_sgd_rank_2_cold",
       {.type = kPowerSgd,
        .power_sgd =
            {.matrix_approximation_rank = 2,
             .start_iter = 10,
             .min_compression_rate = 1.5,
             .warm_start = false}},
       0.05},
      {"power_sgd_rank_4_fp16",
       {.type = kPowerSgd, .wrapper = kFp16, .power_sgd = low_rank(4)},
       0.05},
      {"power_sgd_rank_4_bf16",
       {.type = kPowerSgd, .wrapper = kBf16, .power_sgd = low_rank(4)},
       0.05},
      {"batched_power_sgd", {.type = kBatchedPowerSgd, .power_sgd = low_rank(4)}, 0.05},
  };
  return cases;
}

/// Whether PowerSGD has replaced a gradient by fewer numbers: that alone leaves a Q to start from,
/// or an error. Errors of zero are there from the beginning.
inline bool has_compressed(const DataParallel& parallel) {
  const NamedTensors tensors = parallel.hook_state().tensors;
  return std::any_of(tensors.begin(), tensors.end(), [](const NamedTensor& item) {
    return item.tensor.abs().max().item<double>() > 0;
  });
}

inline bool is_power_sgd(const CommHookOptions& options) {
  return options.type == CommHookType::kPowerSgd || options.type == CommHookType::kBatchedPowerSgd;
}

}  // namespace lockstep
