// SPDX-License-Identifier: Apache-2.0
// Keys about ranks that divide layers or sequences.
#include <string>
#include <utility>

#include "lockstep/ds_config/keys/key_specs.h"

namespace lockstep::ds_config {
namespace {

std::string tensor_path(const char* name) {
  return std::string("tensor_parallel.") + name;
}

/// A key of the section whose value is `Member`.
template <auto Member>
KeySpec in_tensor_parallel(KeySpec spec) {
  return stored<&DsConfig::tensor_parallel, Member>(std::move(spec));
}

KeySpec ranks(std::string path, double least, std::string description) {
  KeySpec spec = integer(std::move(path), least, std::move(description));
  spec.most = 1 << 15;  // The product of two fits an int.
  return spec;
}

KeySpec refused_flag(const char* name, const char* description) {
  return refused_unless(tensor_path(name), KeyKind::kBoolean, "false", description);
}

void add_partition_keys(std::vector<KeySpec>& keys) {
  using Section = TensorParallelSection;
  const auto path = [](const char* name) { return tensor_path("partition_config.") + name; };
  keys.push_back(nullable(works(
      tensor_path("partition_config"),
      KeyKind::kSection,
      "the layers to divide; else those of the model's tp_plan, or of the Accelerator's options")));
  keys.push_back(works(
      path("layer_specs"),
      KeyKind::kMaps,
      "see [below](#layers-to-divide); the first that matches counts, others stay whole"));
  keys.push_back(in_tensor_parallel<&Section::use_default_specs>(
      works(path("use_default_specs"), KeyKind::kBoolean, "false: without those of preset_model")));
  keys.push_back(in_tensor_parallel<&Section::strict_mode>(works(
      path("strict_mode"), KeyKind::kBoolean, "a matrix without a matching spec is an error")));
  keys.push_back(in_tensor_parallel<&Section::lm_head_patterns>(works(
      path("lm_head_patterns"),
      KeyKind::kTexts,
      "last parts of names of output layers; divided by row they take full inputs")));
  keys.push_back(in_tensor_parallel<&Section::partition_tp_size>(
      ranks(path("tp_size"), 1, "1, or the same as autotp_size")));
  keys.push_back(refused_unless(
      path("embedding_partition_dim"),
      KeyKind::kInteger,
      "1",
      "DeepSpeed does not read it, and embeddings are divided by words; delete it"));
}

}  // namespace

std::vector<KeySpec> parallel_keys() {
  using Section = TensorParallelSection;
  std::vector<KeySpec> keys = {
      works(
          "tensor_parallel",
          KeyKind::kSection,
          "ranks divide layers, and read the same batches: see mesh.md"),
      in_tensor_parallel<&Section::autotp_size>(ranks(
          tensor_path("autotp_size"),
          0,
          "ranks that divide each layer, the mesh's tp; 0: as the mesh says")),
      in_tensor_parallel<&Section::dtype>(
          dtype(tensor_path("dtype"), "must be the compute dtype, that of fp16 or bf16")),
      works(tensor_path("tp"), KeyKind::kSection, ""),
      in_tensor_parallel<&Section::tp_size>(
          ranks(tensor_path("tp.tp_size"), 1, "1, or the same as autotp_size")),
      refused_unless(
          tensor_path("tp.tp_grain_size"),
          KeyKind::kInteger,
          "1",
          "DeepSpeed does not use it in training, and all parts have the same size; delete it"),
      nullable(refused(
          tensor_path("tp.tp_group"),
          "the groups are those of the mesh, of consecutive ranks; give autotp_size only")),
      nullable(refused(
          tensor_path("tp.mpu"),
          "the groups are those of the mesh, of consecutive ranks; give autotp_size only")),
      other_name(tensor_path("tensor_parallel"), KeyKind::kSection, tensor_path("tp")),
      in_tensor_parallel<&Section::preset_model>(nullable(
          {.path = tensor_path("preset_model"),
           .kind = KeyKind::kChoice,
           .description = "the layers of DeepSpeed's preset, after those of layer_specs",
           .choices = preset_models()}))};
  add_partition_keys(keys);
  keys.push_back(refused_flag(
      "tp_overlap_comm",
      "a layer's all_reduce in backward ends before the next computation; delete it"));
  keys.push_back(nullable(refused_flag(
      "vocab_parallel_lm_head",
      "a model's own loss needs the scores of all words, which the output layer gathers; delete "
      "it, "
      "or compute the loss by vocabulary_parallel_cross_entropy: see mesh.md")));
  KeySpec loss = refused_unless(
      tensor_path("vocab_parallel_ce_backend"),
      KeyKind::kChoice,
      "torch",
      "the scores of all words are gathered; delete it");
  loss.choices = {"torch", "liger"};
  keys.push_back(std::move(loss));
  keys.push_back(nullable(refused(
      tensor_path("injection_policy_tuple"),
      "layers are named by partition_config.layer_specs; write these")));
  keys.push_back(
      refused_flag("keep_module_on_host", "the model is where the program has put it; delete it"));
  keys.push_back(refused_flag(
      "replace_with_kernel_inject",
      "the kernels are for inference, which Lockstep does not have; delete it"));
  keys.push_back(other_name(
      tensor_path("kernel_inject"), KeyKind::kBoolean, tensor_path("replace_with_kernel_inject")));
  keys.push_back(stored<&DsConfig::sequence_parallel_size>(ranks(
      "sequence_parallel_size",
      1,
      "ranks that divide each sequence, the mesh's sp: see context_parallel.md")));
  keys.push_back(stored<&DsConfig::data_parallel_size>(nullable(
      ranks("data_parallel_size", 1, "must be the number of ranks with samples of their own"))));
  return keys;
}

}  // namespace lockstep::ds_config
