// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/import/model_parallel_options.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "lockstep/base/text/words.h"

namespace lockstep::config {
namespace {

constexpr const char* kOwnModels =
    "it concerns Megatron-LM's own models or schedules, which Lockstep does not have; omit it";
constexpr const char* kRecompute =
    "the model checkpoints its activations: gradient_checkpointing_enable(), or "
    "activation_checkpoint in C++; omit it";
constexpr const char* kHandler =
    "the program says it: DeepSpeedSequenceParallelConfig, the sp_handler of its "
    "ParallelismConfig; omit it";

/// Megatron's degrees, and the dimensions of a mesh.
constexpr std::array kDegrees = {
    std::pair{"tp_degree", "tp"},
    std::pair{"pp_degree", "pp"},
    std::pair{"context_parallel_size", "cp"},
    std::pair{"expert_model_parallel_size", "ep"}};

constexpr std::array kDimensions = {"dp_replicate", "dp_shard", "tp", "cp", "sp"};
constexpr const char* kSizeEnding = "_size";

/// The other options of Megatron-LM, with what to do instead.
const std::map<std::string, const char*>& megatron_refusals() {
  static const std::map<std::string, const char*> all = {
      {"num_micro_batches", "try --gradient-accumulation-steps; with pp the program says it"},
      {"sequence_parallelism",
       "the program says it: TensorParallelOptions::sequence_parallel, or MegatronLMPlugin in "
       "Python; omit it"},
      {"recompute_activations", kRecompute},
      {"recompute_granularity", kRecompute},
      {"recompute_method", kRecompute},
      {"recompute_num_layers", kRecompute},
      {"gradient_clipping",
       "the program clips: clip_grad_norm_(), or MegatronLMPlugin in Python; omit it"},
      {"use_distributed_optimizer", ""},
      {"use_custom_fsdp", "the program shards with FsdpPlugin, or try --zero-stage; omit it"},
      {"optimizer_cpu_offload", "the program offloads by its options of ZeRO; omit it"},
      {"no_load_optim",
       "load_state() has the whole state, load_checkpoint_in_model() the weights; omit it"},
      {"no_save_optim", "save_state() has the whole state, save_model() the weights; omit it"},
      {"calculate_per_token_loss", "the program says it: backward(sum, count); omit it"},
      {"num_layers_per_virtual_pipeline_stage", kOwnModels},
      {"expert_tensor_parallel_size", kOwnModels},
      {"decoder_last_pipeline_num_layers", kOwnModels},
      {"overlap_cpu_optimizer_d2h_h2d", kOwnModels},
      {"use_precision_aware_optimizer", kOwnModels},
      {"eod_mask_loss", kOwnModels},
      {"attention_backend", kOwnModels},
      {"attention_dropout", kOwnModels},
      {"hidden_dropout", kOwnModels},
      {"attention_softmax_in_fp32", kOwnModels},
      {"use_rotary_position_embeddings", kOwnModels}};
  return all;
}

/// The values of options of ParallelismConfig that change nothing.
const std::map<std::string, std::vector<std::string>>& idle_values() {
  static const std::map<std::string, std::vector<std::string>> all = {
      {"cp_backend", {"torch"}},
      {"cp_comm_strategy", {"allgather", "alltoall"}},  // Results do not depend on it.
      {"sp_backend", {"deepspeed"}},
      {"sp_seq_length", {}},
      {"sp_seq_length_is_variable", {"true"}},
      {"sp_attn_implementation", {"sdpa"}}};
  return all;
}

bool is_off(const std::string& value) {
  static const std::vector<std::string> off = {
      "", "0", "0.0", "1", "false", "no", "off", "none", "null"};
  return std::ranges::find(off, lower(value)) != off.end();
}

}  // namespace

std::optional<ModelParallelOption> megatron_option(
    const std::string& name, const std::string& value) {
  for (const auto& [degree, dimension] : kDegrees) {
    if (name == degree) {
      return is_off(value) ? ModelParallelOption{}
                           : ModelParallelOption{.mesh_part = std::string(dimension) + "=" + value};
    }
  }
  const auto found = megatron_refusals().find(name);
  if (found == megatron_refusals().end()) {
    return std::nullopt;
  }
  // A number of 1 is off for degrees only.
  const bool is_truth = value == "1" && name != "num_micro_batches" && !name.ends_with("_size");
  if (is_off(value) && !is_truth) {
    return ModelParallelOption{};
  }
  if (name == "use_distributed_optimizer") {
    return ModelParallelOption{.is_distributed_adam = true};
  }
  return ModelParallelOption{.refusal = found->second};
}

std::optional<ModelParallelOption> parallelism_option(
    const std::string& name, const std::string& value) {
  for (const char* dimension : kDimensions) {
    if (name == std::string(dimension) + kSizeEnding) {
      return value == "1" ? ModelParallelOption{}
                          : ModelParallelOption{.mesh_part = std::string(dimension) + "=" + value};
    }
  }
  const auto found = idle_values().find(name);
  if (found == idle_values().end()) {
    return std::nullopt;
  }
  const bool is_idle = is_off(value)
                           ? name == "sp_seq_length" || lower(value) == "none"
                           : std::ranges::find(found->second, lower(value)) != found->second.end();
  if (is_idle) {
    return ModelParallelOption{};
  }
  return ModelParallelOption{
      .refusal = name.starts_with("sp_s") || name == "sp_attn_implementation"
                     ? kHandler
                     : "Lockstep divides sequences by itself; expected torch for cp_backend, and "
                       "deepspeed for sp_backend; omit it"};
}

std::vector<std::string> megatron_option_names() {
  std::vector<std::string> names;
  for (const auto& [degree, dimension] : kDegrees) {
    names.emplace_back(degree);
  }
  for (const auto& [name, refusal] : megatron_refusals()) {
    names.push_back(name);
  }
  return names;
}

std::vector<std::string> parallelism_option_names() {
  std::vector<std::string> names;
  for (const char* dimension : kDimensions) {
    names.push_back(std::string(dimension) + kSizeEnding);
  }
  for (const auto& [name, values] : idle_values()) {
    names.push_back(name);
  }
  return names;
}

}  // namespace lockstep::config
