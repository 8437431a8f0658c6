// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group_user.h"

#include <future>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/ones.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/group.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// One of two ranks, whose operations end when the test says so.
class HeldTransport final : public comm::Transport {
 public:
  const char* name() const override { return "held"; }
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::shared_ptr<comm::Work> start(comm::Collective, comm::Milliseconds) override {
    return std::make_shared<HeldWork>(*this);
  }
  std::shared_ptr<comm::Transport> split(int, int, comm::Milliseconds) override { return nullptr; }

  std::promise<void> is_waited_for, end;

 private:
  class HeldWork final : public comm::Work {
   public:
    explicit HeldWork(HeldTransport& transport) : transport_(transport) {}
    bool done() const override { return false; }
    void wait(comm::Milliseconds) override {
      transport_.is_waited_for.set_value();
      transport_.end.get_future().wait();
    }

   private:
    HeldTransport& transport_;
  };
};

TEST(GroupUser, ASecondThreadIsRefusedWhileOneWaitsForItsOperation) {
  auto transport = std::make_shared<HeldTransport>();
  Group group(transport, std::chrono::seconds(30));
  std::thread inside([&] { group.all_reduce(at::ones({4})).wait(); });
  transport->is_waited_for.get_future().wait();
  const auto message = [](const char* where) {
    return ThrowsMessage<ConfigError>(HasSubstr(
        std::string("[") + where +
        "] another thread of this process is using the same "
        "group"));
  };
  EXPECT_THAT([&] { Group(group).barrier(); }, message("barrier"));
  EXPECT_THAT([&] { group.with_timeout(std::chrono::seconds(1)).split(0); }, message("split"));
  transport->end.set_value();
  inside.join();
  EXPECT_NO_THROW(group.all_reduce(at::ones({4})));
}

TEST(GroupUser, AThreadMayWaitForTheOperationOfAnother) {
  auto transport = std::make_shared<HeldTransport>();
  Group group(transport, std::chrono::seconds(30));
  Pending pending = group.all_reduce(at::ones({4}));
  std::thread waiting([&] { pending.wait(); });
  transport->is_waited_for.get_future().wait();
  EXPECT_NO_THROW(group.all_reduce(at::ones({4})));
  transport->end.set_value();
  waiting.join();
}

TEST(GroupUser, AForkedProcessIsRefused) {
  comm::GroupUser user;
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const comm::GroupUser::StartScope scope(user, "all_reduce");
    } catch (const ConfigError& error) {
      ::_exit(std::string(error.what()).find("forked from a rank") == std::string::npos ? 2 : 0);
    }
    ::_exit(1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NO_THROW(comm::GroupUser::StartScope(user, "all_reduce"));
}

TEST(GroupUser, AThreadMayStartWithinAStart) {
  comm::GroupUser user;
  const comm::GroupUser::StartScope outer(user, "all_reduce");
  EXPECT_NO_THROW(comm::GroupUser::StartScope(user, "barrier"));
  std::thread([&] {
    EXPECT_THROW(comm::GroupUser::StartScope(user, "barrier"), ConfigError);
  }).join();
}

}  // namespace
}  // namespace lockstep
