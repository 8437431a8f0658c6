// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/attempt.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/program/terminal.h"
#include "lockstep/launcher/process/machine_name.h"
#include "lockstep/watch/flight_dump.h"

namespace lockstep::launcher {
namespace {

constexpr int kDefaultColumns = 80;
constexpr auto kSameSignal = std::chrono::seconds(2);

bool ends_job(int signal) {
  return signal != SIGUSR1 && signal != SIGUSR2;
}

/// 0 when stderr is no terminal.
int columns_of_stderr() {
  return ::isatty(STDERR_FILENO) == 0 ? 0
                                      : terminal_columns(STDERR_FILENO).value_or(kDefaultColumns);
}

Shown shown(bool by_rank, bool file_only) {
  if (!by_rank) {
    return Shown::kNever;
  }
  return file_only ? Shown::kWithoutFile : Shown::kAlways;
}

/// As lost ranks end: with an error of ours, or one that nobody has caught.
bool may_have_lost_patience(const ExitStatus& exit_status) {
  return exit_status.by_signal ? exit_status.value == SIGABRT : exit_status.value == kExitFailure;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

}  // namespace

void name_who_left(RankFailure& cause, const std::vector<watch::RankView>& ranks) {
  const watch::RankView* const left = watch::who_left(ranks);
  if (!cause.lost_peer || !cause.diagnostic.empty() || left == nullptr) {
    return;
  }
  cause.diagnostic = fmt::format(
      "rank {} had left the job before, after step {}; all ranks must take the same steps (else "
      "see join_uneven_inputs)",
      left->rank,
      left->record.step);
}

Attempt::Attempt(const AttemptSpec& spec, Console& console, SignalInbox& inbox)
    : spec_(spec),
      console_(console),
      inbox_(inbox),
      ranks_(
          console.out(),
          console.err(),
          spec.options->rank_prefix,
          spec.plan->hosts[spec.plan->here].first_rank),
      state_machine_(
          ranks_,
          spec.options->grace_seconds,
          [this](const std::string& text) { console_.say(text); },
          [this](size_t local_rank) { return flights_.lost_peer(local_rank); },
          [this] { return flights_.is_saving(ranks_); }),
      flights_(
          spec.plan->local_size(),
          spec.plan->hosts[spec.plan->here].first_rank,
          stall_timeout_seconds(*spec.options)) {}

NodeResult Attempt::run() {
  while (!state_machine_.is_over()) {
    wait();
  }
  ranks_.close();
  watchdog_.dismiss();
  watch_output();
  NodeResult result{.exit_code = state_machine_.exit_code()};
  if (const auto cause = state_machine_.cause()) {
    if (flight_.empty()) {
      flight_ = dump_flights(fmt::format("rank {} {}", cause->rank, cause->description()));
    }
    result.failure = failure_report(result.exit_code);
    result.may_restart = state_machine_.has_failed() && may_restart_after(result.exit_code);
  } else {
    state_machine_.say_how_it_ended();
  }
  return result;
}

void Attempt::start() {
  const JobPlan& plan = *spec_.plan;
  const int count = plan.local_size();
  JobLayout layout = host_layout(plan, plan.here);
  layout.master_port = spec_.master_port;
  layout.restart_count = spec_.number;
  layout.resume = layout.resume || spec_.number > 0;
  layout.terminal_columns = columns_of_stderr();
  layout.is_python = spec_.program->is_python;
  std::vector<RankLogs> logs = open_logs();
  if (session() != nullptr) {
    layout.master_addr = "127.0.0.1";
    layout.master_port = session()->store_port(spec_.master_port);
    set_variable(layout.extra, {"LOCKSTEP_HOST_ADDR", session()->host_address()});
  }
  const std::vector<std::string> inherited = own_environment();
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  // A launcher that was started by another one takes its orders from there.
  const bool shares_stdin =
      spec_.control_channel == nullptr && ::isatty(STDIN_FILENO) == 0 && layout.first_rank == 0;
  for (int rank = 0; rank < count; ++rank) {
    const auto index = static_cast<size_t>(rank);
    std::vector<std::string> environment = rank_environment(inherited, layout, rank);
    environment.push_back("LOCKSTEP_FLIGHT=" + flights_.path(rank));
    ranks_.add(start_child(
        {.program = spec_.program,
         .environment = std::move(environment),
         .stdin_fd = rank == 0 && shares_stdin ? STDIN_FILENO : nothing.get(),
         .registration_fd = watchdog_.registration_fd(),
         .cores = plan.cores.empty() ? std::vector<int>() : plan.cores[index]},
        fmt::format("rank {} of {}", layout.first_rank + rank, layout.world_size)));
    const OutputPlan& output = plan.outputs[index];
    RankProcess& process = ranks_.all().back();
    process.out.copy_to(std::move(logs[index].out), shown(output.shown, output.files_only.out));
    process.err.copy_to(std::move(logs[index].err), shown(output.shown, output.files_only.err));
  }
}

std::vector<RankLogs> Attempt::open_logs() const {
  std::vector<Streams> files;
  for (const OutputPlan& output : spec_.plan->outputs) {
    files.push_back(output.files);
  }
  if (spec_.logs != nullptr) {
    try {
      return spec_.logs->open(
          spec_.number, files, [this](const std::string& text) { console_.say(text); });
    } catch (const ConfigError& error) {
      if (spec_.number == 0) {
        throw;
      }
      // A job that has run is not given up for its logs.
      console_.say(fmt::format("{}; this attempt is shown on the console only", error.what()));
    }
  }
  return std::vector<RankLogs>(files.size());
}

int Attempt::poll_timeout_ms() const {
  constexpr auto kLongestWait = std::chrono::seconds(1'000'000);
  Clock::time_point next = Clock::now() + kLongestWait;
  const auto consider = [&next](const std::optional<Clock::time_point>& due) {
    next = due ? std::min(next, *due) : next;
  };
  if (!paused_since_) {
    consider(state_machine_.deadline());
    consider(spec_.time_limit);
    consider(flights_.deadline());
  }
  if (spec_.control_channel != nullptr) {
    consider(spec_.control_channel->reactor().deadline());
  }
  constexpr double kLongestPoll = 1e9;
  const std::chrono::duration<double, std::milli> left = next - Clock::now();
  return static_cast<int>(std::ceil(std::clamp(left.count(), 0.0, kLongestPoll)));
}

/// Waits for anything to happen and deals with it.
void Attempt::wait() {
  std::vector<pollfd> items = {{.fd = inbox_.fd(), .events = POLLIN, .revents = 0}};
  if (spec_.control_channel != nullptr) {
    items.push_back({.fd = spec_.control_channel->reactor().fd(), .events = POLLIN, .revents = 0});
  }
  console_.await_room(items);
  ranks_.await(items);
  ::poll(items.data(), items.size(), poll_timeout_ms());
  ranks_.pump(items);
  if (state_machine_.on_endings()) {
    on_rank_endings();
  }
  while (const std::optional<int> signal = inbox_.next()) {
    if (*signal == SIGTSTP) {
      on_terminal_stop();
    } else {
      on_own_signal(*signal);
    }
  }
  check_control_channel();
  if (paused_since_ && !state_machine_.is_running()) {
    continue_ranks();  // They are to end.
  }
  if (!paused_since_) {
    watch_flights();
  }
  watch_output();
  if (!paused_since_) {
    meet_deadlines();
  }
}

void Attempt::meet_deadlines() {
  const auto now = Clock::now();
  if (state_machine_.deadline() && now >= *state_machine_.deadline()) {
    state_machine_.on_deadline();
  }
  if (spec_.time_limit && now >= *spec_.time_limit) {
    spec_.time_limit.reset();
    state_machine_.on_timeout(spec_.options->timeout_seconds);
    if (session() != nullptr) {
      session()->tell_timeout(spec_.options->timeout_seconds);
    }
  }
}

bool Attempt::is_heard(int signal) const {
  return received_signal_ && received_signal_->signal == signal &&
         Clock::now() - received_signal_->time < kSameSignal;
}

/// A signal that this launcher's user has sent, or who started it.
void Attempt::on_own_signal(int signal) {
  if (signal == SIGTSTP || signal == SIGCONT) {  // An order: a user cannot be here otherwise.
    change_pause(signal);
    if (session() != nullptr) {
      session()->tell_signal({.signal = signal});
    }
    return;
  }
  // mpirun and srun pass one signal on to every launcher, and so do the launchers.
  if (is_heard(signal) && !received_signal_->own) {
    received_signal_->own = true;
    return;
  }
  const bool again = told_to_end_ && ends_job(signal);
  received_signal_ = {.signal = signal, .time = Clock::now(), .own = true};
  on_signal(signal);
  if (session() != nullptr) {
    session()->tell_signal({.signal = signal, .again = again});
  }
}

void Attempt::hear_signals() {
  while (const std::optional<NodeSignal> told = session()->next_signal()) {
    if (told->signal == SIGTSTP || told->signal == SIGCONT) {
      change_pause(told->signal);
    } else if (told->again || !is_heard(told->signal)) {
      received_signal_ = {.signal = told->signal, .time = Clock::now(), .own = false};
      on_signal(told->signal);
    }
  }
}

void Attempt::on_signal(int signal) {
  told_to_end_ = told_to_end_ || ends_job(signal);
  if (ends_job(signal)) {
    continue_ranks();
  }
  state_machine_.on_signal(signal);
}

void Attempt::on_terminal_stop() {
  const auto since = Clock::now();
  pause_ranks();
  if (session() != nullptr) {
    session()->tell_signal({.signal = SIGTSTP});
  }
  if (paused_since_) {
    console_.say(fmt::format(
        "SIGTSTP received; the ranks are paused{} until this launcher continues (fg, or SIGCONT)",
        session() != nullptr ? " on all hosts" : ""));
  }
  console_.flush();
  SignalInbox::stop_this_process();
  continue_ranks();
  if (session() != nullptr) {
    session()->tell_signal({.signal = SIGCONT});
  }
  const std::chrono::duration<double> paused = Clock::now() - since;
  console_.say(fmt::format("the job continues after {:.1f} s", paused.count()));
}

void Attempt::change_pause(int signal) {
  const bool was_paused = paused_since_.has_value();
  signal == SIGTSTP ? pause_ranks() : continue_ranks();
  if (was_paused != paused_since_.has_value() && !spec_.control_channel->is_ordered()) {
    // Who gives orders has said it already.
    console_.say(
        was_paused ? "the job continues" : "SIGTSTP came to another launcher; the job is paused");
  }
}

/// SIGSTOP, since a program may mean something else by SIGTSTP. A job that ends already goes on.
void Attempt::pause_ranks() {
  if (!paused_since_ && state_machine_.is_running()) {
    ranks_.send(SIGSTOP);
    paused_since_ = Clock::now();
  }
}

void Attempt::continue_ranks() {
  if (!paused_since_) {
    return;
  }
  const Clock::duration pause = Clock::now() - *paused_since_;
  paused_since_.reset();
  paused_ += pause;
  if (state_machine_.is_running()) {  // Else its deadline is of what ended the pause.
    state_machine_.put_off(pause);
  }
  if (spec_.time_limit) {
    *spec_.time_limit += pause;
  }
  flights_.restart_clocks();
  ranks_.send(SIGCONT);
}

void Attempt::check_control_channel() {
  if (spec_.control_channel == nullptr) {
    return;
  }
  ControlChannel& control_channel = *spec_.control_channel;
  control_channel.reactor().dispatch();
  while (const std::optional<int> signal = control_channel.next_order()) {
    on_own_signal(*signal);
  }
  if (session() != nullptr) {
    hear_signals();
  }
  if (const auto why = control_channel.end(); why && !ended_elsewhere_) {
    ended_elsewhere_ = true;
    if (flight_.empty() && !told_to_end_) {
      flight_ = dump_flights(*why);  // While the ranks still do what they did.
    }
    state_machine_.on_end_elsewhere();
  }
  tell_of_failure();
}

/// At once, and not when all ranks here have ended: those of the other hosts wait for them.
void Attempt::tell_of_failure() {
  if (session() != nullptr && state_machine_.has_failed() && !failure_told_) {
    failure_told_ = true;
    const int code = state_machine_.cause()->exit_code();
    session()->tell_failure(
        {.exit_code = code,
         .failure = failure_report(code),
         .may_restart = may_restart_after(code)});
  }
}

std::vector<watch::RankView> Attempt::all_views() {
  std::vector<watch::RankView> views = flights_.look(ranks_);
  if (session() != nullptr) {
    session()->tell_views(views);
    const std::vector<watch::RankView> others = session()->other_views();
    views.insert(views.end(), others.begin(), others.end());
  }
  return views;
}

void Attempt::on_rank_endings() {
  const bool first_failure = state_machine_.has_failed() && !failure_seen_;
  failure_seen_ = failure_seen_ || first_failure;
  if (!first_failure && session() == nullptr) {
    return;
  }
  // Whoever judges is to know it before what others fail of because of it.
  const std::vector<watch::RankView> views = all_views();
  if (!first_failure || !may_have_lost_patience(state_machine_.cause()->exit_status)) {
    return;
  }
  const auto absent = watch::find_stopped_before_join(
      views, spec_.plan->world_size(), state_machine_.cause()->rank);
  if (absent) {
    RankFailure stopped = failure_of(absent->rank, absent->what, views);
    stopped.stalled = true;
    state_machine_.blame(std::move(stopped));
  }
}

void Attempt::watch_flights() {
  if (Clock::now() < flights_.deadline()) {
    return;
  }
  const std::vector<watch::RankView> views = all_views();
  if (!state_machine_.is_running()) {
    return;
  }
  if (spec_.plan->here != 0) {
    // Node 0 sees all ranks and judges, unless its own have ended.
    if (const auto stall = flights_.stopped(views)) {
      end_stalled(*stall, views);
    }
    return;
  }
  if (end_without(views)) {
    return;
  }
  if (const auto slow = flights_.slow_rank(views)) {
    console_.say(slow->what);
  }
  if (const auto stall = flights_.stall(views)) {
    end_stalled(*stall, views);
  }
}

void Attempt::end_stalled(const watch::Stall& stall, const std::vector<watch::RankView>& views) {
  RankFailure failure = failure_of(stall.ranks.front(), stall.what, views);
  failure.stalled = true;
  flight_ = dump_flights(stall.what);
  state_machine_.on_stall(std::move(failure));
}

bool Attempt::end_without(const std::vector<watch::RankView>& views) {
  const auto absent = watch::find_ended_before_join(views, spec_.plan->world_size());
  if (absent) {
    state_machine_.on_stall(failure_of(absent->rank, absent->what, views));
  }
  return absent.has_value();
}

RankFailure Attempt::failure_of(
    int rank, const std::string& what, const std::vector<watch::RankView>& views) {
  RankFailure failure{.rank = rank, .exit_status = {}, .diagnostic = what};
  const int64_t now = watch::now_ns();
  doing_.clear();
  for (const watch::RankView& view : views) {
    doing_.push_back(fmt::format("rank {:<5}  {}", view.rank, watch::describe(view, now)));
    if (view.rank == rank) {
      failure.pid = static_cast<pid_t>(view.pid);
      stalled_host_ = view.host;
    }
  }
  return failure;
}

std::string Attempt::dump_flights(const std::string& why) {
  watch::FlightDump dump{
      .run_id = spec_.plan->common.run_id,
      .why = why,
      .time = utc_now(),
      .now_ns = watch::now_ns(),
      .ranks = all_views()};
  const bool any = std::any_of(dump.ranks.begin(), dump.ranks.end(), [](const auto& view) {
    return !view.record.operations.empty();
  });
  if (!any || spec_.plan->here != 0) {
    return "";
  }
  try {
    if (spec_.logs != nullptr) {
      const std::string path =
          fmt::format("{}/attempt_{}/flight.json", spec_.logs->path(), spec_.number);
      watch::write_dump(dump, path);
      return path;
    }
    if (const auto folder = prepare_flight_folder(Environment::process())) {
      const std::string path =
          *folder / fmt::format("{}-{}.json", spec_.plan->common.run_id, spec_.number);
      watch::write_dump(dump, path);
      return path;
    }
  } catch (const std::exception& error) {
    console_.say(fmt::format("the flight record could not be kept: {}", error.what()));
  }
  return "";
}

void Attempt::watch_output() {
  if (const int error = console_.flush(); error != 0) {
    state_machine_.on_output_lost(error);
  }
}

FailureReport Attempt::failure_report(int exit_code) {
  RankFailure cause = *state_machine_.cause();
  name_who_left(cause, all_views());
  FailureReport report = {
      .ranks = spec_.plan->world_size(),
      .cause = cause,
      .also_failed = state_machine_.also_failed(),
      .stopped = state_machine_.stopped(),
      .exit_code = exit_code,
      .host = stalled_host_.empty() ? host_name() : stalled_host_,
      .command = spec_.program->argv,
      .last_lines = {},
      .doing = doing_,
      .flight = flight_};
  const int local_rank = cause.rank - ranks_.first_rank();
  if (local_rank >= 0 && local_rank < spec_.plan->local_size()) {
    const LineForwarder& err = ranks_.all()[static_cast<size_t>(local_rank)].err;
    report.last_lines = {err.last_lines().begin(), err.last_lines().end()};
    report.log_file = err.file();
  }
  return report;
}

}  // namespace lockstep::launcher
