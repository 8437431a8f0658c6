// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/cast_model.h"

#include <algorithm>
#include <cstddef>

#include <c10/core/GradMode.h>

#include "lockstep/precision/precision.h"
#include "lockstep/zero/bucket/low_precision_policy.h"

namespace lockstep {
namespace {

void cast_tensor(const at::Tensor& tensor, at::ScalarType dtype) {
  if (!tensor.is_floating_point() || tensor.scalar_type() == dtype) {
    return;
  }
  tensor.mutable_grad().reset();
  tensor.set_data(tensor.detach().to(dtype));
}

}  // namespace

ModelDtypes model_dtypes(const ds_config::DataTypesSection& section) {
  return {
      .parameters = scalar_type_of(section.param_dtype.value),
      .buffers = scalar_type_of(section.buffer_dtype.value),
      .fp32_buffers = section.keep_in_fp32_modules.value};
}

bool matches_part_of(const std::string& name, const std::string& pattern) {
  size_t from = 0;
  for (size_t begin = 0; begin <= pattern.size();) {
    const size_t end = std::min(pattern.find('*', begin), pattern.size());
    const size_t found = name.find(pattern.substr(begin, end - begin), from);
    if (found == std::string::npos) {
      return false;
    }
    from = found + end - begin;
    begin = end + 1;
  }
  return true;
}

bool any_trained_in_16_bits(const NamedTensors& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const NamedTensor& item) {
    return zero::is_trained_in_16_bits(item.tensor);
  });
}

void cast_model(
    const NamedTensors& parameters, const NamedTensors& buffers, const ModelDtypes& dtypes) {
  const c10::AutoGradMode no_grad(false);
  if (dtypes.parameters) {
    for (const NamedTensor& item : parameters) {
      cast_tensor(item.tensor, *dtypes.parameters);
    }
  }
  for (const NamedTensor& item : buffers) {
    const bool stays_wide = std::any_of(
        dtypes.fp32_buffers.begin(), dtypes.fp32_buffers.end(), [&](const std::string& pattern) {
          return matches_part_of(item.name, pattern);
        });
    if (stays_wide) {
      cast_tensor(item.tensor, at::kFloat);
    } else if (dtypes.buffers) {
      cast_tensor(item.tensor, *dtypes.buffers);
    }
  }
}

}  // namespace lockstep
