// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/sync/comm_hook/averaging_all_reduce.h"
#include "lockstep/sync/comm_hook/comm_hook.h"

namespace lockstep {

/// PowerSGD sends a matrix M of gradients as P = MQ and Q' = M^T P^. P^ is the average of P, made
/// orthonormal. Each rank uses P^ Q'^T, with the average of Q', as the average of M. Plain: a
/// matrix is one parameter; batched: a full bucket, reshaped to a square.
///
/// The first message of a bucket holds its flags, the uncompressed parameters and the Ps; the
/// second the Qs. Arithmetic is in float32 at least, whatever the communication dtype.
class PowerSgdHook final : public CommHook {
 public:
  PowerSgdHook(
      const CommHookOptions& options,
      Group group,
      const std::vector<flat::GradBucket>& buckets,
      const NamedTensors& parameters);

  void start(size_t bucket) override;
  void finish() override;
  void abandon(bool wait) noexcept override;
  CommHookState state() const override;
  void check_state(const CommHookState& state) const override;
  void load_state(const CommHookState& state) override;

 private:
  struct Matrix {
    std::string name;
    int64_t index = 0;  ///< Over all buckets, the seed of its random numbers.
    int64_t rows = 0;
    int64_t cols = 0;
    int64_t rank = 0;
    at::Tensor gradient = {};  ///< Flat, in the bucket; a batched one's square may be longer.
    std::vector<size_t> entries = {};  ///< Bucket entries.
    /// rows * cols, flat, zero past `gradient`. With feedback: the error between backward passes,
    /// the sum of error and gradient within one. Undefined if `gradient` can be used directly.
    at::Tensor work = {};
    at::Tensor p = {};
    at::Tensor q = {};  ///< From the last backward, if `warm`.
    bool warm = false;

    at::Tensor input() const;
    at::Tensor used_work() const { return work.narrow(0, 0, gradient.numel()); }
  };
  struct Bucket {
    const flat::GradBucket* grad_bucket = nullptr;
    AveragingAllReduce full;            ///< The complete bucket, uncompressed.
    std::vector<size_t> plain = {};     ///< Uncompressed entries.
    std::vector<at::Tensor> gaps = {};  ///< Ranges that a batched matrix would leave unset.
    std::vector<Matrix> matrices = {};  ///< Empty: nothing is compressed.
    std::vector<AveragingAllReduce> stages = {};  ///< [2] if there are matrices
    bool compressing = false;                     ///< In this backward.
  };

  Bucket make_bucket(
      size_t index,
      const flat::GradBucket& grad_bucket,
      const NamedTensors& parameters,
      at::ScalarType comm_dtype);
  bool saves_bytes(const Matrix& matrix) const;
  void lay_out(Bucket& bucket, at::ScalarType comm_dtype);
  void start_low_rank(Bucket& bucket);
  void send_qs(Bucket& bucket);
  void take_average(Bucket& bucket);
  void decompress(Matrix& matrix, const Bucket& bucket, const std::vector<bool>& present);
  /// Errors, and the Qs of all matrices or of those that are warm.
  NamedTensors memory(bool all) const;

  PowerSgdOptions options_;
  bool batched_;
  bool feedback_;
  Group group_;
  std::vector<std::string> names_;  ///< [parameter]
  std::vector<Bucket> buckets_;
  int64_t matrix_count_ = 0;
  size_t started_ = 0;
  int64_t iteration_ = 0;
};

}  // namespace lockstep
