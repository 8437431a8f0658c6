// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/log/comms_log.h"

#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/mesh_groups.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/mesh/mesh_shape.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

const CommsLogRow* row_of(const std::vector<CommsLogRow>& rows, const std::string& operation) {
  for (const CommsLogRow& row : rows) {
    if (row.operation == operation) {
      return &row;
    }
  }
  return nullptr;
}

using Runner = void (*)(int, const std::function<void(Group)>&, comm::Milliseconds);

TEST(CommsLog, CountsTheTotalOfEachOperation) {
  for (const Runner run : {Runner(ranks), Runner(shm_ranks), Runner(two_host_ranks)}) {
    run(
        3,
        [](Group plain) {
          const auto log = std::make_shared<CommsLog>();
          Group group = logged(plain, log);
          for (int i = 0; i < 3; ++i) {
            group.all_reduce(at::ones({10})).wait();
          }
          group.all_reduce(at::ones({20})).wait();
          group.all_gather(at::ones({5})).wait();
          group.reduce_scatter(at::ones({6})).wait();
          group.broadcast(at::ones({7}), 1).wait();
          const at::Tensor gathered = group.gather(at::full({2}, group.rank()), 2).wait();
          if (group.rank() == 2) {
            EXPECT_TRUE(at::equal(gathered, at::arange(3).repeat_interleave(2)));
          }
          group.barrier();
          group.split(group.rank() / 2).all_reduce(at::ones({4})).wait();
          const auto rows = log->rows();
          EXPECT_EQ(row_of(rows, "all_gather")->bytes, 3 * 5 * 4);
          EXPECT_EQ(row_of(rows, "reduce_scatter")->bytes, 6 * 4);
          EXPECT_EQ(row_of(rows, "broadcast")->bytes, 7 * 4);
          EXPECT_EQ(row_of(rows, "gather")->bytes, 3 * 2 * 8);
          EXPECT_EQ(row_of(rows, "barrier")->count, 1);
          std::vector<std::pair<int64_t, int>> all_reduces;  // Count, and ranks.
          for (const CommsLogRow& row : rows) {
            EXPECT_GE(row.total_ms, 0) << row.operation;
            if (row.operation == "all_reduce") {
              all_reduces.emplace_back(row.count, row.ranks);
            }
          }
          // By size. The last rank is alone in its subgroup, which sends nothing.
          const std::vector<std::pair<int64_t, int>> full = {{3, 3}, {1, 3}};
          auto parts = full;
          parts.insert(parts.begin(), {1, 2});
          EXPECT_EQ(all_reduces, group.rank() < 2 ? parts : full);
        },
        std::chrono::seconds(60));
  }
}

double ms_between(
    std::chrono::steady_clock::time_point start, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - start).count();
}

/// Compares only intervals that contain one another, so the load of the machine does not matter.
TEST(CommsLog, TimesTheWaitForTheLastRankAndNotForTheOwnProgram) {
  using Clock = std::chrono::steady_clock;
  std::atomic<bool> rank_0_waits = false;
  std::atomic<Clock::rep> rank_1_started = 0;
  shm_ranks(2, [&](Group plain) {
    const auto log = std::make_shared<CommsLog>();
    Group group = logged(plain, log);
    if (group.rank() == 0) {
      Pending sum = group.all_reduce(at::ones({4}));
      const Clock::time_point issued = Clock::now();
      rank_0_waits = true;
      sum.wait();
      const Clock::time_point last{Clock::duration(rank_1_started.load())};
      EXPECT_GE(log->rows().front().total_ms, ms_between(issued, last));
      return;
    }
    while (!rank_0_waits) {
      std::this_thread::yield();
    }
    const Clock::time_point start = Clock::now();
    rank_1_started = start.time_since_epoch().count();
    Pending sum = group.all_reduce(at::ones({4}));
    while (!sum.done()) {
      std::this_thread::yield();
    }
    const Clock::time_point done = Clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // The program's own work.
    sum.wait();
    EXPECT_LE(log->rows().front().total_ms, ms_between(start, done));
  });
}

