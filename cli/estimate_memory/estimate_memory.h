// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::cli {

/// Formulas for the memory of training a model. All sizes are in bytes.

/// The largest numbers of parameters and ranks; with larger ones sums would not be exact.
constexpr int64_t kMostParameters = 10'000'000'000'000;
constexpr int64_t kMostRanks = 100'000;

/// The memory of a model in one dtype, as `accelerate estimate-memory` computes it.
struct DtypeEstimate {
  double largest_layer = 0;
  double total = 0;
  /// The memory of a training step with batch size 1.
  struct Training {
    double model = 0;
    double gradients = 0;
    double optimizer = 0;
    double step = 0;
    double most() const;
  };
  std::optional<Training> training;  ///< Nothing for int8 and int4.
};

/// Accelerate's names, and bfloat16, which Accelerate computes but does not accept.
constexpr std::array<const char*, 5> kEstimateDtypes = {
    "float32", "float16", "bfloat16", "int8", "int4"};

/// Computes the estimate of gather_data and estimate_training_usage of Accelerate 1.15.
/// `float32_bytes` and `layer_bytes` are the size of the model and of its largest layer in float32.
/// `state_numbers` is the count of numbers that the optimizer keeps for each parameter; 2 (Adam)
/// gives Accelerate's result.
DtypeEstimate estimate_dtype(
    const std::string& dtype, double float32_bytes, double layer_bytes, double state_numbers);

/// The memory of a rank, on its device and on its host.
struct ZeroEstimate {
  int64_t device = 0;
  int64_t host = 0;
};

/// The data that is offloaded to the host.
enum class Offload { kNone, kOptimizer, kOptimizerAndParameters };

/// The size of the training state: numbers of parameters, and numbers in the optimizer's state.
struct TrainingState {
  int64_t parameters = 0;
  int64_t optimizer_numbers = 0;
  /// 16-bit parameters and gradients, with a float32 master copy; false: all in float32.
  bool mixed_precision = true;
};

/// Returns the memory of parameters, gradients and optimizer state on each of `ranks` in Lockstep:
/// all in float32, stored once. Stage 1 shards the optimizer's state; between micro-steps that
/// accumulate, gradients are not sharded. Stage 2 shards gradients too, stage 3 parameters too.
/// Offloading moves the shard of the optimizer's state, and of the parameters, to the host;
/// gradients stay on the device. Shards are rounded up. Buckets in use in stage 3 are not included.
/// With nvme, files replace the host's memory.
ZeroEstimate estimate_lockstep(
    const TrainingState& state, int stage, Offload offload, int64_t ranks);

/// Returns the same by the formulas of the papers. ZeRO (Rajbhandari et al., SC'20): stage 0 shards
/// nothing, 1 the optimizer's state and master copy, 2 the gradients too, 3 the parameters too.
/// Shards are rounded up. ZeRO-Offload (Ren et al., ATC'21): the optimizer's shards of state,
/// master copy and float32 gradients are on the host, and from stage 2 on no gradients on the
/// device. Offloaded parameters (stage 3) are on the host, too. The gathered layer of stage 3 is
/// not included.
ZeroEstimate estimate_zero(const TrainingState& state, int stage, Offload offload, int64_t ranks);

/// The input of deepspeed_zero2() and deepspeed_zero3(), for 16-bit training with Adam.
///
/// They are modelled on estimate_zero2_model_states_mem_needs of DeepSpeed 0.19.8 and its
/// counterpart for stage 3, with their default factor of 1.5 for buffers. `host` of the result is
/// for all ranks of a host.
struct DeepSpeedSetup {
  int64_t parameters = 0;
  int64_t largest_layer_parameters = 0;  ///< Used in stage 3.
  int64_t ranks_per_host = 1;
  int64_t hosts = 1;
};
ZeroEstimate deepspeed_zero2(const DeepSpeedSetup& setup, bool offload_optimizer);
ZeroEstimate deepspeed_zero3(const DeepSpeedSetup& setup, Offload offload, bool zero_init);

/// Returns how many numbers an optimizer keeps for each parameter; nothing if it is unknown. 2:
/// adam, adamw, lamb, adadelta, adamax, nadam, radam, rprop. 1: sgd-momentum, lion, adagrad,
/// rmsprop, asgd. 0: sgd.
std::optional<int64_t> state_numbers_of(const std::string& optimizer);
/// Returns the values of --optimizer: those, and adafactor, whose state depends on shapes.
std::vector<std::string> estimate_optimizers();

/// Parses a number of parameters, with the decimal units K, M, B (or G) and T in any case: "7b",
/// "350M", "1.3e9", "1_000". Throws ConfigError that names `option` for other texts, fractions, and
/// numbers outside 1 to kMostParameters.
int64_t parse_count(const std::string& option, const std::string& text);

}  // namespace lockstep::cli
