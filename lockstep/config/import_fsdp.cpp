// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/import_fsdp.h"

#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/words.h"
#include "lockstep/config/import_section.h"

namespace lockstep::config {
namespace {

constexpr const char* kFsdpPrefix = "fsdp_config.";

/// What is for the program to ask for: a key, and what to say of it; unless it has the value.
struct ProgramsMatter {
  const char* key;
  const char* unless;
  const char* say;
};

constexpr ProgramsMatter kProgramsMatters[] = {
    {"fsdp_offload_params",
     "false",
     "is for the program to ask for, as FsdpPlugin::cpu_offload; without, nothing is moved out of "
     "the way"},
    {"fsdp_auto_wrap_policy",
     "no_wrap",
     "is for the program to ask for, as FsdpPlugin::auto_wrap_policy; without, parameters come in "
     "buckets of a sixteenth of the model, and the numbers are the same"},
    {"fsdp_backward_prefetch",
     "backward_pre",
     "is for the program to ask for, as FsdpPlugin::backward_prefetch; without, it is "
     "BACKWARD_PRE"},
    {"fsdp_state_dict_type",
     "sharded_state_dict",
     "is for the program to ask for, as FsdpPlugin::state_dict_type; without, it is "
     "SHARDED_STATE_DICT, which any number of processes loads"},
    {"fsdp_activation_checkpointing",
     "false",
     "is for the program: it calls activation_checkpoint(module, x)"},
    {"fsdp_activation_checkpointing_offload",
     "false",
     "is for the program: it opens an ActivationCheckpointing::Scope with cpu_checkpointing"}};

/// Always so here, or of no consequence.
constexpr const char* kWithoutMeaning[] = {
    "fsdp_transformer_layer_cls_to_wrap",
    "fsdp_min_num_params",
    "fsdp_forward_prefetch",
    "fsdp_use_orig_params",
    "fsdp_sync_module_states",
    "fsdp_cpu_ram_efficient_loading"};

std::vector<std::string> known_fsdp_keys() {
  std::vector<std::string> keys = {
      "fsdp_version", "fsdp_sharding_strategy", "fsdp_reshard_after_forward"};
  for (const ProgramsMatter& matter : kProgramsMatters) {
    keys.emplace_back(matter.key);
  }
  keys.insert(keys.end(), std::begin(kWithoutMeaning), std::end(kWithoutMeaning));
  return keys;
}

/// A strategy by its name, or by its number in torch.
std::optional<std::string> stage_of(const std::string& strategy) {
  static const std::map<std::string, std::string> stages = {
      {"full_shard", "3"},
      {"1", "3"},
      {"shard_grad_op", "2"},
      {"2", "2"},
      {"no_shard", "0"},
      {"3", "0"},
      {"hybrid_shard", "3"},
      {"4", "3"},
      {"hybrid_shard_zero2", "2"},
      {"_hybrid_shard_zero2", "2"},
      {"5", "2"}};
  const auto found = stages.find(lower(strategy));
  return found == stages.end() ? std::nullopt : std::optional(found->second);
}

void read_strategy(const Section& section, Import& import) {
  const bool second = section.text("fsdp_version").value_or("1") == "2";
  const char* key = "fsdp_sharding_strategy";
  if (!section.text(key)) {
    key = "fsdp_reshard_after_forward";
  }
  const std::string text = section.text(key).value_or(second ? "true" : "FULL_SHARD");
  std::optional<std::string> stage;
  if (second) {
    const auto reshards = truth_value(text);
    stage = reshards ? std::optional<std::string>(*reshards ? "3" : "2") : std::nullopt;
  } else {
    stage = stage_of(text);
  }
  if (!stage) {
    throw ConfigError(
        section.place_of(key),
        fmt::format(
            "{}{} makes no sense; got '{}', expected {}",
            kFsdpPrefix,
            key,
            text,
            second ? "true or false, as fsdp_version is 2"
                   : "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2"));
  }
  import.values.settings["zero_stage"] = *stage;
  import.notes.push_back(fmt::format(
      "{}{}: {}: became zero_stage: {}, for programs that do not say themselves",
      kFsdpPrefix,
      key,
      text,
      *stage));
  if (lower(text) == "hybrid_shard" || (!second && text == "4")) {
    import.notes.push_back(fmt::format(
        "{}{}: the second copy that processes of a host keep is for the program to ask for, as "
        "ShardingStrategy::kHybridShard; without, the numbers are the same",
        kFsdpPrefix,
        key));
  }
}

}  // namespace

void import_fsdp(const Document& file, const Node& map, Import& import) {
  const Section section(file, map, kFsdpPrefix);
  section.refuse_unknown(known_fsdp_keys());
  const auto version = section.text("fsdp_version");
  if (version && *version != "1" && *version != "2") {
    throw ConfigError(
        section.place_of("fsdp_version"),
        fmt::format(
            "{}fsdp_version makes no sense; got '{}', expected 1 or 2", kFsdpPrefix, *version));
  }
  read_strategy(section, import);
  for (const ProgramsMatter& matter : kProgramsMatters) {
    const auto text = section.text(matter.key);
    if (text && lower(*text) != matter.unless) {
      import.notes.push_back(
          fmt::format("{}{}: {}: {}", kFsdpPrefix, matter.key, *text, matter.say));
    }
  }
  for (const char* key : kWithoutMeaning) {
    if (section.text(key)) {
      import.without_meaning.push_back(std::string(kFsdpPrefix) + key);
    }
  }
}

}  // namespace lockstep::config
