// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/lines/jsonl_tracker.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/tracking/json_lines.h"

namespace lockstep::tracking {

JsonlTracker::JsonlTracker(const std::filesystem::path& path) {
  if (path.has_parent_path()) {
    make_folders(path.parent_path());
  }
  file_.open(path);
  incomplete_line_ = file_.last_byte().value_or('\n') != '\n';
}

void JsonlTracker::append_line(std::string line) {
  file_.append((incomplete_line_ ? "\n" : "") + std::move(line) + "\n");
  incomplete_line_ = false;
}

void JsonlTracker::do_store_config(const nlohmann::json& config) {
  append_line(json_lines::config(config));
}

void JsonlTracker::do_log(const Values& values, int64_t step) {
  append_line(json_lines::values(values, step, file_.path().string()));
}

void JsonlTracker::do_log_histograms(const Histograms& histograms, int64_t step) {
  append_line(json_lines::histograms(histograms, step));
}

void JsonlTracker::do_log_text(const Texts& texts, int64_t step) {
  append_line(json_lines::text(texts, step));
}

void JsonlTracker::do_log_tables(const Tables& tables, int64_t step) {
  append_line(json_lines::tables(tables, step));
}

void JsonlTracker::do_flush() {
  file_.sync();
}

void JsonlTracker::do_finish(RunStatus status) {
  append_line(json_lines::status(status));
  file_.close();
}

}  // namespace lockstep::tracking
