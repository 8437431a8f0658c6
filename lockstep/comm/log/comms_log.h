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
  /// Names of the recorded operations, such as "all_reduce"; empty: all.
  std::set<std::string> operations = {};
  /// Log each operation when it has ended.
  bool verbose = false;
  /// Distinguish operations by dtype and shape, too, not only by size.
  bool with_shapes = false;
};

/// Sums up the operations of one name, size and group.
struct CommsLogRow {
  std::string operation;  ///< "all_reduce", or with shapes "all_reduce(sum) of float32[10, 20]".
  int64_t bytes = 0;      ///< Size of one operation; see CommsLog.
  int ranks = 0;          ///< Ranks of the group.
  /// The dimensions of the mesh in which the ranks differ: "dp", "tp", "dp_cp"; "expert_dp" for
  /// ranks with the same experts. Empty for groups that are not of a mesh, and if it divides only
  /// data.
  std::string mesh_dims = {};
  int64_t count = 0;
  double total_ms = 0;

  double mean_ms() const { return total_ms / static_cast<double>(count); }
  /// Returns the bandwidth in gigabits per second: bytes over time; 0 if no time has passed.
  double algorithm_gbps() const;
  /// Returns nccl-tests' bus bandwidth: the part of it that each rank's link carries.
  double bus_gbps() const;
};

/// Records the cost of operations of a group and its subgroups: count, size and time.
///
/// - **Size**: bytes of the full tensor: the output of all_gather and gather, the input of
///   reduce_scatter and scatter, else the tensor. A barrier has none.
/// - **Time**: from the operation's turn on this rank until its result is available. This includes
///   the wait for the last rank, but no earlier operations. Over NCCL the device measures it. Ranks
///   that are threads measure until the result is awaited.
/// - Failed operations are not counted.
///
/// Cost: a microsecond an operation. Thread-safe.
class CommsLog {
 public:
  explicit CommsLog(CommsLogOptions options = {}) : options_(std::move(options)) {}

  const CommsLogOptions& options() const { return options_; }
  /// Adds an operation, whose name, size and group `row` has, and whose time is row.total_ms.
  void add(comm::Op op, const CommsLogRow& row);
  /// Returns the rows by operation, in order of size.
  std::vector<CommsLogRow> rows() const;

 private:
  const CommsLogOptions options_;
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, int64_t, int, std::string>, CommsLogRow> rows_;
};

/// Returns `group` with recording: its operations, and those of subgroups from split, are added to
/// `log`. A group of one has no operations to record.
Group logged(const Group& group, std::shared_ptr<CommsLog> log);

/// Renders rows as a table with a header; with a column of mesh dimensions if a row has some.
/// `fastest_ms`: for each row the total of the fastest rank; the last column then shows how much
/// longer this rank took, usually waiting for others.
std::string render_comms(
    const std::vector<CommsLogRow>& rows, const std::vector<double>& fastest_ms = {});

}  // namespace lockstep
