// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "lockstep/ds_config/keys/key_specs.h"

namespace lockstep::ds_config {
namespace {

std::string activation_path(const char* name) {
  return std::string("activation_checkpointing.") + name;
}

/// A key of the section whose value is `Member`.
template <auto Member>
KeySpec in_activation(KeySpec spec) {
  return stored<&DsConfig::activation_checkpointing, Member>(std::move(spec));
}

template <auto Member>
KeySpec activation_flag(const char* name, const char* description) {
  return in_activation<Member>(works(activation_path(name), KeyKind::kBoolean, description));
}

}  // namespace

std::vector<KeySpec> activation_keys() {
  using Section = ActivationCheckpointingSection;
  return {
      works(
          "activation_checkpointing",
          KeyKind::kSection,
          "storage of the inputs of activation_checkpoint until backward, in models that call it"),
      activation_flag<&Section::partition_activations>(
          "partition_activations",
          "no effect: only model-parallel ranks share inputs, and each rank has its own"),
      activation_flag<&Section::cpu_checkpointing>(
          "cpu_checkpointing", "the inputs stay in the host's memory"),
      activation_flag<&Section::contiguous_memory_optimization>(
          "contiguous_memory_optimization",
          "the inputs are copied to memory that is allocated once, for number_checkpoints"),
      in_activation<&Section::number_checkpoints>(nullable(integer(
          activation_path("number_checkpoints"),
          1,
          "checkpoints in one forward; more are an error"))),
      activation_flag<&Section::synchronize_checkpoint_boundary>(
          "synchronize_checkpoint_boundary",
          "wait for the device before and after each checkpoint, forward and backward"),
      activation_flag<&Section::profile>(
          "profile", "log after each update the time of its checkpoints, forward and backward")};
}

}  // namespace lockstep::ds_config
