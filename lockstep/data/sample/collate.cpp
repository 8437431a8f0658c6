// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sample/collate.h"

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/data/sample/describe.h"

namespace lockstep::data::collating {

at::Tensor stack(const std::vector<at::Tensor>& samples) {
  const at::Tensor& first = samples.front();
  for (const at::Tensor& sample : samples) {
    const bool fits = sample.defined() && first.defined() && sample.sizes() == first.sizes() &&
                      sample.scalar_type() == first.scalar_type();
    if (!fits) {
      throw ConfigError(
          "collate",
          fmt::format(
              "samples of one batch must have one shape and dtype; got {} and {}; pad them in a "
              "collate function (see pad_sequences)",
              describe(first),
              describe(sample)));
    }
  }
  return at::stack(samples);
}

at::Tensor numbers(const std::vector<double>& samples, at::ScalarType type) {
  return at::tensor(samples, at::TensorOptions(type));
}

at::Tensor numbers(const std::vector<int64_t>& samples, at::ScalarType type) {
  return at::tensor(samples, at::TensorOptions(at::kLong)).to(type);  // at::tensor makes no bools.
}

void refuse(const char* what) {
  throw ConfigError(
      "collate",
      fmt::format(
          "samples of one batch must have one structure; got {}; pass a collate function", what));
}

}  // namespace lockstep::data::collating
