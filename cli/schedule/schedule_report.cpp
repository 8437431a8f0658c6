// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule/schedule_report.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/common/plot.h"
#include "cli/ds_config/ds_config_report.h"
#include "lockstep/ds_config/parameters/group_rates.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::json;
using schedule::Schedule;

constexpr int64_t kMostRows = 40;

using ds_config::GroupRate;

/// The printed values: [group][step].
struct Curves {
  std::vector<std::vector<double>> rates;
  std::vector<std::vector<double>> momenta;  ///< Empty if the schedule does not change it.
  int64_t last = 0;                          ///< Step.
};

Curves curves_of(const Schedule& schedule, const std::vector<GroupRate>& groups, int64_t steps) {
  Curves curves;
  curves.last = std::min(steps, schedule.total_steps().value_or(steps));
  for (size_t group = 0; group < groups.size(); ++group) {
    std::vector<double>& rates = curves.rates.emplace_back();
    std::vector<double> momenta;
    for (int64_t step = 0; step <= curves.last; ++step) {
      rates.push_back(schedule.lr(step, groups[group].lr, group));
      if (const auto momentum = schedule.momentum(step, group)) {
        momenta.push_back(*momentum);
      }
    }
    if (!momenta.empty()) {
      curves.momenta.push_back(std::move(momenta));
    }
  }
  return curves;
}

/// Returns whether the schedule depends on the optimizer's rate.
bool depends_on_base(const Schedule& schedule, int64_t steps) {
  const size_t groups = schedule.groups().value_or(1);
  const auto rates = [&](double lr) {
    const std::vector<GroupRate> all(groups, GroupRate{.what = "", .lr = lr});
    return curves_of(schedule, all, steps).rates;
  };
  return rates(1) != rates(2);
}

/// Returns the groups with a curve: those of the schedule, else those of the file's optimizer.
std::vector<GroupRate> groups_of(
    const ScheduleRequest& request, const ds_config::DsConfig& config, const Schedule& schedule) {
  std::vector<GroupRate> groups;
  if (config.optimizer) {
    groups = ds_config::group_rates(*config.optimizer, request.base_lr);
  } else if (request.base_lr || !depends_on_base(schedule, request.steps)) {
    groups = {{.what = "", .lr = request.base_lr.value_or(0)}};
  } else {
    throw ConfigError(
        request.file.native(),
        "has no optimizer, whose learning rate the schedule needs; add --lr, for instance --lr "
        "0.001");
  }
  if (schedule.groups().value_or(groups.size()) != groups.size()) {
    groups.assign(*schedule.groups(), GroupRate{.what = "", .lr = groups.front().lr});
  }
  return groups;
}

/// Returns the schedule to print: the momentum of an optimizer without betas is constant.
Schedule shown_schedule(const ds_config::DsConfig& config) {
  const Schedule& schedule = config.scheduler->schedule.value();
  const bool keeps =
      schedule.cycles_betas_only() && config.optimizer && !ds_config::has_betas(*config.optimizer);
  return keeps ? schedule.without_momentum() : schedule;
}

/// Returns the steps of a table: all steps of a short schedule, else equidistant ones and those
/// with a mark.
std::map<int64_t, std::string> rows_of(const Schedule& schedule, int64_t last) {
  std::map<int64_t, std::string> rows;
  const int64_t stride = last < kMostRows ? 1 : (last + kMostRows - 2) / (kMostRows - 1);
  for (int64_t step = 0; step <= last; step += stride) {
    rows[step] = "";
  }
  rows[last] = last == schedule.total_steps() ? "end" : "";
  for (const schedule::ScheduleMark& mark : schedule.marks()) {
    if (mark.step > 0 && mark.step <= last) {
      rows[mark.step] = mark.what;
    }
  }
  rows[0] = "at construction";
  return rows;
}

std::string name_of(const char* what, const std::vector<GroupRate>& groups, size_t group) {
  return groups.size() == 1 ? what : fmt::format("{} {}", what, group);
}

std::string table_of(
    const Schedule& schedule, const std::vector<GroupRate>& groups, const Curves& curves) {
  const auto shown = rows_of(schedule, curves.last);
  std::vector<std::string> head = {"STEP"};
  for (size_t group = 0; group < curves.rates.size(); ++group) {
    head.push_back(name_of("LEARNING RATE", groups, group));
  }
  for (size_t group = 0; group < curves.momenta.size(); ++group) {
    head.push_back(name_of("MOMENTUM", groups, group));
  }
  std::vector<bool> right(head.size(), true);
  head.emplace_back("EVENT");
  right.push_back(false);
  std::vector<std::vector<std::string>> rows = {head};
  for (const auto& [step, mark] : shown) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(std::to_string(step));
    for (const auto* list : {&curves.rates, &curves.momenta}) {
      for (const std::vector<double>& curve : *list) {
        row.push_back(fmt::format("{:#.6g}", curve[static_cast<size_t>(step)]));
      }
    }
    row.push_back(mark);
  }
  std::string text = render_table(rows, right);
  const auto all = static_cast<size_t>(curves.last) + 1;
  if (shown.size() < all) {
    text +=
        fmt::format("\n{} of {} are shown; --json has all.\n", shown.size(), counted(all, "row"));
  }
  return text;
}

