// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/ds_config/rules/section_rules.h"

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

/// A truth that became the section `name`.
template <typename Section>
void read_old_offload(
    KeyReader& reader, const std::string& old_name, const std::string& name, Section& section) {
  const Found* const old = reader.find(zero_path(old_name));
  if (old == nullptr || old->is_auto) {
    return;
  }
  if (const Found* const now = reader.find(zero_path(name))) {
    reader.error(
        old->key,
        fmt::format(
            "{} is the old way to say {}, which line {} says already; remove {}",
            zero_path(old_name),
            zero_path(name),
            now->key.line,
            old_name));
    return;
  }
  const bool is_on = truth_of(*old->value).value_or(false);
  if (is_on) {
    section.device = {OffloadDevice::kCpu, reader.origin_of(*old)};
  }
  reader.note(
      old->key,
      is_on ? fmt::format(
                  "{}: true is the old way to write \"{}\": {{\"device\": \"cpu\"}}; write that",
                  zero_path(old_name),
                  name)
            : fmt::format("{}: false says what is so anyway; delete it", zero_path(old_name)));
}

/// What the file says the device of section `name` by.
std::string device_path(
    const KeyReader& reader, const std::string& old_name, const std::string& name) {
  const bool is_old =
      reader.find(zero_path(name)) == nullptr && reader.find(zero_path(old_name)) != nullptr;
  return is_old ? zero_path(old_name) : zero_path(name) + ".device";
}

/// What both sections that offload have. `device_key`: what says where to; `least`: the stage from
/// which on there is what they move.
template <typename Section>
void check_offload(
    KeyReader& reader,
    const std::string& path,
    const std::string& device_key,
    const Section& section,
    const ZeroSection& zero,
    int64_t least) {
  const OffloadDevice device = section.device.value;
  if (device != OffloadDevice::kNone && zero.stage.value < least) {
    fail(
        reader,
        device_key,
        fmt::format(
            "offloads parameters that are not sharded in stage {}; expected stage {}{}",
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

/// `trains`: the file has an optimizer, which updates what is offloaded.
void check_offloads(KeyReader& reader, bool trains, ZeroSection& zero) {
  const char* const old_optimizer = "cpu_offload";
  const char* const old_param = "cpu_offload_param";
  read_old_offload(reader, old_optimizer, "offload_optimizer", zero.offload_optimizer);
  read_old_offload(reader, old_param, "offload_param", zero.offload_param);
  const auto& optimizer = zero.offload_optimizer;
  const std::string optimizer_path = zero_path("offload_optimizer");
  const std::string param_path = zero_path("offload_param");
  const std::string param_device = device_path(reader, old_param, "offload_param");
  check_offload(
      reader,
      optimizer_path,
      device_path(reader, old_optimizer, "offload_optimizer"),
      optimizer,
      zero,
      1);
  check_offload(reader, param_path, param_device, zero.offload_param, zero, 3);
  if (optimizer.ratio.value == 0) {
    fail(reader, optimizer_path + ".ratio", "0 offloads nothing; write device none");
  }
  if (optimizer.super_offload.value && optimizer.device.value != OffloadDevice::kCpu) {
    fail(
        reader,
        optimizer_path + ".super_offload",
        fmt::format(
            "begins updates of state in the host's memory early; got device {}, expected cpu",
            word_of(optimizer.device.value)));
  }
  if (optimizer.super_offload.value && zero.offload_param.device.value == OffloadDevice::kNvme) {
    fail(
        reader,
        optimizer_path + ".super_offload",
        "updates parameters that lie in memory early, and offload_param.device is nvme; delete one "
        "of them");
  }
  if (zero.offload_param.device.value == OffloadDevice::kNone) {
    return;
  }
  if (trains && optimizer.device.value == OffloadDevice::kNone) {
    fail(
        reader,
        param_device,
        "goes with offload_optimizer, where the file has an optimizer: parameters off the device "
        "are updated on the host; add offload_optimizer, or, for inference, delete the optimizer");
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
           {zero_path("zero_quantized_nontrainable_weights"),
            zero.quantized_nontrainable_weights.value},
           {hpz, size > 1}}) {
    if (is_on && zero.stage.value != 3) {
      fail(
          reader,
          path,
          fmt::format("is a part of ZeRO++, for stage 3; got stage {}", zero.stage.value));
    }
  }
  if (zero.quantized_nontrainable_weights.value &&
      zero.offload_param.device.value != OffloadDevice::kNone) {
    fail(
        reader,
        zero_path("zero_quantized_nontrainable_weights"),
        "does not go with offload_param: one keeps frozen weights in 8 bits on the device, the "
        "other as they are off it; delete one of them");
  }
  if (size > 1 && world_size && *world_size % size != 0) {
    fail(
        reader,
        hpz,
        fmt::format(
            "does not divide the ranks; got {}, expected a divisor of {}", size, *world_size));
  }
}

void check_unused(KeyReader& reader, const ZeroSection& zero) {
  const std::string path = zero_path("ignore_unused_parameters");
  const Found* const found = reader.find(path);
  if (found != nullptr && !zero.ignore_unused_parameters.value && zero.stage.value != 1 &&
      zero.stage.value != 2) {
    reader.note(
        found->key,
        fmt::format(
            "{} says nothing here: DeepSpeed looks for unused parameters in stages 1 and 2, and "
            "this is stage {}",
            path,
            zero.stage.value));
  }
}

/// A key that is right, and has nothing to steer in this run.
void note_idle(KeyReader& reader, const std::string& key, const std::string& why) {
  const Found* const found = reader.find(zero_path(key));
  if (found != nullptr && !found->is_auto) {
    reader.note(found->key, fmt::format("{} says nothing here: {}", zero_path(key), why));
  }
}

void note_idle_keys(KeyReader& reader, const DsConfig& config) {
  const int64_t stage = config.zero.stage.value;
  // Of 16-bit parameters, which the model may have brought, stage 0 divides the masters.
  const bool may_be_narrow = config.fp16.enabled.value || config.bf16.enabled.value;
  if (stage == 0 && !may_be_narrow) {
    note_idle(reader, "reduce_bucket_size", "it is for stages 1 to 3, and this is stage 0");
  }
  if (!may_be_narrow) {
    note_idle(
        reader,
        "load_from_fp32_weights",
        "only fp16 and bf16 have parameters in 16 bits, and neither is enabled");
  }
  for (const char* key :
       {"stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
        "stage3_max_live_parameters",
        "stage3_model_persistence_threshold"}) {
    if (stage < 3) {
      note_idle(reader, key, fmt::format("it is for stage 3, and this is stage {}", stage));
    }
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
  check_offloads(reader, config.optimizer.has_value(), zero);
  check_plus_plus(reader, world_size, zero);
  check_unused(reader, zero);
  note_idle_keys(reader, config);
  check_optimizer(reader, config);
  const std::string sum = "gradient_allreduce_op";
  if (config.gradient_allreduce_op.value == AllreduceOp::kSum && zero.stage.value == 3) {
    fail(reader, sum, "sum does not work in stage 3; write mean, and scale the loss");
  }
}

}  // namespace lockstep::ds_config
