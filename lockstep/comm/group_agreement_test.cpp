// SPDX-License-Identifier: Apache-2.0
// These tests start different operations on the ranks of a group, and check what each rank gets.
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/call_scope.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/test_transports.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class GroupAgreement : public TransportTest {};

INSTANTIATE_TEST_SUITE_P(Transports, GroupAgreement, every_transport(), name_of_transport);

TEST_P(GroupAgreement, AMismatchNamesTheProgramsCalls) {
  run([&](Group group) {
    const comm::CallScope call(group.rank() == 0 ? "save_state" : "backward");
    const comm::CallScope inner("gather");
    EXPECT_THAT(
        [&] {
          if (group.rank() == 0) {
            group.all_gather(at::ones({1}, at::kLong)).wait();
          } else {
            group.all_reduce(at::ones({4})).wait();
          }
        },
        ThrowsMessage<CommError>(AllOf(
            HasSubstr("rank 0 calls save_state (all_gather of long[1] as operation "),
            HasSubstr("backward (all_reduce(sum) of float[4] as operation "))));
  });
}

TEST_P(GroupAgreement, AQuestionOfAllRanksIsAnsweredWithYes) {
  run([&](Group group) {
    EXPECT_TRUE(group.called_by_all());
    group.barrier();
    EXPECT_TRUE(group.called_by_all());
  });
}

TEST_P(GroupAgreement, AQuestionOfRank0AloneDisturbsNoOperation) {
  const std::vector<std::function<void(Group&)>> operations = {
      [](Group& g) { g.barrier(); },
      [](Group& g) {
        const at::Tensor small = g.all_reduce(at::full({7}, g.rank(), at::kFloat)).wait();
        EXPECT_EQ(small[6].item<int>(), g.size() * (g.size() - 1) / 2);
      },
      [](Group& g) {
        const at::Tensor large = g.all_reduce(at::ones({100000})).wait();
        EXPECT_TRUE(at::equal(large, at::full({100000}, g.size(), at::kFloat)));
      },
      [](Group& g) {
        const at::Tensor own = g.empty({1000}, at::kFloat).fill_(1);
        EXPECT_EQ(g.all_reduce(own).wait()[999].item<int>(), g.size());
      },
      [](Group& g) {
        const at::Tensor rows = at::full({1}, g.rank(), at::kLong);
        EXPECT_TRUE(at::equal(g.all_gather(rows).wait(), at::arange(g.size(), at::kLong)));
      },
      [](Group& g) {
        const at::Tensor sent = g.broadcast(at::full({3}, g.rank(), at::kLong), 1).wait();
        EXPECT_EQ(sent[0].item<int>(), 1);
      },
      [](Group& g) { EXPECT_EQ(g.split(0).size(), g.size()); }};
  run([&](Group group) {
    for (const auto& operation : operations) {
      for (int i = 0; i < 2; ++i) {
        if (group.rank() == 0) {
          EXPECT_FALSE(group.called_by_all());
        }
      }
      operation(group);
    }
    EXPECT_TRUE(group.called_by_all());
  });
}

TEST_P(GroupAgreement, AQuestionOfAnotherRankAloneIsAMismatch) {
  run([&](Group group) {
    const comm::CallScope call(group.rank() == 1 ? "save_state" : "backward");
    EXPECT_THAT(
        [&] { group.rank() == 1 ? (void)group.called_by_all() : group.barrier(); },
        ThrowsMessage<CommError>(HasSubstr("rank 1 calls save_state (barrier as operation ")));
  });
}

TEST_P(GroupAgreement, AQuestionOfRank0AmongDifferentOperationsIsAMismatch) {
  run([&](Group group) {
    EXPECT_THAT(
        [&] {
          if (group.rank() == 0) {
            group.called_by_all();
          } else {
            group.all_reduce(at::ones({group.rank()})).wait();
          }
          // With two ranks the only other operation is one.
          group.all_reduce(at::ones({group.size()})).wait();
        },
        ThrowsMessage<CommError>(HasSubstr("the ranks call different operations")));
  });
}

/// Holds the calls of one rank and of the others. Every rank must get a CommError naming both.
struct Disagreement {
  const char* name;
  std::function<void(Group&)> odd, others;
  std::string odd_text, others_text;
};

