// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/enum_words.h"
#include "lockstep/base/error.h"
#include "lockstep/ds_config/keys/key_specs.h"
#include "lockstep/zero_options/zero_rows.h"

namespace lockstep::ds_config {
namespace {

using Keys = std::vector<KeySpec>;

void append(Keys& keys, Keys more) {
  keys.insert(
      keys.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// The type of an option's value, without std::optional.
template <typename Value>
struct Plain {
  using Type = Value;
};
template <typename Value>
struct Plain<std::optional<Value>> {
  using Type = Value;
};

/// The kind of a key with values of this type.
template <typename Value>
constexpr KeyKind kKindOf = std::is_same_v<Value, bool>                       ? KeyKind::kBoolean
                            : std::is_same_v<Value, int64_t>                  ? KeyKind::kInteger
                            : std::is_same_v<Value, double>                   ? KeyKind::kNumber
                            : std::is_same_v<Value, std::vector<std::string>> ? KeyKind::kTexts
                            : std::is_enum_v<Value>                           ? KeyKind::kChoice
                                                                              : KeyKind::kText;

/// A function that gives the value and origin of a key, see FieldOf.
template <typename Value>
using ReadField = FieldRef<Value> (*)(DsConfig&, const std::string&);

/// Adds the key of an option of Lockstep's ZeRO that ds_config.json has, too.
template <auto... Path>
void add_option(const ZeroRow<Path...>& row, Keys& keys) {
  using Row = ZeroRow<Path...>;
  using Value = std::remove_reference_t<decltype(Row::in(std::declval<ZeroPlugin&>()))>;
  // Options of Lockstep alone may have other types.
  if constexpr (std::is_constructible_v<FieldOf, ReadField<Value>>) {
    if (row.ds_key == nullptr) {
      return;
    }
    using PlainValue = typename Plain<Value>::Type;
    KeySpec& spec = keys.emplace_back(
        KeySpec{.path = row.name, .kind = kKindOf<PlainValue>, .description = row.ds_key});
    spec.choices.assign(kWordsOf<PlainValue>.begin(), kWordsOf<PlainValue>.end());
    if (const ZeroRange* const range = row.rule.range) {
      spec.least = static_cast<double>(range->min);
      spec.most = range->max == ZeroRange::kNoMax ? spec.most : static_cast<double>(range->max);
    }
    spec.field = ReadField<Value>([](DsConfig& config, const std::string& path) {
      return FieldRef<Value>{Row::in(config.zero.plugin), config.zero.origins[path]};
    });
  } else {
    LOCKSTEP_ASSERT(row.ds_key == nullptr, "FieldOf has no such type");
  }
}

/// Returns the keys of all options of Lockstep's ZeRO.
const Keys& option_keys() {
  static const Keys keys = [] {
    Keys added;
    visit_zero_rows([&](const auto& row) { add_option(row, added); });
    return added;
  }();
  return keys;
}

/// Returns the key of one option.
KeySpec option(const std::string& name) {
  const auto found = std::ranges::find(option_keys(), name, &KeySpec::path);
  LOCKSTEP_ASSERT(found != option_keys().end(), "zero_rows.h has the option, with a ds_key");
  return *found;
}

/// Creates a boolean key without effect.
KeySpec ignored_flag(std::string name, std::string why) {
  return ignored(std::move(name), KeyKind::kBoolean, std::move(why));
}

/// Creates an ignored whole number.
KeySpec tuning(const std::string& path, const std::string& why) {
  KeySpec spec = ignored(path, KeyKind::kInteger, why);
  spec.least = 0;
  return spec;
}

Keys bucket_keys() {
  return {
      nullable(option("reduce_bucket_size")),
      tuning(
          "allgather_bucket_size", "updated parameters are all-gathered in the gradient buckets"),
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
      tuning("sub_group_size", "the update works on one bucket at a time")};
}

Keys state_keys() {
  return {
      stored<&DsConfig::zero, &ZeroSection::compute_grad_norm>(works(
          "compute_grad_norm",
          KeyKind::kBoolean,
          "from stage 1 on, and with fp16 or bf16: get_global_grad_norm() also without clipping")),
      option("load_from_fp32_weights"),
      ignored_flag("elastic_checkpoint", "any number of ranks can load every checkpoint"),
      stored<&DsConfig::zero, &ZeroSection::ignore_unused_parameters>(works(
          "ignore_unused_parameters",
          KeyKind::kBoolean,
          "stages 1 and 2; false: a trained parameter without a gradient in an update is an error "
          "that names it")),
      ignored_flag("pipeline_loading_checkpoint", "each rank reads only its own shards"),
      ignored_flag(
          "enable_sanity_checks", "ranks always compare an operation before they start it")};
}

/// The keys that offload_optimizer and offload_param share.
Keys offload_target_keys(const std::string& section, const std::string& description) {
  return {
      nullable(works(section, KeyKind::kSection, description)),
      no_auto(option(section + ".device")),
      nullable(option(section + ".nvme_path")),
      option(section + ".pin_memory")};
}

Keys offload_optimizer_keys() {
  Keys keys = offload_target_keys(
      "offload_optimizer",
      "optimizer state off the device, and the update on the host; from stage 1 on");
  KeySpec cores = ignored(
      "offload_optimizer.cpuadam_cores_perc",
      KeyKind::kNumber,
      "an update uses the threads that the launcher gave the rank");
  cores.least = 0;
  cores.most = 1;
  append(
      keys,
      {option("offload_optimizer.buffer_count"),
       option("offload_optimizer.ratio"),
       option("offload_optimizer.pipeline_read"),
       option("offload_optimizer.pipeline_write"),
       ignored_flag("offload_optimizer.fast_init", "state is created in its final place"),
       std::move(cores),
       option("offload_optimizer.super_offload")});
  return keys;
}

Keys offload_param_keys() {
  Keys keys = offload_target_keys(
      "offload_param",
      "each rank's shard of the parameters off the device; in stage 3; offload_optimizer is then "
      "cpu by default; for inference, without an optimizer");
  const std::string why = "a bucket is read directly to its final place";
  append(
      keys,
      {tuning("offload_param.buffer_count", why),
       tuning("offload_param.buffer_size", why),
       option("offload_param.max_in_cpu")});
  return keys;
}

/// Booleans that became sections.
Keys old_offload_keys() {
  Keys keys;
  for (const auto& [name, section] :
       {std::pair("cpu_offload", "offload_optimizer"),
        std::pair("cpu_offload_param", "offload_param")}) {
    keys.push_back(nullable(works(
        name,
        KeyKind::kBoolean,
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
    keys.push_back(spec);
    keys.push_back(other_name(bare, spec.kind, spec.path));
  };
  with_other_name(stored<&DsConfig::zero, &ZeroSection::prefetch_bucket_size>(integer(
      "stage3_prefetch_bucket_size",
      0,
      "0: no prefetching; else the bucket that followed in the last step is unsharded early")));
  with_other_name(option("stage3_param_persistence_threshold"));
  with_other_name(option("stage3_max_live_parameters"));
  with_other_name(option("stage3_model_persistence_threshold"));
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
    keys.push_back(other_name(name, KeyKind::kBoolean, gather));
  }
  const std::string any_module = "an operation unshards its parameters, regardless of their module";
  append(
      keys,
      {ignored_flag("memory_efficient_linear", "backward unshards its parameters again"),
       ignored_flag("override_module_apply", "no function of torch::nn::Module is replaced"),
       ignored_flag("log_trace_cache_warnings", "a wrong prefetch only costs time"),
       ignored("leaf_module", KeyKind::kSection, any_module)});
  for (const char* name : {"classes", "names", "name_suffixes"}) {
    keys.push_back(ignored(std::string("leaf_module.") + name, KeyKind::kTexts, any_module));
  }
  return keys;
}

KeySpec stage_key() {
  KeySpec stage = no_auto(option("stage"));
  stage.least = 0;
  stage.may_be_quoted = true;
  return stage;
}

}  // namespace

std::vector<KeySpec> zero_keys() {
  Keys keys = {stage_key()};
  for (const auto part :
       {bucket_keys,
        state_keys,
        offload_optimizer_keys,
        offload_param_keys,
        old_offload_keys,
        stage3_keys}) {
    append(keys, part());
  }
  // In the order of the file's documentation.
  append(keys, {option("zero_quantized_weights"), option("zero_hpz_partition_size")});
  for (const KeySpec& other : option_keys()) {
    if (std::ranges::find(keys, other.path, &KeySpec::path) == keys.end()) {
      keys.push_back(other);
    }
  }
  const std::string section = "zero_optimization";
  for (KeySpec& spec : keys) {
    spec.path = section + "." + spec.path;
    if (!spec.successor.empty()) {
      spec.successor = section + "." + spec.successor;
    }
  }
  keys.insert(
      keys.begin(),
      works(section, KeyKind::kSection, "true is the old form of stage 1, false of stage 0"));
  // At the top level, beside zero_optimization: true.
  keys.push_back(tuning("allgather_size", "an old name of allgather_bucket_size"));
  return keys;
}

}  // namespace lockstep::ds_config
