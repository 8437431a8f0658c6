// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/ds_config/rules/section_rules.h"
#include "lockstep/zero_options/check_zero_options.h"
#include "lockstep/zero_options/zero_rows.h"

namespace lockstep::ds_config {
namespace {

constexpr const char* kZero = "zero_optimization";

std::string zero_path(const std::string& key) {
  return std::string(kZero) + "." + key;
}

void read_old_zero(KeyReader& reader, ZeroSection& zero) {
  const KeyValue* const found = reader.find(kZero);
  const auto is_on = found == nullptr ? std::nullopt : truth_of(*found->value);
  if (!is_on) {
    return;
  }
  zero.plugin.stage = *is_on ? 1 : 0;
  zero.origins[zero_path("stage")] = reader.origin_of(*found);
  reader.note(
      found->key,
      fmt::format(
          "zero_optimization: {0} is the old form of stage {1}; write {{\"stage\": {1}}}",
          *is_on,
          zero.plugin.stage));
}

/// Reads a boolean that became the section `name`, whose device is `device`.
void read_old_offload(
    KeyReader& reader,
    const std::string& old_name,
    const std::string& name,
    OffloadDevice& device,
    ZeroSection& zero) {
  const KeyValue* const old = reader.find(zero_path(old_name));
  if (old == nullptr || old->is_auto) {
    return;
  }
  if (const KeyValue* const now = reader.find(zero_path(name))) {
    reader.error(
        old->key,
        fmt::format(
            "{} is the old form of {}, which line {} sets already; remove {}",
            zero_path(old_name),
            zero_path(name),
            now->key.line,
            old_name));
    return;
  }
  const bool is_on = truth_of(*old->value).value_or(false);
  if (is_on) {
    device = OffloadDevice::kCpu;
    zero.origins[zero_path(name) + ".device"] = reader.origin_of(*old);
  }
  reader.note(
      old->key,
      is_on ? fmt::format(
                  "{}: true is the old form; write \"{}\": {{\"device\": \"cpu\"}}",
                  zero_path(old_name),
                  name)
            : fmt::format("{}: false is the default; delete it", zero_path(old_name)));
}

/// Returns the path of the key that sets the device of section `name`.
std::string device_path(
    const KeyReader& reader, const std::string& old_name, const std::string& name) {
  const bool is_old =
      reader.find(zero_path(name)) == nullptr && reader.find(zero_path(old_name)) != nullptr;
  return is_old ? zero_path(old_name) : zero_path(name) + ".device";
}

/// Checks the keys that both offload sections have. `device_key`: the key that sets the device;
/// `least`: the lowest stage with something to offload.
void check_offload(
    KeyReader& reader,
    const std::string& path,
    const std::string& device_key,
    OffloadDevice device,
    int64_t stage,
    int64_t least) {
  const KeyValue* const folder = reader.find(path + ".nvme_path");
  if (device != OffloadDevice::kNone && stage < least) {
    refuse_key(
        reader,
        device_key,
        fmt::format(
            "offloads parameters that are not sharded in stage {}; expected stage {}{}",
            stage,
            least,
            least < 3 ? " or more" : ""));
  }
  if (device == OffloadDevice::kNvme && folder == nullptr) {
    refuse_key(reader, path + ".device", "nvme needs nvme_path, a folder on that disk");
  }
  if (device != OffloadDevice::kNvme && folder != nullptr) {
    reader.note(
        folder->key,
        fmt::format("{}.nvme_path is ignored: the device is {}", path, word_of(device)));
  }
}

/// Offloads the optimizer with the parameters unless the file says where its state is: the host
/// updates offloaded parameters.
void complete_offload(KeyReader& reader, const std::string& param_device, ZeroSection& zero) {
  OffloadDevice& device = zero.plugin.offload_optimizer.device;
  const std::string path = zero_path("offload_optimizer.device");
  if (device != OffloadDevice::kNone || reader.find(path) != nullptr ||
      reader.find(zero_path("cpu_offload")) != nullptr) {
    return;
  }
  const KeyValue& param = *reader.find(param_device);
  device = OffloadDevice::kCpu;
  zero.origins[path] = reader.origin_of(param);
  reader.note(
      param.key,
      "offload_param without offload_optimizer: the optimizer's state is on the cpu, too, because "
      "the host updates offloaded parameters");
}

/// Checks both sections. `trains`: the file has an optimizer.
void check_offloads(KeyReader& reader, bool trains, ZeroSection& zero) {
  const char* const old_optimizer = "cpu_offload";
  const char* const old_param = "cpu_offload_param";
  OffloadOptimizer& optimizer = zero.plugin.offload_optimizer;
  OffloadParam& param = zero.plugin.offload_param;
  const int64_t stage = zero.plugin.stage;
  read_old_offload(reader, old_optimizer, "offload_optimizer", optimizer.device, zero);
  read_old_offload(reader, old_param, "offload_param", param.device, zero);
  const std::string optimizer_path = zero_path("offload_optimizer");
  const std::string param_path = zero_path("offload_param");
  const std::string param_device = device_path(reader, old_param, "offload_param");
  if (trains && stage == 3 && param.device != OffloadDevice::kNone) {
    complete_offload(reader, param_device, zero);
  }
  check_offload(
      reader,
      optimizer_path,
      device_path(reader, old_optimizer, "offload_optimizer"),
      optimizer.device,
      stage,
      1);
  check_offload(reader, param_path, param_device, param.device, stage, 3);
  if (optimizer.ratio == 0) {
    refuse_key(reader, optimizer_path + ".ratio", "0 offloads nothing; write device none");
  }
  if (optimizer.super_offload && optimizer.device != OffloadDevice::kCpu) {
    refuse_key(
        reader,
        optimizer_path + ".super_offload",
        fmt::format(
            "starts updates during backward, on state in the host's memory; got device {}, "
            "expected cpu",
            word_of(optimizer.device)));
  }
  if (optimizer.super_offload && param.device == OffloadDevice::kNvme) {
    refuse_key(
        reader,
        optimizer_path + ".super_offload",
        "updates parameters in memory during backward and cannot be combined with "
        "offload_param.device nvme; delete one of them");
  }
  if (param.device == OffloadDevice::kNone) {
    return;
  }
  if (trains && optimizer.device == OffloadDevice::kNone) {
    refuse_key(
        reader,
        param_device,
        "needs offload_optimizer if the file has an optimizer: the host updates offloaded "
        "parameters; got offload_optimizer.device none; delete it, or, for inference, delete "
        "optimizer");
  } else if (optimizer.ratio < 1) {
    refuse_key(
        reader,
        optimizer_path + ".ratio",
        "below 1 keeps a part of the update on the device, but offload_param moves all parameters "
        "to the host; delete one of them");
  }
}

void check_plus_plus(KeyReader& reader, std::optional<int64_t> world_size, const ZeroPlugin& zero) {
  const int64_t stage = zero.stage;
  visit_zero_options(zero, [&](const char* name, const auto& value, const ZeroRule& rule) {
    if (rule.stages == &kPlusPlusStages && stage < rule.stages->first && is_turned_on(value)) {
      refuse_key(
          reader,
          zero_path(name),
          fmt::format(
              "is a part of ZeRO++, for stage 3; got stage {}; set stage 3, or delete it", stage));
    }
  });
  if (zero.zero_quantized_nontrainable_weights &&
      zero.offload_param.device != OffloadDevice::kNone) {
    refuse_key(
        reader,
        zero_path("zero_quantized_nontrainable_weights"),
        "cannot be combined with offload_param: one keeps frozen weights on the device, the other "
        "off the device; delete one of them");
  }
  const int64_t size = zero.zero_hpz_partition_size;
  if (size > 1 && world_size && *world_size % size != 0) {
    refuse_key(
        reader,
        zero_path("zero_hpz_partition_size"),
        fmt::format(
            "does not divide the ranks; got {}, expected a divisor of {}", size, *world_size));
  }
}

void check_unused_parameters(KeyReader& reader, const ZeroSection& zero) {
  const std::string path = zero_path("ignore_unused_parameters");
  const KeyValue* const found = reader.find(path);
  const int64_t stage = zero.plugin.stage;
  if (found != nullptr && !zero.ignore_unused_parameters.value && stage != 1 && stage != 2) {
    reader.note(
        found->key,
        fmt::format(
            "{} is ignored: DeepSpeed looks for unused parameters in stages 1 and 2, and "
            "this is stage {}",
            path,
            stage));
  }
}

/// Notes that a valid key has no effect in this run.
void note_without_effect(KeyReader& reader, const std::string& key, const std::string& why) {
  const KeyValue* const found = reader.find(zero_path(key));
  if (found != nullptr && !found->is_auto) {
    reader.note(found->key, fmt::format("{} is ignored: {}", zero_path(key), why));
  }
}

void note_keys_without_effect(KeyReader& reader, const DsConfig& config) {
  const int64_t stage = config.zero.plugin.stage;
  // Stage 0 shards the masters of 16-bit parameters, which the model may have.
  const bool may_be_16_bit = config.fp16.enabled.value || config.bf16.enabled.value;
  if (stage == 0 && !may_be_16_bit) {
    note_without_effect(
        reader, "reduce_bucket_size", "it is for stages 1 to 3, and this is stage 0");
  }
  if (!may_be_16_bit) {
    note_without_effect(
        reader,
        "load_from_fp32_weights",
        "only fp16 and bf16 have parameters in 16 bits, and neither is enabled");
  }
  const auto note_of_stage_3 = [&](const char* key) {
    note_without_effect(reader, key, fmt::format("it is for stage 3, and this is stage {}", stage));
  };
  if (stage < kOnlyStage3.first) {
    note_of_stage_3("stage3_prefetch_bucket_size");
    visit_zero_rows([&](const auto& row) {
      if (row.rule.stages == &kOnlyStage3) {
        note_of_stage_3(row.name);
      }
    });
  }
}

/// Refuses to offload an optimizer that needs full parameters, which are unsharded on the device.
void check_optimizer(KeyReader& reader, const DsConfig& config) {
  const bool offloads = config.zero.plugin.offload_optimizer.device != OffloadDevice::kNone;
  if (!config.optimizer || !offloads) {
    return;
  }
  const std::string& name = config.optimizer->name.value;
  if (name == "lamb" || name == "adafactor" || name == "muon") {
    refuse_key(
        reader,
        zero_path("offload_optimizer.device"),
        fmt::format(
            "keeps the state on the host, but {} needs full parameters, which are unsharded on the "
            "device; delete it, or use another optimizer",
            name));
  }
}

}  // namespace

void refuse_key(KeyReader& reader, const std::string& path, const std::string& what) {
  if (const KeyValue* const found = reader.find(path)) {
    reader.error(found->value->place, path + " " + what);
  }
}

void apply_zero_rules(KeyReader& reader, std::optional<int64_t> world_size, DsConfig& config) {
  ZeroSection& zero = config.zero;
  read_old_zero(reader, zero);
  check_offloads(reader, config.optimizer.has_value(), zero);
  check_plus_plus(reader, world_size, zero.plugin);
  check_unused_parameters(reader, zero);
  note_keys_without_effect(reader, config);
  check_optimizer(reader, config);
  const std::string sum = "gradient_allreduce_op";
  if (config.gradient_allreduce_op.value == AllreduceOp::kSum && zero.plugin.stage == 3) {
    refuse_key(reader, sum, "sum does not work in stage 3; write mean, and scale the loss");
  }
}

}  // namespace lockstep::ds_config
