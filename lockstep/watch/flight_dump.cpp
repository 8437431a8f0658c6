// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/flight_dump.h"

#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"

namespace lockstep::watch {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "lockstep-flight";
constexpr int kVersion = 2;
constexpr uintmax_t kMaxBytes = uintmax_t{256} << 20;

Json to_json(const Operation& operation) {
  Json json = {
      {"number", operation.number},
      {"group", operation.group},
      {"sequence", operation.sequence},
      {"step", operation.step},
      {"name", text_of(operation.name)},
      {"reduce", text_of(operation.reduce)},
      {"dtype", text_of(operation.dtype)},
      {"call", text_of(operation.call)},
      {"dims", operation.dims},
      {"sizes", operation.sizes},
      {"peer", operation.peer},
      {"stage", name_of(operation.stage)},
      {"issued_ns", operation.issued_ns},
      {"started_ns", operation.started_ns},
      {"ended_ns", operation.ended_ns}};
  return json;
}

Stage stage_of(const std::string& name) {
  for (const Stage stage : {Stage::kIssued, Stage::kRunning, Stage::kDone, Stage::kFailed}) {
    if (name == name_of(stage)) {
      return stage;
    }
  }
  throw std::invalid_argument("unknown stage " + name);
}

Operation operation_of(const Json& json) {
  Operation operation;
  operation.number = json.at("number").get<uint64_t>();
  operation.group = json.at("group").get<uint64_t>();
  operation.sequence = json.at("sequence").get<int64_t>();
  operation.step = json.at("step").get<int64_t>();
  operation.name = short_text<operation.name.size()>(json.at("name").get<std::string>());
  operation.reduce = short_text<operation.reduce.size()>(json.at("reduce").get<std::string>());
  operation.dtype = short_text<operation.dtype.size()>(json.at("dtype").get<std::string>());
  operation.call = short_text<operation.call.size()>(json.value("call", std::string()));
  operation.dims = json.at("dims").get<int32_t>();
  operation.sizes = json.at("sizes").get<decltype(operation.sizes)>();
  operation.peer = json.at("peer").get<int32_t>();
  operation.stage = stage_of(json.at("stage").get<std::string>());
  operation.issued_ns = json.at("issued_ns").get<int64_t>();
  operation.started_ns = json.at("started_ns").get<int64_t>();
  operation.ended_ns = json.at("ended_ns").get<int64_t>();
  return operation;
}

}  // namespace

Json to_json(const RankView& view) {
  Json operations = Json::array();
  for (const Operation& operation : view.record.operations) {
    operations.push_back(to_json(operation));
  }
  return {
      {"rank", view.rank},
      {"host", view.host},
      {"running", view.running},
      {"pid", view.record.pid},
      {"world", view.record.world},
      {"left", view.record.left},
      {"saving", view.record.saving},
      {"step", view.record.step},
      {"issued", view.record.issued},
      {"ended", view.record.ended},
      {"progress_ns", view.record.progress_ns},
      {"process_state", std::string(1, view.process.state)},
      {"cpu_ms", view.process.cpu_ms},
      {"idle_ns", view.idle_ns},
      {"process_pid", view.pid},
      {"stopped_ns", view.stopped_ns},
      {"exit_code", view.exit_code ? Json(*view.exit_code) : Json()},
      {"in_operations", view.in_operations ? Json(*view.in_operations) : Json()},
      {"operations", std::move(operations)}};
}

RankView view_of(const Json& json) {
  RankView view;
  view.rank = json.at("rank").get<int>();
  view.host = json.at("host").get<std::string>();
  view.running = json.at("running").get<bool>();
  view.record.rank = view.rank;
  view.record.pid = json.at("pid").get<int64_t>();
  view.record.world = json.value("world", int64_t{1});
  view.record.left = json.at("left").get<bool>();
  view.record.saving = json.at("saving").get<bool>();
  view.record.step = json.at("step").get<int64_t>();
  view.record.issued = json.at("issued").get<uint64_t>();
  view.record.ended = json.at("ended").get<uint64_t>();
  view.record.progress_ns = json.at("progress_ns").get<int64_t>();
  const auto state = json.at("process_state").get<std::string>();
  view.process.state = state.empty() ? 'R' : state[0];
  view.process.cpu_ms = json.at("cpu_ms").get<int64_t>();
  view.idle_ns = json.at("idle_ns").get<int64_t>();
  // Dumps of earlier builds lack these two, and "world".
  view.pid = json.value("process_pid", view.record.pid);
  view.stopped_ns = json.value("stopped_ns", int64_t{0});
  if (const Json& code = json.at("exit_code"); !code.is_null()) {
    view.exit_code = code.get<int>();
  }
  if (const Json& part = json.at("in_operations"); !part.is_null()) {
    view.in_operations = part.get<double>();
  }
  for (const Json& operation : json.at("operations")) {
    view.record.operations.push_back(operation_of(operation));
  }
  return view;
}

void write_dump(const FlightDump& dump, const std::filesystem::path& path) {
  Json ranks = Json::array();
  for (const RankView& view : dump.ranks) {
    ranks.push_back(to_json(view));
  }
  const Json json = {
      {"format", kFormat},
      {"version", kVersion},
      {"run_id", dump.run_id},
      {"why", dump.why},
      {"time", dump.time},
      {"now_ns", dump.now_ns},
      {"ranks", std::move(ranks)}};
  write_atomically(path, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

FlightDump read_dump(const std::filesystem::path& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) {
    throw ConfigError(
        path.string(),
        fmt::format(
            "cannot be read: {}; expected a flight dump of `lockstep launch`",
            error ? error.message() : "no permission"));
  }
  if (bytes > kMaxBytes) {
    throw ConfigError(
        path.string(),
        fmt::format("has {} bytes; expected a flight dump of at most {} bytes", bytes, kMaxBytes));
  }
  try {
    const Json json = Json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
    if (json.value("format", "") != kFormat) {
      throw ConfigError(
          path.string(), "is not a flight dump; expected \"format\": \"lockstep-flight\"");
    }
    if (json.at("version") != kVersion) {
      throw ConfigError(
          path.string(),
          fmt::format(
              "is a flight dump of version {}; expected version {}; read it with the build that "
              "wrote it",
              json.at("version").dump(),
              kVersion));
    }
    FlightDump dump{
        .run_id = json.at("run_id").get<std::string>(),
        .why = json.at("why").get<std::string>(),
        .time = json.at("time").get<std::string>(),
        .now_ns = json.at("now_ns").get<int64_t>(),
        .ranks = {}};
    for (const Json& view : json.at("ranks")) {
      dump.ranks.push_back(view_of(view));
    }
    return dump;
  } catch (const ConfigError&) {
    throw;
  } catch (const std::exception& problem) {
    throw ConfigError(
        path.string(), fmt::format("is not a complete flight dump: {}", problem.what()));
  }
}

}  // namespace lockstep::watch
