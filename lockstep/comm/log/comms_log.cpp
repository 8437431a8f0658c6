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
  LoggedOperation(std::shared_ptr<CommsLog> log, const Collective& collective, int ranks)
      : log_(std::move(log)),
        op_(collective.op),
        text_(
            log_->options().with_shapes ? comm::fingerprint_of(collective, 0).describe()
                                        : comm::name_of(collective.op)),
        bytes_(full_tensor_bytes(collective, ranks)),
        ranks_(ranks) {}

  void begin() override { began_ = Clock::now(); }
  void end(bool succeeded, std::optional<double> measured_ms) override {
    if (succeeded) {
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - began_).count();
      log_->add(text_, op_, bytes_, ranks_, measured_ms.value_or(ms));
    }
  }

 private:
  std::shared_ptr<CommsLog> log_;
  Op op_;
  std::string text_;
  int64_t bytes_;
  int ranks_;
  Clock::time_point began_ = Clock::now();
};

class LogObserver final : public comm::GroupObserver {
 public:
  explicit LogObserver(std::shared_ptr<CommsLog> log) : log_(std::move(log)) {}
  std::shared_ptr<comm::OperationObserver> observe(
      const Collective& collective, int ranks) override {
    return std::make_shared<LoggedOperation>(log_, collective, ranks);
  }

 private:
  std::shared_ptr<CommsLog> log_;
};

}  // namespace

double CommsLogRow::algorithm_gbps() const {
  return gbps(static_cast<double>(bytes) * static_cast<double>(count), total_ms);
}

double CommsLogRow::bus_gbps() const {
  return algorithm_gbps() * bus_share(operation, ranks);
}

void CommsLog::add(const std::string& operation, comm::Op op, int64_t bytes, int ranks, double ms) {
  if (!options_.operations.empty() && !options_.operations.contains(comm::name_of(op))) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    CommsLogRow& row = rows_[{operation, bytes, ranks}];
    row.operation = operation;
    row.bytes = bytes;
    row.ranks = ranks;
    ++row.count;
    row.total_ms += ms;
  }
  if (options_.verbose) {
    const CommsLogRow one{operation, bytes, ranks, 1, ms};
    log_info(fmt::format(
        "comm op: {} | time (ms): {:.2f} | msg size: {} | algbw (Gbps): {:.2f} | busbw (Gbps): "
        "{:.2f}",
        operation,
        ms,
        size_text(bytes),
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
  std::string text = fmt::format(
      "{:<18}{:>12}{:>7}{:>9}{:>19}{:>17}{:>14}{:>14}{}",
      "Comm. Op",
      "Msg Size",
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
        "\n{:<18}{:>12}{:>7}{:>9}{:>19.2f}{:>17.3f}{:>14.2f}{:>14.2f}{}",
        "",
        size_text(row.bytes),
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
