// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/data/sample/batch.h"

namespace lockstep::data {

struct IdxImagesOptions {
  float mean = 0.0F;    ///< Subtracted from pixels scaled to 0..1.
  float stddev = 1.0F;  ///< Divides the result.
};

/// A dataset of grey images with labels, from two IDX files (MNIST and its relatives).
///
/// A batch has data: float32 [B, 1, H, W], (pixel / 255 - mean) / stddev with the same rounding as
/// torchvision's ToTensor and Normalize; target: int64 [B]. Memory: the bytes of the files (47 MB
/// for 60,000 images of 28 x 28). A batch is converted by a table of 256 entries.
/// Thread-safe.
class IdxImages {
 public:
  using Batch = ::lockstep::data::Batch;

  /// Throws ConfigError as read_idx does, for files that are not [N, H, W] and [N] or differ in N,
  /// for options that are not finite, and for a stddev that is not positive.
  IdxImages(
      const std::string& images_path,
      const std::string& labels_path,
      const IdxImagesOptions& options = {});

  int64_t size() const { return images_.size(0); }
  Batch get_batch(std::span<const int64_t> indices) const;
  /// uint8 [N, H, W]. Read-only.
  const at::Tensor& images() const { return images_; }
  /// uint8 [N]. Read-only.
  const at::Tensor& labels() const { return labels_; }

 private:
  at::Tensor images_;
  at::Tensor labels_;
  std::array<float, 256> value_of_pixel_{};
};

}  // namespace lockstep::data
