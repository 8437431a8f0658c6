// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/options/fsdp_environment.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/base/text/words.h"

namespace lockstep {
namespace {

template <typename Value>
using FsdpWordList = std::vector<std::pair<std::string, Value>>;

/// Returns the value of the word in the variable `name`, in any case; nothing if it is not set.
template <typename Value>
std::optional<Value> word_in(
    const Environment& environment, const char* name, const FsdpWordList<Value>& words) {
  const auto text = environment.text(name);
  if (!text) {
    return std::nullopt;
  }
  std::vector<std::string> known;
  for (const auto& [word, value] : words) {
    if (lower(*text) == word) {
      return value;
    }
    known.push_back(word);
  }
  std::string expected;
  for (const std::string& word : known) {
    expected += (expected.empty() ? "" : ", ") + word;
  }
  throw ConfigError(
      name,
      fmt::format(
          "has an unknown value; got '{}', expected one of {}, in any case{}",
          *text,
          expected,
          did_you_mean(lower(*text), known)));
}

const FsdpWordList<ShardingStrategy>& strategy_words() {
  static const FsdpWordList<ShardingStrategy> words = {
      {"full_shard", ShardingStrategy::kFullShard},
      {"shard_grad_op", ShardingStrategy::kShardGradOp},
      {"no_shard", ShardingStrategy::kNoShard},
      {"hybrid_shard", ShardingStrategy::kHybridShard},
      {"hybrid_shard_zero2", ShardingStrategy::kHybridShardZero2},
      {"1", ShardingStrategy::kFullShard},
      {"2", ShardingStrategy::kShardGradOp},
      {"3", ShardingStrategy::kNoShard},
      {"4", ShardingStrategy::kHybridShard},
      {"5", ShardingStrategy::kHybridShardZero2}};
  return words;
}

/// Reads the strategy as Accelerate does: FSDP 2 uses FSDP_RESHARD_AFTER_FORWARD, FSDP 1 the
/// strategy if it is set.
void read_sharding(const Environment& environment, FsdpEnvironment& found) {
  FsdpPlugin& plugin = *found.plugin;
  const char* const strategy = "FSDP_SHARDING_STRATEGY";
  const char* const reshard = "FSDP_RESHARD_AFTER_FORWARD";
  const auto by_strategy = word_in(environment, strategy, strategy_words());
  if (environment.integer("FSDP_VERSION", 1, 2).value_or(1) == 2) {
    plugin.reshard_after_forward = environment.boolean(reshard).value_or(true);
    if (by_strategy) {
      found.not_used.push_back(fmt::format("{}: FSDP_VERSION 2 uses {}", strategy, reshard));
    }
    return;
  }
  if (by_strategy) {
    plugin.sharding_strategy = *by_strategy;
    if (environment.text(reshard)) {
      found.not_used.push_back(fmt::format("{}: FSDP_VERSION 1 uses {}", reshard, strategy));
    }
    return;
  }
  plugin.sharding_strategy =
      word_in(environment, reshard, strategy_words()).value_or(plugin.sharding_strategy);
}

void read_wrapping(const Environment& environment, FsdpEnvironment& found) {
  FsdpPlugin& plugin = *found.plugin;
  const char* const policy = "FSDP_AUTO_WRAP_POLICY";
  const char* const least = "FSDP_MIN_NUM_PARAMS";
  const char* const classes = "FSDP_TRANSFORMER_CLS_TO_WRAP";
  plugin.auto_wrap_policy = word_in<AutoWrapPolicy>(
                                environment,
                                policy,
                                {{"transformer_based_wrap", AutoWrapPolicy::kTransformer},
                                 {"size_based_wrap", AutoWrapPolicy::kSize},
                                 {"no_wrap", AutoWrapPolicy::kNone}})
                                .value_or(AutoWrapPolicy::kNone);
  const bool replicated = plugin.sharding_strategy == ShardingStrategy::kNoShard;
  if (replicated && plugin.auto_wrap_policy != AutoWrapPolicy::kNone) {
    found.not_used.push_back(fmt::format("{}: NO_SHARD shards nothing", policy));
    plugin.auto_wrap_policy = AutoWrapPolicy::kNone;
  }
  const auto elements = environment.integer(least, 0, std::numeric_limits<int64_t>::max());
  const auto names = environment.text(classes);
  if (plugin.auto_wrap_policy == AutoWrapPolicy::kSize) {
    plugin.min_num_params = elements.value_or(plugin.min_num_params);
  } else if (elements) {
    found.not_used.push_back(fmt::format("{}: only SIZE_BASED_WRAP uses it", least));
  }
  if (plugin.auto_wrap_policy != AutoWrapPolicy::kTransformer) {
    if (names) {
      found.not_used.push_back(fmt::format("{}: only TRANSFORMER_BASED_WRAP uses it", classes));
    }
  } else if (names) {
    plugin.transformer_layer_cls_to_wrap = split(*names, ',');
  } else {
    found.not_used.push_back(fmt::format("{}: TRANSFORMER_BASED_WRAP needs {}", policy, classes));
    plugin.auto_wrap_policy = AutoWrapPolicy::kNone;
  }
}

void refuse_ignored_modules(const Environment& environment) {
  const char* const name = "FSDP_IGNORED_MODULES";
  if (const auto text = environment.text(name)) {
    throw ConfigError(
        name,
        fmt::format(
            "is not supported: every parameter of a prepared model is sharded and averaged; got "
            "'{}', expected it unset; prepare a model without these modules",
            *text));
  }
}

/// Lists set variables that the program controls, or that are always true.
void name_idle(const Environment& environment, FsdpEnvironment& found) {
  const std::vector<std::pair<const char*, const char*>> programs = {
      {"FSDP_ACTIVATION_CHECKPOINTING", "the program calls activation_checkpoint(module, x)"},
      {"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD",
       "the program opens an ActivationCheckpointing::Scope with cpu_checkpointing"},
      {"FSDP_FORWARD_PREFETCH", "the next parameters are always prefetched, see backward_prefetch"},
      {"FSDP_CPU_RAM_EFFICIENT_LOADING", "the program builds the model in Accelerator::zero_init"}};
  for (const auto& [name, why] : programs) {
    if (environment.boolean(name).value_or(false)) {
      found.not_used.push_back(fmt::format("{}: {}", name, why));
    }
  }
  for (const char* const name : {"FSDP_USE_ORIG_PARAMS", "FSDP_SYNC_MODULE_STATES"}) {
    if (!environment.boolean(name).value_or(true)) {
      found.not_used.push_back(fmt::format("{}: it is always true here", name));
    }
  }
}

}  // namespace

FsdpEnvironment read_fsdp_environment(const Environment& environment) {
  FsdpEnvironment found;
  if (!environment.boolean("ACCELERATE_USE_FSDP").value_or(false)) {
    for (const char* const name : {"FSDP_SHARDING_STRATEGY", "FSDP_RESHARD_AFTER_FORWARD"}) {
      if (environment.text(name)) {
        found.not_used.push_back(fmt::format("{}: ACCELERATE_USE_FSDP is not true", name));
      }
    }
    return found;
  }
  FsdpPlugin& plugin = found.plugin.emplace();
  refuse_ignored_modules(environment);
  read_sharding(environment, found);
  read_wrapping(environment, found);
  plugin.cpu_offload = environment.boolean("FSDP_OFFLOAD_PARAMS").value_or(false);
  const char* const prefetch = "FSDP_BACKWARD_PREFETCH";
  plugin.backward_prefetch = word_in<BackwardPrefetch>(
                                 environment,
                                 prefetch,
                                 {{"backward_pre", BackwardPrefetch::kPre},
                                  {"backward_post", BackwardPrefetch::kPre},
                                  {"no_prefetch", BackwardPrefetch::kNone},
                                  {"1", BackwardPrefetch::kPre},
                                  {"2", BackwardPrefetch::kPre}})
                                 .value_or(plugin.backward_prefetch);
  const std::string asked = lower(environment.text(prefetch).value_or(""));
  if (asked == "backward_post" || asked == "2") {
    found.not_used.push_back(
        fmt::format("{}: BACKWARD_POST runs as BACKWARD_PRE, with the same results", prefetch));
  }
  plugin.state_dict_type = word_in<StateDictType>(
                               environment,
                               "FSDP_STATE_DICT_TYPE",
                               {{"full_state_dict", StateDictType::kFullStateDict},
                                {"local_state_dict", StateDictType::kLocalStateDict},
                                {"sharded_state_dict", StateDictType::kShardedStateDict},
                                {"1", StateDictType::kFullStateDict},
                                {"2", StateDictType::kLocalStateDict},
                                {"3", StateDictType::kShardedStateDict}})
                               .value_or(plugin.state_dict_type);
  name_idle(environment, found);
  return found;
}

}  // namespace lockstep
