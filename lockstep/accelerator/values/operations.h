// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep {

/// What ranks do with values between steps: collective, blocking, and safe to call with any tensor
/// (a copy is made where one is not contiguous). In a group of one the input comes back untouched.
/// Autograd does not see them. Shapes and dtypes must agree unless a function says otherwise. An
/// argument that one rank refuses (ConfigError) is a CommError on the others, which names that rank
/// and the argument's shape.

/// Every rank's tensor along dim 0, in rank order; 0-d tensors become one element each.
at::Tensor gather(Group& group, const at::Tensor& tensor);

/// As `gather`, for tensors whose dim 0 differs between ranks. `rows[r]` is rank r's size; of these
/// the first `keep[r]` rows are in the result.
at::Tensor gather_rows(
    Group& group,
    const at::Tensor& tensor,
    const std::vector<int64_t>& rows,
    const std::vector<int64_t>& keep);

/// The reduction over ranks, on a copy.
at::Tensor reduce(Group& group, const at::Tensor& tensor, ReduceOp op);

/// A copy of the tensor that `from_process` has.
at::Tensor broadcast(Group& group, const at::Tensor& tensor, int from_process = 0);

/// Pads dimension `dim` to the largest size any rank has, behind or, with `pad_first`, before the
/// values. Other dimensions must agree. ConfigError if there is no such dimension.
at::Tensor pad_across_processes(
    Group& group,
    const at::Tensor& tensor,
    int64_t dim = 0,
    double pad_index = 0,
    bool pad_first = false);

/// Every rank's value, in rank order; where each is an array, their elements (one level is
/// flattened).
std::vector<nlohmann::json> gather_object(Group& group, const nlohmann::json& value);

/// `from_process`'s value.
nlohmann::json broadcast_object(Group& group, const nlohmann::json& value, int from_process = 0);

}  // namespace lockstep
