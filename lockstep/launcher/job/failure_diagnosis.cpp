// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/failure_diagnosis.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/launcher/process/machine_name.h"

namespace lockstep::launcher {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

/// Returns the program's call in which a rank's last operation failed; empty if unknown.
std::string call_of(int rank, const std::vector<watch::RankView>& ranks) {
  const auto view = std::find_if(
      ranks.begin(), ranks.end(), [rank](const auto& each) { return each.rank == rank; });
  const watch::Operation* const last = view == ranks.end() ? nullptr : view->last_done();
  return last == nullptr ? "" : std::string(watch::text_of(last->call));
}

/// Returns what to do if a rank ended while another was in this call.
std::string remedy_for(const std::string& call) {
  const std::string text = call.empty() ? "" : " in " + call;
  if (!call.empty() && call != "backward" && call != "step") {
    return fmt::format("{}; every rank must call {}", text, call);
  }
  return text +
         "; all ranks must run the same number of steps, and end by returning from main or by an "
         "exception, not by exit(); for uneven data see join_uneven_inputs";
}

}  // namespace

void explain_by_departed_rank(
    RankFailure& cause,
    std::vector<RankFailure>& also_failed,
    const std::vector<watch::RankView>& ranks) {
  const watch::RankView* const left = watch::find_left_rank(ranks);
  if (!cause.lost_peer || !cause.diagnostic.empty() || left == nullptr) {
    return;
  }
  const std::string remedy = remedy_for(call_of(cause.rank, ranks));
  if (left->running || left->exit_code != kExitOk) {
    cause.diagnostic = fmt::format(
        "rank {} left the job earlier, after step {}{}", left->rank, left->record.step, remedy);
    return;
  }
  RankFailure departed{
      .rank = left->rank,
      .pid = static_cast<pid_t>(left->record.pid),
      .exit_status = {},
      .diagnostic = fmt::format(
          "its last step was {}, and rank {} still needed it{}",
          left->record.step,
          cause.rank,
          remedy),
      .seconds = cause.seconds};
  also_failed.insert(also_failed.begin(), std::exchange(cause, std::move(departed)));
}

std::vector<watch::RankView> FailureDiagnosis::all_views() {
  std::vector<watch::RankView> views = flights_.read_views(ranks_);
  if (NodeSession* const session = spec_.session()) {
    session->report_views(views);
    const std::vector<watch::RankView> others = session->other_views();
    views.insert(views.end(), others.begin(), others.end());
  }
  return views;
}

RankFailure FailureDiagnosis::failure_of(
    int rank, const std::string& what, const std::vector<watch::RankView>& views) {
  RankFailure failure{.rank = rank, .exit_status = {}, .diagnostic = what};
  const int64_t now = watch::now_ns();
  rank_states_.clear();
  for (const watch::RankView& view : views) {
    rank_states_.push_back(fmt::format("rank {:<5}  {}", view.rank, watch::describe(view, now)));
    if (view.rank == rank) {
      failure.pid = static_cast<pid_t>(view.pid);
      stalled_host_ = view.host;
    }
  }
  return failure;
}

void FailureDiagnosis::write_dump(const std::string& why) {
  const watch::FlightDump dump{
      .run_id = spec_.plan->common.run_id,
      .why = why,
      .time = utc_now(),
      .now_ns = watch::now_ns(),
      .ranks = all_views()};
  const bool any = std::any_of(dump.ranks.begin(), dump.ranks.end(), [](const auto& view) {
    return !view.record.operations.empty();
  });
  dump_path_ = any && spec_.plan->here == 0 ? try_write(dump) : "";
}

std::string FailureDiagnosis::try_write(const watch::FlightDump& dump) const {
  try {
    std::string path;
    if (spec_.logs != nullptr) {
      path = fmt::format("{}/attempt_{}/flight.json", spec_.logs->path(), spec_.number);
    } else if (const auto folder = prepare_flight_folder(Environment::process())) {
      path = *folder / fmt::format("{}-{}.json", spec_.plan->common.run_id, spec_.number);
    }
    if (!path.empty()) {
      watch::write_dump(dump, path);
    }
    return path;
  } catch (const std::exception& error) {
    console_.say(fmt::format("the flight record could not be written: {}", error.what()));
  }
  return "";
}

FailureReport FailureDiagnosis::report(const JobStateMachine& state_machine, int exit_code) {
  RankFailure cause = *state_machine.cause();
  std::vector<RankFailure> also_failed = state_machine.also_failed();
  explain_by_departed_rank(cause, also_failed, all_views());
  FailureReport report = {
      .ranks = spec_.plan->world_size(),
      .cause = cause,
      .also_failed = std::move(also_failed),
      .stopped = state_machine.stopped(),
      .exit_code = exit_code,
      .host = stalled_host_.empty() ? host_name() : stalled_host_,
      .command = spec_.program->argv,
      .last_lines = {},
      .rank_states = rank_states_,
      .flight = dump_path_};
  const int local_rank = cause.rank - ranks_.first_rank();
  if (local_rank >= 0 && local_rank < spec_.plan->local_size()) {
    const LineForwarder& err = ranks_.all()[static_cast<size_t>(local_rank)].err;
    report.last_lines = {err.last_lines().begin(), err.last_lines().end()};
    report.log_file = err.file();
  }
  return report;
}

}  // namespace lockstep::launcher
