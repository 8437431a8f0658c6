// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/connect/connect.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/device/device_transport.h"
#include "lockstep/comm/gloo/gloo_transport.h"
#include "lockstep/comm/gloo/rendezvous.h"
#include "lockstep/comm/hierarchy/hierarchy_transport.h"
#include "lockstep/comm/shm/shm_transport.h"
#include "lockstep/comm/transport/flight.h"
#include "lockstep/watch/flight_recorder.h"

namespace lockstep {
namespace {

/// Returns the choice that environment variable `name` selects; nothing if it is not set.
template <typename Kind>
std::optional<Kind> choice_of(
    const Environment& environment,
    const char* name,
    const std::vector<std::pair<std::string, Kind>>& choices) {
  const auto text = environment.text(name);
  if (!text) {
    return std::nullopt;
  }
  std::string all;
  for (const auto& [value, kind] : choices) {
    if (value == *text) {
      return kind;
    }
    all += (all.empty() ? "" : ", ") + value;
  }
  throw ConfigError(name, fmt::format("invalid value; got '{}', expected one of {}", *text, all));
}

const std::vector<std::pair<std::string, TransportKind>>& transport_names() {
  static const std::vector<std::pair<std::string, TransportKind>> names = {
      {"auto", TransportKind::kAuto}, {"shm", TransportKind::kShm}, {"gloo", TransportKind::kGloo}};
  return names;
}

std::string transport_name_of(TransportKind kind) {
  for (const auto& [name, each] : transport_names()) {
    if (each == kind) {
      return name;
    }
  }
  return {};
}

std::shared_ptr<comm::Transport> make_transport(
    const WorldSpec& world, const ConnectOptions& options) {
  if (options.transport == TransportKind::kShm && !world.on_one_host()) {
    throw ConfigError(
        "LOCKSTEP_COMM",
        fmt::format(
            "shared memory needs all ranks on one host; got {} ranks, {} of them on this host; set "
            "LOCKSTEP_COMM=auto",
            world.size,
            world.local_size));
  }
  const auto address = comm::rendezvous_address_of(world, transport_name_of(options.transport));
  if (options.transport != TransportKind::kGloo && world.on_one_host()) {
    try {
      return comm::make_shm_transport(address, options.flight_group, options.join_timeout);
    } catch (const CommError&) {
      throw;
    } catch (const ConfigError&) {
      throw;
    } catch (const Error& error) {
      if (options.transport == TransportKind::kShm) {
        throw;
      }
      log_warning(
          "shared memory is not available; the job uses Gloo, which is slower: " +
          without_rank_suffix(error.what()));
    }
  }
  auto gloo = comm::make_gloo_transport(
      world,
      comm::join_store(world, address, options.join_timeout),
      options.flight_group,
      options.join_timeout);
  return options.transport == TransportKind::kAuto && !world.on_one_host()
             ? comm::make_hierarchy_transport(
                   world, std::move(gloo), options.flight_group, options.join_timeout)
             : gloo;
}

}  // namespace

ConnectOptions ConnectOptions::from_environment(const Environment& environment) {
  constexpr int64_t kWeekMs = 7LL * 24 * 3600 * 1000;
  ConnectOptions options;
  if (const auto timeout_ms = environment.integer("LOCKSTEP_TIMEOUT_MS", 1, kWeekMs)) {
    options.timeout = comm::Milliseconds(*timeout_ms);
  }
  if (const auto timeout_ms = environment.integer("LOCKSTEP_JOIN_TIMEOUT_MS", 1, kWeekMs)) {
    options.join_timeout = comm::Milliseconds(*timeout_ms);
  }
  options.transport = choice_of<TransportKind>(environment, "LOCKSTEP_COMM", transport_names())
                          .value_or(options.transport);
  options.device_comm = choice_of<comm::DeviceCommKind>(
                            environment,
                            "LOCKSTEP_DEVICE_COMM",
                            {{"auto", comm::DeviceCommKind::kAuto},
                             {"nccl", comm::DeviceCommKind::kNccl},
                             {"host", comm::DeviceCommKind::kHost}})
                            .value_or(options.device_comm);
  return options;
}

Group connect(const WorldSpec& world, ConnectOptions options) {
  return connect_renewable(world, options).group;
}

Connection connect_renewable(const WorldSpec& world, ConnectOptions options) {
  if (options.flight_group == comm::kWorldGroup) {
    watch::FlightRecorder::process().join(world.rank, world.size);
  }
  if (world.size == 1) {
    return {};
  }
  auto transport = make_transport(world, options);
  log_debug(fmt::format("{} ranks are connected over {}", world.size, transport->name()));
  auto renewable =
      comm::with_devices(std::move(transport), options.device_comm, options.flight_group);
  return {Group(renewable, options.timeout), renewable};
}

}  // namespace lockstep