std::string plots_of(const std::vector<GroupRate>& groups, const Curves& curves) {
  constexpr size_t kHeight = 16;
  constexpr size_t kLabels = 16;  // At the left of a plot, at most.
  constexpr size_t kWidth = 80;   // Without a terminal.
  const size_t terminal = terminal_columns();
  const size_t width = std::max<size_t>(kLabels, terminal == 0 ? kWidth : terminal) - kLabels + 8;
  std::string text;
  const auto draw = [&](const char* what, const std::vector<std::vector<double>>& list) {
    for (size_t group = 0; group < list.size(); ++group) {
      text += (text.empty() ? "" : "\n") + name_of(what, groups, group) + "\n" +
              render_plot(list[group], width, kHeight);
    }
  };
  draw("learning rate", curves.rates);
  draw("momentum", curves.momenta);
  return text;
}

/// Returns a number for each step; with several groups a list.
Json by_step(const std::vector<std::vector<double>>& curves) {
  if (curves.empty()) {
    return nullptr;
  }
  if (curves.size() == 1) {
    return curves.front();
  }
  Json steps = Json::array();
  for (size_t step = 0; step < curves.front().size(); ++step) {
    Json& groups = steps.emplace_back(Json::array());
    for (const std::vector<double>& curve : curves) {
      groups.push_back(curve[step]);
    }
  }
  return steps;
}

/// Describes the parameters of each column, unless it is all parameters.
std::string legend_of(const std::vector<GroupRate>& groups) {
  std::string text;
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups.size() > 1 && !groups[group].what.empty()) {
      text += fmt::format("{}group {}: {}", text.empty() ? "" : "; ", group, groups[group].what);
    } else if (!groups[group].what.empty()) {
      text += fmt::format("one group of several: {}", groups[group].what);
    }
  }
  return text.empty() ? "" : text + "\n";
}

/// Returns the value of each group as a list; a single value for one group.
template <typename Value>
Json by_group(const std::vector<GroupRate>& groups, Value GroupRate::*value) {
  if (groups.size() == 1) {
    return groups.front().*value;
  }
  Json all = Json::array();
  for (const GroupRate& group : groups) {
    all.push_back(group.*value);
  }
  return all;
}

std::string end_of(const Schedule& schedule, int64_t steps) {
  if (!schedule.total_steps() || *schedule.total_steps() >= steps) {
    return "";
  }
  return fmt::format(
      "\nThe schedule ends at step {}; training to step {} fails there.\n",
      *schedule.total_steps(),
      steps);
}

}  // namespace

Report schedule_report(const ScheduleRequest& request) {
  const ds_config::Reading reading =
      ds_config::read_ds_config(ds_config::read_ds_document(request.file), std::nullopt);
  if (std::optional<Report> refusal = refusal_of(reading, request.log_errors)) {
    return *std::move(refusal);
  }
  if (!reading.config.scheduler) {
    throw ConfigError(
        request.file.native(),
        "has no scheduler, so the learning rate is constant; expected a section \"scheduler\"");
  }
  const ds_config::SchedulerSection& section = *reading.config.scheduler;
  const Schedule schedule = shown_schedule(reading.config);
  const std::vector<GroupRate> groups = groups_of(request, reading.config, schedule);
  const Curves curves = curves_of(schedule, groups, request.steps);
  Report report;
  report.text = fmt::format(
      "{}: {}\n{}\n{}",
      printable(request.file.native()),
      section.name.value,
      legend_of(groups),
      request.plot ? plots_of(groups, curves) : table_of(schedule, groups, curves));
  if (schedule.beta2()) {
    report.text += fmt::format("\nThe second beta is always {:g}.\n", *schedule.beta2());
  }
  report.text += end_of(schedule, request.steps);
  Json marks = Json::array();
  for (const schedule::ScheduleMark& mark : schedule.marks()) {
    marks.push_back({{"step", mark.step}, {"what", mark.what}});
  }
  report.json = {
      {"file", request.file.native()},
      {"type", section.name.value},
      {"base_lr", by_group(groups, &GroupRate::lr)},
      {"groups", by_group(groups, &GroupRate::what)},
      {"steps", request.steps},
      {"ends_at", schedule.total_steps() ? Json(*schedule.total_steps()) : Json(nullptr)},
      {"lr", by_step(curves.rates)},
      {"momentum", by_step(curves.momenta)},
      {"beta2", schedule.beta2() ? Json(*schedule.beta2()) : Json(nullptr)},
      {"marks", marks}};
  return report;
}

}  // namespace lockstep::cli
