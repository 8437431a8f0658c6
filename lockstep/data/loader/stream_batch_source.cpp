// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/stream_batch_source.h"

#include <fmt/format.h>

#include "lockstep/base/log.h"

namespace lockstep::data {

void check_sample_count(std::optional<int64_t> expected, int64_t read) {
  if (expected && *expected != read) {
    log_warning(fmt::format(
        "the stream ended after {} samples, but the dataset's size() is {}; values computed from "
        "the number of batches, such as a schedule, are wrong; correct size()",
        read,
        *expected));
  }
}

}  // namespace lockstep::data
