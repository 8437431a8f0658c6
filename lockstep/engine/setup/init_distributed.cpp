// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/init_distributed.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <tuple>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <ATen/DeviceAccelerator.h>

#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text/words.h"

namespace lockstep {
namespace {

constexpr const char* kWhere = "init_distributed";
constexpr const char* kTcp = "tcp://";

/// This process's connection, with the options that made it.
struct Connection {
  Connected job;
  ConnectOptions options;
};

/// Returns the connection. Exit empties it before the objects that transports need are destroyed.
std::unique_ptr<Connection>& connection() {
  static auto* const only = new std::unique_ptr<Connection>;
  return *only;
}

bool same(const ConnectOptions& a, const ConnectOptions& b) {
  return a.timeout == b.timeout && a.join_timeout == b.join_timeout && a.transport == b.transport &&
         a.device_comm == b.device_comm;
}

Connected connect_ranks(WorldSpec world, const ConnectOptions& options) {
  Group group = connect(world, options);
  connection() =
      std::make_unique<Connection>(Connection{{std::move(world), std::move(group)}, options});
  // Registered after connect(), whose objects, such as the flight record, must outlive the group.
  static const int registered = std::atexit([] { destroy_process_group(); });
  LOCKSTEP_ASSERT(registered == 0, "no room for another atexit handler");
  return connection()->job;
}

void choose_backend(const std::string& name, ConnectOptions& options) {
  const std::string backend = lower(name);
  if (backend == "nccl") {
    const auto type = at::getAccelerator();
    if (!type || at::accelerator::deviceCount() == 0) {
      throw ConfigError(
          kWhere, "dist_backend nccl needs a GPU, and libtorch finds none; omit it, or set gloo");
    }
    options.device_comm = comm::DeviceCommKind::kNccl;
  } else if (backend == "gloo") {
    options.transport = TransportKind::kGloo;
    options.device_comm = comm::DeviceCommKind::kHost;
  } else if (backend == "shm") {
    options.transport = TransportKind::kShm;
  } else {
    throw ConfigError(
        kWhere,
        fmt::format(
            "dist_backend is unknown; got '{}', expected nccl, gloo or shm; omit it for the best "
            "available one (ranks that mpirun starts need no MPI to communicate)",
            name));
  }
}

ConnectOptions connect_options_of(const InitDistributedOptions& options) {
  const Environment environment = Environment::process();
  ConnectOptions connect_options = ConnectOptions::from_environment(environment);
  constexpr int64_t kDayOfMinutes = int64_t{24} * 60;
  const auto minutes = environment.integer("DEEPSPEED_TIMEOUT", 1, kDayOfMinutes);
  if (options.timeout) {
    if (options.timeout->count() <= 0) {
      throw ConfigError(
          kWhere, fmt::format("timeout must be positive; got {} ms", options.timeout->count()));
    }
    connect_options.timeout = *options.timeout;
  } else if (minutes && !environment.text("LOCKSTEP_TIMEOUT_MS")) {
    connect_options.timeout = std::chrono::minutes(*minutes);
  }
  if (options.dist_backend) {
    choose_backend(*options.dist_backend, connect_options);
  }
  return connect_options;
}

std::map<std::string, std::string> all_variables() {
  std::map<std::string, std::string> all;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) {
      all.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return all;
}

/// Returns host and port of "tcp://host:port".
std::pair<std::string, std::string> address_of(const std::string& init_method) {
  const std::string address = init_method.substr(std::string(kTcp).size());
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || !parse_integer(address.substr(colon + 1))) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "init_method has no host and port; got '{}', expected tcp://host:port", init_method));
  }
  return {address.substr(0, colon), address.substr(colon + 1)};
}

