// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rank_environment.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <string_view>
#include <sys/random.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr std::array<std::string_view, 5> kForeignPrefixes = {
    "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL", "MV2_"};
constexpr std::array<std::string_view, 4> kForeignNames = {
    "SLURM_PROCID", "SLURM_LOCALID", "TORCHELASTIC_USE_AGENT_STORE", "LOCKSTEP_TERMINAL"};

bool is_foreign(std::string_view name) {
  return std::any_of(
             kForeignPrefixes.begin(),
             kForeignPrefixes.end(),
             [&](std::string_view prefix) { return name.starts_with(prefix); }) ||
         std::find(kForeignNames.begin(), kForeignNames.end(), name) != kForeignNames.end();
}

std::map<std::string, std::string, std::less<>> variables_of(const JobLayout& layout, int rank) {
  const std::string number = std::to_string(rank);
  const std::string world = std::to_string(layout.ranks);
  std::map<std::string, std::string, std::less<>> variables = {
      {"RANK", number},
      {"WORLD_SIZE", world},
      {"LOCAL_RANK", number},
      {"LOCAL_WORLD_SIZE", world},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(layout.master_port)},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_RANK", number},
      {"ROLE_WORLD_SIZE", world},
      {"ROLE_NAME", "default"},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", layout.run_id},
      {"OMP_NUM_THREADS", layout.omp_num_threads},
      {"LOCKSTEP_LAUNCHER", "1"},
  };
  if (rank == 0 && layout.terminal_columns > 0) {
    variables["LOCKSTEP_TERMINAL"] = std::to_string(layout.terminal_columns);
  }
  if (layout.resume) {
    variables["LOCKSTEP_RESUME"] = "1";
  }
  return variables;
}

}  // namespace

std::vector<std::string> rank_environment(
    const std::vector<std::string>& inherited, const JobLayout& layout, int rank) {
  const auto variables = variables_of(layout, rank);
  std::vector<std::string> environment;
  bool buffering_said = false;
  for (const std::string& entry : inherited) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    buffering_said = buffering_said || name == "PYTHONUNBUFFERED";
    if (!is_foreign(name) && variables.find(name) == variables.end()) {
      environment.push_back(entry);
    }
  }
  for (const auto& [name, value] : variables) {
    environment.push_back(fmt::format("{}={}", name, value));
  }
  if (layout.is_python && !buffering_said) {
    environment.emplace_back("PYTHONUNBUFFERED=1");
  }
  return environment;
}

std::string random_run_id() {
  uint64_t bits = 0;
  if (::getrandom(&bits, sizeof(bits), 0) != sizeof(bits)) {
    throw Error(
        "lockstep launch", fmt::format("no random numbers to be had; {}", std::strerror(errno)));
  }
  return fmt::format("{:016x}", bits);
}

}  // namespace lockstep::launcher
