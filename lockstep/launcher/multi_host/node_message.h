// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/launcher/multi_host/node_session.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/watch/rank_view.h"

namespace lockstep::launcher {

/// Incremented when launchers of two builds could misunderstand each other.
inline constexpr int kNodeProtocol = 3;

/// The first message of a launcher, which node 0 compares with its own plan.
struct NodeHello {
  int protocol = kNodeProtocol;
  int node = 0;
  int nodes = 1;
  int world_size = 1;
  int local_size = 1;
  int first_rank = 0;
  std::string host;

  static NodeHello of(const JobPlan& plan, size_t node);
};

nlohmann::json to_json(const NodeHello& hello);
NodeHello hello_of(const nlohmann::json& json);
/// Returns why a launcher with the hello `got` does not belong to the job of `expected`; empty if
/// it does.
std::string mismatch(const NodeHello& got, const NodeHello& expected);

nlohmann::json to_json(const NodeResult& result);
NodeResult result_of(const nlohmann::json& json);

nlohmann::json to_json(const NodeSignal& signal);
NodeSignal signal_of(const nlohmann::json& json);

/// Encodes views with times relative to `now`, since hosts' clocks differ. Operations have only the
/// fields that stall detection needs.
nlohmann::json views_to_json(const std::vector<watch::RankView>& views, int64_t now);
std::vector<watch::RankView> views_of(const nlohmann::json& json, int64_t now);

}  // namespace lockstep::launcher
