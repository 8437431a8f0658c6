// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/values/nested_operations.h"
#include "lockstep/accelerator/values/operations.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/mesh_groups.h"
#include "lockstep/data/sample/nested.h"

namespace lockstep::internal {

class ActiveLoaders;

/// Exchanges values of a program between its processes; see Accelerator. All functions are
/// collective. Throws ConfigError on every process if they pass different numbers of tensors, or,
/// with `debug`, other structures, dtypes or sizes.
class Collectives {
 public:
  /// `active`: the loaders whose batches gather_for_metrics refers to.
  Collectives(const comm::MeshGroups& mesh, bool debug, const ActiveLoaders& active)
      : group_(mesh.data), all_(mesh.all), debug_(debug), active_(active) {}

  template <NestedTensors T>
  T gather(const T& value) {
    check("gather", value);
    return map(value, [&](const at::Tensor& tensor) { return lockstep::gather(group_, tensor); });
  }
  template <NestedTensors T>
  T gather_for_metrics(const T& value) {
    check("gather_for_metrics", value, /*with_sizes=*/false);
    return map(value, [&](const at::Tensor& tensor) { return gather_samples(tensor); });
  }
  template <NestedTensors T>
  T reduce(const T& value, ReduceOp op) {
    check("reduce", value);
    return map(
        value, [&](const at::Tensor& tensor) { return lockstep::reduce(group_, tensor, op); });
  }
  template <NestedTensors T>
  T pad_across_processes(const T& value, int64_t dim, double pad_index, bool pad_first) {
    check("pad_across_processes", value, /*with_sizes=*/false);
    return map(value, [&](const at::Tensor& tensor) {
      return lockstep::pad_across_processes(group_, tensor, dim, pad_index, pad_first);
    });
  }
  template <NestedTensors T>
  T broadcast(const T& value, int from_process) {
    check_same_values(all_, debug_, "broadcast", value, /*with_sizes=*/true);
    return map(value, [&](const at::Tensor& tensor) {
      return lockstep::broadcast(all_, tensor, from_process);
    });
  }
  std::vector<nlohmann::json> gather_object(const nlohmann::json& value);
  std::vector<nlohmann::json> gather_object_for_metrics(const nlohmann::json& array);
  nlohmann::json broadcast_object(const nlohmann::json& value, int from_process);
  /// Returns whether any process passes true.
  bool any(bool own);

 private:
  template <typename T>
  void check(const char* operation, const T& value, bool with_sizes = true) {
    check_same_values(group_, debug_, operation, value, with_sizes);
  }
  template <typename T, typename Operation>
  static T map(const T& value, const Operation& operation) {
    return data::map_tensors(value, operation);
  }
  at::Tensor gather_samples(const at::Tensor& recorded);

  Group group_;  ///< Processes with samples of their own.
  Group all_;
  bool debug_;
  const ActiveLoaders& active_;
};

}  // namespace lockstep::internal
