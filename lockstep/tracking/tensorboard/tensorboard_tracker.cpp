// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/tensorboard/tensorboard_tracker.h"

#include <array>
#include <cstdint>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "lockstep/tracking/flat_config.h"
#include "lockstep/tracking/tensorboard/tfevents.h"
#include "lockstep/tracking/values/histogram.h"
#include "lockstep/tracking/values/images.h"
#include "lockstep/tracking/values/table.h"

namespace lockstep::tracking {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') {
    return "localhost";
  }
  return name.data();
}

void create_event_file(AppendFile& file, const std::filesystem::path& folder) {
  const std::string stem = fmt::format(
      "events.out.tfevents.{}.{}.{}.",
      static_cast<int64_t>(wall_time_s()),
      host_name(),
      ::getpid());
  // A name may be used by another tracker of this process, or by an earlier process with its pid.
  for (int n = 0; !file.create(folder / (stem + std::to_string(n))); ++n) {
  }
}

}  // namespace

TensorBoardTracker::TensorBoardTracker(const std::filesystem::path& folder) {
  make_folders(folder);
  create_event_file(file_, folder);
  file_.append(tfevents::frame_record(tfevents::file_version(wall_time_s())));
}

void TensorBoardTracker::do_store_config(const nlohmann::json& config) {
  const double now_s = wall_time_s();
  hparams_ = flat_config(config);
  const std::string markdown = "```json\n" + config.dump(2) + "\n```";
  file_.append(
      tfevents::frame_record(tfevents::text(now_s, 0, {{"config", markdown}})) +
      tfevents::frame_record(tfevents::session_start(now_s, hparams_)));
}

void TensorBoardTracker::do_log(const Values& values, int64_t step) {
  file_.append(tfevents::frame_record(tfevents::scalars(wall_time_s(), step, values)));
  for (const auto& [tag, value] : values) {
    tags_.insert(tag);
  }
}

void TensorBoardTracker::do_log_images(const ImageBatches& images, int64_t step) {
  file_.append(tfevents::frame_record(tfevents::images(wall_time_s(), step, images)));
}

void TensorBoardTracker::do_log_histograms(const Histograms& histograms, int64_t step) {
  file_.append(tfevents::frame_record(tfevents::histograms(wall_time_s(), step, histograms)));
  Values non_finite;
  for (const auto& [tag, histogram] : histograms) {
    if (histogram.non_finite > 0) {
      non_finite[tag + "/non_finite"] = static_cast<double>(histogram.non_finite);
    }
  }
  if (!non_finite.empty()) {
    do_log(non_finite, step);
  }
}

void TensorBoardTracker::do_log_text(const Texts& texts, int64_t step) {
  file_.append(tfevents::frame_record(tfevents::text(wall_time_s(), step, texts)));
}

void TensorBoardTracker::do_log_tables(const Tables& tables, int64_t step) {
  Texts texts;
  for (const auto& [tag, table] : tables) {
    texts[tag] = table_markdown(table);
  }
  do_log_text(texts, step);
}

void TensorBoardTracker::do_flush() {
  file_.sync();
}

void TensorBoardTracker::do_finish(RunStatus status) {
  const double now_s = wall_time_s();
  if (!hparams_.is_null()) {
    // Written at the end, when all metrics are known, since TensorBoard keeps the first such record
    // of a run. Before, it derives the columns from the data.
    const std::vector<std::string> metrics(tags_.begin(), tags_.end());
    file_.append(
        tfevents::frame_record(tfevents::experiment(now_s, hparams_, metrics)) +
        tfevents::frame_record(tfevents::session_end(now_s, status)));
  }
  file_.close();
}

}  // namespace lockstep::tracking
