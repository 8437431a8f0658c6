// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/check.h"

#include <algorithm>
#include <chrono>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "lockstep/accelerator/values/operations.h"
#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"

namespace lockstep::selftest {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr int64_t kMostNumbers = 8;  // Shown numbers of a tensor.

std::string shown(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "nothing";
  }
  const at::Tensor flat = tensor.detach().cpu().to(at::kDouble).reshape({-1}).contiguous();
  const int64_t count = std::min(flat.numel(), kMostNumbers);
  const auto* numbers = flat.const_data_ptr<double>();
  return fmt::format(
      "{}{}[{}{}]",
      at::toString(tensor.scalar_type()),
      fmt::format("{}", fmt::join(tensor.sizes().vec(), "x")),
      fmt::join(numbers, numbers + count, ", "),
      count < flat.numel() ? ", ..." : "");
}

bool same_type_and_shape(const at::Tensor& got, const at::Tensor& expected) {
  return got.defined() && expected.defined() && got.scalar_type() == expected.scalar_type() &&
         got.sizes() == expected.sizes();
}

/// Gathers the failures of all ranks, in rank order. Collective.
std::vector<RankFailure> failures_of_all(Group& group, const std::string& failure) {
  const Json own = {{"rank", group.rank()}, {"message", failure}};
  std::vector<RankFailure> failures;
  for (const Json& item : gather_object(group, own)) {
    const std::string message = item.at("message");
    if (!message.empty()) {
      failures.push_back({item.at("rank").get<int>(), message});
    }
  }
  return failures;
}

void write_lost_message(const Rank& rank, const std::string& check, const std::string& message) {
  const int number = rank.group.rank();
  std::ofstream(rank.folder / fmt::format("lost_{}.jsonl", number))
      << Json{{"rank", number}, {"check", check}, {"message", message}}.dump(
             -1, ' ', false, Json::error_handler_t::replace)
      << "\n";
}

Result run_check(Rank& rank, const Check& check) {
  Result result{.name = check.name, .what = check.what, .seconds = 0, .failures = {}};
  const auto start = Clock::now();
  Expect expect;
  std::string failure;
  try {
    check.run(rank, expect);
    failure = expect.failure();
  } catch (const CommError& error) {
    write_lost_message(rank, check.name, error.what());
    throw;
  } catch (const std::exception& error) {
    failure = without_rank_suffix(error.what());
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  try {
    result.failures = failures_of_all(rank.group, failure);
  } catch (const CommError& error) {
    write_lost_message(rank, check.name, failure.empty() ? error.what() : failure);
    throw;
  }
  return result;
}

}  // namespace

void Expect::equal(const std::string& what, const at::Tensor& got, const at::Tensor& expected) {
  if (!same_type_and_shape(got, expected) || !at::equal(got, expected)) {
    fail(what, shown(got), shown(expected));
  }
}

void Expect::near(
    const std::string& what, const at::Tensor& got, const at::Tensor& expected, double tolerance) {
  const auto close = [&] {
    const at::Tensor difference = (got.to(at::kDouble) - expected.to(at::kDouble)).abs();
    const at::Tensor allowed = expected.to(at::kDouble).abs().clamp_min(1) * tolerance;
    return (difference <= allowed).all().item<bool>();  // False for a NaN.
  };
  if (!same_type_and_shape(got, expected) || !close()) {
    fail(what, shown(got), shown(expected));
  }
}

void Expect::equal(const std::string& what, const std::string& got, const std::string& expected) {
  if (got != expected) {
    fail(what, got, expected);
  }
}

void Expect::is_true(const std::string& what, bool got) {
  if (!got) {
    fail(what, "no", "yes");
  }
}

void Expect::fail(const std::string& what, const std::string& got, const std::string& expected) {
  if (failure_.empty()) {
    failure_ = fmt::format("{}: got {}, expected {}", what, got, expected);
  }
}

void run_checks(
    Rank& rank,
    const std::vector<Check>& checks,
    const std::function<void(const Result& result)>& done) {
  for (const Check& check : checks) {
    done(run_check(rank, check));
  }
}

}  // namespace lockstep::selftest
