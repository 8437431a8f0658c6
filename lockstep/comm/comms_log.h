// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

struct CommsLogOptions {
  /// Names of the operations that count, "all_reduce" and so on; empty: all.
  std::set<std::string> operations = {};
  /// Say each one as soon as it has ended.
  bool verbose = false;
  /// Tell operations apart by dtype and shape, too, and not by their size alone.
  bool with_shapes = false;
};

/// Operations of one name and size, together.
struct CommsLogRow {
  std::string operation;  ///< "all_reduce", or with shapes "all_reduce(sum) of float32[10, 20]".
  int64_t bytes = 0;      ///< Of one; see CommsLog.
  int ranks = 0;          ///< Of the group.
  int64_t count = 0;
  double total_ms = 0;

  double mean_ms() const { return total_ms / static_cast<double>(count); }
  /// Gigabits a second: bytes over time; and, as nccl-tests has it, what of it each rank's wire
  /// carries. 0 where no time has gone by.
  double algorithm_gbps() const;
  double bus_gbps() const;
};

/// What operations of a group and of its parts cost: how many, of what size, how long.
///
/// - **Size**: bytes of the whole: what all_gather and gather fill, what reduce_scatter and scatter
///   cut up, else the tensor. A barrier has none.
/// - **Time**: from when the operation's turn has come on this rank, until its result is there:
///   with the wait for the last rank, without that for other operations. Over NCCL it is the
///   device's own. Ranks that are threads have none of their own: until somebody waits.
/// - What fails is not counted.
///
/// Cost: a microsecond an operation. Thread-safe.
class CommsLog {
 public:
  explicit CommsLog(CommsLogOptions options = {}) : options_(std::move(options)) {}

  const CommsLogOptions& options() const { return options_; }
  void add(const std::string& operation, comm::Op op, int64_t bytes, int ranks, double ms);
  /// By operation, in the order of their sizes.
  std::vector<CommsLogRow> rows() const;

 private:
  const CommsLogOptions options_;
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, int64_t, int>, CommsLogRow> rows_;
};

/// `group`, whose operations, and those of the groups it is split into, are added to `log`. A group
/// of one does nothing that could be.
Group logged(const Group& group, std::shared_ptr<CommsLog> log);

/// Rows as a table, with a header. `fastest_ms`: of each row the total of the rank that spent least
/// in it; then a last column says how much longer this rank was, which waiting for others explains.
std::string render_comms(
    const std::vector<CommsLogRow>& rows, const std::vector<double>& fastest_ms = {});

}  // namespace lockstep
