// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/comm/test_transports.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class GroupTest : public TransportTest {};

INSTANTIATE_TEST_SUITE_P(Transports, GroupTest, every_transport(), name_of_transport);

at::Tensor numbers(int rank, at::ScalarType dtype = at::kFloat) {
  return (at::arange(6) + 1 + 10 * rank).to(dtype).reshape({2, 3}).contiguous();
}

TEST_P(GroupTest, AllReduceComputesEveryReductionInEveryDtype) {
  run([&](Group group) {
    for (auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong}) {
      at::Tensor sum = at::zeros({2, 3}, at::kDouble);
      at::Tensor product = at::ones({2, 3}, at::kDouble);
      for (int rank = 0; rank < group.size(); ++rank) {
        sum += numbers(rank).to(at::kDouble);
        product *= at::full({2, 3}, rank + 1, at::kDouble);
      }
      const auto reduced = [&](const at::Tensor& own, ReduceOp op) {
        return group.all_reduce(own.clone(), op).wait().to(at::kDouble);
      };
      const at::Tensor own = numbers(group.rank(), dtype);
      EXPECT_TRUE(at::equal(reduced(own, ReduceOp::kSum), sum)) << dtype;
      EXPECT_TRUE(at::equal(reduced(own, ReduceOp::kMin), numbers(0, at::kDouble))) << dtype;
      EXPECT_TRUE(at::equal(reduced(own, ReduceOp::kMax), numbers(group.size() - 1, at::kDouble)))
          << dtype;
      EXPECT_TRUE(at::equal(
          reduced(at::full({2, 3}, group.rank() + 1, dtype), ReduceOp::kProduct), product))
          << dtype;
      if (at::isFloatingType(dtype)) {
        const double tolerance = dtype == at::kBFloat16 ? 0.2 : 0.02;
        EXPECT_TRUE(at::allclose(
            reduced(own, ReduceOp::kAvg), sum / group.size(), tolerance / 10, tolerance))
            << dtype;
      }
    }
  });
}

TEST_P(GroupTest, AllReduceGivesEveryRankTheSameBits) {
  run([&](Group group) {
    at::Tensor own = at::sin(at::arange(10007, at::kFloat) * (group.rank() + 1.37));
    const at::Tensor total = group.all_reduce(own, ReduceOp::kAvg).wait();
    const at::Tensor all = group.all_gather(total).wait().reshape({group.size(), -1});
    for (int rank = 1; rank < group.size(); ++rank) {
      EXPECT_TRUE(at::equal(all[0], all[rank]));
    }
  });
}

TEST_P(GroupTest, MovesRowsBetweenRanks) {
  run([&](Group group) {
    const int n = group.size();
    const int me = group.rank();
    const at::Tensor gathered = group.all_gather(at::full({2, 3}, me, at::kLong)).wait();
    EXPECT_EQ(gathered.sizes(), (std::vector<int64_t>{2L * n, 3}));
    EXPECT_TRUE(at::equal(gathered.select(1, 0), at::arange(n).repeat_interleave(2)));

    const at::Tensor scalar = group.all_gather(at::full({}, me, at::kLong)).wait();
    EXPECT_TRUE(at::equal(scalar, at::arange(n)));

    const at::Tensor input = at::arange(2 * n, at::kFloat) + 100 * me;
    const at::Tensor scattered = group.reduce_scatter(input).wait();
    const at::Tensor mine = at::arange(2 * me, 2 * me + 2, at::kFloat);
    EXPECT_TRUE(at::equal(scattered, mine * n + 100 * n * (n - 1) / 2));

    const at::Tensor largest = group.reduce_scatter(input, ReduceOp::kMax).wait();
    EXPECT_TRUE(at::equal(largest, mine + 100 * (n - 1)));
    const at::Tensor average = group.reduce_scatter(input, ReduceOp::kAvg).wait();
    EXPECT_TRUE(at::allclose(average, mine + 50 * (n - 1)));

    const at::Tensor exchanged = group.all_to_all(at::arange(n) + 10 * me).wait();
    EXPECT_TRUE(at::equal(exchanged, at::arange(n) * 10 + me));

    for (int root = 0; root < n; ++root) {
      EXPECT_TRUE(at::equal(
          group.broadcast(at::full({3}, me == root), root).wait(), at::ones({3}, at::kBool)));
      const at::Tensor at_root = group.gather(at::full({1, 2}, me, at::kShort), root).wait();
      EXPECT_EQ(at_root.defined(), me == root);
      if (me == root) {
        EXPECT_TRUE(at::equal(at_root.select(1, 1), at::arange(n, at::kShort)));
      }
      const at::Tensor part =
          group.scatter(at::empty({1, 2}), at::arange(2.0 * n).reshape({n, 2}).to(at::kFloat), root)
              .wait();
      EXPECT_TRUE(at::equal(part, mine.reshape({1, 2})));
    }
    group.barrier();
  });
}

