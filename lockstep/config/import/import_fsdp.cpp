// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/import/import_fsdp.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/base/text/words.h"
#include "lockstep/config/document/scalars.h"
#include "lockstep/config/import/import_section.h"
#include "lockstep/zero_options/fsdp_table.h"

namespace lockstep::config {
namespace {

constexpr const char* kFsdpPrefix = "fsdp_config.";

std::string fsdp_capitals(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::toupper(c));
  });
  return text;
}

/// Returns the name of an option in messages.
std::string name_of(const fsdp::Option& option) {
  return fmt::format("{}{}", kFsdpPrefix, option.key);
}

[[noreturn]] void refuse_fsdp_value(
    const Section& section,
    const fsdp::Option& option,
    const std::string& got,
    const std::string& expected) {
  throw ConfigError(
      section.place_of(option.key),
      fmt::format("invalid value '{}' for {}; expected {}", got, name_of(option), expected));
}

/// Throws ConfigError for a value that is none of the option's words.
[[noreturn]] void refuse_fsdp_word(
    const Section& section, const fsdp::Option& option, const std::string& got) {
  std::vector<std::string> words;
  for (const fsdp::Word& word : option.words) {
    words.emplace_back(word.text);
  }
  refuse_fsdp_value(
      section,
      option,
      got,
      fmt::format("one of {}{}", fmt::join(words, ", "), did_you_mean(fsdp_capitals(got), words)));
}

/// Returns the value in its plain spelling: a word in lower case, true or false. Throws ConfigError
/// for another word.
std::optional<std::string> plain_value(const Section& section, const fsdp::Option& option) {
  auto text = section.text(option.key);
  if (text && option.type == fsdp::Type::kBoolean) {
    return section.truth(option.key) ? "true" : "false";
  }
  if (text && option.type == fsdp::Type::kWord) {
    const fsdp::Word* const word = fsdp::find_word(option, *text);
    if (word == nullptr) {
      refuse_fsdp_word(section, option, *text);
    }
    return lower(std::string(word->text));
  }
  return text;
}

std::vector<std::string> known_fsdp_keys() {
  std::vector<std::string> keys;
  for (const fsdp::Option& option : fsdp::kOptions) {
    keys.emplace_back(option.key);
  }
  return keys;
}

/// Returns the stage for an option. Throws ConfigError for an unknown word.
int stage_at(
    const Section& section, const fsdp::Option& option, const std::string& text, bool is_truth) {
  if (is_truth) {
    if (const auto reshards = truth_value(text)) {
      return *reshards ? 3 : 2;
    }
    refuse_fsdp_value(section, option, text, "true or false, as fsdp_version is 2");
  }
  // The name of torch's enum, which Accelerate's questionnaire does not write, is a word, too.
  const bool is_torch_name = lower(text) == "_hybrid_shard_zero2";
  const fsdp::Word* const word = fsdp::find_word(option, is_torch_name ? text.substr(1) : text);
  if (word == nullptr) {
    refuse_fsdp_word(section, option, text);
  }
  return fsdp::stage_of(static_cast<ShardingStrategy>(word->value));
}

/// Imports the strategy as Accelerate: fsdp_version 2 uses fsdp_reshard_after_forward only, version
/// 1 the strategy if present. The word of the other key is checked, too.
void read_strategy(const Section& section, Import& import) {
  const bool is_version_2 = section.text(fsdp::kVersion.key).value_or("1") == "2";
  const auto strategy = section.text(fsdp::kShardingStrategy.key);
  const auto reshard = section.text(fsdp::kReshardAfterForward.key);
  const bool uses_reshard = is_version_2 || (!strategy && reshard);
  const fsdp::Option& used = uses_reshard ? fsdp::kReshardAfterForward : fsdp::kShardingStrategy;
  const std::string text =
      (uses_reshard ? reshard : strategy).value_or(is_version_2 ? "true" : "FULL_SHARD");
  const int stage = stage_at(section, used, text, is_version_2);
  if (const auto& unused_text = uses_reshard ? strategy : reshard) {
    const fsdp::Option& unused =
        uses_reshard ? fsdp::kShardingStrategy : fsdp::kReshardAfterForward;
    const bool is_truth = !uses_reshard && truth_value(*unused_text).has_value();
    stage_at(section, unused, *unused_text, is_truth);
    import.without_meaning.push_back(name_of(unused));
  }
  import.values.settings["zero_stage"] = std::to_string(stage);
  import.notes.push_back(fmt::format(
      "{}: {}: imported as zero_stage: {}, for programs that do not set it",
      name_of(used),
      text,
      stage));
  if (lower(text) == "hybrid_shard" || (!is_version_2 && text == "4")) {
    import.notes.push_back(fmt::format(
        "{}: to keep a copy of the parameters on each host (HSDP), set "
        "ShardingStrategy::kHybridShard in the program; results are the same without it",
        name_of(used)));
  }
}

/// Refuses the combinations that Accelerate refuses.
void check_combinations(const Section& section) {
  const fsdp::Option& offload = fsdp::kActivationOffload;
  if (section.truth(offload.key) && !(section.truth(fsdp::kActivationCheckpointing.key) &&
                                      section.text(fsdp::kVersion.key) == "2")) {
    refuse_fsdp_value(
        section,
        offload,
        "true",
        "false, unless fsdp_activation_checkpointing is true and fsdp_version is 2");
  }
  const fsdp::Option& least = fsdp::kMinNumParams;
  if (const auto text = section.text(least.key); text && !integer_value(*text)) {
    refuse_fsdp_value(section, least, *text, "a whole number" + number_hint(*text, 0, 1e15));
  }
}

/// Throws ConfigError for an option that the table refuses.
void refuse_options(const Section& section) {
  for (const fsdp::Option& option : fsdp::kOptions) {
    if (!option.is_refused()) {
      continue;
    }
    if (const auto got = section.text(option.key)) {
      throw ConfigError(
          section.place_of(option.key),
          fmt::format(
              "{}: {} cannot be imported; {}; {}, and delete the key",
              name_of(option),
              *got,
              option.refusal,
              option.instead));
    }
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
  refuse_options(section);
  const auto version = section.text(fsdp::kVersion.key);
  if (version && *version != "1" && *version != "2") {
    refuse_fsdp_value(section, fsdp::kVersion, *version, "1 or 2");
  }
  read_strategy(section, import);
  for (const fsdp::Option& option : fsdp::kOptions) {
    if (option.import_note.empty()) {
      continue;
    }
    const auto value = plain_value(section, option);
    if (value && *value != option.silent_value) {
      import.notes.push_back(fmt::format(
          "{}: {}: not imported; {}",
          name_of(option),
          *section.text(option.key),
          option.import_note));
    }
  }
  check_combinations(section);
  for (const fsdp::Option& option : fsdp::kOptions) {
    const bool is_ignored = option.import_note.empty() && !option.sets_stage;
    if (is_ignored && plain_value(section, option)) {
      import.without_meaning.push_back(name_of(option));
    }
  }
}

}  // namespace lockstep::config
