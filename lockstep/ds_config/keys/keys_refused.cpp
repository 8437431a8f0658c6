// SPDX-License-Identifier: Apache-2.0
// What Lockstep does not carry out, and what DeepSpeed itself has given up.
#include "lockstep/ds_config/keys/key_specs.h"

namespace lockstep::ds_config {
namespace {

KeySpec removed(std::string path, const std::string& instead) {
  return refused(std::move(path), "removed in DeepSpeed 0.19 (" + instead + "); delete it");
}

void add_elsewhere(std::vector<KeySpec>& keys) {
  keys.push_back(refused(
      "autotuning",
      "nothing is tried out; lockstep estimate-memory says which stage and batch fit. Delete it"));
  keys.push_back(refused("pipeline", "the model is not cut into stages; use ZeRO stage 3 instead"));
  keys.push_back(
      refused("tensor_parallel", "tensors are not cut for computing; use ZeRO stage 3 instead"));
  keys.push_back(refused("expert_parallel", "experts are not spread over ranks; delete it"));
  keys.push_back(refused_unless(
      "use_data_before_expert_parallelism",
      KeyKind::kBoolean,
      "false",
      "experts are not spread over ranks; delete it"));
  KeySpec sequences = refused_unless(
      "sequence_parallel_size",
      KeyKind::kInteger,
      "1",
      "sequences are not cut; use a smaller batch or ZeRO stage 3 instead");
  keys.push_back(std::move(sequences));
  keys.push_back(
      refused("seq_parallel_communication_data_type", "sequences are not cut; delete it"));
  keys.push_back(
      refused("hybrid_engine", "training and generating do not share an engine; delete it"));
  keys.push_back(refused("compile", "C++ has no torch.compile; delete it"));
  keys.push_back(refused(
      "data_efficiency", "data comes as the loader gives it; order it by a sampler of your own"));
  keys.push_back(refused("weight_quantization", "is for inference; delete it"));
  keys.push_back(
      refused("datastates_ckpt", "checkpoints have one format, which all ranks write; delete it"));
  keys.push_back(refused("zero_optimization.zenflow", "the update is never late; delete it"));
  keys.push_back(refused(
      "zero_optimization.save_muon_momentum_buffer_in_memory",
      "Muon's state is never swapped out; delete it"));
  keys.push_back(ignored("disable_python_gc", KeyKind::kBoolean, "there is no Python"));
  KeySpec words = ignored(
      "vocabulary_size", KeyKind::kInteger, "DeepSpeed only warns by it of sizes that are slow");
  words.least = 1;
  keys.push_back(nullable(std::move(words)));
}

}  // namespace

std::vector<KeySpec> refused_keys() {
  std::vector<KeySpec> keys;
  add_elsewhere(keys);
  keys.push_back(removed("amp", "use fp16 or bf16"));
  keys.push_back(removed("compression_training", "train without it"));
  keys.push_back(removed("curriculum_learning", "order the data by a sampler"));
  keys.push_back(
      removed("elasticity", "give batch sizes; a checkpoint loads on any number of ranks"));
  keys.push_back(removed("eigenvalue", "it was a part of quantize_training"));
  keys.push_back(removed("graph_harvesting", "there is nothing in its place"));
  keys.push_back(removed("nebula", "checkpoints are files"));
  keys.push_back(removed("progressive_layer_drop", "there is nothing in its place"));
  keys.push_back(removed("quantize_training", "train without it"));
  keys.push_back(removed("sparse_attention", "there is nothing in its place"));
  keys.push_back(removed("sparse_gradients", "gradients of embeddings are dense"));
  for (const char* name : {"mics_shard_size", "mics_hierarchical_params_gather"}) {
    keys.push_back(removed(
        std::string("zero_optimization.") + name, "zero_hpz_partition_size is close to MiCS"));
  }
  keys.push_back(removed(
      "zero_optimization.zeropp_loco_param", "zero_quantized_gradients works without LoCo"));
  return keys;
}

}  // namespace lockstep::ds_config
