// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/flight_watch.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "lockstep/launcher/process/machine_name.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNsPerMs = 1'000'000;
constexpr double kNsPerSecond = 1e9;
// A waiting process uses almost no time of a core; a working one uses a core or more.
constexpr int64_t kBusyPercent = 2;
constexpr auto kLongestInterval = std::chrono::milliseconds(1000);
constexpr auto kShortestInterval = std::chrono::milliseconds(50);
constexpr auto kWarnAgainAfter = std::chrono::minutes(5);
// A read that is later than this means that the launcher itself was stopped.
constexpr auto kLateRead = std::chrono::seconds(2);

}  // namespace

FlightWatch::FlightWatch(int ranks, int first_rank, double stall_timeout_seconds)
    : progress_(static_cast<size_t>(ranks)),
      first_rank_(first_rank),
      stall_timeout_seconds_(stall_timeout_seconds),
      interval_(kLongestInterval) {
  for (int rank = 0; rank < ranks; ++rank) {
    memories_.push_back(watch::FlightMemory::create());
  }
  if (stall_timeout_seconds > 0) {
    constexpr double kMsPerSecond = 1000;
    constexpr double kReads = 10;
    const auto wanted = std::chrono::milliseconds(
        static_cast<int64_t>(std::min(stall_timeout_seconds, 1e6) * kMsPerSecond / kReads));
    interval_ = std::clamp(wanted, kShortestInterval, kLongestInterval);
  }
  next_read_ = Clock::now() + interval_;
}

bool FlightWatch::last_operation_failed(size_t local_rank) const {
  return memories_[local_rank].read().last_operation_failed();
}

bool FlightWatch::is_saving(const RankSet& ranks) {
  constexpr double kLongestPauseSeconds = 540;  // A disk's; used without a stall timeout.
  const double pause_seconds =
      stall_timeout_seconds_ > 0 ? stall_timeout_seconds_ : kLongestPauseSeconds;
  return watch::save_progresses(
      read_views(ranks), static_cast<int64_t>(pause_seconds * kNsPerSecond));
}

const std::vector<watch::RankView>& FlightWatch::read_views(const RankSet& ranks) {
  static const std::string host = host_name();
  if (Clock::now() > next_read_ + kLateRead) {
    restart_clocks();
  }
  next_read_ = Clock::now() + interval_;
  const int64_t now = watch::now_ns();
  views_.clear();
  for (size_t i = 0; i < memories_.size(); ++i) {
    watch::RankView& view = views_.emplace_back();
    view.rank = first_rank_ + static_cast<int>(i);
    view.host = host;
    view.running = i < ranks.all().size() && !ranks.all()[i].exit_status;
    if (i < ranks.all().size() && ranks.all()[i].exit_status) {
      view.exit_code = ranks.all()[i].exit_status->exit_code();
    }
    view.record = memories_[i].read();
    view.in_operations = watch::share_in_operations(view.record);
    if (view.running) {
      update_process(view, ranks.all()[i].pid);
    }
    update_idleness(view, progress_[i], now);
    update_stop(view, progress_[i], now);
  }
  return views_;
}

void FlightWatch::update_idleness(watch::RankView& view, Progress& progress, int64_t now) const {
  const int64_t elapsed_ms = (now - progress.since_ns) / kNsPerMs;
  const int64_t used_ms = view.process.cpu_ms - progress.cpu_ms;
  const bool moved = view.record.progress_ns != progress.progress_ns;
  const bool worked = used_ms * 100 > elapsed_ms * kBusyPercent && used_ms > 0;
  // A slow disk needs little of the processor.
  const int64_t bytes =
      view.record.saving ? watch::process_bytes(view.record.pid).value_or(0) : progress.bytes;
  if (moved || worked || bytes != progress.bytes || progress.since_ns == 0) {
    progress.progress_ns = view.record.progress_ns;
    progress.cpu_ms = view.process.cpu_ms;
    progress.bytes = bytes;
    progress.since_ns = now;
  }
  view.idle_ns = now - progress.since_ns;
}

/// The process that joined may be a child of the started one, which may outlive it.
void FlightWatch::update_process(watch::RankView& view, pid_t started) {
  for (const int64_t pid : {view.record.pid, static_cast<int64_t>(started)}) {
    const auto state = pid != 0 ? watch::process_state(pid) : std::nullopt;
    if (state && state->state != 'Z') {
      view.pid = pid;
      view.process = *state;
      return;
    }
  }
}

