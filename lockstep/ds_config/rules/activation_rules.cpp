// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/rules/section_rules.h"

namespace lockstep::ds_config {
void apply_activation_rules(KeyReader& reader, const DsConfig& config) {
  const ActivationCheckpointingSection& section = config.activation_checkpointing;
  const KeyValue* const contiguous =
      reader.find("activation_checkpointing.contiguous_memory_optimization");
  const KeyValue* const number = reader.find("activation_checkpointing.number_checkpoints");
  const KeyValue* const partition = reader.find("activation_checkpointing.partition_activations");
  if (section.partition_activations.value && partition != nullptr) {
    reader.note(
        partition->key,
        "activation_checkpointing.partition_activations has no effect: it is for "
        "model-parallel ranks, which share inputs; each rank keeps its own");
  }
  if (section.contiguous_memory_optimization.value && contiguous != nullptr) {
    if (!section.number_checkpoints.value) {
      reader.error(
          contiguous->value->place,
          "activation_checkpointing.contiguous_memory_optimization needs number_checkpoints, the "
          "number of checkpoints in a forward; add it");
    }
    if (!section.partition_activations.value) {
      reader.note(
          contiguous->key,
          "activation_checkpointing.contiguous_memory_optimization works without "
          "partition_activations here; DeepSpeed refuses that");
    }
  } else if (number != nullptr) {
    reader.note(
        number->key,
        "activation_checkpointing.number_checkpoints is ignored without "
        "contiguous_memory_optimization");
  }
}

}  // namespace lockstep::ds_config
