// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/segment.h"

#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/shm/arena.h"

namespace lockstep::comm::shm {
namespace {

using ::testing::HasSubstr;

int64_t allocated_bytes(const Segment& segment) {
  struct stat info {};
  ::fstat(segment.fd(), &info);
  return info.st_blocks * 512;
}

TEST(Segment, IsTheSameMemoryForEveryAttachedProcess) {
  const auto one = Segment::create({.ranks = 3});
  const auto other = Segment::attach(UniqueFd(::dup(one->fd())));
  EXPECT_EQ(other->sizes().ranks, 3);
  one->control(2).published.store(41);
  EXPECT_EQ(other->control(2).published.load(), 41U);
  std::memset(one->slot(1, 5), 7, one->sizes().slot_bytes);
  EXPECT_EQ(std::to_integer<int>(other->slot(1, 7)[100]), 7) << "odd phases share a slot";
  EXPECT_EQ(std::to_integer<int>(other->slot(1, 6)[100]), 0);
}

TEST(Segment, HasNoNameAndCannotBeCutUnderItsUsers) {
  const auto segment = Segment::create({.ranks = 2});
  struct stat info {};
  ASSERT_EQ(::fstat(segment->fd(), &info), 0);
  EXPECT_EQ(info.st_nlink, 0U);
  EXPECT_NE(::ftruncate(segment->fd(), 4096), 0);
  EXPECT_NE(::fcntl(segment->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Segment, AllocatesThePagesOfEveryOperationAtConstruction) {
  const auto segment = Segment::create({.ranks = 2});
  EXPECT_GE(allocated_bytes(*segment), static_cast<int64_t>(4 * segment->sizes().slot_bytes));
}

TEST(Segment, ATooLargeOneIsAnErrorWithTheRemedy) {
  try {
    Segment::create({.ranks = 2, .slot_bytes = size_t{1} << 45U});
    FAIL() << "no machine has that much";
  } catch (const Error& error) {
    EXPECT_THAT(
        error.what(),
        ::testing::AnyOf(
            HasSubstr("LOCKSTEP_COMM=gloo"),
            HasSubstr("cannot map"),
            HasSubstr("cannot set the size")));
  }
}

TEST(Segment, RefusesOtherFiles) {
  const UniqueFd other(::memfd_create("other", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(other.get(), 1 << 20), 0);
  EXPECT_THROW(Segment::attach(UniqueFd(::dup(other.get()))), CommError);
  const auto segment = Segment::create({.ranks = 2});
  ASSERT_EQ(::ftruncate(other.get(), 4096), 0);
  std::vector<char> head(4096);
  ASSERT_EQ(::pread(segment->fd(), head.data(), head.size(), 0), 4096);
  ASSERT_EQ(::pwrite(other.get(), head.data(), head.size(), 0), 4096);
  EXPECT_THROW(Segment::attach(UniqueFd(::dup(other.get()))), CommError) << "too short";
}

TEST(Arena, MakesTensorsThatPeersSeeAndGivesTheirMemoryBack) {
  const auto segment = Segment::create({.ranks = 2});
  const auto other = Segment::attach(UniqueFd(::dup(segment->fd())));
  auto arena = std::make_shared<Arena>(segment, 1);
  const int64_t before = allocated_bytes(*segment);
  at::Tensor first = arena->allocate(3 << 20);
  at::Tensor second = arena->allocate(5);
  EXPECT_EQ(second.numel(), 5);
  first.fill_(9);
  EXPECT_EQ(std::to_integer<int>(other->arena(1)[12345]), 9);
  EXPECT_EQ(allocated_bytes(*segment), before + (3 << 20) + 4096);
  first = at::Tensor();
  EXPECT_EQ(allocated_bytes(*segment), before + 4096);
  const at::Tensor third = arena->allocate(3 << 20);
  EXPECT_EQ(third.data_ptr(), segment->arena(1)) << "the hole is used again";
  EXPECT_EQ(third.count_nonzero().item<int64_t>(), 0);
}

TEST(Arena, JoinsHolesAndOutlivesItsOwnerWhileATensorLives) {
  auto segment = Segment::create({.ranks = 1, .arena_bytes = 4 * 4096});
  auto arena = std::make_shared<Arena>(segment, 0);
  std::vector<at::Tensor> pages;
  for (int i = 0; i < 4; ++i) {
    pages.push_back(arena->allocate(4096));
  }
  EXPECT_THROW(arena->allocate(1), Error);
  for (const int i : {1, 3, 2}) {
    pages[static_cast<size_t>(i)] = at::Tensor();
  }
  pages[1] = arena->allocate(3 * 4096);
  segment.reset();
  arena.reset();
  pages[1].fill_(1);
  EXPECT_EQ(pages[1].sum().item<int64_t>(), 3 * 4096);
}

#if !defined(__SANITIZE_THREAD__)  // Which has no room for such a mapping.
TEST(Arena, AnImpossibleTensorIsAnError) {
  const auto arena =
      std::make_shared<Arena>(Segment::create({.ranks = 1, .arena_bytes = size_t{1} << 44U}), 0);
  try {
    arena->allocate(int64_t{1} << 43U);
    FAIL() << "no machine has that much";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("LOCKSTEP_COMM=gloo"));
  }
  EXPECT_EQ(arena->allocate(4096).numel(), 4096) << "what was refused is free again";
}
#endif

}  // namespace
}  // namespace lockstep::comm::shm
