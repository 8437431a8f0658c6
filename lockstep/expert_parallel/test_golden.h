// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

namespace lockstep::expert_parallel {

/// The numbers of tests/golden/make_experts.py.
inline at::Tensor made(
    at::IntArrayRef shape, int64_t first, double scale = 200, at::ScalarType dtype = at::kFloat) {
  const at::Tensor index = at::arange(c10::multiply_integers(shape), at::kLong);
  const at::Tensor values =
      (index.pow(3) * 31 + index * 389 + first * 7919).remainder(1000003) - 500001;
  return (values.to(at::kDouble) / (1000 * scale)).reshape(shape).to(dtype);
}

inline const nlohmann::json& golden() {
  static const nlohmann::json values = [] {
    std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/experts.json");
    return nlohmann::json::parse(file);
  }();
  return values;
}

inline double difference(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor off = got.detach().to(at::kDouble) - expected.detach().to(at::kDouble);
  return off.numel() == 0 ? 0 : off.abs().max().item<double>();
}

inline void expect_golden(
    const at::Tensor& got, const nlohmann::json& expected, const std::string& what) {
  const at::Tensor values = at::tensor(expected.get<std::vector<double>>(), at::kDouble);
  ASSERT_EQ(got.numel(), values.numel()) << what;
  const double largest = std::max(1.0, values.abs().max().item<double>());
  EXPECT_LT(difference(got.flatten(), values) / largest, 2e-6) << what;
}

}  // namespace lockstep::expert_parallel
