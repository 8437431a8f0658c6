// SPDX-License-Identifier: Apache-2.0
// activation_checkpointing: its keys, and what they say together.
#include <utility>

#include "lockstep/ds_config/keys/key_specs.h"
#include "lockstep/ds_config/rules/section_rules.h"

namespace lockstep::ds_config {
namespace {

std::string activation_path(const char* name) {
  return std::string("activation_checkpointing.") + name;
}

/// The key of that name, whose value is the section's `Member`.
template <auto Member>
KeySpec in_section(KeySpec spec) {
  return stored<&DsConfig::activation_checkpointing, Member>(std::move(spec));
}

template <auto Member>
KeySpec flag(const char* name, const char* description) {
  return in_section<Member>(works(activation_path(name), KeyKind::kBoolean, description));
}

}  // namespace

std::vector<KeySpec> activation_keys() {
  using Section = ActivationCheckpointingSection;
  return {
      works(
          "activation_checkpointing",
          KeyKind::kSection,
          "how activation_checkpoint, where the model calls it, keeps its inputs until backward"),
      flag<&Section::partition_activations>(
          "partition_activations",
          "divides nothing: model-parallel ranks would share inputs, and each rank has its own"),
      flag<&Section::cpu_checkpointing>("cpu_checkpointing", "they wait in the host's memory"),
      flag<&Section::contiguous_memory_optimization>(
          "contiguous_memory_optimization",
          "they are copied into memory that is allocated once, for number_checkpoints of them"),
      in_section<&Section::number_checkpoints>(nullable(integer(
          activation_path("number_checkpoints"),
          1,
          "checkpoints between a forward and its backward; one more is an error"))),
      flag<&Section::synchronize_checkpoint_boundary>(
          "synchronize_checkpoint_boundary",
          "wait for the device before and after each checkpoint, forward and backward"),
      flag<&Section::profile>(
          "profile", "say after each update how long its checkpoints took, forward and backward")};
}

void apply_activation_rules(KeyReader& reader, const DsConfig& config) {
  const ActivationCheckpointingSection& section = config.activation_checkpointing;
  const Found* const contiguous = reader.find(activation_path("contiguous_memory_optimization"));
  const Found* const number = reader.find(activation_path("number_checkpoints"));
  const Found* const partition = reader.find(activation_path("partition_activations"));
  if (section.partition_activations.value && partition != nullptr) {
    reader.note(
        partition->key,
        "activation_checkpointing.partition_activations divides nothing here: it is for "
        "model-parallel ranks, which share inputs; each rank keeps its own");
  }
  if (section.contiguous_memory_optimization.value && contiguous != nullptr) {
    if (!section.number_checkpoints.value) {
      reader.error(
          contiguous->value->place,
          "activation_checkpointing.contiguous_memory_optimization needs number_checkpoints, to "
          "know how much memory to allocate; give how many a forward has");
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
        "activation_checkpointing.number_checkpoints says nothing without "
        "contiguous_memory_optimization");
  }
}

}  // namespace lockstep::ds_config
