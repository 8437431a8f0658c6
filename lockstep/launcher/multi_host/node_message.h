// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/launcher/multi_host/node_session.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/watch/rank_view.h"

namespace lockstep::launcher {

/// Raised when launchers of two builds could misunderstand each other.
inline constexpr int kNodeProtocol = 3;

/// What a launcher says of itself when it comes, and what node 0 expects of it.
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
/// Why a launcher that says `got` does not belong to the job in which `expected` has its place;
/// empty if it does.
std::string mismatch(const NodeHello& got, const NodeHello& expected);

nlohmann::json to_json(const NodeResult& result);
NodeResult result_of(const nlohmann::json& json);

nlohmann::json to_json(const NodeSignal& signal);
NodeSignal signal_of(const nlohmann::json& json);

/// Times relative to `now`, for hosts whose clocks have nothing to do with each other; of the
/// operations only what a judge of stalls needs.
nlohmann::json views_to_json(const std::vector<watch::RankView>& views, int64_t now);
std::vector<watch::RankView> views_of(const nlohmann::json& json, int64_t now);

}  // namespace lockstep::launcher