TEST_P(GroupTest, ResultsAreWrittenToTheGivenOutput) {
  run([&](Group group) {
    const int n = group.size();
    const int me = group.rank();
    const at::Tensor input = at::arange(2 * n, at::kFloat) + 100 * me;
    const at::Tensor rows = at::empty({int64_t{2} * n, 3}, at::kLong);
    EXPECT_TRUE(group.all_gather_into(rows, at::full({2, 3}, me, at::kLong)).wait().is_same(rows));
    EXPECT_TRUE(at::equal(rows, group.all_gather(at::full({2, 3}, me, at::kLong)).wait()));
    at::Tensor part = at::empty({2});
    group.reduce_scatter_into(part, input, ReduceOp::kMax).wait();
    EXPECT_TRUE(at::equal(part, group.reduce_scatter(input, ReduceOp::kMax).wait()));
    const at::Tensor exchanged = at::empty({int64_t{2} * n});
    group.all_to_all_into(exchanged, input).wait();
    EXPECT_TRUE(at::equal(exchanged, group.all_to_all(input).wait()));
    EXPECT_THROW(group.all_gather_into(part, input), ConfigError);
    EXPECT_THROW(group.reduce_scatter_into(input, input), ConfigError);
    EXPECT_THROW(group.all_to_all_into(part, input), ConfigError);
  });
}

TEST_P(GroupTest, TensorsFromTheGroupAreReducedLikeOthers) {
  run([&](Group group) {
    at::Tensor own = group.empty({3, 5}, at::kBFloat16).fill_(group.rank() + 1);
    EXPECT_EQ(own.sizes(), at::IntArrayRef({3, 5}));
    const int n = group.size();
    const int64_t all = int64_t{15} * n * (n + 1) / 2;
    EXPECT_EQ(group.all_reduce(own).wait().sum().item<float>(), static_cast<float>(all));
    const at::Tensor common = group.shared_zeros({2, n}, at::kDouble);
    if (common.defined()) {
      EXPECT_EQ(common.sizes(), at::IntArrayRef({2, n}));
      common.select(1, group.rank()).fill_(group.rank() + 1);
      group.barrier();
      EXPECT_EQ(common.sum().item<double>(), n * (n + 1.0));
      group.barrier();
    } else {
      EXPECT_STRNE(group.transport_name(), "shm");
    }
  });
}

TEST_P(GroupTest, EmptyTensorsAreSent) {
  run([&](Group group) {
    EXPECT_EQ(group.all_gather(at::empty({0, 4})).wait().sizes(), (std::vector<int64_t>{0, 4}));
    EXPECT_EQ(group.all_reduce(at::empty({0})).wait().numel(), 0);
  });
}

TEST_P(GroupTest, TwoRanksMaySendToEachOtherBeforeTheyReceive) {
  run([&](Group group) {
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    Pending sent = group.send(at::full({4}, group.rank(), at::kLong), next);
    const at::Tensor got = group.recv(at::empty({4}, at::kLong), previous).wait();
    sent.wait();
    EXPECT_TRUE(at::equal(got, at::full({4}, previous, at::kLong)));
  });
}

