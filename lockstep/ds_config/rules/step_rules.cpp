// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/ds_config/rules/batch_sizes.h"
#include "lockstep/ds_config/rules/section_rules.h"

namespace lockstep::ds_config {
namespace {

/// Notes keys of a dynamic loss scale beside a constant one.
void note_fixed_scale(KeyReader& reader, const Fp16Section& fp16) {
  if (!fp16.enabled.value || fp16.loss_scale.value == 0) {
    return;
  }
  for (const char* name :
       {"initial_scale_power",
        "loss_scale_window",
        "hysteresis",
        "consecutive_hysteresis",
        "min_loss_scale"}) {
    const std::string path = fmt::format("fp16.{}", name);
    if (const KeyValue* const found = reader.find(path)) {
      reader.note(
          found->key,
          fmt::format("{} is ignored: loss_scale {} is constant", path, fp16.loss_scale.value));
    }
  }
}

/// Refuses Lamb with a constant loss scale, as DeepSpeed does.
void check_lamb_scale(KeyReader& reader, const DsConfig& config) {
  const bool is_lamb = config.optimizer && config.optimizer->name.value == "lamb";
  if (is_lamb && config.fp16.enabled.value && config.fp16.loss_scale.value != 0) {
    reader.error(
        reader.find("fp16.loss_scale")->value->place,
        fmt::format(
            "Lamb needs a dynamic loss scale with fp16; got loss_scale {}, expected 0: delete it, "
            "or use another optimizer",
            config.fp16.loss_scale.value));
  }
}

}  // namespace

void apply_precision_rules(KeyReader& reader, DsConfig& config) {
  const AutocastSection& autocast = config.torch_autocast;
  if (autocast.enabled.value && !autocast.dtype.value) {
    reader.error(
        reader.find("torch_autocast.enabled")->value->place,
        "torch_autocast has no dtype; expected \"bf16\" or \"fp16\"");
  }
  struct PrecisionKey {
    std::string path;
    bool is_on;
    FloatDtype dtype;
  };
  const std::vector<PrecisionKey> keys = {
      {"fp16.enabled", config.fp16.enabled.value, FloatDtype::kFloat16},
      {"bf16.enabled", config.bf16.enabled.value, FloatDtype::kBfloat16},
      {"torch_autocast.enabled",
       autocast.enabled.value,
       autocast.dtype.value.value_or(FloatDtype::kBfloat16)}};
  const PrecisionKey* first = nullptr;
  for (const PrecisionKey& key : keys) {
    if (!key.is_on) {
      continue;
    }
    const KeyValue& found = *reader.find(key.path);
    if (first != nullptr && first->dtype == key.dtype) {
      continue;  // torch_autocast beside bf16: operations compute in that dtype once.
    }
    if (first != nullptr) {
      reader.error(
          found.value->place,
          fmt::format(
              "two precisions; got {} and {}, expected one of them", first->path, key.path));
      continue;
    }
    first = &key;
    config.precision = {key.dtype, reader.origin_of(found)};
  }
  note_fixed_scale(reader, config.fp16);
  check_lamb_scale(reader, config);
}

void apply_batch_rule(KeyReader& reader, config::Place file, int64_t world_size, DsConfig& config) {
  const std::vector<std::string> names = {
      "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"};
  GivenBatchSizes given;
  reader.take(names[0], given.train_batch_size);
  reader.take(names[1], given.train_micro_batch_size_per_gpu);
  reader.take(names[2], given.gradient_accumulation_steps);
  ResolvedBatchSizes resolved = resolve_batch_sizes(given, world_size);
  config.batch = std::move(resolved.sizes);
  if (resolved.fault.empty() || reader.has_error_in(names)) {
    return;
  }
  const KeyValue* const train = reader.find(names[0]);
  reader.error(train == nullptr ? file : train->value->place, resolved.fault);
}

}  // namespace lockstep::ds_config
