// SPDX-License-Identifier: Apache-2.0
#include "cli/ds_config/ds_config_report.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/ds_config/keys/described_values.h"
#include "lockstep/ds_config/keys/key_table.h"
#include "lockstep/ds_config/parameters/parameter_table.h"
#include "lockstep/ds_config/value_text.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::json;
using ds_config::Diagnostic;

Json json_of_remarks(const std::vector<Diagnostic>& diagnostics) {
  Json list = Json::array();
  for (const Diagnostic& diagnostic : diagnostics) {
    list.push_back(
        {{"where", diagnostic.where},
         {"line", diagnostic.place.line},
         {"column", diagnostic.place.column},
         {"what", diagnostic.what}});
  }
  return list;
}

std::string line_of(const Diagnostic& diagnostic) {
  return printable(fmt::format("[{}] {}", diagnostic.where, diagnostic.what));
}

}  // namespace

std::optional<Report> refusal_of(const ds_config::Reading& reading, bool log_errors) {
  if (reading.errors.empty()) {
    return std::nullopt;
  }
  std::string all;
  for (const Diagnostic& error : reading.errors) {
    const std::string line = line_of(error);
    all += (all.empty() ? "" : "\n") + line;
    if (log_errors) {
      log_error(line);
    }
  }
  Report report;
  report.exit_code = kExitUsage;
  report.json = {
      {"error", all},
      {"errors", json_of_remarks(reading.errors)},
      {"exit_code", static_cast<int>(kExitUsage)}};
  return report;
}

Report ds_config_report(const std::filesystem::path& file, int64_t world_size, bool log_errors) {
  const ds_config::Reading reading =
      ds_config::read_ds_config(ds_config::read_ds_document(file), world_size);
  if (std::optional<Report> refusal = refusal_of(reading, log_errors)) {
    return *std::move(refusal);
  }
  std::vector<std::vector<std::string>> rows = {{"KEY", "VALUE", "SAID BY"}};
  Json values = Json::object();
  for (const ds_config::DescribedValue& each : ds_config::described_values(reading.config)) {
    rows.push_back({each.path, printable(ds_config::text_of(each.value)), printable(each.origin)});
    values[each.path] = {{"value", each.value}, {"origin", each.origin}};
  }
  Report report;
  report.text = fmt::format(
      "{} on {}\n\n{}",
      printable(file.native()),
      counted(static_cast<size_t>(world_size), "rank"),
      render_table(rows, {false, false, false}, terminal_columns()));
  for (const Diagnostic& note : reading.notes) {
    report.text += (&note == reading.notes.data() ? "\n" : "") + line_of(note) + "\n";
  }
  report.json = {
      {"file", file.native()},
      {"world_size", world_size},
      {"values", std::move(values)},
      {"notes", json_of_remarks(reading.notes)}};
  return report;
}

Report ds_config_keys_report() {
  Report report;
  report.text = fmt::format(
      "{}\n{}\n{}",
      ds_config::render_key_table(),
      ds_config::render_type_table(ds_config::optimizer_types()),
      ds_config::render_type_table(ds_config::schedule_types()));
  return report;
}

}  // namespace lockstep::cli
