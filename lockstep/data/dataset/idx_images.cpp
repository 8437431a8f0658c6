// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/idx_images.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset/idx.h"
#include "lockstep/data/sample/rows.h"

namespace lockstep::data {

IdxImages::IdxImages(
    const std::string& images_path,
    const std::string& labels_path,
    const IdxImagesOptions& options) {
  if (!std::isfinite(options.mean) || !std::isfinite(options.stddev) || options.stddev <= 0) {
    throw ConfigError(
        "IdxImages",
        fmt::format(
            "mean or stddev makes no sense; got mean {} and stddev {}, expected finite numbers and "
            "stddev > 0",
            options.mean,
            options.stddev));
  }
  images_ = read_idx(images_path);
  labels_ = read_idx(labels_path);
  if (images_.dim() != 3) {
    throw ConfigError(
        images_path,
        fmt::format(
            "holds no images; got shape [{}], expected [N, H, W]",
            fmt::join(images_.sizes(), ", ")));
  }
  if (labels_.dim() != 1 || labels_.size(0) != images_.size(0)) {
    throw ConfigError(
        labels_path,
        fmt::format(
            "does not belong to {}; got labels of shape [{}], expected [{}]",
            images_path,
            fmt::join(labels_.sizes(), ", "),
            images_.size(0)));
  }
  for (size_t pixel = 0; pixel < value_of_pixel_.size(); ++pixel) {
    value_of_pixel_[pixel] = (static_cast<float>(pixel) / 255.0F - options.mean) / options.stddev;
  }
}

Batch IdxImages::get_batch(std::span<const int64_t> indices) const {
  require_indices("IdxImages", indices, size());
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t pixels = images_.size(1) * images_.size(2);
  Batch batch{
      .data = at::empty(
          {count, 1, images_.size(1), images_.size(2)}, at::TensorOptions().dtype(at::kFloat)),
      .target = at::empty({count}, at::TensorOptions().dtype(at::kLong))};
  const auto* images = images_.const_data_ptr<uint8_t>();
  const auto* labels = labels_.const_data_ptr<uint8_t>();
  auto* values = batch.data.mutable_data_ptr<float>();
  auto* targets = batch.target.mutable_data_ptr<int64_t>();
  for (const int64_t index : indices) {
    const uint8_t* image = images + index * pixels;
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      *values++ = value_of_pixel_[image[pixel]];
    }
    *targets++ = labels[index];
  }
  return batch;
}

}  // namespace lockstep::data
