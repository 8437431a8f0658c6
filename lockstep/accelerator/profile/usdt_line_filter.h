// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <streambuf>

namespace lockstep::internal {

/// RAII scope: removes Kineto's "USDT:" lines from std::cerr.
///
/// Kineto prints them at the start and end of every profile. Their log level is above that of
/// errors, so the level that would hide them (KINETO_LOG_LEVEL=6) hides errors as well. Every other
/// line passes. If KINETO_LOG_LEVEL is set, all lines pass.
///
/// Thread safety: one filter at a time; other threads may write to std::cerr.
class UsdtLineFilter {
 public:
  UsdtLineFilter();
  ~UsdtLineFilter();
  UsdtLineFilter(const UsdtLineFilter&) = delete;
  UsdtLineFilter& operator=(const UsdtLineFilter&) = delete;

 private:
  std::streambuf* original_ = nullptr;  ///< Null if the lines pass.
};

}  // namespace lockstep::internal
