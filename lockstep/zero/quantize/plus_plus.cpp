// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/quantize/plus_plus.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::zero {
namespace {

void check_divides(const char* what, int part, int world) {
  if (part < 1 || world % part != 0) {
    throw ConfigError(
        "zero",
        fmt::format(
            "{} must divide the number of ranks; got {}, expected a divisor of {}; try {}",
            what,
            part,
            world,
            world % 2 == 0 ? 2 : 1));
  }
}

}  // namespace

PlusPlusGroups::PlusPlusGroups(Group& world, const PlusPlusOptions& options) {
  const int rank = world.rank();
  check_divides("hpz_partition_size", options.hpz_partition_size, world.size());
  if (options.hpz_partition_size > 1) {
    hpz = world.split(rank / options.hpz_partition_size, rank);
  }
  if (options.quantized_gradients) {
    // Hosts of one rank have nothing to add up, so one hop over all ranks suffices.
    const int host =
        options.host_size == 0 || options.host_size == 1 ? world.size() : options.host_size;
    check_divides("host_size", host, world.size());
    within = world.split(rank / host, rank);
    between = world.split(rank % host, rank);
  }
}

}  // namespace lockstep::zero
