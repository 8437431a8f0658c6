// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/import/import_fsdp.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/base/text/words.h"
#include "lockstep/config/document/scalars.h"
#include "lockstep/config/import/import_section.h"

namespace lockstep::config {
namespace {

constexpr const char* kFsdpPrefix = "fsdp_config.";

/// A key that the program must set itself, with its note; no note for the value `unless`.
struct ProgramKey {
  const char* key;
  const char* unless;
  const char* note;
};

constexpr ProgramKey kProgramKeys[] = {
    {"fsdp_offload_params",
     "false",
     "not imported; set FsdpPlugin::cpu_offload in the program; by default nothing is offloaded"},
    {"fsdp_auto_wrap_policy",
     "no_wrap",
     "not imported; set FsdpPlugin::auto_wrap_policy in the program; by default a bucket has a "
     "sixteenth of the model; results are the same"},
    {"fsdp_backward_prefetch",
     "backward_pre",
     "not imported; set FsdpPlugin::backward_prefetch in the program; the default is BACKWARD_PRE"},
    {"fsdp_state_dict_type",
     "sharded_state_dict",
     "not imported; set FsdpPlugin::state_dict_type in the program; the default is "
     "SHARDED_STATE_DICT, which any number of processes can load"},
    {"fsdp_activation_checkpointing",
     "false",
     "not imported; call activation_checkpoint(module, x) in the program"},
    {"fsdp_activation_checkpointing_offload",
     "false",
     "not imported; open an ActivationCheckpointing::Scope with cpu_checkpointing in the program"}};

/// Keys that always apply, or have no effect.
constexpr const char* kIgnoredKeys[] = {
    "fsdp_transformer_layer_cls_to_wrap",
    "fsdp_min_num_params",
    "fsdp_forward_prefetch",
    "fsdp_use_orig_params",
    "fsdp_sync_module_states",
    "fsdp_cpu_ram_efficient_loading"};

constexpr const char* kBooleanKeys[] = {
    "fsdp_offload_params",
    "fsdp_activation_checkpointing",
    "fsdp_activation_checkpointing_offload",
    "fsdp_forward_prefetch",
    "fsdp_use_orig_params",
    "fsdp_sync_module_states",
    "fsdp_cpu_ram_efficient_loading"};

std::string fsdp_capitals(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::toupper(c));
  });
  return text;
}

/// The accepted words of a key, in any case; the first `numbers` have torch's numbers, too.
struct FsdpWords {
  const char* key;
  size_t numbers;
  std::vector<std::string> words;
};

