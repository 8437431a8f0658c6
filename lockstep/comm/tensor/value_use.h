// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/function_schema.h>

namespace lockstep::comm {

/// Returns whether an operation may use values, by its declaration. An operation of torch that
/// returns a view of its argument does not: if it copies after all (reshape, contiguous, to), it
/// calls another operation for that. Other libraries' operations count as using values.
/// Thread-safe.
bool uses_values(const c10::FunctionSchema& schema);

}  // namespace lockstep::comm
