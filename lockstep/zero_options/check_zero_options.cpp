// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero_options/check_zero_options.h"

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/zero_options/zero_rows.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError("zero", what);
}

/// Returns the number of an option; 0 for none, and for options that are no numbers.
template <typename Value>
int64_t count_in(const Value& value) {
  if constexpr (std::is_integral_v<Value>) {
    return value;
  }
  return 0;
}

int64_t count_in(const std::optional<int64_t>& value) {
  return value.value_or(0);
}

template <typename Value>
bool has_number(const Value& /*value*/) {
  return true;
}

template <typename Value>
bool has_number(const std::optional<Value>& value) {
  return value.has_value();
}

/// Checks the numbers of options with the range `only`; null: of all options.
void check_numbers(const ZeroPlugin& zero, const ZeroRange* only = nullptr) {
  visit_zero_options(zero, [&](const char*, const auto& value, const ZeroRule& rule) {
    const ZeroRange* const range = rule.range;
    const int64_t got = count_in(value);
    if (range == nullptr || range->error == nullptr || (only != nullptr && range != only) ||
        !has_number(value) || (got >= range->min && got <= range->max)) {
      return;
    }
    std::vector<std::string> all;
    visit_zero_options(zero, [&](const char* name, const auto& other, const ZeroRule& others) {
      if (others.range == range) {
        all.push_back(fmt::format("{}={}", name, count_in(other)));
      }
    });
    refuse(fmt::format(
        fmt::runtime(range->error), fmt::arg("got", got), fmt::arg("all", fmt::join(all, ", "))));
  });
}

/// Refuses options with the stages `only` in lower stages; null: all options.
void check_stages(const ZeroPlugin& zero, const ZeroStages* only = nullptr) {
  visit_zero_options(zero, [&](const char*, const auto& value, const ZeroRule& rule) {
    const ZeroStages* const stages = rule.stages;
    if (stages == nullptr || (only != nullptr && stages != only) || stages->error == nullptr ||
        zero.stage >= stages->first || !is_turned_on(value)) {
      return;
    }
    std::vector<std::string> options;
    visit_zero_options(zero, [&](const char* name, const auto&, const ZeroRule& others) {
      if (others.stages == stages) {
        options.emplace_back(name);
      }
    });
    refuse(fmt::format(
        fmt::runtime(stages->error),
        fmt::arg("options", fmt::join(options, ", ")),
        fmt::arg("stage", zero.stage)));
  });
}

/// Checks the values of single options, and the two names of the bucket's size. The stage is first,
/// since other errors depend on it.
void check_ranges(const ZeroPlugin& zero) {
  check_numbers(zero, &kStageNumbers);
  refuse_local_state_dict(zero.state_dict_type, "zero");
  if (zero.reduce_bucket_size && zero.bucket_cap_bytes) {
    refuse(fmt::format(
        fmt::runtime(kBucketElements.error),
        fmt::arg("got", fmt::format("{} and bucket_cap_bytes", *zero.reduce_bucket_size))));
  }
  check_numbers(zero);
}

void check_partition(const ZeroPlugin& zero, int processes) {
  const int64_t partition = zero.zero_hpz_partition_size;
  const bool is_sharded = processes > 1 || zero.offloads();
  if (partition < 0 || (partition > 1 && is_sharded && processes % partition != 0)) {
    throw ConfigError(
        "zero",
        fmt::format(
            "the processes cannot be divided into groups of zero_hpz_partition_size; got "
            "zero_hpz_partition_size={}, expected a divisor of {}; try the number of processes of "
            "a host, or 1 for none",
            partition,
            processes));
  }
}

void check_offload_param(const ZeroPlugin& zero) {
  const OffloadOptimizer& optimizer = zero.offload_optimizer;
  const OffloadParam& param = zero.offload_param;
  if (optimizer.super_offload && param.device == OffloadDevice::kNvme) {
    refuse(
        "offload_optimizer.super_offload updates parameters in memory; got offload_param.device "
        "nvme, expected cpu or none; remove one of them");
  }
  if (param.device != OffloadDevice::kNone && optimizer.ratio < 1) {
    refuse(fmt::format(
        "offload_optimizer.ratio below 1 keeps a part of the update on the device, so it cannot be "
        "combined with offload_param; got ratio={}; set it to 1, or remove offload_param",
        optimizer.ratio));
  }
  if (param.device != OffloadDevice::kNone && zero.zero_quantized_nontrainable_weights) {
    refuse(
        "zero_quantized_nontrainable_weights keeps frozen parameters in 8 bits on the device; got "
        "offload_param, too, which keeps them off the device in their own dtype; set only one of "
        "them");
  }
}

void check_offload_folders(const ZeroPlugin& zero) {
  for (const auto& [name, device, path] :
       {std::tuple(
            "offload_optimizer", zero.offload_optimizer.device, zero.offload_optimizer.nvme_path),
        std::tuple("offload_param", zero.offload_param.device, zero.offload_param.nvme_path)}) {
    if (device == OffloadDevice::kNvme && path.empty()) {
      refuse(fmt::format(
          "{0}.device nvme needs a folder for its files; got no {0}.nvme_path; set it to one on a "
          "fast disk",
          name));
    }
    if (device != OffloadDevice::kNvme && !path.empty()) {
      refuse(fmt::format(
          "{0}.nvme_path is for the device nvme; got '{1}' and another device; set {0}.device to "
          "nvme, or leave the path out",
          name,
          path.string()));
    }
  }
}

}  // namespace

void refuse_local_state_dict(StateDictType type, const char* where) {
  if (type == StateDictType::kLocalStateDict) {
    throw ConfigError(
        where,
        "state_dict_type LOCAL_STATE_DICT is not supported: only the same number of processes "
        "could load its flat memory; use SHARDED_STATE_DICT, which writes each process's shards by "
        "name");
  }
}

void check_zero_options(const ZeroPlugin& zero, int processes) {
  check_ranges(zero);
  check_stages(zero, &kPlusPlusStages);
  check_stages(zero, &kUnitStages);
  check_partition(zero, processes);
  check_stages(zero);
  check_offload_param(zero);
  check_offload_folders(zero);
}

}  // namespace lockstep
