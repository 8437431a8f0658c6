// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/ds_config/section_rules.h"

namespace lockstep::ds_config {
namespace {

constexpr const char* kZero = "zero_optimization";

std::string zero_path(const std::string& key) {
  return std::string(kZero) + "." + key;
}

/// An error at a key that is there.
void fail(KeyReader& reader, const std::string& path, const std::string& what) {
  const Found* const found = reader.find(path);
  if (found != nullptr) {
    reader.error(found->value->place, path + " " + what);
  }
}

void read_old_zero(KeyReader& reader, ZeroSection& zero) {
  const Found* const found = reader.find(kZero);
  const auto is_on = found == nullptr ? std::nullopt : truth_of(*found->value);
  if (!is_on) {
    return;
  }
  zero.stage = {*is_on ? 1 : 0, reader.origin_of(*found)};
  reader.note(
      found->key,
      fmt::format(
          "zero_optimization: {0} is an old way to write stage {1}; write {{\"stage\": {1}}}",
          *is_on,
          zero.stage.value));
}

/// What both sections that offload have. `least`: the stage from which on there is what they move.
template <typename Section>
void check_offload(
    KeyReader& reader,
    const std::string& path,
    const Section& section,
    const ZeroSection& zero,
    int64_t least) {
  const OffloadDevice device = section.device.value;
  if (device != OffloadDevice::kNone && zero.stage.value < least) {
    fail(
        reader,
        path + ".device",
        fmt::format(
            "offloads what every rank keeps whole in stage {}; expected stage {}{}",
            zero.stage.value,
            least,
            least < 3 ? " or more" : ""));
  }
  if (device == OffloadDevice::kNvme && !section.nvme_path.value) {
    fail(reader, path + ".device", "nvme needs nvme_path, a folder on that disk");
  }
  if (const Found* const folder = reader.find(path + ".nvme_path");
      device != OffloadDevice::kNvme && folder != nullptr) {
    reader.note(
        folder->key,
        fmt::format("{}.nvme_path says nothing here: the device is {}", path, word_of(device)));
  }
}

void check_offloads(KeyReader& reader, const ZeroSection& zero) {
  const auto& optimizer = zero.offload_optimizer;
  const std::string optimizer_path = zero_path("offload_optimizer");
  const std::string param_path = zero_path("offload_param");
  check_offload(reader, optimizer_path, optimizer, zero, 1);
  check_offload(reader, param_path, zero.offload_param, zero, 3);
  if (optimizer.ratio.value == 0) {
    fail(reader, optimizer_path + ".ratio", "0 offloads nothing; write device none");
  }
  if (zero.offload_param.device.value == OffloadDevice::kNone) {
    return;
  }
  if (optimizer.device.value == OffloadDevice::kNone) {
    fail(
        reader,
        param_path + ".device",
        "goes with offload_optimizer only: parameters off the device are updated on the host");
  } else if (optimizer.ratio.value < 1) {
    fail(
        reader,
        optimizer_path + ".ratio",
        "below 1 leaves a part of the update on the device, where offload_param leaves no "
        "parameters; delete one of them");
  }
}

void check_plus_plus(
    KeyReader& reader, std::optional<int64_t> world_size, const ZeroSection& zero) {
  const std::string hpz = zero_path("zero_hpz_partition_size");
  const int64_t size = zero.hpz_partition_size.value;
  for (const auto& [path, is_on] : std::vector<std::pair<std::string, bool>>{
           {zero_path("zero_quantized_weights"), zero.quantized_weights.value},
           {zero_path("zero_quantized_gradients"), zero.quantized_gradients.value},
           {hpz, size > 1}}) {
    if (is_on && zero.stage.value != 3) {
      fail(
          reader,
          path,
          fmt::format("is a part of ZeRO++, for stage 3; got stage {}", zero.stage.value));
    }
  }
  if (size > 1 && world_size && *world_size % size != 0) {
    fail(
        reader,
        hpz,
        fmt::format(
            "does not divide the ranks; got {}, expected a divisor of {}", size, *world_size));
  }
}

/// Optimizers that work with whole parameters alone, which ranks bring together on the device.
void check_optimizer(KeyReader& reader, const DsConfig& config) {
  const bool offloads = config.zero.offload_optimizer.device.value != OffloadDevice::kNone;
  if (!config.optimizer || !offloads) {
    return;
  }
  const std::string& name = config.optimizer->name.value;
  if (name == "lamb" || name == "adafactor" || name == "muon") {
    fail(
        reader,
        zero_path("offload_optimizer.device"),
        fmt::format(
            "leaves the state on the host, and {} needs whole parameters, which come together on "
            "the device; delete it, or use another optimizer",
            name));
  }
}

}  // namespace

void apply_zero_rules(KeyReader& reader, std::optional<int64_t> world_size, DsConfig& config) {
  ZeroSection& zero = config.zero;
  read_old_zero(reader, zero);
  check_offloads(reader, zero);
  check_plus_plus(reader, world_size, zero);
  check_optimizer(reader, config);
  const std::string sum = "gradient_allreduce_op";
  if (config.gradient_allreduce_op.value == AllreduceOp::kSum && zero.stage.value == 3) {
    fail(reader, sum, "sum does not work in stage 3; write mean, and scale the loss");
  }
}

}  // namespace lockstep::ds_config
