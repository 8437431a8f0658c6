// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero_options/fsdp_table.h"

#include "lockstep/base/text/words.h"

namespace lockstep::fsdp {

const Word* find_word(const Option& option, const std::string& text) {
  const std::string plain = lower(text);
  for (size_t i = 0; i < option.words.size(); ++i) {
    const bool is_number = i < option.numbers && text == std::to_string(i + 1);
    if (is_number || plain == lower(std::string(option.words[i].text))) {
      return &option.words[i];
    }
  }
  return nullptr;
}

int stage_of(ShardingStrategy strategy) {
  switch (strategy) {
    case ShardingStrategy::kNoShard:
      return 0;
    case ShardingStrategy::kShardGradOp:
    case ShardingStrategy::kHybridShardZero2:
      return 2;
    case ShardingStrategy::kFullShard:
    case ShardingStrategy::kHybridShard:
      break;
  }
  return 3;
}

}  // namespace lockstep::fsdp
