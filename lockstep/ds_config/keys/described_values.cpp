// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/keys/described_values.h"

#include "lockstep/ds_config/keys/key_table.h"
#include "lockstep/ds_config/value_text.h"

namespace lockstep::ds_config {

std::vector<DescribedValue> described_values(const DsConfig& config) {
  std::vector<DescribedValue> all;
  const auto add = [&](const std::string& path, const auto& field) {
    all.push_back({path, json_of(field.value), described(field.origin)});
  };
  const auto add_typed = [&](const std::string& path, const auto& section) {
    if (!section) {
      all.push_back({path, nullptr, "default"});
      return;
    }
    add(path + ".type", section->name);
    for (const Parameter& parameter : section->parameters.all()) {
      add(path + ".params." + parameter.name, parameter.value);
    }
  };
  add("train_batch_size", config.batch.train_batch_size);
  add("train_micro_batch_size_per_gpu", config.batch.train_micro_batch_size_per_gpu);
  add("gradient_accumulation_steps", config.batch.gradient_accumulation_steps);
  add_typed("optimizer", config.optimizer);
  add_typed("scheduler", config.scheduler);
  add("precision", config.precision);
  visit_fields(config, add);
  return all;
}

}  // namespace lockstep::ds_config
