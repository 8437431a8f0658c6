// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::cli {

/// What training a model takes, by formulas: pure arithmetic. All sizes are bytes.

/// The most parameters and ranks that are counted with: beyond, sums would not be exact.
constexpr int64_t kMostParameters = 10'000'000'000'000;
constexpr int64_t kMostRanks = 100'000;

/// What one dtype makes of a model, as `accelerate estimate-memory` has it.
struct DtypeEstimate {
  double largest_layer = 0;
  double total = 0;
  /// Of a training step with a batch of one. Absent for dtypes that nothing trains in.
  struct Training {
    double model = 0;
    double gradients = 0;
    double optimizer = 0;
    double step = 0;
    double most() const;
  };
  std::optional<Training> training;
};

/// Names of Accelerate's, and bfloat16, which it counts with and does not offer.
constexpr std::array<const char*, 5> kEstimateDtypes = {
    "float32", "float16", "bfloat16", "int8", "int4"};

/// Accelerate's arithmetic (its 1.15): gather_data and estimate_training_usage. `float32_bytes` and
/// `layer_bytes` are the model's and its largest layer's in float32; `state_numbers` are how many
/// numbers the optimizer keeps of each parameter: Adam's 2 give Accelerate's result.
DtypeEstimate estimate_dtype(
    const std::string& dtype, double float32_bytes, double layer_bytes, double state_numbers);

/// How much of what a rank holds lies on its device, and how much in the memory of its host.
struct ZeroEstimate {
  int64_t device = 0;
  int64_t host = 0;
};

/// What moves to the host.
enum class Offload { kNone, kOptimizer, kOptimizerAndParameters };

/// What training keeps of a model: how many parameters, and numbers that the optimizer keeps.
struct TrainingState {
  int64_t parameters = 0;
  int64_t optimizer_numbers = 0;
  /// 16-bit parameters and gradients beside a master copy in float32; else all is float32.
  bool mixed_precision = true;
};

/// What each of `ranks` holds of parameters, gradients and optimizer state when Lockstep trains:
/// all float32, whatever is computed in, and once. Stage 1 divides the optimizer's state (gradients
/// are whole between micro-steps that accumulate, and divided after the last), 2 gradients too, 3
/// parameters too. Offloading brings the share of the optimizer's state, and of the parameters, to
/// the host as they are; gradients stay. A share is rounded up. The buckets in use in stage 3 come
/// on top. Files (nvme) hold what would lie in the host's memory.
ZeroEstimate estimate_lockstep(
    const TrainingState& state, int stage, Offload offload, int64_t ranks);

/// What the papers say of the same. What each of `ranks` holds in ZeRO's `stage` (Rajbhandari et
/// al., SC'20): 0 divides nothing, 1 the optimizer's state and master copy, 2 the gradients too, 3
/// the parameters too. A share is rounded up. Offloading the optimizer brings its share of the
/// state, of a master copy and of float32 gradients to the host, and from stage 2 on leaves no
/// gradients on the device (Ren et al., ZeRO-Offload, ATC'21); offloading parameters, in stage 3,
/// brings their share, too. A layer gathered in stage 3 comes on top.
ZeroEstimate estimate_zero(const TrainingState& state, int stage, Offload offload, int64_t ranks);

/// What DeepSpeed 0.19.8 says to the same: estimate_zero2_model_states_mem_needs and its twin of
/// stage 3, with their default factor of 1.5 for buffers; for 16-bit training with Adam. `host` is
/// all of a host, not a rank's part.
struct DeepSpeedSetup {
  int64_t parameters = 0;
  int64_t largest_layer_parameters = 0;  ///< Stage 3 counts with it.
  int64_t ranks_per_host = 1;
  int64_t hosts = 1;
};
ZeroEstimate deepspeed_zero2(const DeepSpeedSetup& setup, bool offload_optimizer);
ZeroEstimate deepspeed_zero3(const DeepSpeedSetup& setup, Offload offload, bool zero_init);

/// Numbers that an optimizer keeps of each parameter: adam, adamw, lamb, adadelta, adamax, nadam,
/// radam, rprop 2; sgd-momentum, lion, adagrad, rmsprop, asgd 1; sgd 0. Nothing for others.
std::optional<int64_t> state_numbers_of(const std::string& optimizer);
/// All that --optimizer takes: those, and adafactor, whose state depends on shapes.
std::vector<std::string> estimate_optimizers();

/// "7b", "350M", "1.3e9", "1_000": a number of parameters, with K, M, B (or G) or T, decimal and in
/// any case. ConfigError, beginning with `where`, for anything else, for less than one, for a part
/// of one and for more than kMostParameters.
int64_t parse_count(const std::string& where, const std::string& text);

}  // namespace lockstep::cli
