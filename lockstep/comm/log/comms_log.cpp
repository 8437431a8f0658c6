// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/log/comms_log.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/log.h"

namespace lockstep {
namespace {

using comm::Collective;
using comm::Op;
using Clock = std::chrono::steady_clock;

constexpr double kBits = 8;

double gbps(double bytes, double ms) {
  return ms > 0 ? bytes * kBits / (ms * 1e6) : 0;
}

/// Returns the part of the bytes that each rank's link carries: nccl-tests' bus bandwidth factor.
double bus_share(const std::string& operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation.starts_with("all_reduce")) {
    return 2 * others;
  }
  const bool in_parts = operation.starts_with("all_gather") ||
                        operation.starts_with("reduce_scatter") ||
                        operation.starts_with("all_to_all");
  return in_parts ? others : 1;
}

std::string size_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) {
    value /= 1024;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

int64_t full_tensor_bytes(const Collective& collective, int ranks) {
  const auto bytes_of = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  };
  switch (collective.op) {
    case Op::kAllGather:
    case Op::kGather:
      return bytes_of(collective.input) * ranks;
    case Op::kScatter:
      return bytes_of(collective.output) * ranks;
    case Op::kReduceScatter:
    case Op::kAllToAll:
    case Op::kSend:
      return bytes_of(collective.input);
    default:
      return bytes_of(collective.output);
  }
}

/// Measures one operation, until it is added to the log.
class LoggedOperation final : public comm::OperationObserver {
 public:
  LoggedOperation(
      std::shared_ptr<CommsLog> log,
      const Collective& collective,
      int ranks,
      const std::string& mesh_dims)
      : log_(std::move(log)),
        op_(collective.op),
        row_{
            .operation = log_->options().with_shapes
                             ? comm::fingerprint_of(collective, 0).describe()
                             : comm::name_of(collective.op),
            .bytes = full_tensor_bytes(collective, ranks),
            .ranks = ranks,
            .mesh_dims = mesh_dims,
            .count = 1} {}

  void begin() override { began_ = Clock::now(); }
  void end(bool succeeded, std::optional<double> measured_ms) override {
    if (succeeded) {
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - began_).count();
      row_.total_ms = measured_ms.value_or(ms);
      log_->add(op_, row_);
    }
  }

 private:
  std::shared_ptr<CommsLog> log_;
  Op op_;
  CommsLogRow row_;
  Clock::time_point began_ = Clock::now();
};

class LogObserver final : public comm::GroupObserver {
 public:
  explicit LogObserver(std::shared_ptr<CommsLog> log, std::string mesh_dims = {})
      : log_(std::move(log)), mesh_dims_(std::move(mesh_dims)) {}
  std::shared_ptr<comm::OperationObserver> observe(
      const Collective& collective, int ranks) override {
    return std::make_shared<LoggedOperation>(log_, collective, ranks, mesh_dims_);
  }
  std::shared_ptr<comm::GroupObserver> of_mesh_dims(const std::string& dims) override {
    return std::make_shared<LogObserver>(log_, dims);
  }

 private:
  std::shared_ptr<CommsLog> log_;
  std::string mesh_dims_;
};

}  // namespace

double CommsLogRow::algorithm_gbps() const {
  return gbps(static_cast<double>(bytes) * static_cast<double>(count), total_ms);
}

double CommsLogRow::bus_gbps() const {
  return algorithm_gbps() * bus_share(operation, ranks);
}

void CommsLog::add(comm::Op op, const CommsLogRow& one) {
  if (!options_.operations.empty() && !options_.operations.contains(comm::name_of(op))) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [row, is_first] =
        rows_.try_emplace({one.operation, one.bytes, one.ranks, one.mesh_dims}, one);
    if (!is_first) {
      ++row->second.count;
      row->second.total_ms += one.total_ms;
    }
  }
  if (options_.verbose) {
    log_info(fmt::format(
        "comm op: {} | time (ms): {:.2f} | msg size: {} | algbw (Gbps): {:.2f} | busbw (Gbps): "
        "{:.2f}",
        one.operation,
        one.total_ms,
        size_text(one.bytes),
        one.algorithm_gbps(),
        one.bus_gbps()));
  }
}

std::vector<CommsLogRow> CommsLog::rows() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<CommsLogRow> rows;
  for (const auto& [unused, row] : rows_) {
    rows.push_back(row);
  }
  return rows;
}

Group logged(const Group& group, std::shared_ptr<CommsLog> log) {
  return group.with_observer(std::make_shared<LogObserver>(std::move(log)));
}

std::string render_comms(
    const std::vector<CommsLogRow>& rows, const std::vector<double>& fastest_ms) {
  const bool has_dims = std::any_of(
      rows.begin(), rows.end(), [](const CommsLogRow& row) { return !row.mesh_dims.empty(); });
  const auto dims_column = [&](const std::string& dims) {
    return has_dims ? fmt::format("{:>12}", dims) : "";
  };
  std::string text = fmt::format(
      "{:<18}{:>12}{}{:>7}{:>9}{:>19}{:>17}{:>14}{:>14}{}",
      "Comm. Op",
      "Msg Size",
      dims_column("Mesh"),
      "Ranks",
      "Count",
      "Total Latency(ms)",
      "Avg Latency(ms)",
      "algbw (Gbps)",
      "busbw (Gbps)",
      fastest_ms.empty() ? "" : fmt::format("{:>15}", "Straggler(ms)"));
  std::string last;
  for (size_t i = 0; i < rows.size(); ++i) {
    const CommsLogRow& row = rows[i];
    if (row.operation != last) {
      text += "\n" + row.operation;
      last = row.operation;
    }
    text += fmt::format(
        "\n{:<18}{:>12}{}{:>7}{:>9}{:>19.2f}{:>17.3f}{:>14.2f}{:>14.2f}{}",
        "",
        size_text(row.bytes),
        dims_column(row.mesh_dims),
        row.ranks,
        row.count,
        row.total_ms,
        row.mean_ms(),
        row.algorithm_gbps(),
        row.bus_gbps(),
        fastest_ms.empty() ? ""
                           : fmt::format("{:>15.2f}", std::max(0.0, row.total_ms - fastest_ms[i])));
  }
  return rows.empty() ? text + "\n(no operation)" : text;
}

}  // namespace lockstep
