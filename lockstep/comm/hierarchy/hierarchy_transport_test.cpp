// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hierarchy/hierarchy_transport.h"

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <sys/resource.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/transport/flight.h"
#include "lockstep/watch/flight_recorder.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// RAII scope: collects the log lines.
class LogLines {
 public:
  LogLines() {
    set_log_sink([this](const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      all_ += line;
    });
  }
  ~LogLines() { set_log_sink(nullptr); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  std::string all() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return all_;
  }

 private:
  mutable std::mutex mutex_;
  std::string all_;
};

/// A transport that only gathers.
class Gatherer final : public Transport {
 public:
  explicit Gatherer(Group all) : all_(std::move(all)) {}
  const char* name() const override { return "gatherer"; }
  int rank() const override { return all_.rank(); }
  int size() const override { return all_.size(); }
  std::shared_ptr<Work> start(Collective c, Milliseconds /*timeout*/) override {
    all_.all_gather_into(c.output, c.input).wait();
    return std::make_shared<Done>();
  }
  std::shared_ptr<Transport> split(int, int, Milliseconds) override { return nullptr; }

 private:
  class Done final : public Work {
    bool done() const override { return true; }
    void wait(Milliseconds) override {}
  };
  Group all_;
};

// The host of each rank: hosts of equal size, numbered host by host and not; three; unequal sizes.
const std::vector<std::vector<int>> kWorlds = {
    {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 0}, {0, 0, 1, 1, 2, 2}, {0, 1, 1}, {0, 1, 0, 0, 2}};

at::Tensor data_of(int rank, int64_t count, at::ScalarType dtype = at::kDouble) {
  return (at::arange(count, at::kLong) * 31 % 1009 + rank * 1013).to(dtype);
}

