// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/stream_steps.h"

#include <fmt/format.h>

#include "lockstep/base/log.h"

namespace lockstep::data {

void check_promised_samples(std::optional<int64_t> promised, int64_t read) {
  if (promised && *promised != read) {
    log_warning(fmt::format(
        "the stream ended after {} samples, the dataset's size() is {}; values computed from the "
        "number of batches, such as a schedule, are wrong",
        read,
        *promised));
  }
}

}  // namespace lockstep::data
