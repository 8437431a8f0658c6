// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/comm_hook/low_rank.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>

namespace lockstep {
namespace {

/// splitmix64's step: neighbouring inputs give unrelated outputs.
uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

}  // namespace

void orthonormalize(const at::Tensor& matrix, double epsilon) {
  for (int64_t i = 0; i < matrix.size(1); ++i) {
    const at::Tensor column = matrix.narrow(1, i, 1);
    at::Tensor norm = at::linalg_vector_norm(column);
    if (i > 0) {
      const at::Tensor basis = matrix.narrow(1, 0, i);
      const auto project_out = [&] {
        column.sub_(at::matmul(basis, at::matmul(basis.t(), column)));
        return at::linalg_vector_norm(column);
      };
      const at::Tensor once = project_out();
      norm = project_out();
      // A column that shrinks again consists of rounding errors. Non-finite values stay non-finite.
      column.mul_(norm.ge(once.mul(0.5)));
    }
    norm.add_(norm.eq(0));  // A zero column stays zero.
    column.div_(norm.add_(epsilon));
  }
}

void fill_normal(const at::Tensor& matrix, uint64_t seed, int64_t step, int64_t index) {
  const uint64_t own =
      mixed(mixed(mixed(seed) ^ static_cast<uint64_t>(step)) ^ static_cast<uint64_t>(index));
  matrix.copy_(at::randn(
      matrix.sizes(), at::detail::createCPUGenerator(own), at::TensorOptions(at::kFloat)));
}

}  // namespace lockstep
