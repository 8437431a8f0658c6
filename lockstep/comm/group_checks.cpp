// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group_checks.h"

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/sharded_param.h"

namespace lockstep::comm {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  return fmt::format(
      "{}[{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

}  // namespace

void check_tensor(Op op, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw ConfigError(name_of(op), "the tensor is undefined");
  }
  if (tensor.is_meta()) {
    throw ConfigError(
        name_of(op),
        fmt::format(
            "the tensor {} is on meta and has no values; pass a tensor on a real device",
            shape_text(tensor)));
  }
  if (is_sharded_param(tensor)) {
    throw ConfigError(
        name_of(op),
        fmt::format(
            "the parameter {} is sharded (ZeRO stage 3, zero_init): its memory exists only during "
            "torch operations on it; pass tensor.detach().clone() and copy_ the result back, or "
            "copy one rank's values to all ranks by Accelerator::with_gathered_parameters",
            shape_text(tensor)));
  }
  if (tensor.layout() != at::kStrided || !tensor.is_contiguous()) {
    throw ConfigError(
        name_of(op),
        fmt::format(
            "the tensor {} is not contiguous in memory; pass tensor.contiguous()",
            shape_text(tensor)));
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    throw ConfigError(
        name_of(op),
        fmt::format(
            "the tensor {} is a lazy conjugate or negative; pass "
            "tensor.resolve_conj().resolve_neg()",
            shape_text(tensor)));
  }
}

void check_reducible(Op op, const at::Tensor& tensor, ReduceOp reduce) {
  check_tensor(op, tensor);
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return;
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
      if (reduce == ReduceOp::kAvg) {
        throw ConfigError(
            name_of(op),
            fmt::format(
                "the average of an integer tensor would be rounded; got {}, expected a floating "
                "point tensor",
                shape_text(tensor)));
      }
      return;
    default:
      throw ConfigError(
          name_of(op),
          fmt::format(
              "the dtype cannot be reduced; got {}, expected float32, float64, float16, bfloat16, "
              "uint8, int8, int32 or int64",
              shape_text(tensor)));
  }
}

void check_divisible(Op op, const at::Tensor& tensor, int size) {
  if (tensor.dim() == 0 || tensor.size(0) % size != 0) {
    throw ConfigError(
        name_of(op),
        fmt::format(
            "dimension 0 does not divide into {} equal parts; got {}; pad it or choose another "
            "size",
            size,
            shape_text(tensor)));
  }
}

void check_rank(Op op, int rank, int size, const char* what) {
  if (rank < 0 || rank >= size) {
    throw ConfigError(
        name_of(op),
        fmt::format("{} is out of range; got rank {}, expected 0 to {}", what, rank, size - 1));
  }
}

void check_output(Op op, const at::Tensor& output, const at::Tensor& input, int times, int parts) {
  check_tensor(op, output);
  const bool fits = output.dim() == input.dim() && output.scalar_type() == input.scalar_type() &&
                    output.device() == input.device() &&
                    output.size(0) * parts == input.size(0) * times &&
                    output.sizes().slice(1) == input.sizes().slice(1);
  if (!fits) {
    throw ConfigError(
        name_of(op),
        fmt::format(
            "the output does not fit the input; got output {}, input {}, expected {}/{} of the "
            "input's rows",
            shape_text(output),
            shape_text(input),
            times,
            parts));
  }
}

void check_scatter_input(const at::Tensor& output, const at::Tensor& input, int size) {
  check_tensor(Op::kScatter, input);
  check_divisible(Op::kScatter, input, size);
  const bool fits = output.dim() > 0 && input.numel() == output.numel() * size &&
                    input.dim() == output.dim() &&
                    input.sizes().slice(1) == output.sizes().slice(1) &&
                    input.scalar_type() == output.scalar_type();
  if (!fits) {
    throw ConfigError(
        "scatter",
        fmt::format(
            "input must be {} outputs along dimension 0; got input {}, output {}",
            size,
            shape_text(input),
            shape_text(output)));
  }
}

}  // namespace lockstep::comm
