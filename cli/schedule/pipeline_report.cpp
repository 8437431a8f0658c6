// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule/pipeline_report.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/pipeline_schedule/simulation.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::json;
using pipeline_schedule::ActionKind;
using pipeline_schedule::ScheduleKind;
using pipeline_schedule::ScheduleShape;
using pipeline_schedule::TimedAction;
using pipeline_schedule::Timeline;

constexpr size_t kColumnsWithoutTerminal = 80;
constexpr size_t kMostLines = 200;
constexpr int64_t kMostForwards = 200'000;

std::string micro_batches_text(int count) {
  return fmt::format("{} micro-batch{}", count, count == 1 ? "" : "es");
}

ScheduleShape shape_of(const PipelineRequest& request, ScheduleKind kind) {
  const ScheduleShape shape{
      .kind = kind,
      .ranks = request.stages,
      .chunks_per_rank = request.chunks.value_or(kind == ScheduleKind::kInterleaved ? 2 : 1),
      .micro_batches = request.micro_batches};
  const int64_t forwards =
      int64_t{shape.ranks} * shape.chunks_per_rank * int64_t{shape.micro_batches};
  if (forwards > kMostForwards) {
    throw ConfigError(
        "lockstep schedule",
        fmt::format(
            "{} stages of {} and {} are {} forwards; expected at most {}; use fewer micro-batches",
            shape.ranks,
            counted(static_cast<size_t>(shape.chunks_per_rank), "chunk"),
            micro_batches_text(shape.micro_batches),
            with_commas(forwards),
            with_commas(kMostForwards)));
  }
  return shape;
}

/// Returns the most micro-batches that each rank holds, where a chunk counts as its part of a
/// stage.
std::vector<double> activations_of(const Timeline& timeline, int chunks) {
  std::vector<double> activations;
  for (const int held : timeline.peak_activations) {
    activations.push_back(static_cast<double>(held) / chunks);
  }
  return activations;
}

/// Breaks a sentence into lines for a terminal of `columns`; 0: none.
std::string prose(const std::string& text, size_t columns) {
  constexpr size_t kMost = 100;
  constexpr size_t kLeast = 40;
  const size_t width = columns == 0 ? kColumnsWithoutTerminal : columns;
  return wrapped(text, std::clamp(width, kLeast, kMost) - 2, "  ") + "\n";
}

