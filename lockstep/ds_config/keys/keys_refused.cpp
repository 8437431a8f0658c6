// SPDX-License-Identifier: Apache-2.0
// Keys of features that Lockstep does not have, and of those that DeepSpeed has removed.
#include "lockstep/ds_config/keys/key_specs.h"

namespace lockstep::ds_config {
namespace {

KeySpec removed(std::string path, const std::string& instead) {
  return refused(std::move(path), "removed in DeepSpeed 0.19 (" + instead + "); delete it");
}

void add_unsupported(std::vector<KeySpec>& keys) {
  keys.push_back(refused(
      "autotuning",
      "Lockstep has no autotuning; lockstep estimate-memory shows which stage and batch fit; "
      "delete it"));
  keys.push_back(refused("pipeline", "arguments of PipelineModule say it; delete it"));
  keys.push_back(refused(
      "expert_parallel",
      "layers of experts have their own number of ranks, ep_size: see experts.md; delete it"));
  keys.push_back(refused_unless(
      "use_data_before_expert_parallelism",
      KeyKind::kBoolean,
      "false",
      "consecutive ranks divide the experts; delete it"));
  keys.push_back(refused(
      "seq_parallel_communication_data_type",
      "gradients of a divided sequence are sent as all others: communication_data_type; delete "
      "it"));
  keys.push_back(refused("hybrid_engine", "the engine does not generate text; delete it"));
  keys.push_back(refused("compile", "C++ has no torch.compile; delete it"));
  keys.push_back(
      refused("data_efficiency", "the loader decides the order of data; use your own sampler"));
  keys.push_back(refused("weight_quantization", "it is only for inference; delete it"));
  keys.push_back(
      refused("datastates_ckpt", "checkpoints have one format, which all ranks write; delete it"));
  keys.push_back(
      refused("zero_optimization.zenflow", "Lockstep has no delayed updates; delete it"));
  keys.push_back(ignored(
      "zero_optimization.save_muon_momentum_buffer_in_memory",
      KeyKind::kBoolean,
      "Muon's state always is in memory"));
  keys.push_back(ignored("disable_python_gc", KeyKind::kBoolean, "the process has no Python"));
  KeySpec words =
      ignored("vocabulary_size", KeyKind::kInteger, "DeepSpeed only uses it to warn of slow sizes");
  words.least = 1;
  keys.push_back(nullable(std::move(words)));
}

}  // namespace

std::vector<KeySpec> refused_keys() {
  std::vector<KeySpec> keys;
  add_unsupported(keys);
  keys.push_back(removed("amp", "use fp16 or bf16"));
  keys.push_back(removed("compression_training", "train without it"));
  keys.push_back(removed("curriculum_learning", "order the data by a sampler"));
  keys.push_back(
      removed("elasticity", "give batch sizes; a checkpoint loads on any number of ranks"));
  keys.push_back(removed("eigenvalue", "it was part of quantize_training"));
  keys.push_back(removed("graph_harvesting", "without a successor"));
  keys.push_back(removed("nebula", "checkpoints are files"));
  keys.push_back(removed("progressive_layer_drop", "without a successor"));
  keys.push_back(removed("quantize_training", "train without it"));
  keys.push_back(removed("sparse_attention", "without a successor"));
  keys.push_back(removed("sparse_gradients", "gradients of embeddings are dense"));
  for (const char* name : {"mics_shard_size", "mics_hierarchical_params_gather"}) {
    keys.push_back(removed(
        std::string("zero_optimization.") + name, "use zero_hpz_partition_size, which is similar"));
  }
  keys.push_back(removed(
      "zero_optimization.zeropp_loco_param", "zero_quantized_gradients works without LoCo"));
  return keys;
}

}  // namespace lockstep::ds_config