TEST_P(GroupTest, MessagesOfSeveralPeersDoNotWaitForEachOther) {
  run([&](Group group) {
    std::vector<Pending> sent;
    std::vector<Pending> received;
    for (int i = 0; i < group.size(); ++i) {  // Even and odd ranks have opposite orders.
      const int peer = group.rank() % 2 == 0 ? i : group.size() - 1 - i;
      if (peer != group.rank()) {
        received.push_back(group.recv(at::empty({1000}, at::kLong), peer));
        sent.push_back(group.send(at::full({1000}, group.rank(), at::kLong), peer));
      }
    }
    int64_t total = group.rank();
    for (Pending& message : received) {
      total += message.wait()[999].item<int64_t>();
    }
    for (Pending& message : sent) {
      message.wait();
    }
    EXPECT_EQ(total, group.size() * (group.size() - 1) / 2);
  });
}

TEST_P(GroupTest, AMessageOfAnyRankIsReceivedWhenItArrives) {
  run([&](Group group) {
    constexpr int kLast = 7;
    if (group.rank() != 0) {
      group.send(at::full({3}, group.rank(), at::kLong), 0).wait();
      group.send(at::full({3}, group.rank(), at::kLong), 0, kLast).wait();
      return;
    }
    std::vector<int> senders;
    for (const int tag : {0, kLast}) {
      for (int i = 1; i < group.size(); ++i) {
        const int sender = group.await_sender(tag, group.timeout()).value();
        const at::Tensor got = group.recv(at::empty({3}, at::kLong), sender, tag).wait();
        EXPECT_TRUE(at::equal(got, at::full({3}, sender, at::kLong)));
        senders.push_back(sender);
      }
    }
    for (int rank = 1; rank < group.size(); ++rank) {
      EXPECT_EQ(std::count(senders.begin(), senders.end(), rank), 2);
    }
  });
}

TEST_P(GroupTest, WithoutAMessageOfAnyRankTheLimitEnds) {
  run([&](Group group) {
    if (group.rank() == 0) {
      EXPECT_EQ(group.sender_of_next(), std::nullopt);
      EXPECT_EQ(group.await_sender(0, comm::Milliseconds(50)), std::nullopt);
    }
    group.barrier();
    if (group.rank() == 0) {  // It can still receive from a named rank.
      EXPECT_EQ(group.recv(at::empty({1}), 1).wait().item<float>(), 4);
    } else if (group.rank() == 1) {
      group.send(at::full({1}, 4.0F), 0).wait();
    }
  });
}

TEST_P(GroupTest, OperationsStartedTogetherFinishInOrder) {
  run([&](Group group) {
    std::vector<Pending> pending;
    for (int i = 0; i < 20; ++i) {
      pending.push_back(group.all_reduce(at::full({100 + i}, i, at::kFloat)));
    }
    for (int i = 19; i >= 0; --i) {
      EXPECT_TRUE(at::equal(pending[i].wait(), at::full({100 + i}, i * group.size(), at::kFloat)));
    }
  });
}

TEST_P(GroupTest, ThreadsMayTakeTurns) {
  run([&](Group group) {
    for (int i = 0; i < 3; ++i) {
      std::thread([&] { group.barrier(); }).join();
      Pending pending = group.all_reduce(at::ones({4}));
      std::thread([&] { pending.wait(); }).join();
    }
  });
}

TEST_P(GroupTest, APublishedNumberIsReadWhileItsRankIsElsewhere) {
  run(
      [&](Group group) {
        if (group.rank() == 0) {
          group.set_number(uint64_t{1} << 63U);
        } else if (group.rank() == 1) {
          EXPECT_EQ(group.number_of(0), uint64_t{1} << 63U);
          EXPECT_THAT(
              [&] { group.number_of(1); },
              ThrowsMessage<CommError>(HasSubstr("rank 1 has set no number within 0.5 s")));
        }
      },
      std::chrono::milliseconds(500));
}

