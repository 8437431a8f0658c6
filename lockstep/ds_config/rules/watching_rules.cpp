// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/text/suggest.h"
#include "lockstep/ds_config/rules/section_rules.h"

namespace lockstep::ds_config {
namespace {

constexpr const char* kOps = "comms_logger.prof_ops";

const std::vector<std::string>& operations() {
  static const std::vector<std::string> all = {
      "all_reduce",
      "reduce_scatter",
      "all_gather",
      "all_to_all",
      "broadcast",
      "gather",
      "scatter",
      "send",
      "recv",
      "barrier"};
  return all;
}

/// Returns Lockstep's name of an operation of torch.distributed.
std::string own_name(const std::string& name) {
  static const std::map<std::string, std::string> others = {
      {"all_gather_into_tensor", "all_gather"},
      {"all_gather_base", "all_gather"},
      {"reduce_scatter_tensor", "reduce_scatter"},
      {"reduce_scatter_base", "reduce_scatter"},
      {"all_to_all_single", "all_to_all"},
      {"isend", "send"},
      {"irecv", "recv"},
      {"monitored_barrier", "barrier"}};
  const auto found = others.find(name);
  return found == others.end() ? name : found->second;
}

/// Checks that the folder of a monitor is in output_path.
void check_job_name(KeyReader& reader, const std::string& path, const MonitorSection& section) {
  const std::filesystem::path name = section.job_name.value;
  const bool is_outside =
      name.is_absolute() || std::find(name.begin(), name.end(), "..") != name.end();
  if (section.enabled.value && (name.empty() || is_outside)) {
    reader.error(
        reader.find(path)->value->place,
        fmt::format(
            "{} must name a folder in output_path; got \"{}\", expected a relative path without ..",
            path,
            shown(section.job_name.value)));
  }
}

}  // namespace

void apply_watching_rules(KeyReader& reader, DsConfig& config) {
  check_job_name(reader, "tensorboard.job_name", config.tensorboard);
  check_job_name(reader, "csv_monitor.job_name", config.csv_monitor);
  CommsLoggerSection& comms = config.comms_logger;
  const KeyValue* const named = reader.find(kOps);
  for (std::string& name : comms.prof_ops.value) {
    const std::string own = own_name(name);
    if (std::find(operations().begin(), operations().end(), own) == operations().end()) {
      reader.error(
          named->value->place,
          fmt::format(
              "{} has an unknown operation; got \"{}\", expected one of {}{}",
              kOps,
              shown(name),
              fmt::join(operations(), ", "),
              did_you_mean(name, operations())));
    }
    name = own;
  }
  if (!comms.enabled.value) {
    return;
  }
  if (comms.prof_all.value && named != nullptr) {
    reader.note(
        named->key, fmt::format("{} is ignored with prof_all, whose default is true", kOps));
  }
  if (!comms.prof_all.value && comms.prof_ops.value.empty()) {
    reader.error(
        reader.find("comms_logger.prof_all")->value->place,
        "comms_logger logs nothing: prof_all is false and prof_ops is empty; set prof_all to true, "
        "or list operations in prof_ops");
  }
}

}  // namespace lockstep::ds_config
