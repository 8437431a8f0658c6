// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/background_save.h"

#include <future>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

TEST(BackgroundSave, RunsInParallelAndIsAwaited) {
  std::promise<void> go_on;
  bool saved = false;
  BackgroundSave save;
  save.start([&, future = go_on.get_future().share()] {
    future.wait();  // Only the caller can end this, so start() must have returned.
    saved = true;
  });
  go_on.set_value();
  save.wait();
  EXPECT_TRUE(saved);
}

TEST(BackgroundSave, ThrowsAFailureAtTheNextCallAndOnlyThen) {
  BackgroundSave save;
  save.start([] { throw std::runtime_error("disk full"); });
  EXPECT_THROW(save.start([] {}), std::runtime_error);
  save.wait();
  bool saved = false;
  save.start([&] { saved = true; });
  save.wait();
  EXPECT_TRUE(saved);
}

TEST(BackgroundSave, ThatFailedDoesNotPreventTheNextSave) {
  int saved = 0;
  const auto save = [&] {
    ++saved;
    return std::filesystem::path("/runs/checkpoint_2");
  };
  const auto fail = [] { throw CheckpointError("/runs/checkpoint_1", "is not saved; disk full"); };
  EXPECT_EQ(save_despite_failure([] {}, save), "/runs/checkpoint_2");
  EXPECT_THAT(
      [&] { save_despite_failure(fail, save); },
      testing::ThrowsMessage<CheckpointError>(testing::AllOf(
          testing::HasSubstr("[/runs/checkpoint_2] is saved"),
          testing::HasSubstr("[/runs/checkpoint_1] is not saved; disk full"))));
  EXPECT_EQ(saved, 2);
  EXPECT_THAT(
      [&] {
        save_despite_failure(
            fail, []() -> std::filesystem::path { throw std::runtime_error("own"); });
      },
      testing::ThrowsMessage<std::runtime_error>(testing::HasSubstr("own")));
}

TEST(BackgroundSave, EndsBeforeItsDestruction) {
  bool saved = false;
  {
    BackgroundSave save;
    save.start([&] { saved = true; });
  }
  EXPECT_TRUE(saved);
}

}  // namespace
}  // namespace lockstep::checkpoint
