// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/options/fsdp_environment.h"

#include <limits>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/base/text/words.h"
#include "lockstep/zero_options/fsdp_table.h"

namespace lockstep::internal {
namespace {

std::optional<std::string> text_of(const Environment& environment, const fsdp::Option& option) {
  return environment.text(option.variable);
}

std::optional<bool> truth_of(const Environment& environment, const fsdp::Option& option) {
  return environment.boolean(option.variable);
}

std::optional<int64_t> integer_of(
    const Environment& environment, const fsdp::Option& option, int64_t min, int64_t max) {
  return environment.integer(option.variable, min, max);
}

/// Returns the word in the option's variable; null if it is not set. Throws ConfigError for another
/// word.
const fsdp::Word* word_in(const Environment& environment, const fsdp::Option& option) {
  const auto text = text_of(environment, option);
  if (!text) {
    return nullptr;
  }
  const fsdp::Word* const word = fsdp::find_word(option, *text);
  if (word != nullptr) {
    return word;
  }
  std::vector<std::string> known;
  for (const fsdp::Word& accepted : option.words) {
    known.push_back(lower(std::string(accepted.text)));
  }
  for (size_t i = 0; i < option.numbers; ++i) {
    known.push_back(std::to_string(i + 1));
  }
  throw ConfigError(
      option.variable,
      fmt::format(
          "has an unknown value; got '{}', expected one of {}, in any case{}",
          *text,
          fmt::join(known, ", "),
          did_you_mean(lower(*text), known)));
}

/// Sets `member` to the value of the word in the option's variable, if that is set.
template <typename Value>
void read_word(const Environment& environment, const fsdp::Option& option, Value& member) {
  if (const fsdp::Word* const word = word_in(environment, option)) {
    member = static_cast<Value>(word->value);
  }
}

/// Returns the line of a variable that is set and not used.
std::string not_used(const fsdp::Option& option, std::string_view reason) {
  return fmt::format("{}: {}", option.variable, reason);
}

/// Reads the strategy as Accelerate does: FSDP 2 uses FSDP_RESHARD_AFTER_FORWARD, FSDP 1 the
/// strategy if it is set.
void read_sharding(const Environment& environment, FsdpEnvironment& found) {
  const fsdp::Option& strategy = fsdp::kShardingStrategy;
  const fsdp::Option& reshard = fsdp::kReshardAfterForward;
  FsdpPlugin& plugin = *found.plugin;
  const bool by_strategy = word_in(environment, strategy) != nullptr;
  if (integer_of(environment, fsdp::kVersion, 1, 2).value_or(1) == 2) {
    plugin.reshard_after_forward = truth_of(environment, reshard).value_or(true);
    if (by_strategy) {
      found.not_used.push_back(
          not_used(strategy, fmt::format("FSDP_VERSION 2 uses {}", reshard.variable)));
    }
    return;
  }
  read_word(environment, by_strategy ? strategy : reshard, plugin.sharding_strategy);
  if (by_strategy && text_of(environment, reshard)) {
    found.not_used.push_back(
        not_used(reshard, fmt::format("FSDP_VERSION 1 uses {}", strategy.variable)));
  }
}

void read_wrapping(const Environment& environment, FsdpEnvironment& found) {
  const fsdp::Option& policy = fsdp::kAutoWrapPolicy;
  FsdpPlugin& plugin = *found.plugin;
  read_word(environment, policy, plugin.auto_wrap_policy);
  const bool replicated = fsdp::stage_of(plugin.sharding_strategy) == 0;
  if (replicated && plugin.auto_wrap_policy != AutoWrapPolicy::kNone) {
    found.not_used.push_back(not_used(policy, "NO_SHARD shards nothing"));
    plugin.auto_wrap_policy = AutoWrapPolicy::kNone;
  }
  const auto elements =
      integer_of(environment, fsdp::kMinNumParams, 0, std::numeric_limits<int64_t>::max());
  const auto names = text_of(environment, fsdp::kLayerClasses);
  if (plugin.auto_wrap_policy == AutoWrapPolicy::kSize) {
    plugin.min_num_params = elements.value_or(plugin.min_num_params);
  } else if (elements) {
    found.not_used.push_back(not_used(fsdp::kMinNumParams, "only SIZE_BASED_WRAP uses it"));
  }
  if (plugin.auto_wrap_policy != AutoWrapPolicy::kTransformer) {
    if (names) {
      found.not_used.push_back(
          not_used(fsdp::kLayerClasses, "only TRANSFORMER_BASED_WRAP uses it"));
    }
  } else if (names) {
    plugin.transformer_layer_cls_to_wrap = split(*names, ',');
  } else {
    found.not_used.push_back(not_used(
        policy, fmt::format("TRANSFORMER_BASED_WRAP needs {}", fsdp::kLayerClasses.variable)));
    plugin.auto_wrap_policy = AutoWrapPolicy::kNone;
  }
}

void read_prefetch(const Environment& environment, FsdpEnvironment& found) {
  const fsdp::Option& prefetch = fsdp::kBackwardPrefetch;
  read_word(environment, prefetch, found.plugin->backward_prefetch);
  const fsdp::Word* const word = word_in(environment, prefetch);
  if (word != nullptr && word->text == "BACKWARD_POST") {
    found.not_used.push_back(
        not_used(prefetch, "BACKWARD_POST runs as BACKWARD_PRE, with the same results"));
  }
}

void refuse_options(const Environment& environment) {
  for (const fsdp::Option& option : fsdp::kOptions) {
    const auto text = text_of(environment, option);
    if (text && option.is_refused()) {
      throw ConfigError(
          option.variable,
          fmt::format(
              "is not supported: {}; got '{}', expected it unset; {}",
              option.refusal,
              *text,
              option.instead));
    }
  }
}

/// Lists set variables that the program controls, then those that are always true.
void list_without_effect(const Environment& environment, FsdpEnvironment& found) {
  for (const bool noted : {true, false}) {
    for (const fsdp::Option& option : fsdp::kOptions) {
      if (!option.variable_note.empty() && option.noted == noted &&
          truth_of(environment, option) == noted) {
        found.not_used.push_back(not_used(option, option.variable_note));
      }
    }
  }
}

}  // namespace

FsdpEnvironment read_fsdp_environment(const Environment& environment) {
  FsdpEnvironment found;
  if (!environment.boolean("ACCELERATE_USE_FSDP").value_or(false)) {
    for (const fsdp::Option& option : {fsdp::kShardingStrategy, fsdp::kReshardAfterForward}) {
      if (text_of(environment, option)) {
        found.not_used.push_back(not_used(option, "ACCELERATE_USE_FSDP is not true"));
      }
    }
    return found;
  }
  FsdpPlugin& plugin = found.plugin.emplace();
  refuse_options(environment);
  read_sharding(environment, found);
  read_wrapping(environment, found);
  plugin.cpu_offload = truth_of(environment, fsdp::kOffloadParams).value_or(false);
  read_prefetch(environment, found);
  read_word(environment, fsdp::kStateDictType, plugin.state_dict_type);
  list_without_effect(environment, found);
  return found;
}

}  // namespace lockstep::internal
