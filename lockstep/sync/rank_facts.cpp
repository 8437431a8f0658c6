// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/rank_facts.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep {
namespace {

constexpr int64_t kBits = 32;

// Flags are read and written in place where they can be: each operation of libtorch would take a
// microsecond or more in every step.
template <typename Flag>
void write_flags(Flag* flags, uint32_t number, bool has_report) {
  for (int64_t bit = 0; bit < kBits; ++bit) {
    const bool set = ((number >> static_cast<uint32_t>(bit)) & 1U) != 0;
    flags[bit] = set ? 1 : 0;
    flags[kBits + bit] = set ? 0 : 1;
  }
  flags[2 * kBits] = has_report ? 1 : 0;
}

template <typename Flag>
DigestFlags::Result read_flags(const Flag* flags) {
  DigestFlags::Result result = {.differ = false, .any_report = flags[2 * kBits] > 0};
  for (int64_t bit = 0; bit < kBits; ++bit) {
    result.differ = result.differ || (flags[bit] > 0 && flags[kBits + bit] > 0);
  }
  return result;
}

}  // namespace

RankFact trained_or_frozen(const NamedTensor& parameter) {
  return {
      "the requires_grad of parameter " + parameter.name,
      parameter.tensor.requires_grad() ? "true" : "false",
      "freeze the same parameters on every rank"};
}

void DigestFlags::write(const at::Tensor& flags, uint64_t digest, bool has_report) {
  const auto folded = static_cast<uint32_t>(digest ^ (digest >> kBits));
  if (flags.scalar_type() == at::kFloat) {
    write_flags(flags.mutable_data_ptr<float>(), folded, has_report);
  } else if (flags.scalar_type() == at::kByte) {
    write_flags(flags.mutable_data_ptr<uint8_t>(), folded, has_report);
  } else {
    const at::Tensor values = at::empty({kCount}, at::kFloat);
    write_flags(values.mutable_data_ptr<float>(), folded, has_report);
    flags.copy_(values);
  }
}

DigestFlags::Result DigestFlags::read(const at::Tensor& reduced) {
  if (reduced.scalar_type() == at::kFloat) {
    return read_flags(reduced.const_data_ptr<float>());
  }
  if (reduced.scalar_type() == at::kByte) {
    return read_flags(reduced.const_data_ptr<uint8_t>());
  }
  return read_flags(reduced.to(at::kFloat).const_data_ptr<float>());
}

bool any_differs(Group& group, const std::string& mine) {
  const std::vector<std::string> all = all_gather_bytes(group, mine);
  return std::any_of(
      all.begin(), all.end(), [&](const std::string& theirs) { return theirs != mine; });
}

void expect_equal_facts(Group& group, const std::vector<RankFact>& mine, const char* where) {
  if (group.size() == 1) {
    return;
  }
  std::string all;
  for (const RankFact& fact : mine) {
    all += fact.what + '\n' + fact.value + '\n';
  }
  if (any_differs(group, fmt::format("{} {}", all.size(), crc32c(all)))) {
    refuse_different_facts(group, mine, where);
  }
}

void refuse_different_facts(Group& group, const std::vector<RankFact>& mine, const char* where) {
  nlohmann::json own = nlohmann::json::array();
  for (const RankFact& fact : mine) {
    own.push_back({fact.what, fact.value, fact.remedy});
  }
  std::vector<nlohmann::json> by_rank;
  for (const std::string& text : all_gather_bytes(group, own.dump())) {
    by_rank.push_back(nlohmann::json::parse(text));
  }
  for (size_t i = 0; i < by_rank[0].size(); ++i) {
    for (size_t rank = 1; rank < by_rank.size(); ++rank) {
      const nlohmann::json& first = by_rank[0][i];
      // Another fact at this place follows from one that differs before.
      if (i >= by_rank[rank].size() || by_rank[rank][i] == first ||
          by_rank[rank][i][0] != first[0]) {
        continue;
      }
      throw ConfigError(
          where,
          fmt::format(
              "{} must be equal on all ranks; rank 0 has {}, rank {} has {}; {}",
              first[0].get<std::string>(),
              first[1].get<std::string>(),
              rank,
              by_rank[rank][i][1].get<std::string>(),
              first[2].get<std::string>()));
    }
  }
  throw ConfigError(
      where,
      "the training state differs between ranks, so their models would differ; let all ranks call "
      "the same functions with the same settings");
}

}  // namespace lockstep