TEST(Hierarchy, EveryOperationIsRightWhereverTheRanksAre) {
  for (const auto& hosts : kWorlds) {
    SCOPED_TRACE(::testing::PrintToString(hosts));
    ranks_on_hosts(hosts, [](Group group) {
      EXPECT_STREQ(group.transport_name(), "shm+gloo");
      const int n = group.size();
      const int me = group.rank();
      // Below and above the size that ranks share; divisible by the ranks of a host and not.
      for (const int64_t rows : {int64_t{1}, int64_t{7}, int64_t{5000}, int64_t{20'001}}) {
        const int64_t count = rows * n;
        at::Tensor sum = at::zeros({count}, at::kDouble);
        std::vector<at::Tensor> all;
        for (int rank = 0; rank < n; ++rank) {
          sum += data_of(rank, count);
          all.push_back(data_of(rank, rows));
        }
        const at::Tensor own = data_of(me, count);
        EXPECT_TRUE(at::equal(group.all_reduce(own.clone()).wait(), sum));
        EXPECT_TRUE(at::equal(group.all_reduce(own.clone(), ReduceOp::kAvg).wait(), sum / n));
        const at::Tensor odd = own.narrow(0, 0, count - 1).clone();
        EXPECT_TRUE(at::equal(group.all_reduce(odd).wait(), sum.narrow(0, 0, count - 1)));
        EXPECT_TRUE(at::equal(group.reduce_scatter(own).wait(), sum.narrow(0, me * rows, rows)));
        EXPECT_TRUE(at::equal(
            group.reduce_scatter(own, ReduceOp::kAvg).wait(), sum.narrow(0, me * rows, rows) / n));
        EXPECT_TRUE(at::equal(
            group.reduce_scatter(own, ReduceOp::kMin).wait(),
            data_of(0, count).narrow(0, me * rows, rows)));
        EXPECT_TRUE(at::equal(group.all_gather(data_of(me, rows)).wait(), at::cat(all)));
        for (int root = 0; root < n; ++root) {
          EXPECT_TRUE(at::equal(group.broadcast(own.clone(), root).wait(), data_of(root, count)));
        }
        group.barrier();
      }
    });
  }
}

TEST(Hierarchy, AllRanksGetTheSameBitsAndInEveryRun) {
  for (const auto& hosts : kWorlds) {
    SCOPED_TRACE(::testing::PrintToString(hosts));
    std::array<at::Tensor, 2> runs;
    for (at::Tensor& run : runs) {
      ranks_on_hosts(hosts, [&run](Group group) {
        std::vector<at::Tensor> results;
        for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
          for (const int64_t count : {int64_t{1001}, int64_t{100'003}}) {
            const at::Tensor own =
                at::sin(at::arange(count, at::kFloat) * (group.rank() + 1.37)).to(dtype);
            results.push_back(group.all_reduce(own, ReduceOp::kAvg).wait().to(at::kFloat));
          }
        }
        const at::Tensor mine = at::cat(results);
        const at::Tensor all = group.all_gather(mine).wait().reshape({group.size(), -1});
        for (int rank = 1; rank < group.size(); ++rank) {
          EXPECT_TRUE(at::equal(all[0], all[rank]));
        }
        if (group.rank() == 0) {
          run = mine;
        }
      });
    }
    EXPECT_TRUE(at::equal(runs[0], runs[1]));
  }
}

TEST(Hierarchy, AnAverageOfFloat16DoesNotOverflow) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 0, 1}}) {
    ranks_on_hosts(hosts, [](Group group) {
      for (const int64_t count : {int64_t{12}, int64_t{60'000}}) {
        const at::Tensor large = at::full({count}, 60'000.0, at::kHalf);
        const at::Tensor average = group.all_reduce(large.clone(), ReduceOp::kAvg).wait();
        EXPECT_TRUE(at::allclose(average.to(at::kFloat), large.to(at::kFloat), 0.01));
        const at::Tensor part = group.reduce_scatter(large, ReduceOp::kAvg).wait();
        EXPECT_TRUE(at::isfinite(part).all().item<bool>());
      }
    });
  }
}

TEST(Hierarchy, TensorsFromTheGroupAreReducedInPlace) {
  ranks_on_hosts({0, 0, 1, 1}, [](Group group) {
    at::Tensor own = group.empty({100'001}, at::kFloat).fill_(group.rank() + 1);
    EXPECT_TRUE(at::equal(group.all_reduce(own).wait(), at::full({100'001}, 10.0F)));
    EXPECT_FALSE(group.shared_zeros({8}, at::kFloat).defined());
  });
}

TEST(Hierarchy, ASplitGroupUsesTheTransportOfItsRanks) {
  ranks_on_hosts({0, 0, 1, 1, 2, 2}, [](Group group) {
    const int host = group.rank() / 2;
    Group of_host = group.split(host);
    EXPECT_STREQ(of_host.transport_name(), "shm");
    Group of_index = group.split(group.rank() % 2);
    EXPECT_STREQ(of_index.transport_name(), "gloo");
    // A subgroup of two hosts, in reverse order; the third host is another subgroup.
    Group of_two = group.split(host == 2 ? 1 : 0, -group.rank());
    EXPECT_STREQ(of_two.transport_name(), host == 2 ? "shm" : "shm+gloo");
    EXPECT_EQ(of_two.rank(), host == 2 ? 5 - group.rank() : 3 - group.rank());
    Group alone = group.split(group.rank());
    EXPECT_EQ(alone.size(), 1);
    for (Group* part : {&of_host, &of_index, &of_two, &alone}) {
      const at::Tensor members = part->all_gather(at::full({1}, group.rank(), at::kLong)).wait();
      const at::Tensor sum = part->all_reduce(at::full({30'000}, group.rank(), at::kLong)).wait();
      EXPECT_EQ(members[part->rank()].item<int64_t>(), group.rank());
      EXPECT_EQ(sum[29'999].item<int64_t>(), members.sum().item<int64_t>());
    }
    // The full group stays usable.
    EXPECT_EQ(group.all_reduce(at::ones({3})).wait()[2].item<float>(), 6.0F);
  });
}

TEST(Hierarchy, OneRankOnEachHostIsGlooAlone) {
  ranks_on_hosts({0, 1, 2}, [](Group group) {
    EXPECT_STREQ(group.transport_name(), "gloo");
    EXPECT_EQ(group.all_reduce(at::ones({3})).wait()[2].item<float>(), 3.0F);
  });
}

TEST(Hierarchy, WithoutSharedMemoryAllRanksTakeGlooAndSayWhy) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  // Less than the address space of the shared memory, more than this test writes.
  const rlimit little{.rlim_cur = rlim_t{1} << 30U, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const LogLines lines;
  ranks_on_hosts({0, 0, 1}, [](Group group) {
    EXPECT_STREQ(group.transport_name(), "gloo");
    EXPECT_EQ(group.all_reduce(at::ones({3})).wait()[2].item<float>(), 3.0F);
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(
      lines.all(),
      AllOf(
          HasSubstr("warning: shared memory is not available within each host"),
          HasSubstr("ulimit")));
}

TEST(Hierarchy, OneHostWithoutSharedMemoryIsEnoughForAllToTakeGloo) {
  const LogLines lines;
  std::atomic<int> agreed{0};
  gloo_ranks(4, [&](const Group& group) {
    const auto all_ranks = std::make_shared<Gatherer>(group);
    const auto transport = make_hierarchy_transport(
        all_ranks,
        RanksByHost({{0, 1}, {2, 3}}),
        [&]() -> std::shared_ptr<Transport> {
          if (group.rank() == 3) {
            throw Error("shared memory", "there is none");
          }
          return nullptr;
        },
        /*group=*/7,
        std::chrono::seconds(60));
    agreed += transport == all_ranks ? 1 : 0;
  });
  EXPECT_EQ(agreed, 4);
  EXPECT_THAT(lines.all(), HasSubstr("rank 3: [shared memory] there is none"));
}

TEST(Hierarchy, InconsistentHostsFallBackToGloo) {
  const LogLines lines;
  std::atomic<int> agreed{0};
  gloo_ranks(4, [&](const Group& group) {
    const auto all_ranks = std::make_shared<Gatherer>(group);
    WorldSpec world;
    world.rank = group.rank();
    world.size = 4;
    world.local_rank = group.rank() % 3;
    world.local_size = 3;
    agreed += make_hierarchy_transport(world, all_ranks, kWorldGroup, std::chrono::seconds(60)) ==
                      all_ranks
                  ? 1
                  : 0;
  });
  EXPECT_EQ(agreed, 4);
  EXPECT_THAT(lines.all(), HasSubstr("got 1 ranks, expected 3"));
}

TEST(Hierarchy, ARankThatLeavesIsAnErrorOnEveryHostBeforeAnyTimeout) {
  for (const auto& hosts : kWorlds) {
    SCOPED_TRACE(::testing::PrintToString(hosts));
    for (const int leaver : {0, static_cast<int>(hosts.size()) - 1}) {
      std::atomic<int> errors{0};
      ranks_on_hosts(hosts, [&](Group group) {
        group.barrier();
        if (group.rank() == leaver) {
          return;
        }
        try {
          group.all_reduce(at::ones({30'000})).wait();
          ADD_FAILURE() << "rank " << leaver << " took no part";
        } catch (const CommError& error) {
          EXPECT_EQ(error.op(), "all_reduce");
          EXPECT_THAT(
              error.what(),
              AllOf(
                  AnyOf(
                      HasSubstr("has left the group"),
                      HasSubstr("a rank is lost, or did not call the operation"),
                      HasSubstr("the group failed earlier")),
                  // No rank waits until its timeout ends: Lockstep's, Gloo's, or a peer's.
                  Not(HasSubstr("did not call the operation within")),
                  Not(HasSubstr("Timed out")),
                  Not(HasSubstr("Application timeout"))));
          ++errors;
        }
        try {
          group.barrier();
          ADD_FAILURE() << "the group must be dead";
        } catch (const CommError& error) {
          EXPECT_THAT(error.what(), HasSubstr("the group failed earlier"));
        }
        EXPECT_THROW(
            group.send(at::ones({1}), (group.rank() + 1) % group.size()).wait(), CommError);
        EXPECT_THROW(group.split(0), CommError);
        EXPECT_EQ(group.empty({4}, at::kFloat).numel(), 4);
      });
      EXPECT_EQ(errors, static_cast<int>(hosts.size()) - 1);
    }
  }
}

TEST(Hierarchy, AnOperationIsOneInTheFlightRecord) {
  ranks_on_hosts({0, 0, 1, 1}, [&](Group group) {
    group.barrier();
    const auto before = watch::FlightRecorder::process().read().operations;
    group.barrier();
    group.all_reduce(at::ones({50'000})).wait();
    group.barrier();
    for (const auto& operation : watch::FlightRecorder::process().read().operations) {
      if (operation.number > before.back().number) {
        EXPECT_THAT(
            operation.describe(), AnyOf(HasSubstr("barrier"), HasSubstr("all_reduce(sum)")));
      }
    }
  });
}

TEST(Hierarchy, RefusesTensorsWithoutValues) {
  ranks_on_hosts({0, 0, 1}, [](Group group) {
    const at::Tensor elsewhere = at::empty({4}, at::TensorOptions().device(at::kMeta));
    EXPECT_THROW(group.all_reduce(elsewhere), ConfigError);
  });
}

}  // namespace
}  // namespace lockstep::comm
