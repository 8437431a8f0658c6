// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "lockstep/ds_config/keys/key_specs.h"

namespace lockstep::ds_config {
namespace {

constexpr const char* kZeroPrefix = "zero_optimization.";

/// A key of zero_optimization, whose value is the ZeroSection's member at `Path`, if that is given.
template <auto... Path>
KeySpec in_zero(KeySpec spec) {
  if constexpr (sizeof...(Path) > 0) {
    spec = stored<&DsConfig::zero, Path...>(std::move(spec));
  }
  spec.path = kZeroPrefix + spec.path;
  if (!spec.successor.empty()) {
    spec.successor = kZeroPrefix + spec.successor;
  }
  return spec;
}

KeySpec tuning(const std::string& path, const std::string& why) {
  KeySpec spec = ignored(path, KeyKind::kInteger, why);
  spec.least = 0;
  return spec;
}

void add_buckets(std::vector<KeySpec>& keys) {
  keys.push_back(in_zero<&ZeroSection::reduce_bucket_size>(nullable(integer(
      "reduce_bucket_size", 1, "elements of the largest bucket of gradients; not set: 25 MiB"))));
  keys.push_back(in_zero(tuning(
      "allgather_bucket_size", "what is updated is gathered in the buckets of the gradients")));
  keys.push_back(in_zero(
      ignored("contiguous_gradients", KeyKind::kBoolean, "gradients always lie in flat buckets")));
  keys.push_back(in_zero(ignored(
      "reduce_scatter", KeyKind::kBoolean, "from stage 1 on a bucket is always reduce-scattered")));
  keys.push_back(in_zero(ignored(
      "use_multi_rank_bucket_allreduce",
      KeyKind::kBoolean,
      "each rank owns an equal share of every bucket, which one reduce-scatter brings it")));
  keys.push_back(in_zero(ignored(
      "allgather_partitions", KeyKind::kBoolean, "shares are always gathered by all-gather")));
  keys.push_back(in_zero(nullable(
      ignored("overlap_comm", KeyKind::kBoolean, "buckets are always reduced during backward"))));
  keys.push_back(in_zero(ignored(
      "round_robin_gradients", KeyKind::kBoolean, "every bucket is shared out evenly already")));
  keys.push_back(in_zero(ignored(
      "parameter_alignment", KeyKind::kBoolean, "how buckets are laid out is the same for all")));
  keys.push_back(in_zero(
      ignored("legacy_stage1", KeyKind::kBoolean, "there is one implementation of stage 1")));
  keys.push_back(in_zero(tuning("sub_group_size", "the update goes bucket by bucket")));
}

void add_state(std::vector<KeySpec>& keys) {
  keys.push_back(in_zero<&ZeroSection::compute_grad_norm>(works(
      "compute_grad_norm",
      KeyKind::kBoolean,
      "from stage 1 on, and with fp16 or bf16: get_global_grad_norm() though nothing is clipped")));
  keys.push_back(in_zero<&ZeroSection::load_from_fp32_weights>(works(
      "load_from_fp32_weights",
      KeyKind::kBoolean,
      "false: 16-bit parameters' masters are loaded as what they round to")));
  keys.push_back(in_zero(ignored(
      "elastic_checkpoint",
      KeyKind::kBoolean,
      "every checkpoint can be loaded by any number of ranks")));
  keys.push_back(in_zero<&ZeroSection::ignore_unused_parameters>(works(
      "ignore_unused_parameters",
      KeyKind::kBoolean,
      "stages 1 and 2; false: a trained parameter without a gradient in an update is an error that "
      "names it")));
  keys.push_back(in_zero(ignored(
      "pipeline_loading_checkpoint", KeyKind::kBoolean, "each rank reads its own parts only")));
  keys.push_back(in_zero(ignored(
      "enable_sanity_checks",
      KeyKind::kBoolean,
      "ranks always compare what they are about to do")));
}

void add_offload_optimizer(std::vector<KeySpec>& keys) {
  const auto key = [](const char* name) { return std::string("offload_optimizer.") + name; };
  keys.push_back(
      in_zero<&ZeroSection::offload_optimizer, &OffloadOptimizerSection::buffer_count>(integer(
          key("buffer_count"),
          1,
          "device nvme: buffers in memory, a bucket's field of state each")));
  keys.push_back(in_zero<&ZeroSection::offload_optimizer, &OffloadOptimizerSection::ratio>(
      {.path = key("ratio"),
       .kind = KeyKind::kNumber,
       .description = "part of the state that is offloaded, in complete buckets; more than 0",
       .least = 0,
       .most = 1}));
  keys.push_back(
      in_zero<&ZeroSection::offload_optimizer, &OffloadOptimizerSection::pipeline_read>(works(
          key("pipeline_read"),
          KeyKind::kBoolean,
          "device nvme: read the next bucket while one is updated; not set: true")));
  keys.push_back(
      in_zero<&ZeroSection::offload_optimizer, &OffloadOptimizerSection::pipeline_write>(works(
          key("pipeline_write"),
          KeyKind::kBoolean,
          "device nvme: write the last bucket while one is updated; not set: true")));
  keys.push_back(
      in_zero(ignored(key("fast_init"), KeyKind::kBoolean, "state is made where it stays")));
  KeySpec cores = ignored(
      key("cpuadam_cores_perc"),
      KeyKind::kNumber,
      "an update takes the threads that the launcher gave the rank");
  cores.least = 0;
  cores.most = 1;
  keys.push_back(in_zero(std::move(cores)));
  keys.push_back(
      in_zero<&ZeroSection::offload_optimizer, &OffloadOptimizerSection::super_offload>(works(
          key("super_offload"),
          KeyKind::kBoolean,
          "device cpu: updates begin while backward runs, on copies in the host's memory")));
}

void add_offload_param(std::vector<KeySpec>& keys) {
  const auto key = [](const char* name) { return std::string("offload_param.") + name; };
  const std::string why = "a bucket is read to where it is used";
  keys.push_back(in_zero(tuning(key("buffer_count"), why)));
  keys.push_back(in_zero(tuning(key("buffer_size"), why)));
  keys.push_back(in_zero<&ZeroSection::offload_param, &OffloadParamSection::max_in_cpu>(
      integer(key("max_in_cpu"), 0, "device nvme: elements of a rank's part that stay in memory")));
}

/// The keys that offload_optimizer and offload_param share. `Section` is the ZeroSection's member.
template <auto Section, typename Values>
void add_offload_target(
    std::vector<KeySpec>& keys, const std::string& name, const std::string& description) {
  keys.push_back(in_zero(nullable(works(name, KeyKind::kSection, description))));
  keys.push_back(in_zero<Section, &Values::device>(
      {.path = name + ".device",
       .kind = KeyKind::kChoice,
       .description = "where to",
       .choices = {"none", "cpu", "nvme"},
       .auto_rule = AutoRule::kRefused}));
  keys.push_back(in_zero<Section, &Values::nvme_path>(nullable(works(
      name + ".nvme_path", KeyKind::kText, "a folder that is there; needed with device nvme"))));
  keys.push_back(in_zero<Section, &Values::pin_memory>(works(
      name + ".pin_memory", KeyKind::kBoolean, "page-locked memory between a GPU and the host")));
}

void add_offload(std::vector<KeySpec>& keys) {
  add_offload_target<&ZeroSection::offload_optimizer, OffloadOptimizerSection>(
      keys,
      "offload_optimizer",
      "optimizer state off the device, and the update on the host; from stage 1 on");
  add_offload_optimizer(keys);
  add_offload_target<&ZeroSection::offload_param, OffloadParamSection>(
      keys,
      "offload_param",
      "each rank's part of the parameters off the device; in stage 3, together with "
      "offload_optimizer, or, for inference, without an optimizer");
  add_offload_param(keys);
  // Truths, which became sections.
  for (const auto& [name, section] :
       {std::pair("cpu_offload", "offload_optimizer"),
        std::pair("cpu_offload_param", "offload_param")}) {
    keys.push_back(in_zero(nullable(works(
        name,
        KeyKind::kBoolean,
        std::string("true is the old way to write \"") + section +
            "\": {\"device\": \"cpu\"}; an error beside that section"))));
  }
  keys.push_back(in_zero(nullable(ignored(
      "cpu_offload_use_pin_memory",
      KeyKind::kBoolean,
      "an old name that DeepSpeed ignores, too; the sections have pin_memory"))));
}

void add_stage3(std::vector<KeySpec>& keys) {
  // Most have two names in DeepSpeed.
  const auto with_other_name = [&](const KeySpec& spec) {
    const std::string bare = spec.path.substr(std::string("stage3_").size());
    keys.push_back(in_zero(spec));
    keys.push_back(in_zero(other_name(bare, spec.kind, spec.path)));
  };
  with_other_name(stored<&DsConfig::zero, &ZeroSection::prefetch_bucket_size>(integer(
      "stage3_prefetch_bucket_size",
      0,
      "0: no bucket comes before it is needed; else the one that came next the last time does")));
  with_other_name(stored<&DsConfig::zero, &ZeroSection::param_persistence_threshold>(integer(
      "stage3_param_persistence_threshold",
      0,
      "parameters of up to this many elements are not sharded")));
  with_other_name(stored<&DsConfig::zero, &ZeroSection::max_live_parameters>(integer(
      "stage3_max_live_parameters",
      0,
      "unsharded elements at a time; not set: as many as the three largest buckets have")));
  with_other_name(stored<&DsConfig::zero, &ZeroSection::model_persistence_threshold>(integer(
      "stage3_model_persistence_threshold",
      0,
      "elements that stay whole in all, in the model's order; a parameter for which there is no "
      "room left is divided")));
  with_other_name(
      tuning("stage3_max_reuse_distance", "what was not touched for the longest time goes first"));
  with_other_name(tuning(
      "stage3_module_granularity_threshold",
      "a bucket is gathered at once, whatever modules its parameters belong to"));
  with_other_name(ignored(
      "stage3_use_all_reduce_for_fetch_params",
      KeyKind::kBoolean,
      "a bucket is flat, and one all-gather fills it"));
  with_other_name(ignored(
      "stage3_allgather_sequential", KeyKind::kBoolean, "a bucket is filled without a copy"));
  keys.push_back(in_zero(ignored(
      "stage3_gather_16bit_weights_on_model_save",
      KeyKind::kBoolean,
      "save_16bit_model writes full weights in every stage, and needs the memory of one tensor")));
  for (const char* name :
       {"gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"}) {
    keys.push_back(
        in_zero(other_name(name, KeyKind::kBoolean, "stage3_gather_16bit_weights_on_model_save")));
  }
  keys.push_back(in_zero(ignored(
      "memory_efficient_linear",
      KeyKind::kBoolean,
      "backward brings again what it needs of parameters")));
  keys.push_back(in_zero(ignored(
      "override_module_apply", KeyKind::kBoolean, "nothing of torch::nn::Module is replaced")));
  keys.push_back(in_zero(ignored(
      "log_trace_cache_warnings",
      KeyKind::kBoolean,
      "a wrong guess of what comes next costs time only")));
  keys.push_back(in_zero(ignored(
      "leaf_module",
      KeyKind::kSection,
      "parameters come when an operation touches them, whatever module they are of")));
  for (const char* name : {"classes", "names", "name_suffixes"}) {
    keys.push_back(in_zero(ignored(
        std::string("leaf_module.") + name,
        KeyKind::kTexts,
        "parameters come when an operation touches them, whatever module they are of")));
  }
}

void add_plus_plus(std::vector<KeySpec>& keys) {
  keys.push_back(in_zero<&ZeroSection::quantized_weights>(
      works("zero_quantized_weights", KeyKind::kBoolean, "ZeRO++: weights are sent in 8 bits")));
  keys.push_back(in_zero<&ZeroSection::hpz_partition_size>(integer(
      "zero_hpz_partition_size",
      0,
      "ZeRO++: ranks that keep a second copy of the weights together")));
  keys.push_back(in_zero<&ZeroSection::quantized_gradients>(works(
      "zero_quantized_gradients", KeyKind::kBoolean, "ZeRO++: gradients are sent in 4 bits")));
  keys.push_back(in_zero<&ZeroSection::quantized_nontrainable_weights>(works(
      "zero_quantized_nontrainable_weights",
      KeyKind::kBoolean,
      "ZeRO++: frozen weights are stored and sent in 8 bits")));
}

}  // namespace

std::vector<KeySpec> zero_keys() {
  std::vector<KeySpec> keys;
  keys.push_back(works(
      "zero_optimization",
      KeyKind::kSection,
      "true is the old way to write stage 1, false stage 0"));
  keys.push_back(in_zero<&ZeroSection::stage>(
      {.path = "stage",
       .kind = KeyKind::kInteger,
       .description =
           "0: nothing is shared; 1: optimizer state is; 2: gradients, too; 3: parameters, too",
       .least = 0,
       .most = 3,
       .auto_rule = AutoRule::kRefused,
       .may_be_quoted = true}));
  add_buckets(keys);
  add_state(keys);
  add_offload(keys);
  add_stage3(keys);
  add_plus_plus(keys);
  // At the top, beside zero_optimization: true.
  keys.push_back(tuning("allgather_size", "an old name of allgather_bucket_size"));
  return keys;
}

}  // namespace lockstep::ds_config