/// Returns this process's variables, some replaced by `options`.
Environment environment_of(const InitDistributedOptions& options) {
  std::map<std::string, std::string> variables = all_variables();
  const bool is_tcp = options.init_method.starts_with(kTcp);
  if (!is_tcp && options.init_method != "env://") {
    throw ConfigError(
        kWhere,
        fmt::format(
            "init_method is unknown; got '{}', expected env:// or tcp://host:port",
            options.init_method));
  }
  if (options.rank.has_value() != options.world_size.has_value() || (is_tcp && !options.rank)) {
    throw ConfigError(
        kWhere,
        is_tcp ? "tcp://host:port does not contain the rank; give rank and world_size"
               : "got only one of rank and world_size; give both, or neither");
  }
  if (is_tcp) {
    std::tie(variables["MASTER_ADDR"], variables["MASTER_PORT"]) = address_of(options.init_method);
  }
  if (options.rank) {
    variables["RANK"] = std::to_string(*options.rank);
    variables["WORLD_SIZE"] = std::to_string(*options.world_size);
  }
  if (options.distributed_port) {
    variables.emplace("MASTER_PORT", std::to_string(*options.distributed_port));
  }
  return Environment::of(std::move(variables));
}

WorldSpec world_of(const InitDistributedOptions& options) {
  const Environment environment = environment_of(options);
  const WorldSpec world = world_from_environment(environment);
  if (!options.auto_mpi_discovery && world.size > 1 && !environment.text("RANK")) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "auto_mpi_discovery is off, but only {} has the rank of this process; set RANK and "
            "WORLD_SIZE, or turn auto_mpi_discovery on",
            world.source));
  }
  return internal::enter_world(environment);
}

/// Throws ConfigError for options that differ from those of the existing connection.
void check_same_options(const InitDistributedOptions& options) {
  const Connection& first = *connection();
  ConnectOptions wanted = first.options;
  if (options.dist_backend) {
    choose_backend(*options.dist_backend, wanted);
  }
  wanted.timeout = options.timeout.value_or(wanted.timeout);
  const WorldSpec& world = first.job.world;
  const bool other_rank = options.rank.value_or(world.rank) != world.rank ||
                          options.world_size.value_or(world.size) != world.size;
  const bool other_port = options.distributed_port && world.size > 1 &&
                          !Environment::process().text("MASTER_PORT") &&
                          *options.distributed_port != world.master_port;
  const bool other_address = options.init_method.starts_with(kTcp) &&
                             address_of(options.init_method) !=
                                 std::pair(world.master_addr, std::to_string(world.master_port));
  if (other_rank || other_port || other_address || !same(wanted, first.options)) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "the ranks are connected already, by an earlier call or by initialize; got other "
            "options, expected those of the first (rank {} of {}, timeout {} s, {}); call it once, "
            "before everything else",
            world.rank,
            world.size,
            std::chrono::duration<double>(first.options.timeout).count(),
            first.job.group.transport_name()));
  }
}

}  // namespace

Connected init_distributed(const InitDistributedOptions& options) {
  if (connection()) {
    check_same_options(options);
    return connection()->job;
  }
  const ConnectOptions connect_options = connect_options_of(options);
  Connected job = connect_ranks(world_of(options), connect_options);
  if (options.verbose && job.world.size > 1) {
    log_info(fmt::format(
        "{} ranks are connected ({}), transport {}, timeout {} s",
        job.world.size,
        job.world.source,
        job.group.transport_name(),
        std::chrono::duration<double>(connect_options.timeout).count()));
  }
  return job;
}

bool is_distributed_initialized() {
  return connection() != nullptr;
}

void destroy_process_group() {
  connection().reset();
}

WorldSpec world_to_connect() {
  return connection() ? connection()->job.world : world_from_environment(Environment::process());
}

Connected connected_once(const ConnectOptions& options) {
  const ConnectOptions unset = ConnectOptions::from_environment(Environment::process());
  if (!connection()) {
    return connect_ranks(
        internal::enter_world(Environment::process()),
        same(options, unset) ? connect_options_of({}) : options);
  }
  if (!same(options, connection()->options) && !same(options, unset)) {
    throw ConfigError(
        "initialize",
        "AcceleratorOptions::connect differs from the options of the existing connection; pass "
        "it to init_distributed, or omit it");
  }
  return connection()->job;
}

}  // namespace lockstep