TEST(CommsLog, RecordsRequestedOperationsAndDistinguishesShapes) {
  shm_ranks(2, [](Group plain) {
    const auto log = std::make_shared<CommsLog>(
        CommsLogOptions{.operations = {"all_reduce"}, .with_shapes = true});
    Group group = logged(plain, log);
    group.all_reduce(at::ones({2, 3})).wait();
    group.all_reduce(at::ones({6}), ReduceOp::kMax).wait();
    group.barrier();
    const auto rows = log->rows();
    ASSERT_EQ(rows.size(), 2U);
    EXPECT_NE(row_of(rows, "all_reduce(sum) of float[2, 3]"), nullptr);
    EXPECT_NE(row_of(rows, "all_reduce(max) of float[6]"), nullptr);
  });
}

TEST(CommsLog, AnOperationThatFailsIsNotCounted) {
  shm_ranks(2, [](Group plain) {
    const auto log = std::make_shared<CommsLog>();
    Group group = logged(plain, log);
    EXPECT_THROW(group.all_reduce(at::ones({group.rank() + 1})).wait(), CommError);
    EXPECT_TRUE(log->rows().empty());
  });
}

TEST(CommsLog, BandwidthsAreThoseOfNcclTests) {
  const CommsLogRow sum{
      .operation = "all_reduce", .bytes = 1'000'000, .ranks = 4, .count = 5, .total_ms = 40};
  EXPECT_DOUBLE_EQ(sum.algorithm_gbps(), 1);  // 5 MB in 40 ms.
  EXPECT_DOUBLE_EQ(sum.bus_gbps(), 1.5);
  CommsLogRow gather = sum;
  gather.operation = "all_gather";
  EXPECT_DOUBLE_EQ(gather.bus_gbps(), 0.75);
  gather.operation = "broadcast";
  EXPECT_DOUBLE_EQ(gather.bus_gbps(), 1);
}

TEST(CommsLog, IsATableOfOperationsAndSizes) {
  const std::vector<CommsLogRow> rows = {
      {"all_gather", 2048, 2, "", 3, 6},
      {"all_reduce", 12, 2, "", 1, 1},
      {"all_reduce", 5 << 20, 2, "", 2, 8}};
  const std::string table = render_comms(rows);
  EXPECT_THAT(table, HasSubstr("Msg Size"));
  EXPECT_THAT(table, Not(HasSubstr("Straggler")));
  EXPECT_THAT(table, HasSubstr("\nall_gather\n"));
  EXPECT_THAT(table, HasSubstr("2.00 KB"));
  EXPECT_THAT(table, HasSubstr("12 B"));
  EXPECT_THAT(table, HasSubstr("5.00 MB"));
  EXPECT_THAT(table, Not(HasSubstr("Mesh")));
  const std::string stragglers = render_comms(rows, {6, 1, 5});
  EXPECT_THAT(stragglers, HasSubstr("Straggler(ms)\n"));
  EXPECT_TRUE(stragglers.ends_with(" 3.00")) << stragglers;  // 8 ms, where another had 5.
  EXPECT_THAT(render_comms({}), HasSubstr("no operation"));
  const std::string mesh = render_comms({{"all_reduce", 12, 2, "dp_cp", 1, 1}});
  EXPECT_THAT(mesh, HasSubstr("Mesh  Ranks"));
  EXPECT_THAT(mesh, HasSubstr("dp_cp      2"));
}

TEST(CommsLog, ThoseOfOneSizeAreApartByTheGroupsOfAMesh) {
  ranks(4, [](const Group& plain) {
    const auto log = std::make_shared<CommsLog>();
    const Group all = logged(plain, log);
    comm::MeshGroups mesh = comm::connect_mesh(all, resolve_mesh({.tp = 2}, 4, false));
    for (Group group : {all, mesh.data, mesh.tensor, mesh.tensor, mesh.data.split(0)}) {
      group.all_reduce(at::ones({10})).wait();
    }
    std::map<std::string, int64_t> counts;
    for (const CommsLogRow& row : log->rows()) {
      counts[row.mesh_dims] += row.count;
    }
    EXPECT_THAT(counts, ElementsAre(Pair("", 1), Pair("dp", 2), Pair("tp", 2)));
  });
  ranks(2, [](const Group& plain) {
    const auto log = std::make_shared<CommsLog>();
    comm::MeshGroups mesh = comm::connect_mesh(logged(plain, log), resolve_mesh({}, 2, false));
    mesh.data.all_reduce(at::ones({10})).wait();
    EXPECT_EQ(log->rows().front().mesh_dims, "");
  });
}

}  // namespace
}  // namespace lockstep
