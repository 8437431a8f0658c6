// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/setup/mesh.h"

#include <vector>

#include <fmt/format.h>

#include <ATen/ops/tensor.h>

#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

constexpr const char* kWhere = "accelerator";

void refuse(bool is_wrong, const std::string& message) {
  if (is_wrong) {
    throw ConfigError(kWhere, message);
  }
}

/// Makes dp_replicate copies of the model whose processes shard it.
void replicate_shards(const MeshShape& shape, ZeroPlugin& zero) {
  refuse(
      !shape.is_data_parallel(),
      fmt::format(
          "the mesh {} has dp_replicate together with ZeRO and other dimensions; expected no "
          "dp_replicate, so that all data parallel processes shard the model",
          mesh_text(shape)));
  refuse(
      zero.stage != 3 || shape.dp_shard == 1,
      fmt::format(
          "the mesh {} has dp_replicate together with ZeRO stage {}; expected stage 3 and dp_shard "
          "above 1, for copies of parameters in groups of processes, or no dp_replicate",
          mesh_text(shape),
          zero.stage));
  refuse(
      zero.zero_hpz_partition_size > 1 && zero.zero_hpz_partition_size != shape.dp_shard,
      fmt::format(
          "the mesh {} has dp_shard {}, but zero_hpz_partition_size is {}; expected the same",
          mesh_text(shape),
          shape.dp_shard,
          zero.zero_hpz_partition_size));
  zero.zero_hpz_partition_size = shape.dp_shard;
}

/// Throws ConfigError for what does not work with experts that ranks divide.
void expect_experts_fit(const MeshShape& shape, const AcceleratorOptions& options) {
  const CommHookType hook = options.data_parallel.comm_hook.type;
  refuse(
      hook == CommHookType::kPowerSgd || hook == CommHookType::kBatchedPowerSgd,
      fmt::format(
          "the mesh {} has ep together with the comm hook {}, whose state would differ between the "
          "ranks of a model; expected fp16, bf16 or none",
          mesh_text(shape),
          name_of(hook)));
}

}  // namespace

MeshShape configured_mesh(const RunContext& context, bool shards) {
  return resolve_mesh(*context.options.mesh, context.size(), shards);
}

void apply_mesh(const MeshShape& shape, AcceleratorOptions& options, ZeroPlugin* zero) {
  if (shape.ep > 1) {
    expect_experts_fit(shape, options);
  }
  refuse(
      zero == nullptr && options.mesh->dp_shard > 1,
      fmt::format(
          "the mesh {} has dp_shard, but nothing is sharded; expected ZeRO, or dp_replicate",
          mesh_text(shape)));
  if (zero != nullptr && options.mesh->dp_replicate > 1) {
    replicate_shards(shape, *zero);
  }
  if (shape.is_data_parallel()) {
    return;
  }
  refuse(
      options.shared_parameters,
      fmt::format(
          "shared_parameters needs processes that all hold the full model; got the mesh {}; turn "
          "it "
          "off",
          mesh_text(shape)));
  refuse(
      zero != nullptr && (zero->zero_hpz_partition_size > 1 || zero->zero_quantized_gradients),
      fmt::format(
          "zero_hpz_partition_size and zero_quantized_gradients group the processes by hosts, "
          "which "
          "the mesh {} does as well; turn them off, or use a mesh of dp_replicate and dp_shard",
          mesh_text(shape)));
}

void expect_tensor_lines_on_hosts(const RunContext& context, const MeshShape& shape) {
  if (shape.tp == 1) {
    return;
  }
  Group group = context.group;
  const at::Tensor own = at::tensor(
      {static_cast<int64_t>(context.world.local_rank),
       static_cast<int64_t>(context.world.local_size)},
      at::kLong);
  const at::Tensor all = group.all_gather(own).wait();
  const auto* values = all.const_data_ptr<int64_t>();
  std::vector<int> ranks_of_hosts;
  for (int rank = 0; rank < group.size(); ++rank, values += 2) {
    if (values[0] == 0) {
      ranks_of_hosts.push_back(static_cast<int>(values[1]));
    }
  }
  expect_lines_on_hosts(shape, ranks_of_hosts);
}

}  // namespace lockstep::internal
