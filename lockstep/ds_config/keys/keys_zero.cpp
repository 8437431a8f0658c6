// SPDX-License-Identifier: Apache-2.0
#include <iterator>
#include <utility>

#include "lockstep/ds_config/keys/key_specs.h"

namespace lockstep::ds_config {
namespace {

constexpr const char* kZeroPrefix = "zero_optimization.";

using Keys = std::vector<KeySpec>;

void append(Keys& keys, Keys more) {
  keys.insert(
      keys.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// Creates a key of zero_optimization. `Path`, if given, is the ZeroSection's member for its value.
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

/// Creates a boolean key with the member at `Path`.
template <auto... Path>
KeySpec zero_flag(std::string name, std::string description) {
  return in_zero<Path...>(works(std::move(name), KeyKind::kBoolean, std::move(description)));
}

/// Creates a boolean key without effect.
KeySpec ignored_flag(std::string name, std::string why) {
  return in_zero(ignored(std::move(name), KeyKind::kBoolean, std::move(why)));
}

/// Creates an ignored whole number.
KeySpec tuning(const std::string& path, const std::string& why) {
  KeySpec spec = ignored(path, KeyKind::kInteger, why);
  spec.least = 0;
  return spec;
}

Keys bucket_keys() {
  return {
      in_zero<&ZeroSection::reduce_bucket_size>(nullable(integer(
          "reduce_bucket_size", 1, "elements of the largest gradient bucket; not set: 25 MiB"))),
      in_zero(tuning(
          "allgather_bucket_size", "updated parameters are all-gathered in the gradient buckets")),
      ignored_flag("contiguous_gradients", "gradients are always in flat buckets"),
      ignored_flag("reduce_scatter", "from stage 1 on buckets are always reduce-scattered"),
      ignored_flag(
          "use_multi_rank_bucket_allreduce",
          "each rank owns an equal share of every bucket, from one reduce-scatter"),
      ignored_flag("allgather_partitions", "shares are always gathered by all-gather"),
      nullable(ignored_flag("overlap_comm", "buckets are always reduced during backward")),
      ignored_flag("round_robin_gradients", "every bucket is shared evenly"),
      ignored_flag("parameter_alignment", "the layout of buckets is fixed"),
      ignored_flag("legacy_stage1", "stage 1 has one implementation"),
      in_zero(tuning("sub_group_size", "the update works on one bucket at a time"))};
}

Keys state_keys() {
  return {
      zero_flag<&ZeroSection::compute_grad_norm>(
          "compute_grad_norm",
          "from stage 1 on, and with fp16 or bf16: get_global_grad_norm() also without clipping"),
      zero_flag<&ZeroSection::load_from_fp32_weights>(
          "load_from_fp32_weights",
          "false: the masters of 16-bit parameters are loaded from the rounded values"),
      ignored_flag("elastic_checkpoint", "any number of ranks can load every checkpoint"),
      zero_flag<&ZeroSection::ignore_unused_parameters>(
          "ignore_unused_parameters",
          "stages 1 and 2; false: a trained parameter without a gradient in an update is an error "
          "that names it"),
      ignored_flag("pipeline_loading_checkpoint", "each rank reads only its own shards"),
      ignored_flag(
          "enable_sanity_checks", "ranks always compare an operation before they start it")};
}

Keys offload_optimizer_keys() {
  using Section = OffloadOptimizerSection;
  constexpr auto kSection = &ZeroSection::offload_optimizer;
  const auto key = [](const char* name) { return std::string("offload_optimizer.") + name; };
  KeySpec cores = in_zero(ignored(
      key("cpuadam_cores_perc"),
      KeyKind::kNumber,
      "an update uses the threads that the launcher gave the rank"));
  cores.least = 0;
  cores.most = 1;
  return {
      in_zero<kSection, &Section::buffer_count>(integer(
          key("buffer_count"),
          1,
          "device nvme: buffers in memory, each for one field of a bucket's state")),
      in_zero<kSection, &Section::ratio>(
          {.path = key("ratio"),
           .kind = KeyKind::kNumber,
           .description = "part of the state that is offloaded, in complete buckets; more than 0",
           .least = 0,
           .most = 1}),
      zero_flag<kSection, &Section::pipeline_read>(
          key("pipeline_read"),
          "device nvme: read the next bucket during the update of another; not set: true"),
      zero_flag<kSection, &Section::pipeline_write>(
          key("pipeline_write"),
          "device nvme: write the last bucket during the update of another; not set: true"),
      ignored_flag(key("fast_init"), "state is created in its final place"),
      std::move(cores),
      zero_flag<kSection, &Section::super_offload>(
          key("super_offload"),
          "device cpu: updates begin during backward, on copies in the host's memory")};
}

Keys offload_param_keys() {
  const auto key = [](const char* name) { return std::string("offload_param.") + name; };
  const std::string why = "a bucket is read directly to its final place";
  return {
      in_zero(tuning(key("buffer_count"), why)),
      in_zero(tuning(key("buffer_size"), why)),
      in_zero<&ZeroSection::offload_param, &OffloadParamSection::max_in_cpu>(integer(
          key("max_in_cpu"), 0, "device nvme: elements of a rank's shard that stay in memory"))};
}

/// The keys that offload_optimizer and offload_param share. `Section` is the ZeroSection's member.
template <auto Section, typename Values>
Keys offload_target_keys(const std::string& name, const std::string& description) {
  return {
      in_zero(nullable(works(name, KeyKind::kSection, description))),
      in_zero<Section, &Values::device>(
          {.path = name + ".device",
           .kind = KeyKind::kChoice,
           .description = "the destination",
           .choices = {"none", "cpu", "nvme"},
           .auto_rule = AutoRule::kRefused}),
      in_zero<Section, &Values::nvme_path>(nullable(works(
          name + ".nvme_path", KeyKind::kText, "an existing folder; required with device nvme"))),
      zero_flag<Section, &Values::pin_memory>(
          name + ".pin_memory", "page-locked memory between a GPU and the host")};
}

Keys offload_keys() {
  Keys keys = offload_target_keys<&ZeroSection::offload_optimizer, OffloadOptimizerSection>(
      "offload_optimizer",
      "optimizer state off the device, and the update on the host; from stage 1 on");
  append(keys, offload_optimizer_keys());
  append(
      keys,
      offload_target_keys<&ZeroSection::offload_param, OffloadParamSection>(
          "offload_param",
          "each rank's shard of the parameters off the device; in stage 3; offload_optimizer is "
          "then "
          "cpu by default; for inference, without an optimizer"));
  append(keys, offload_param_keys());
  // Booleans that became sections.
  for (const auto& [name, section] :
       {std::pair("cpu_offload", "offload_optimizer"),
        std::pair("cpu_offload_param", "offload_param")}) {
    keys.push_back(nullable(zero_flag(
        name,
        std::string("true is the old form of \"") + section +
            "\": {\"device\": \"cpu\"}; an error together with that section")));
  }
  keys.push_back(nullable(ignored_flag(
      "cpu_offload_use_pin_memory",
      "an old name that DeepSpeed ignores, too; the sections have pin_memory")));
  return keys;
}

Keys stage3_keys() {
  Keys keys;
  // Most have two names in DeepSpeed.
  const auto with_other_name = [&](const KeySpec& spec) {
    const std::string bare = spec.path.substr(std::string("stage3_").size());
    keys.push_back(in_zero(spec));
    keys.push_back(in_zero(other_name(bare, spec.kind, spec.path)));
  };
  const auto number = [](const char* name, const char* description) {
    return integer(name, 0, description);
  };
  with_other_name(stored<&DsConfig::zero, &ZeroSection::prefetch_bucket_size>(number(
      "stage3_prefetch_bucket_size",
      "0: no prefetching; else the bucket that followed in the last step is unsharded early")));
  with_other_name(stored<&DsConfig::zero, &ZeroSection::param_persistence_threshold>(number(
      "stage3_param_persistence_threshold",
      "parameters of up to this many elements are not sharded")));
  with_other_name(stored<&DsConfig::zero, &ZeroSection::max_live_parameters>(number(
      "stage3_max_live_parameters",
      "unsharded elements at a time; not set: those of the three largest buckets")));
  with_other_name(stored<&DsConfig::zero, &ZeroSection::model_persistence_threshold>(number(
      "stage3_model_persistence_threshold",
      "elements that are not sharded in total, in the model's order; a parameter beyond this limit "
      "is sharded")));
  with_other_name(tuning(
      "stage3_max_reuse_distance", "the least recently used parameters are resharded first"));
  with_other_name(tuning(
      "stage3_module_granularity_threshold",
      "a bucket is unsharded as a unit, regardless of its modules"));
  for (const auto& [name, why] :
       {std::pair("stage3_use_all_reduce_for_fetch_params", "one all-gather fills a flat bucket"),
        std::pair("stage3_allgather_sequential", "a bucket is filled without a copy")}) {
    with_other_name(ignored(name, KeyKind::kBoolean, why));
  }
  const std::string gather = "stage3_gather_16bit_weights_on_model_save";
  keys.push_back(ignored_flag(
      gather,
      "save_16bit_model writes full weights in every stage, and needs the memory of one tensor"));
  for (const char* name :
       {"gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"}) {
    keys.push_back(in_zero(other_name(name, KeyKind::kBoolean, gather)));
  }
  const std::string any_module = "an operation unshards its parameters, regardless of their module";
  append(
      keys,
      {ignored_flag("memory_efficient_linear", "backward unshards its parameters again"),
       ignored_flag("override_module_apply", "no function of torch::nn::Module is replaced"),
       ignored_flag("log_trace_cache_warnings", "a wrong prefetch only costs time"),
       in_zero(ignored("leaf_module", KeyKind::kSection, any_module))});
  for (const char* name : {"classes", "names", "name_suffixes"}) {
    keys.push_back(
        in_zero(ignored(std::string("leaf_module.") + name, KeyKind::kTexts, any_module)));
  }
  return keys;
}

Keys plus_plus_keys() {
  return {
      zero_flag<&ZeroSection::quantized_weights>(
          "zero_quantized_weights", "ZeRO++: weights are sent in 8 bits"),
      in_zero<&ZeroSection::hpz_partition_size>(integer(
          "zero_hpz_partition_size",
          0,
          "ZeRO++: number of ranks that share a second copy of the weights")),
      zero_flag<&ZeroSection::quantized_gradients>(
          "zero_quantized_gradients", "ZeRO++: gradients are sent in 4 bits"),
      zero_flag<&ZeroSection::quantized_nontrainable_weights>(
          "zero_quantized_nontrainable_weights",
          "ZeRO++: frozen weights are stored and sent in 8 bits")};
}

}  // namespace

std::vector<KeySpec> zero_keys() {
  Keys keys = {
      works(
          "zero_optimization",
          KeyKind::kSection,
          "true is the old form of stage 1, false of stage 0"),
      in_zero<&ZeroSection::stage>(
          {.path = "stage",
           .kind = KeyKind::kInteger,
           .description = "0: data parallel; 1: shards the optimizer state; 2: also the gradients; "
                          "3: also the parameters",
           .least = 0,
           .most = 3,
           .auto_rule = AutoRule::kRefused,
           .may_be_quoted = true})};
  append(keys, bucket_keys());
  append(keys, state_keys());
  append(keys, offload_keys());
  append(keys, stage3_keys());
  append(keys, plus_plus_keys());
  // At the top level, beside zero_optimization: true.
  keys.push_back(tuning("allgather_size", "an old name of allgather_bucket_size"));
  return keys;
}

}  // namespace lockstep::ds_config
