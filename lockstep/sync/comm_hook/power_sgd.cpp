// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/comm_hook/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/sync/comm_hook/hook_state.h"
#include "lockstep/sync/comm_hook/low_rank.h"

namespace lockstep {
namespace {

at::ScalarType compute_type(at::ScalarType own) {
  return c10::isReducedFloatingType(own) ? at::kFloat : own;
}

/// Returns the number of rows of a gradient as a matrix: its first dimension, or, with another
/// memory layout, the outermost one.
int64_t rows_of(const at::Tensor& parameter) {
  if (parameter.dim() == 0) {
    return 1;
  }
  if (parameter.is_contiguous() || !parameter.is_non_overlapping_and_dense()) {
    return parameter.size(0);
  }
  const auto outer = std::max_element(parameter.strides().begin(), parameter.strides().end());
  return parameter.size(outer - parameter.strides().begin());
}

}  // namespace

at::Tensor PowerSgdHook::Matrix::input() const {
  return (work.defined() ? work : gradient).view({rows, cols});
}

PowerSgdHook::PowerSgdHook(
    const CommHookOptions& options,
    Group group,
    const std::vector<flat::GradBucket>& buckets,
    const NamedTensors& parameters)
    : options_(options.power_sgd),
      batched_(options.type == CommHookType::kBatchedPowerSgd),
      feedback_(options.use_error_feedback.value_or(true)),
      group_(std::move(group)) {
  for (const NamedTensor& item : parameters) {
    names_.push_back(item.name);
  }
  for (size_t i = 0; i < buckets.size(); ++i) {
    const at::ScalarType comm_dtype =
        hook_comm_dtype(options.wrapper, buckets[i].buffer().scalar_type());
    buckets_.push_back(make_bucket(i, buckets[i], parameters, comm_dtype));
  }
}

bool PowerSgdHook::saves_bytes(const Matrix& matrix) const {
  const auto sent = static_cast<double>((matrix.rows + matrix.cols) * matrix.rank);
  return sent * options_.min_compression_rate < static_cast<double>(matrix.gradient.numel());
}

PowerSgdHook::Bucket PowerSgdHook::make_bucket(
    size_t index,
    const flat::GradBucket& grad_bucket,
    const NamedTensors& parameters,
    at::ScalarType comm_dtype) {
  Bucket bucket{
      .grad_bucket = &grad_bucket, .full = AveragingAllReduce(grad_bucket.buffer(), comm_dtype)};
  Matrix square{.name = fmt::format("bucket{}", index), .gradient = grad_bucket.gradients()};
  square.rows =
      std::llround(std::ceil(std::sqrt(static_cast<double>(grad_bucket.gradients().numel()))));
  square.cols = square.rows;
  square.rank = std::min(square.rows, options_.matrix_approximation_rank);
  int64_t end = 0;
  for (size_t entry = 0; entry < grad_bucket.entries().size(); ++entry) {
    const flat::BucketEntry& place = grad_bucket.entries()[entry];
    if (place.offset > end) {
      bucket.gaps.push_back(grad_bucket.gradients().narrow(0, end, place.offset - end));
    }
    end = place.offset + place.numel;
    square.entries.push_back(entry);
    const NamedTensor& parameter = parameters[static_cast<size_t>(place.parameter)];
    Matrix matrix{
        .name = parameter.name, .gradient = grad_bucket.flat_gradient(entry), .entries = {entry}};
    matrix.rows = rows_of(parameter.tensor);
    matrix.cols = place.numel / matrix.rows;
    matrix.rank = std::min({matrix.rows, matrix.cols, options_.matrix_approximation_rank});
    if (!batched_ && saves_bytes(matrix)) {
      bucket.matrices.push_back(std::move(matrix));
    } else {
      bucket.plain.push_back(entry);
    }
  }
  if (end < grad_bucket.gradients().numel()) {
    bucket.gaps.push_back(
        grad_bucket.gradients().narrow(0, end, grad_bucket.gradients().numel() - end));
  }
  if (batched_ && saves_bytes(square)) {
    bucket.matrices.push_back(std::move(square));
    bucket.plain.clear();
  }
  if (!bucket.matrices.empty()) {
    lay_out(bucket, comm_dtype);
  }
  return bucket;
}

void PowerSgdHook::lay_out(Bucket& bucket, at::ScalarType comm_dtype) {
  const at::Tensor& buffer = bucket.grad_bucket->buffer();
  const at::ScalarType type = compute_type(buffer.scalar_type());
  int64_t first = bucket.grad_bucket->flag_values().numel();
  int64_t second = 0;
  for (size_t entry : bucket.plain) {
    first += bucket.grad_bucket->entries()[entry].numel;
  }
  int64_t at = first;
  for (const Matrix& matrix : bucket.matrices) {
    first += matrix.rows * matrix.rank;
    second += matrix.cols * matrix.rank;
  }
  const at::TensorOptions kind = buffer.options().dtype(type);
  bucket.stages.emplace_back(at::zeros({first}, kind), comm_dtype);
  bucket.stages.emplace_back(at::zeros({second}, kind), comm_dtype);
  int64_t q_at = 0;
  for (Matrix& matrix : bucket.matrices) {
    matrix.index = matrix_count_++;
    const int64_t p_numel = matrix.rows * matrix.rank;
    const int64_t q_numel = matrix.cols * matrix.rank;
    matrix.p = bucket.stages[0].values().narrow(0, at, p_numel).view({matrix.rows, matrix.rank});
    matrix.q = bucket.stages[1].values().narrow(0, q_at, q_numel).view({matrix.cols, matrix.rank});
    at += p_numel;
    q_at += q_numel;
    const int64_t numel = matrix.rows * matrix.cols;
    if (feedback_ || type != buffer.scalar_type() || numel != matrix.gradient.numel()) {
      matrix.work = at::zeros({numel}, kind);
    }
  }
}

void PowerSgdHook::start(size_t index) {
  Bucket& bucket = buckets_[index];
  bucket.compressing = iteration_ >= options_.start_iter && !bucket.matrices.empty();
  if (bucket.compressing) {
    start_low_rank(bucket);
  } else {
    bucket.full.pack(group_);
    bucket.full.send(group_);
  }
  started_ = index + 1;
}

void PowerSgdHook::start_low_rank(Bucket& bucket) {
  const at::Tensor& values = bucket.stages[0].values();
  const int64_t flags = bucket.grad_bucket->flag_values().numel();
  values.narrow(0, 0, flags).copy_(bucket.grad_bucket->flag_values());
  int64_t at = flags;
  for (size_t entry : bucket.plain) {
    const at::Tensor gradient = bucket.grad_bucket->flat_gradient(entry);
    values.narrow(0, at, gradient.numel()).copy_(gradient);
    at += gradient.numel();
  }
  for (Matrix& matrix : bucket.matrices) {
    if (feedback_) {
      matrix.used_work().add_(matrix.gradient);
    } else if (matrix.work.defined()) {
      matrix.used_work().copy_(matrix.gradient);
    }
    if (!matrix.warm) {
      fill_normal(matrix.q, options_.seed, iteration_, matrix.index);
    }
    orthonormalize(matrix.q, options_.orthogonalization_epsilon);
    at::mm_out(matrix.p, matrix.input(), matrix.q);
  }
  bucket.stages[0].pack(group_);
  bucket.stages[0].send(group_);
}

void PowerSgdHook::send_qs(Bucket& bucket) {
  bucket.stages[0].finish();
  for (Matrix& matrix : bucket.matrices) {
    orthonormalize(matrix.p, options_.orthogonalization_epsilon);
    at::mm_out(matrix.q, matrix.input().t(), matrix.p);
  }
  bucket.stages[1].pack(group_);
  bucket.stages[1].send(group_);
}

void PowerSgdHook::take_average(Bucket& bucket) {
  bucket.stages[1].finish();
  const at::Tensor& values = bucket.stages[0].values();
  const int64_t flags = bucket.grad_bucket->flag_values().numel();
  bucket.grad_bucket->flag_values().copy_(values.narrow(0, 0, flags));
  int64_t at = flags;
  for (size_t entry : bucket.plain) {
    const at::Tensor gradient = bucket.grad_bucket->flat_gradient(entry);
    gradient.copy_(values.narrow(0, at, gradient.numel()));
    at += gradient.numel();
  }
  const std::vector<bool> present = bucket.grad_bucket->flags();
  for (Matrix& matrix : bucket.matrices) {
    decompress(matrix, bucket, present);
  }
}

void PowerSgdHook::decompress(
    Matrix& matrix, const Bucket& bucket, const std::vector<bool>& present) {
  const at::Tensor norms =
      at::linalg_vector_norm(matrix.q, 2, at::IntArrayRef{0}).to(at::kCPU, at::kDouble);
  const double* norm = norms.const_data_ptr<double>();
  // Every rank decides the same: Q is bit-exact on all of them.
  const bool finite =
      std::all_of(norm, norm + matrix.rank, [](double n) { return std::isfinite(n); });
  if (!finite) {
    if (feedback_) {
      matrix.used_work().sub_(matrix.gradient).nan_to_num_(0, 0, 0);
    }
    matrix.gradient.fill_(std::numeric_limits<double>::quiet_NaN());
    matrix.warm = false;
  } else if (
      matrix.gradient.numel() == matrix.rows * matrix.cols &&
      matrix.gradient.scalar_type() == matrix.p.scalar_type()) {
    at::Tensor product = matrix.gradient.view({matrix.rows, matrix.cols});
    at::mm_out(product, matrix.p, matrix.q.t());
  } else {
    const at::Tensor product = at::mm(matrix.p, matrix.q.t()).view({-1});
    matrix.gradient.copy_(product.narrow(0, 0, matrix.gradient.numel()));
  }
  if (batched_) {
    for (const at::Tensor& gap : bucket.gaps) {
      gap.zero_();
    }
  }
  // A parameter that has a gradient on no rank gets none.
  for (size_t entry : matrix.entries) {
    if (!present[entry]) {
      bucket.grad_bucket->flat_gradient(entry).zero_();
    }
  }
  if (!finite) {
    return;
  }
  if (feedback_) {
    matrix.used_work().sub_(matrix.gradient);
  }
  matrix.warm = options_.warm_start;
  if (matrix.warm && std::find(norm, norm + matrix.rank, 0.0) != norm + matrix.rank) {
    // A zero column would stay zero in all iterations.
    at::Tensor fresh = matrix.q.clone();
    fill_normal(fresh, options_.seed, iteration_ + 1, matrix.index);
    for (int64_t column = 0; column < matrix.rank; ++column) {
      if (norm[column] == 0) {
        matrix.q.select(1, column).copy_(fresh.select(1, column));
      }
    }
  }
}

void PowerSgdHook::finish() {
  const c10::AutoGradMode no_grad(false);
  for (size_t i = 0; i < started_; ++i) {
    if (buckets_[i].compressing) {
      send_qs(buckets_[i]);
    } else {
      buckets_[i].full.finish();
    }
  }
  for (size_t i = 0; i < started_; ++i) {
    if (buckets_[i].compressing) {
      take_average(buckets_[i]);
      buckets_[i].compressing = false;
    }
  }
  started_ = 0;
  ++iteration_;
}

void PowerSgdHook::abandon(bool wait) noexcept {
  for (Bucket& bucket : buckets_) {
    bucket.full.abandon(wait);
    for (AveragingAllReduce& stage : bucket.stages) {
      stage.abandon(wait);
    }
    for (Matrix& matrix : bucket.matrices) {
      if (bucket.compressing) {
        matrix.warm = false;
        if (feedback_) {
          matrix.used_work().sub_(matrix.gradient).nan_to_num_(0, 0, 0);
        }
      }
    }
    bucket.compressing = false;
  }
  started_ = 0;
}

NamedTensors PowerSgdHook::memory(bool all) const {
  NamedTensors tensors;
  for (const Bucket& bucket : buckets_) {
    for (const Matrix& matrix : bucket.matrices) {
      const int64_t begin = batched_ ? 0 : bucket.grad_bucket->entries()[matrix.entries[0]].offset;
      for (size_t index : matrix.entries) {
        const flat::BucketEntry& entry = bucket.grad_bucket->entries()[index];
        if (feedback_) {
          tensors.push_back(
              {"error/" + names_[static_cast<size_t>(entry.parameter)],
               matrix.work.narrow(0, entry.offset - begin, entry.numel)});
        }
      }
      if (all ? options_.warm_start : matrix.warm) {
        tensors.push_back({"q/" + matrix.name, matrix.q});
      }
    }
  }
  return tensors;
}

CommHookState PowerSgdHook::state() const {
  return {.iteration = iteration_, .tensors = memory(false)};
}

void PowerSgdHook::check_state(const CommHookState& state) const {
  check_hook_tensors(state, memory(true));
}

void PowerSgdHook::load_state(const CommHookState& state) {
  copy_hook_tensors(state, memory(true));
  for (Bucket& bucket : buckets_) {
    for (Matrix& matrix : bucket.matrices) {
      matrix.warm = find_tensor(state.tensors, "q/" + matrix.name) != nullptr;
    }
  }
  iteration_ = state.iteration;
}

}  // namespace lockstep
