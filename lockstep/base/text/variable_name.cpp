// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text/variable_name.h"

#include <algorithm>
#include <array>

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 5> kForeignPrefixes = {
    "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL", "MV2_"};
constexpr std::array<std::string_view, 8> kForeignNames = {
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "LOCKSTEP_TERMINAL",
    "LOCKSTEP_FLIGHT",
    "LOCKSTEP_HOST_ADDR",
    "LOCKSTEP_JOB_TOKEN",
    "LOCKSTEP_NODE_SPEC"};
constexpr std::string_view kTorchPrefix = "TORCHELASTIC_";
constexpr std::array<std::string_view, 12> kRankVariables = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "LOCKSTEP_LAUNCHER"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool is_variable_name(std::string_view name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && !is_digit(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
         });
}

bool is_launcher_variable(std::string_view name) {
  return contains(kForeignNames, name) ||
         std::any_of(
             kForeignPrefixes.begin(), kForeignPrefixes.end(), [&](std::string_view prefix) {
               return name.starts_with(prefix);
             });
}

bool is_set_by_launcher(std::string_view name) {
  return is_launcher_variable(name) || name.starts_with(kTorchPrefix) ||
         contains(kRankVariables, name);
}

}  // namespace lockstep
