// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/node_message.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/watch/flight_dump.h"

namespace lockstep::launcher {
namespace {

using Json = nlohmann::json;

// The latest operations of each rank.
constexpr size_t kOperationsSent = 8;

Json to_json(const RankFailure& failure) {
  return {
      {"rank", failure.rank},
      {"pid", failure.pid},
      {"by_signal", failure.exit_status.by_signal},
      {"value", failure.exit_status.value},
      {"core_dumped", failure.exit_status.core_dumped},
      {"remark", failure.diagnostic},
      {"seconds", failure.seconds},
      {"stalled", failure.stalled},
      {"lost_peer", failure.lost_peer}};
}

RankFailure failure_of(const Json& json) {
  RankFailure failure;
  failure.rank = json.at("rank").get<int>();
  failure.pid = json.at("pid").get<pid_t>();
  failure.exit_status.by_signal = json.at("by_signal").get<bool>();
  failure.exit_status.value = json.at("value").get<int>();
  failure.exit_status.core_dumped = json.at("core_dumped").get<bool>();
  failure.diagnostic = json.at("remark").get<std::string>();
  failure.seconds = json.at("seconds").get<double>();
  failure.stalled = json.at("stalled").get<bool>();
  failure.lost_peer = json.at("lost_peer").get<bool>();
  return failure;
}

Json to_json(const FailureReport& report) {
  Json also = Json::array();
  for (const RankFailure& other : report.also_failed) {
    also.push_back(to_json(other));
  }
  return {
      {"cause", to_json(report.cause)},
      {"also_failed", std::move(also)},
      {"stopped", report.stopped},
      {"exit_code", report.exit_code},
      {"host", report.host},
      {"command", report.command},
      {"last_lines", report.last_lines},
      {"log_file", report.log_file},
      {"doing", report.rank_states},
      {"flight", report.flight}};
}

FailureReport report_of(const Json& json) {
  FailureReport report;
  report.cause = failure_of(json.at("cause"));
  for (const Json& other : json.at("also_failed")) {
    report.also_failed.push_back(failure_of(other));
  }
  report.stopped = json.at("stopped").get<int>();
  report.exit_code = json.at("exit_code").get<int>();
  report.host = json.at("host").get<std::string>();
  report.command = json.at("command").get<std::vector<std::string>>();
  report.last_lines = json.at("last_lines").get<std::vector<std::string>>();
  report.log_file = json.at("log_file").get<std::string>();
  report.rank_states = json.at("doing").get<std::vector<std::string>>();
  report.flight = json.at("flight").get<std::string>();
  return report;
}

/// Moves all times of a rank by `by_ns`; 0 means "not yet" and stays.
void shift(watch::RankView& view, int64_t by_ns) {
  view.record.progress_ns += by_ns;
  for (watch::Operation& operation : view.record.operations) {
    for (int64_t* time : {&operation.issued_ns, &operation.started_ns, &operation.ended_ns}) {
      *time += *time == 0 ? 0 : by_ns;
    }
  }
}

}  // namespace

NodeHello NodeHello::of(const JobPlan& plan, size_t node) {
  return {
      .node = static_cast<int>(node),
      .nodes = static_cast<int>(plan.hosts.size()),
      .world_size = plan.world_size(),
      .local_size = static_cast<int>(plan.hosts[node].slots.size()),
      .first_rank = plan.hosts[node].first_rank,
      .host = plan.hosts[node].name};
}

Json to_json(const NodeHello& hello) {
  return {
      {"protocol", hello.protocol},
      {"node", hello.node},
      {"nodes", hello.nodes},
      {"world_size", hello.world_size},
      {"local_size", hello.local_size},
      {"first_rank", hello.first_rank},
      {"host", hello.host}};
}

NodeHello hello_of(const Json& json) {
  NodeHello hello;
  hello.protocol = json.at("protocol").get<int>();
  if (hello.protocol != kNodeProtocol) {
    return hello;  // The other fields may have other names.
  }
  hello.node = json.at("node").get<int>();
  hello.nodes = json.at("nodes").get<int>();
  hello.world_size = json.at("world_size").get<int>();
  hello.local_size = json.at("local_size").get<int>();
  hello.first_rank = json.at("first_rank").get<int>();
  hello.host = json.at("host").get<std::string>();
  return hello;
}

std::string mismatch(const NodeHello& got, const NodeHello& expected) {
  if (got.protocol != expected.protocol) {
    return fmt::format(
        "the launchers have different protocol versions, {} and {}; install the same build on all "
        "hosts",
        got.protocol,
        expected.protocol);
  }
  if (got.nodes != expected.nodes || got.world_size != expected.world_size ||
      got.local_size != expected.local_size || got.first_rank != expected.first_rank) {
    return fmt::format(
        "node {} has ranks {} to {} of {} on {} hosts; node 0 expected ranks {} to {} of {} on {} "
        "hosts; give every launcher the same --nnodes and -n",
        got.node,
        got.first_rank,
        got.first_rank + got.local_size - 1,
        got.world_size,
        got.nodes,
        expected.first_rank,
        expected.first_rank + expected.local_size - 1,
        expected.world_size,
        expected.nodes);
  }
  return "";
}

Json to_json(const NodeResult& result) {
  Json json = {{"exit_code", result.exit_code}, {"may_restart", result.may_restart}};
  if (result.failure) {
    json["failure"] = to_json(*result.failure);
  }
  return json;
}

NodeResult result_of(const Json& json) {
  NodeResult result{
      .exit_code = json.at("exit_code").get<int>(),
      .may_restart = json.at("may_restart").get<bool>()};
  if (json.contains("failure")) {
    result.failure = report_of(json.at("failure"));
  }
  return result;
}

Json to_json(const NodeSignal& signal) {
  return {{"signal", signal.signal}, {"again", signal.is_repeated}};
}

NodeSignal signal_of(const Json& json) {
  return {.signal = json.at("signal").get<int>(), .is_repeated = json.at("again").get<bool>()};
}

Json views_to_json(const std::vector<watch::RankView>& views, int64_t now) {
  Json json = Json::array();
  for (watch::RankView view : views) {
    auto& operations = view.record.operations;
    // Unfinished operations matter most, and are among the last ones.
    const auto first_open = std::find_if(
        operations.begin(), operations.end(), [](const auto& each) { return !each.is_over(); });
    const auto last = operations.size() - std::min(operations.size(), kOperationsSent);
    const auto kept = std::min(first_open, operations.begin() + static_cast<std::ptrdiff_t>(last));
    operations.erase(operations.begin(), kept);
    shift(view, -now);
    json.push_back(Json(watch::to_json(view)));
  }
  return json;
}

std::vector<watch::RankView> views_of(const Json& json, int64_t now) {
  std::vector<watch::RankView> views;
  for (const Json& each : json) {
    watch::RankView view = watch::view_of(each);
    shift(view, now);
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace lockstep::launcher