TEST_P(GroupTest, SplitMakesGroupsByColorOrderedByKey) {
  run([&](Group group) {
    const int color = group.rank() % 2;
    Group part = group.split(color, /*key=*/-group.rank());
    const int members = (group.size() + 1 - color) / 2;
    EXPECT_EQ(part.size(), members);
    EXPECT_EQ(part.rank(), members - 1 - group.rank() / 2);
    const at::Tensor all = part.all_gather(at::full({1}, group.rank(), at::kLong)).wait();
    for (int i = 0; i < members; ++i) {
      EXPECT_EQ(all[i].item<int64_t>() % 2, color);
    }
    Group full = group.split(0);
    EXPECT_EQ(full.size(), group.size());
    EXPECT_EQ(full.rank(), group.rank());
  });
}

TEST_P(GroupTest, StringsOfDifferentLengthAreGatheredAndBroadcast) {
  run([&](Group group) {
    const auto all =
        all_gather_bytes(group, std::string(static_cast<size_t>(group.rank()) * 3, 'x'));
    for (int rank = 0; rank < group.size(); ++rank) {
      EXPECT_EQ(all[rank], std::string(static_cast<size_t>(rank) * 3, 'x'));
    }
    EXPECT_EQ(broadcast_bytes(group, group.rank() == 1 ? "hello" : "", 1), "hello");
  });
}

TEST_P(GroupTest, AMissingRankIsATimeout) {
  std::atomic<int> errors{0};
  run(
      [&](Group group) {
        if (group.rank() != 0) {
          try {
            group.all_reduce(at::ones({4})).wait();
          } catch (const CommError& error) {
            EXPECT_EQ(error.op(), "all_reduce");
            ++errors;
          }
        }
      },
      std::chrono::milliseconds(500));
  EXPECT_EQ(errors, size() - 1);
}

TEST_P(GroupTest, WithTimeoutAppliesToItsOwnOperationsOnly) {
  run(
      [&](const Group& group) {
        const at::Tensor tensor = at::ones({4});
        if (group.rank() == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(700));
        }
        group.with_timeout(std::chrono::seconds(60)).all_reduce(tensor).wait();
        EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(size()));
        EXPECT_EQ(group.timeout(), std::chrono::milliseconds(400));
      },
      std::chrono::milliseconds(400));
}

TEST(GroupOfOne, ReturnsItsInputAtOnce) {
  Group group;
  at::Tensor tensor = at::ones({4, 2});
  EXPECT_EQ(group.size(), 1);
  EXPECT_STREQ(group.transport_name(), "none");
  EXPECT_TRUE(group.all_reduce(tensor).wait().is_same(tensor));
  EXPECT_TRUE(group.all_gather(tensor).wait().is_same(tensor));
  EXPECT_TRUE(group.broadcast(tensor).wait().is_same(tensor));
  EXPECT_TRUE(group.all_gather(at::ones({})).wait().dim() == 1);
  group.barrier();
  EXPECT_EQ(group.split(3).size(), 1);
}

TEST(GroupChecks, RefuseBadArgumentsBeforeAnythingIsSent) {
  Group group;
  EXPECT_THROW(group.all_reduce(at::Tensor()), ConfigError);
  EXPECT_THROW(group.all_reduce(at::ones({4, 4}).t()[0]), ConfigError);
  EXPECT_THROW(group.all_reduce(at::ones({4}, at::kBool)), ConfigError);
  EXPECT_THROW(group.all_gather(at::ones({4}, at::kComplexFloat).conj()), ConfigError);
  EXPECT_THROW(group.all_reduce(at::ones({4}, at::kInt), ReduceOp::kAvg), ConfigError);
  EXPECT_THROW(group.broadcast(at::ones({4}), 1), ConfigError);
  EXPECT_THROW(group.send(at::ones({4}), 0), ConfigError);
  EXPECT_THROW(group.scatter(at::ones({2}), at::ones({3})), ConfigError);
  ranks(2, [](Group pair) {
    EXPECT_THROW(pair.reduce_scatter(at::ones({3})), ConfigError);
    EXPECT_THROW(pair.all_to_all(at::ones({})), ConfigError);
    pair.barrier();
  });
}

}  // namespace
}  // namespace lockstep
