// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/connect.h"

#include <cstdint>

#include "lockstep/comm/gloo/gloo_transport.h"
#include "lockstep/watch/flight_recorder.h"

namespace lockstep {

ConnectOptions ConnectOptions::from_environment(const Environment& environment) {
  constexpr int64_t kWeekMs = 7LL * 24 * 3600 * 1000;
  ConnectOptions options;
  if (const auto timeout_ms = environment.integer("LOCKSTEP_TIMEOUT_MS", 1, kWeekMs)) {
    options.timeout = comm::Milliseconds(*timeout_ms);
  }
  if (const auto timeout_ms = environment.integer("LOCKSTEP_JOIN_TIMEOUT_MS", 1, kWeekMs)) {
    options.join_timeout = comm::Milliseconds(*timeout_ms);
  }
  return options;
}

Group connect(const WorldSpec& world, ConnectOptions options) {
  watch::FlightRecorder::process().join(world.rank, world.size);
  if (world.size == 1) {
    return {};
  }
  return Group(comm::make_gloo_transport(world, options.join_timeout), options.timeout);
}

}  // namespace lockstep