void FlightWatch::update_stop(watch::RankView& view, Progress& progress, int64_t now) {
  if (!view.running || view.process.state != 'T') {
    progress.stopped_since_ns = 0;
    return;
  }
  progress.stopped_since_ns = progress.stopped_since_ns == 0 ? now : progress.stopped_since_ns;
  view.stopped_ns = now - progress.stopped_since_ns;
}

void FlightWatch::restart_clocks() {
  clocks_started_ns_ = watch::now_ns();
  next_read_ = Clock::now() + interval_;
  for (Progress& progress : progress_) {
    progress.since_ns = progress.since_ns == 0 ? 0 : clocks_started_ns_;
    progress.stopped_since_ns = 0;
  }
}

std::optional<watch::Stall> FlightWatch::stall(const std::vector<watch::RankView>& views) const {
  if (stall_timeout_seconds_ <= 0) {
    return std::nullopt;
  }
  return watch::find_stall(
      views,
      watch::now_ns(),
      static_cast<int64_t>(stall_timeout_seconds_ * kNsPerSecond),
      clocks_started_ns_);
}

std::optional<watch::Stall> FlightWatch::stopped(const std::vector<watch::RankView>& views) const {
  if (stall_timeout_seconds_ <= 0) {
    return std::nullopt;
  }
  constexpr int kReadsLater = 3;
  const int64_t later_ns = kReadsLater * std::chrono::nanoseconds(interval_).count();
  return watch::find_stopped(
      views, static_cast<int64_t>(stall_timeout_seconds_ * kNsPerSecond) + later_ns);
}

std::optional<watch::SlowRank> FlightWatch::slow_rank(const std::vector<watch::RankView>& views) {
  auto slow = watch::find_slow_rank(views);
  if (!slow) {
    return std::nullopt;
  }
  const Clock::time_point now = Clock::now();
  const auto [warned, is_first] = warned_.try_emplace(slow->rank, now);
  if (!is_first && now - warned->second < kWarnAgainAfter) {
    return std::nullopt;
  }
  warned->second = now;
  return slow;
}

double stall_timeout_seconds(const config::JobOptions& options) {
  return options.stall_timeout_seconds >= 0 ? options.stall_timeout_seconds
                                            : default_stall_timeout_seconds(Environment::process());
}

double default_stall_timeout_seconds(const Environment& environment) {
  constexpr int64_t kDefaultMs = 600'000;
  constexpr int64_t kWeekMs = 7LL * 24 * 3600 * 1000;
  const int64_t operation_ms =
      environment.integer("LOCKSTEP_TIMEOUT_MS", 1, kWeekMs).value_or(kDefaultMs);
  return static_cast<double>(operation_ms) * 0.9 / 1000;
}

std::optional<fs::path> flight_folder(const Environment& environment) {
  fs::path state;
  if (const auto chosen = environment.text("XDG_STATE_HOME"); chosen && chosen->starts_with('/')) {
    state = *chosen;
  } else if (const auto home = environment.text("HOME"); home && home->starts_with('/')) {
    state = fs::path(*home) / ".local" / "state";
  } else {
    return std::nullopt;
  }
  return state / "lockstep" / "flights";
}

std::optional<fs::path> prepare_flight_folder(const Environment& environment) {
  constexpr size_t kMostDumps = 20;
  auto folder = flight_folder(environment);
  std::error_code error;
  if (!folder || (fs::create_directories(*folder, error), error)) {
    return std::nullopt;
  }
  const std::vector<fs::path> dumps = dumps_in(*folder);
  for (size_t i = 0; i + kMostDumps <= dumps.size(); ++i) {
    fs::remove(dumps[i], error);
  }
  return folder;
}

std::vector<fs::path> dumps_in(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> by_time;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    const auto time = fs::last_write_time(entry->path(), gone);
    if (!gone && entry->path().extension() == ".json") {
      by_time.emplace_back(time, entry->path());
    }
  }
  std::sort(by_time.begin(), by_time.end());
  std::vector<fs::path> dumps;
  for (auto& [time, path] : by_time) {
    dumps.push_back(std::move(path));
  }
  return dumps;
}

}  // namespace lockstep::launcher