TEST_P(GroupAgreement, AMismatchIsAnErrorOnEveryRankThatNamesBothSides) {
  const std::vector<Disagreement> cases = {
      {"shape",
       [](Group& g) { g.all_reduce(at::ones({10})).wait(); },
       [](Group& g) { g.all_reduce(at::ones({20})).wait(); },
       "all_reduce(sum) of float[10]",
       "all_reduce(sum) of float[20]"},
      {"rows",
       [](Group& g) {
         g.all_gather(at::ones({4, 2})).wait();
       },
       [](Group& g) {
         g.all_gather(at::ones({2, 4})).wait();
       },
       "all_gather of float[4, 2]",
       "all_gather of float[2, 4]"},
      {"dtype",
       [](Group& g) { g.all_reduce(at::ones({4}, at::kDouble)).wait(); },
       [](Group& g) { g.all_reduce(at::ones({4})).wait(); },
       "double[4]",
       "float[4]"},
      {"reduction",
       [](Group& g) { g.all_reduce(at::ones({4}), ReduceOp::kMax).wait(); },
       [](Group& g) { g.all_reduce(at::ones({4})).wait(); },
       "all_reduce(max)",
       "all_reduce(sum)"},
      {"operation",
       [](Group& g) { g.barrier(); },
       [](Group& g) { g.broadcast(at::ones({4})).wait(); },
       "barrier",
       "broadcast(root 0)"},
      {"root",
       [](Group& g) { g.broadcast(at::ones({4}), 1).wait(); },
       [](Group& g) { g.broadcast(at::ones({4}), 0).wait(); },
       "broadcast(root 1)",
       "broadcast(root 0)"},
  };
  for (const Disagreement& c : cases) {
    std::atomic<int> errors{0};
    run([&](Group group) {
      group.barrier();
      try {
        group.rank() == 1 ? c.odd(group) : c.others(group);
        ADD_FAILURE() << c.name << ": rank " << group.rank() << " saw no error";
      } catch (const CommError& error) {
        EXPECT_THAT(
            error.what(),
            AllOf(HasSubstr(c.odd_text), HasSubstr(c.others_text), HasSubstr("rank 1")));
        ++errors;
      }
      EXPECT_THROW(group.barrier(), CommError) << "the group must be dead";
    });
    EXPECT_EQ(errors, size()) << c.name;
  }
}

TEST_P(GroupAgreement, BothEndsOfAMessageGetTheErrorOfAMismatch) {
  std::atomic<int> errors{0};
  run([&](Group group) {
    try {
      if (group.rank() == 0) {
        group.send(at::ones({3}), 1).wait();
      } else if (group.rank() == 1) {
        group.recv(at::ones({5}), 0).wait();
      }
    } catch (const CommError& error) {
      EXPECT_THAT(
          error.what(), AllOf(HasSubstr("send of float[3]"), HasSubstr("recv of float[5]")));
      EXPECT_EQ(error.peer(), 1 - group.rank());
      ++errors;
    }
  });
  EXPECT_EQ(errors, 2);
}

TEST_P(GroupAgreement, AnArgumentThatOneRankRefusesIsAnErrorOnAll) {
  run([&](Group group) {
    if (group.size() == 1) {
      return;
    }
    group.barrier();
    const bool refuses = group.rank() == group.size() - 1;
    const int64_t rows = 2 * group.size() + (refuses ? 1 : 0);
    std::string message;
    try {
      group.reduce_scatter(at::ones({rows})).wait();
    } catch (const ConfigError& error) {
      EXPECT_TRUE(refuses) << error.what();
      message = error.what();
    } catch (const CommError& error) {
      EXPECT_FALSE(refuses) << error.what();
      message = error.what();
    }
    const std::string shape = std::to_string(2 * group.size() + 1);
    EXPECT_THAT(
        message,
        refuses ? HasSubstr("does not divide into")
                : HasSubstr(
                      "rank " + std::to_string(group.size() - 1) +
                      " calls reduce_scatter with an invalid argument, a tensor of float[" + shape +
                      "]"));
  });
}

}  // namespace
}  // namespace lockstep
