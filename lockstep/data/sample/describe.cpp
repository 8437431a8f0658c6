// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sample/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::data {

std::string describe(const at::Tensor& tensor) {
  return tensor.defined() ? fmt::format(
                                "{}[{}] on {}",
                                c10::toString(tensor.scalar_type()),
                                fmt::join(tensor.sizes(), ", "),
                                tensor.device().str())
                          : "an undefined tensor";
}

}  // namespace lockstep::data
