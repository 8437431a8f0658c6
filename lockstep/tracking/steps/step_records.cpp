// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/steps/step_records.h"

#include <cmath>
#include <initializer_list>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/tracking/values/non_finite.h"

namespace lockstep::tracking {
namespace {

constexpr int kStepFileVersion = 1;
constexpr double kNanosecond = 1e-9;

void append_number(std::string& line, const char* key, double value) {
  auto out = std::back_inserter(line);
  if (std::isfinite(value)) {
    fmt::format_to(out, ",\"{}\":{}", key, value);
  } else {
    fmt::format_to(out, ",\"{}\":\"{}\"", key, name_of_non_finite(value));
  }
}

std::string dumped(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::string step_file_name(int rank) {
  return fmt::format("steps_{}.jsonl", rank);
}

StepRecordWriter::StepRecordWriter(
    const std::filesystem::path& path, const nlohmann::ordered_json& header) {
  if (path.has_parent_path()) {
    make_folders(path.parent_path());
  }
  file_.open(path);
  nlohmann::ordered_json line = {
      {"format", "lockstep-steps"}, {"version", kStepFileVersion}, {"lockstep", LOCKSTEP_VERSION}};
  line.update(header);
  // Ends the line that a crash left incomplete.
  append((file_.last_byte().value_or('\n') == '\n' ? "" : "\n") + dumped(line) + "\n");
}

void StepRecordWriter::append(std::string_view line) {
  if (failed_) {
    return;
  }
  try {
    file_.append(line);
  } catch (const Error& error) {
    failed_ = true;
    log_warning(
        std::string("the times of later steps are not recorded for lockstep report: ") +
            error.what(),
        LogAudience::kEveryRank);
  }
}

void StepRecordWriter::write_config(const nlohmann::json& config) {
  append(dumped({{"config", portable_config(config)}}) + "\n");
}

void StepRecordWriter::begin_line(const char* key, int64_t value, const PartTimes& times) {
  line_.clear();
  auto out = std::back_inserter(line_);
  fmt::format_to(
      out,
      "{{\"{}\":{},\"time\":{:.3f},\"seconds\":{:.9f}",
      key,
      value,
      wall_time_s(),
      static_cast<double>(total_ns(times)) * kNanosecond);
  for (size_t i = 0; i < times.size(); ++i) {
    if (times.at(i) != 0) {
      fmt::format_to(
          out,
          ",\"{}\":{:.9f}",
          name_of(static_cast<LoopPart>(i)),
          static_cast<double>(times.at(i)) * kNanosecond);
    }
  }
}

void StepRecordWriter::end_line() {
  line_ += "}\n";
  append(line_);
}

void StepRecordWriter::write_step(const StepRecord& record) {
  begin_line("step", record.step, record.times);
  auto out = std::back_inserter(line_);
  fmt::format_to(
      out,
      ",\"steps\":{},\"longest\":{:.9f}",
      record.steps,
      static_cast<double>(record.longest_ns) * kNanosecond);
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, int64_t>>{
           {"skipped", record.skipped},
           {"samples", record.samples},
           {"process_bytes", record.process_bytes},
           {"device_bytes", record.device_bytes}}) {
    if (value != 0) {
      fmt::format_to(out, ",\"{}\":{}", key, value);
    }
  }
  if (record.loss) {
    append_number(line_, "loss", *record.loss);
  }
  if (record.lr) {
    append_number(line_, "lr", *record.lr);
  }
  end_line();
}

void StepRecordWriter::write_between(int64_t step, const PartTimes& times) {
  begin_line("after_step", step, times);
  end_line();
}

void StepRecordWriter::write_status(RunStatus status) {
  append(fmt::format(
      "{{\"status\":\"{}\",\"time\":{:.3f}}}\n", tracking::name_of(status), wall_time_s()));
}

}  // namespace lockstep::tracking