const std::vector<FsdpWords>& fsdp_words() {
  static const std::vector<FsdpWords> all = {
      {"fsdp_auto_wrap_policy", 0, {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"}},
      {"fsdp_backward_prefetch", 2, {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}},
      {"fsdp_state_dict_type", 3, {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}}};
  return all;
}

[[noreturn]] void refuse_fsdp_value(
    const Section& section, const char* key, const std::string& got, const std::string& expected) {
  throw ConfigError(
      section.place_of(key),
      fmt::format("invalid value '{}' for {}{}; expected {}", got, kFsdpPrefix, key, expected));
}

/// Returns the value in its plain spelling: a word in lower case, true or false. Throws ConfigError
/// for another word.
std::optional<std::string> plain_value(const Section& section, const char* key) {
  auto text = section.text(key);
  if (!text) {
    return std::nullopt;
  }
  if (std::find(std::begin(kBooleanKeys), std::end(kBooleanKeys), std::string_view(key)) !=
      std::end(kBooleanKeys)) {
    return section.truth(key) ? "true" : "false";
  }
  for (const FsdpWords& accepted : fsdp_words()) {
    if (std::string_view(key) != accepted.key) {
      continue;
    }
    for (size_t i = 0; i < accepted.words.size(); ++i) {
      const bool is_number = i < accepted.numbers && *text == std::to_string(i + 1);
      if (is_number || lower(*text) == lower(accepted.words[i])) {
        return lower(accepted.words[i]);
      }
    }
    refuse_fsdp_value(
        section,
        key,
        *text,
        fmt::format(
            "one of {}{}",
            fmt::join(accepted.words, ", "),
            did_you_mean(fsdp_capitals(*text), accepted.words)));
  }
  return text;
}

std::vector<std::string> known_fsdp_keys() {
  std::vector<std::string> keys = {
      "fsdp_version",
      "fsdp_sharding_strategy",
      "fsdp_reshard_after_forward",
      "fsdp_ignored_modules"};
  for (const ProgramKey& program : kProgramKeys) {
    keys.emplace_back(program.key);
  }
  keys.insert(keys.end(), std::begin(kIgnoredKeys), std::end(kIgnoredKeys));
  return keys;
}

/// Returns the stage of a strategy, given by its name or its number in torch.
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

constexpr const char* kStrategy = "fsdp_sharding_strategy";
constexpr const char* kReshard = "fsdp_reshard_after_forward";

/// Returns the stage for `key`. Throws ConfigError for an unknown word.
std::string stage_at(
    const Section& section, const char* key, const std::string& text, bool is_truth) {
  if (is_truth) {
    if (const auto reshards = truth_value(text)) {
      return *reshards ? "3" : "2";
    }
    refuse_fsdp_value(section, key, text, "true or false, as fsdp_version is 2");
  }
  if (const auto stage = stage_of(text)) {
    return *stage;
  }
  const std::vector<std::string> known = {
      "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
  refuse_fsdp_value(
      section,
      key,
      text,
      fmt::format("one of {}{}", fmt::join(known, ", "), did_you_mean(fsdp_capitals(text), known)));
}

/// Imports the strategy as Accelerate: fsdp_version 2 uses fsdp_reshard_after_forward only, version
/// 1 the strategy if present. The word of the other key is checked, too.
void read_strategy(const Section& section, Import& import) {
  const bool is_version_2 = section.text("fsdp_version").value_or("1") == "2";
  const auto strategy = section.text(kStrategy);
  const auto reshard = section.text(kReshard);
  const char* const key = is_version_2 || (!strategy && reshard) ? kReshard : kStrategy;
  const std::string text =
      (key == kReshard ? reshard : strategy).value_or(is_version_2 ? "true" : "FULL_SHARD");
  const std::string stage = stage_at(section, key, text, is_version_2);
  const auto& unused = key == kReshard ? strategy : reshard;
  const char* const unused_key = key == kReshard ? kStrategy : kReshard;
  if (unused) {
    stage_at(
        section, unused_key, *unused, unused_key == kReshard && truth_value(*unused).has_value());
    import.without_meaning.push_back(std::string(kFsdpPrefix) + unused_key);
  }
  import.values.settings["zero_stage"] = stage;
  import.notes.push_back(fmt::format(
      "{}{}: {}: imported as zero_stage: {}, for programs that do not set it",
      kFsdpPrefix,
      key,
      text,
      stage));
  if (lower(text) == "hybrid_shard" || (!is_version_2 && text == "4")) {
    import.notes.push_back(fmt::format(
        "{}{}: to keep a copy of the parameters on each host (HSDP), set "
        "ShardingStrategy::kHybridShard in the program; results are the same without it",
        kFsdpPrefix,
        key));
  }
}

/// Refuses the combinations that Accelerate refuses.
void check_combinations(const Section& section) {
  const char* const offload = "fsdp_activation_checkpointing_offload";
  if (section.truth(offload) &&
      !(section.truth("fsdp_activation_checkpointing") && section.text("fsdp_version") == "2")) {
    refuse_fsdp_value(
        section,
        offload,
        "true",
        "false, unless fsdp_activation_checkpointing is true and fsdp_version is 2");
  }
  const char* const least = "fsdp_min_num_params";
  if (const auto text = section.text(least); text && !integer_value(*text)) {
    refuse_fsdp_value(section, least, *text, "a whole number" + number_hint(*text, 0, 1e15));
  }
}

/// Adds `fsdp_` to keys without it, as Accelerate does. Throws ConfigError if a key has both forms.
Node with_prefixes(const Document& file, const Node& map) {
  Node prefixed = map;
  const std::vector<std::string> known = known_fsdp_keys();
  for (Entry& entry : prefixed.entries) {
    const std::string name = "fsdp_" + entry.key;
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      continue;
    }
    if (map.find(name) != nullptr) {
      throw ConfigError(
          where(file, entry.place),
          fmt::format(
              "{0}{1} is another name of {0}{2}; both are given; remove one",
              kFsdpPrefix,
              entry.key,
              name));
    }
    entry.key = name;
  }
  return prefixed;
}

}  // namespace

void import_fsdp(const Document& file, const Node& map, Import& import) {
  const Node prefixed = with_prefixes(file, map);
  const Section section(file, prefixed, kFsdpPrefix);
  section.refuse_unknown(known_fsdp_keys());
  if (const auto ignored = section.text("fsdp_ignored_modules")) {
    throw ConfigError(
        section.place_of("fsdp_ignored_modules"),
        fmt::format(
            "{}fsdp_ignored_modules: {} cannot be imported; every parameter of a prepared model is "
            "sharded and averaged; prepare a model without these modules, and delete the key",
            kFsdpPrefix,
            *ignored));
  }
  const auto version = section.text("fsdp_version");
  if (version && *version != "1" && *version != "2") {
    throw ConfigError(
        section.place_of("fsdp_version"),
        fmt::format(
            "invalid value '{}' for {}fsdp_version; expected 1 or 2", *version, kFsdpPrefix));
  }
  read_strategy(section, import);
  for (const ProgramKey& program : kProgramKeys) {
    const auto value = plain_value(section, program.key);
    if (value && *value != program.unless) {
      import.notes.push_back(fmt::format(
          "{}{}: {}: {}", kFsdpPrefix, program.key, *section.text(program.key), program.note));
    }
  }
  check_combinations(section);
  for (const char* key : kIgnoredKeys) {
    if (plain_value(section, key)) {
      import.without_meaning.push_back(std::string(kFsdpPrefix) + key);
    }
  }
}

}  // namespace lockstep::config
