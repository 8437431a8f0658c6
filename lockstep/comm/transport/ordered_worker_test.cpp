// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/transport/ordered_worker.h"

#include <cerrno>
#include <chrono>
#include <future>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

constexpr Milliseconds kPatience{30000};

TEST(OrderedWorker, RunsJobsInTheOrderSubmitted) {
  OrderedWorker worker;
  std::vector<int> order;
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 100; ++i) {
    works.push_back(worker.submit("job", [&order, i] { order.push_back(i); }));
  }
  works.back()->wait(kPatience);
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(order[i], i);
    EXPECT_TRUE(works[i]->done());
  }
}

TEST(OrderedWorker, HandsTheJobsErrorToEveryWaiter) {
  OrderedWorker worker;
  const auto work = worker.submit("job", [] { throw CommError("job", "broken"); });
  EXPECT_THROW(work->wait(kPatience), CommError);
  EXPECT_THROW(work->wait(kPatience), CommError);
}

TEST(OrderedWorker, AClosedPeerIsAnErrorOfTheWriteAndNotASignal) {
  OrderedWorker worker;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  int error = 0;
  worker
      .submit(
          "write",
          [&] {
            std::thread([&] {  // As a library's own.
              error = ::write(ends[1], "x", 1) < 0 ? errno : 0;
            })
                .join();
          })
      ->wait(std::chrono::seconds(30));
  ::close(ends[1]);
  EXPECT_EQ(error, EPIPE);
}

TEST(OrderedWorker, AWaiterGetsAnErrorAfterItsTimeout) {
  OrderedWorker worker;
  std::promise<void> gate;
  const auto work =
      worker.submit("all_reduce", [future = gate.get_future().share()] { future.wait(); });
  try {
    work->wait(Milliseconds(10));
    FAIL() << "expected a CommError";
  } catch (const CommError& error) {
    EXPECT_EQ(error.op(), "all_reduce");
    EXPECT_DOUBLE_EQ(error.seconds(), 0.01);
  }
  gate.set_value();
  work->wait(kPatience);
}

TEST(OrderedWorker, DestructionLeavesAStuckJobBehindAndFailsTheQueuedOnes) {
  auto gate = std::make_shared<std::promise<void>>();
  auto started = std::make_shared<std::promise<void>>();
  std::shared_ptr<Work> stuck;
  std::shared_ptr<Work> queued;
  {
    OrderedWorker worker;
    stuck = worker.submit("stuck", [gate, started] {
      started->set_value();
      gate->get_future().wait();
    });
    queued = worker.submit("queued", [] { FAIL() << "must not run"; });
    started->get_future().wait();
  }
  EXPECT_THROW(queued->wait(kPatience), CommError);
  EXPECT_FALSE(stuck->done());
  gate->set_value();
  stuck->wait(kPatience);
}

}  // namespace
}  // namespace lockstep::comm
