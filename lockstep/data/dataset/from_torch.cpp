// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/from_torch.h"

#include "lockstep/base/error.h"

namespace lockstep::data::torch_data {

int64_t require_size(std::optional<size_t> size) {
  if (!size) {
    throw ConfigError(
        "from_torch",
        "the dataset has no size; got an empty optional from size(), expected the number of "
        "samples; return it, or pass the Loader a dataset with stream(epoch)");
  }
  return static_cast<int64_t>(*size);
}

}  // namespace lockstep::data::torch_data