/// Formats "4 on rank 0, 3 on rank 1", or "4 on every rank".
std::string activations_text(const std::vector<double>& activations) {
  const bool equal = std::all_of(activations.begin(), activations.end(), [&](double held) {
    return held == activations.front();
  });
  if (equal) {
    return fmt::format("{:g} on every rank", activations.front());
  }
  std::vector<std::string> parts;
  for (size_t rank = 0; rank < activations.size(); ++rank) {
    parts.push_back(fmt::format("{:g} on rank {}", activations[rank], rank));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// Draws the timeline of a schedule in characters. Each unit of time is a cell of fixed width.
class Picture {
 public:
  Picture(const Timeline& timeline, const ScheduleShape& shape, size_t columns)
      : timeline_(timeline),
        shape_(shape),
        label_(fmt::format("rank {}", shape.ranks - 1).size()),
        cell_(
            1 + std::to_string(shape.micro_batches - 1).size() +
            (shape.chunks_per_rank > 1 ? 1 : 0)),
        total_(static_cast<size_t>(timeline.total)) {
    const size_t width = columns == 0 ? kColumnsWithoutTerminal : columns;
    const size_t room = width > label_ + 2 ? width - label_ - 2 : 0;
    cell_ += total_ * (cell_ + 1) <= room ? 1 : 0;  // A space between cells, if there is room.
    units_ = std::clamp<size_t>(room / cell_, 1, total_);
    const auto lines = static_cast<size_t>(shape.ranks) + 2;  // Of a block.
    shown_ = std::min(total_, units_ * std::max<size_t>(1, kMostLines / lines));
  }

  std::string text() const {
    std::vector<std::string> rows;
    for (const std::vector<TimedAction>& actions : timeline_.ranks) {
      rows.push_back(row_of(actions));
    }
    const std::string axis = axis_of();
    std::string text;
    for (size_t begin = 0; begin < shown_; begin += units_) {
      text += (begin == 0 ? "" : "\n") + line_of("time", axis, begin);
      for (size_t rank = 0; rank < rows.size(); ++rank) {
        text += line_of(fmt::format("rank {}", rank), rows[rank], begin);
      }
    }
    if (shown_ < total_) {
      text += fmt::format("\nThe picture ends at time {} of {}; --json has all.\n", shown_, total_);
    }
    return text;
  }

  std::string legend() const {
    const std::string name = shape_.chunks_per_rank > 1 ? "0a" : "0";
    std::string text = fmt::format("   {}  forward of micro-batch 0", name);
    if (shape_.chunks_per_rank > 1) {
      text += " in chunk a, the first of the stage";
    }
    const bool splits = shape_.kind == ScheduleKind::kZeroBubble;
    if (splits) {
      text += fmt::format("\n  B{0}  backward for the inputs\n  W{0}  for the weights", name);
    }
    return text + fmt::format("\n  B{}= backward{}\n   .  idle\n", name, splits ? " for both" : "");
  }

 private:
  /// Returns the shown cells of a rank.
  std::string row_of(const std::vector<TimedAction>& actions) const {
    std::string row;
    const std::string idle = " ." + std::string(cell_ - 2, ' ');
    for (size_t unit = 0; unit < shown_; ++unit) {
      row += idle;
    }
    for (const auto& [action, start, end] : actions) {
      const auto from = static_cast<size_t>(start) * cell_;
      if (from >= row.size()) {
        break;
      }
      std::string text(1, mark_of(action.kind));
      text += std::to_string(action.micro_batch);
      if (shape_.chunks_per_rank > 1) {
        text += static_cast<char>('a' + action.chunk / shape_.ranks);
      }
      const auto width = static_cast<size_t>(end - start) * cell_;
      text.resize(width, action.kind == ActionKind::kBackward ? '=' : ' ');
      const size_t visible = std::min(width, row.size() - from);
      row.replace(from, visible, text, 0, visible);
    }
    return row;
  }

  static char mark_of(ActionKind kind) {
    switch (kind) {
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        return 'B';
      case ActionKind::kBackwardWeight:
        return 'W';
      default:
        return ' ';
    }
  }

  /// Returns the times above the cells: each tenth, from 0.
  std::string axis_of() const {
    constexpr size_t kStep = 10;
    std::string axis(shown_ * cell_, ' ');
    for (size_t unit = 0; unit < shown_; unit += kStep) {
      const std::string number = std::to_string(unit);
      if (unit * cell_ + 1 + number.size() <= axis.size()) {
        axis.replace(unit * cell_ + 1, number.size(), number);
      }
    }
    return axis;
  }

  std::string line_of(const std::string& label, const std::string& row, size_t begin) const {
    std::string line =
        fmt::format("{:<{}}  {}", label, label_, row.substr(begin * cell_, units_ * cell_));
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  }

  const Timeline& timeline_;
  const ScheduleShape& shape_;
  size_t label_;  ///< Columns at the left.
  size_t cell_;   ///< Columns of a unit of time.
  size_t total_;  ///< Units of time, as all that follow.
  size_t units_ = 1;
  size_t shown_ = 0;
};

std::string head_of(const PipelineRequest& request) {
  return fmt::format(
      "{}, {}",
      counted(static_cast<size_t>(request.stages), "stage"),
      micro_batches_text(request.micro_batches));
}

std::string name_of_action(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kBackwardInput:
      return "backward_input";
    default:
      return "backward_weight";
  }
}

/// Returns the numbers of a schedule, for both kinds of reports.
Json numbers_of(const ScheduleShape& shape, const Timeline& timeline) {
  return {
      {"pipeline", name_of(shape.kind)},
      {"chunks", shape.chunks_per_rank},
      {"time", timeline.total / shape.chunks_per_rank},
      {"bubble", timeline.bubble()},
      {"bubble_per_work", timeline.bubble_per_work()},
      {"activations", activations_of(timeline, shape.chunks_per_rank)}};
}

Report picture_report(const PipelineRequest& request, ScheduleKind kind) {
  const ScheduleShape shape = shape_of(request, kind);
  const Timeline timeline = simulate(compute_actions(shape));
  const int chunks = shape.chunks_per_rank;
  const double work = timeline.work / shape.ranks;
  const Picture picture(timeline, shape, request.columns);
  Report report;
  report.text = fmt::format(
      "{}: {}{}\n\n{}\n{}\n",
      name_of(kind),
      head_of(request),
      chunks == 1 ? "" : fmt::format(", {} chunks in each stage", chunks),
      picture.text(),
      picture.legend());
  report.text += prose(
      fmt::format(
          "bubble: {:.1f}% of the time, {:.1f}% of the work ({:g} of {:g} units are idle; a unit "
          "is "
          "the forward of a {})",
          100 * timeline.bubble(),
          100 * timeline.bubble_per_work(),
          timeline.total - work,
          timeline.total,
          chunks == 1 ? "stage" : "chunk"),
      request.columns);
  report.text += prose(
      "most activations held, in micro-batches of a stage: " +
          activations_text(activations_of(timeline, chunks)),
      request.columns);
  report.json = numbers_of(shape, timeline);
  report.json["stages"] = request.stages;
  report.json["micro_batches"] = request.micro_batches;
  Json& ranks = report.json["ranks"] = Json::array();
  for (const std::vector<TimedAction>& actions : timeline.ranks) {
    Json& list = ranks.emplace_back(Json::array());
    for (const auto& [action, start, end] : actions) {
      list.push_back(
          {{"action", name_of_action(action.kind)},
           {"chunk", action.chunk},
           {"micro_batch", action.micro_batch},
           {"start", start / chunks},
           {"end", end / chunks}});
    }
  }
  return report;
}

/// Returns the schedules of a comparison: those with several chunks also with one, if they can.
std::vector<std::pair<ScheduleKind, int>> compared(int chunks) {
  std::vector<std::pair<ScheduleKind, int>> all = {
      {ScheduleKind::kGPipe, 1}, {ScheduleKind::k1F1B, 1}};
  if (chunks > 1) {
    all.emplace_back(ScheduleKind::kInterleaved, chunks);
  }
  all.emplace_back(ScheduleKind::kZeroBubble, 1);
  if (chunks > 1) {
    all.emplace_back(ScheduleKind::kZeroBubble, chunks);
  }
  return all;
}

Report table_report(PipelineRequest request) {
  std::vector<std::vector<std::string>> rows = {
      {"SCHEDULE", "CHUNKS", "TIME", "BUBBLE", "OF THE WORK", "ACTIVATIONS"}};
  std::string refusals;
  Json schedules = Json::array();
  for (const auto& [kind, chunks] : compared(request.chunks.value_or(2))) {
    request.chunks = chunks;
    const ScheduleShape shape = shape_of(request, kind);
    const std::string name = name_of(kind);
    try {
      const Timeline timeline = simulate(compute_actions(shape));
      const std::vector<double> activations = activations_of(timeline, chunks);
      rows.push_back(
          {name,
           std::to_string(chunks),
           fmt::format("{:g}", timeline.total / chunks),
           fmt::format("{:.1f}%", 100 * timeline.bubble()),
           fmt::format("{:.1f}%", 100 * timeline.bubble_per_work()),
           fmt::format("{:g}", *std::max_element(activations.begin(), activations.end()))});
      schedules.push_back(numbers_of(shape, timeline));
    } catch (const ConfigError& error) {
      rows.push_back({name, std::to_string(chunks), "-", "-", "-", "-"});
      refusals +=
          prose(fmt::format("{} of {} chunks: {}", name, chunks, error.what()), request.columns);
      schedules.push_back({{"pipeline", name}, {"chunks", chunks}, {"error", error.what()}});
    }
  }
  Report report;
  report.text = fmt::format(
      "{}\n\n{}\n{}"
      "TIME: in forwards of a stage; each half of a backward takes as long. BUBBLE: idle, as a\n"
      "part of the time, and as a ratio to the work. ACTIVATIONS: the most micro-batches that a\n"
      "rank holds at once.\n",
      head_of(request),
      render_table(rows, {false, true, true, true, true, true}),
      refusals.empty() ? "" : refusals + "\n");
  report.json = {
      {"stages", request.stages},
      {"micro_batches", request.micro_batches},
      {"schedules", std::move(schedules)}};
  return report;
}

}  // namespace

Report pipeline_report(const PipelineRequest& request) {
  return request.kind ? picture_report(request, *request.kind) : table_report(request);
}

}  // namespace lockstep::cli
