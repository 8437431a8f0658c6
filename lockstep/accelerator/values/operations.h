// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Collective, blocking operations on values between steps. They accept any tensor (a
/// non-contiguous one is copied). In a group of one the input is returned unchanged. Autograd
/// records gather and reduce, whose backward is collective, too, and no other of them. Shapes and
/// dtypes must agree unless a function says otherwise. If one rank refuses an argument
/// (ConfigError), the others throw a CommError that names that rank and the argument's shape.

/// Returns every rank's tensor along dim 0, in rank order; a 0-d tensor becomes one element.
at::Tensor gather(Group& group, const at::Tensor& tensor);

/// Works as `gather`, for tensors whose dim 0 differs between ranks. `rows[r]` is rank r's size;
/// the result has the first `keep[r]` rows of it.
at::Tensor gather_rows(
    Group& group,
    const at::Tensor& tensor,
    const std::vector<int64_t>& rows,
    const std::vector<int64_t>& keep);

/// Returns the reduction over ranks, as a copy.
at::Tensor reduce(Group& group, const at::Tensor& tensor, ReduceOp op);

/// Returns a copy of the tensor of `from_process`.
at::Tensor broadcast(Group& group, const at::Tensor& tensor, int from_process = 0);

/// Pads dimension `dim` to the largest size of any rank, after or, with `pad_first`, before the
/// values. Other dimensions must agree. Throws ConfigError if the dimension does not exist.
at::Tensor pad_across_processes(
    Group& group,
    const at::Tensor& tensor,
    int64_t dim = 0,
    double pad_index = 0,
    bool pad_first = false);

/// Returns every rank's value, in rank order; arrays are concatenated (one level is flattened).
std::vector<nlohmann::json> gather_object(Group& group, const nlohmann::json& value);

/// Returns the value of `from_process`.
nlohmann::json broadcast_object(Group& group, const nlohmann::json& value, int from_process = 0);

}  // namespace lockstep
