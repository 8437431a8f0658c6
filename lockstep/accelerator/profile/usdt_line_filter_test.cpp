// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/profile/usdt_line_filter.h"

#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/accelerator/profile/profile.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::internal {
namespace {

/// What reaches std::cerr's own buffer of what is written while a filter exists.
std::string filtered(const std::string& text) {
  const std::ostringstream target;
  std::streambuf* const own = std::cerr.rdbuf(target.rdbuf());
  {
    const UsdtLineFilter filter;
    for (const char c : text) {
      std::cerr << c;  // Byte by byte, each flushed.
    }
  }
  std::cerr.rdbuf(own);
  return target.str();
}

TEST(UsdtLineFilter, DropsThoseLinesAndNoOthers) {
  EXPECT_EQ(
      filtered("USDT:2026 a.cpp:52] start\nERROR:2026 b.cpp:7] no disk\nUSDT:stop\n"),
      "ERROR:2026 b.cpp:7] no disk\n");
  EXPECT_EQ(filtered("a USDT: within\nUSD\nUS"), "a USDT: within\nUSD\nUS");
}

TEST(UsdtLineFilter, OfTwoAtOnceTheFirstFiltersForBoth) {
  const std::ostringstream target;
  std::streambuf* const own = std::cerr.rdbuf(target.rdbuf());
  auto first = std::make_unique<UsdtLineFilter>();
  auto second = std::make_unique<UsdtLineFilter>();
  std::cerr << "USDT: a\nb\n";
  second.reset();
  std::cerr << "USDT: c\n";
  first.reset();
  std::cerr << "USDT: d\n";
  std::cerr.rdbuf(own);
  EXPECT_EQ(target.str(), "b\nUSDT: d\n");
}

TEST(UsdtLineFilter, KeepsAProfileFromWritingToStderr) {
  const TestFolder folder;
  ::testing::internal::CaptureStderr();
  {
    Profile profile({.output_trace_dir = folder.path()}, 0);
    profile.finish();
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace lockstep::internal
