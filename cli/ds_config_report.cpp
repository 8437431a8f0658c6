// SPDX-License-Identifier: Apache-2.0
#include "cli/ds_config_report.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/ds_config/fields.h"
#include "lockstep/ds_config/key_table.h"
#include "lockstep/ds_config/parameter_table.h"
#include "lockstep/ds_config/value_text.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::json;
using ds_config::DsConfig;
using ds_config::Remark;

Json json_of_remarks(const std::vector<Remark>& remarks) {
  Json list = Json::array();
  for (const Remark& remark : remarks) {
    list.push_back(
        {{"where", remark.where},
         {"line", remark.place.line},
         {"column", remark.place.column},
         {"what", remark.what}});
  }
  return list;
}

std::string line_of(const Remark& remark) {
  return printable(fmt::format("[{}] {}", remark.where, remark.what));
}

/// The rows of the table, and the same as JSON.
class Values {
 public:
  template <typename T>
  void add(const std::string& path, const ds_config::Resolved<T>& field) {
    const Json value = ds_config::json_of(field.value);
    const std::string origin = ds_config::described(field.origin);
    rows_.push_back({path, printable(ds_config::text_of(value)), printable(origin)});
    json_[path] = {{"value", value}, {"origin", origin}};
  }

  template <typename Section>
  void add_typed(const std::string& path, const std::optional<Section>& section) {
    if (!section) {
      rows_.push_back({path, "-", "default"});
      json_[path] = {{"value", nullptr}, {"origin", "default"}};
      return;
    }
    add(path + ".type", section->name);
    for (const ds_config::Parameter& parameter : section->parameters.all()) {
      add(path + ".params." + parameter.name, parameter.value);
    }
  }

  const std::vector<std::vector<std::string>>& rows() const { return rows_; }
  const Json& json() const { return json_; }

 private:
  std::vector<std::vector<std::string>> rows_ = {{"KEY", "VALUE", "SAID BY"}};
  Json json_ = Json::object();
};

Values values_of(const DsConfig& config) {
  Values values;
  values.add("train_batch_size", config.batch.train_batch_size);
  values.add("train_micro_batch_size_per_gpu", config.batch.train_micro_batch_size_per_gpu);
  values.add("gradient_accumulation_steps", config.batch.gradient_accumulation_steps);
  values.add_typed("optimizer", config.optimizer);
  values.add_typed("scheduler", config.scheduler);
  values.add("precision", config.precision);
  ds_config::visit_fields(
      config, [&](const std::string& path, const auto& field) { values.add(path, field); });
  return values;
}

}  // namespace

std::optional<Report> refusal_of(const ds_config::Reading& reading, bool log_errors) {
  if (reading.errors.empty()) {
    return std::nullopt;
  }
  std::string all;
  for (const Remark& error : reading.errors) {
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
  const Values values = values_of(reading.config);
  Report report;
  report.text = fmt::format(
      "{} on {}\n\n{}",
      printable(file.native()),
      counted(static_cast<size_t>(world_size), "rank"),
      render_table(values.rows(), {false, false, false}, terminal_columns()));
  for (const Remark& note : reading.notes) {
    report.text += (&note == reading.notes.data() ? "\n" : "") + line_of(note) + "\n";
  }
  report.json = {
      {"file", file.native()},
      {"world_size", world_size},
      {"values", values.json()},
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
