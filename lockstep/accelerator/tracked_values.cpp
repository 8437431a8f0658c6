// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/tracked_values.h"

#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/types.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse_image(const std::string& name, const at::Tensor& tensor) {
  throw ConfigError(
      "log_images",
      fmt::format(
          "'{}' is no batch of images; got a tensor of shape [{}] and dtype {}, expected shape "
          "[N, C, H, W], [C, H, W] or [H, W] with 1, 3 or 4 channels, and dtype uint8 (0 to 255) "
          "or floating point (0 to 1)",
          name,
          fmt::join(tensor.sizes(), ", "),
          c10::toString(tensor.scalar_type())));
}

tracking::Images images_of(const std::string& name, const at::Tensor& tensor) {
  const bool is_bytes = tensor.scalar_type() == at::kByte;
  if (tensor.dim() < 2 || tensor.dim() > 4 || tensor.numel() == 0 ||
      (!is_bytes && !tensor.is_floating_point())) {
    refuse_image(name, tensor);
  }
  at::Tensor images = tensor.detach();
  while (images.dim() < 4) {
    images = images.unsqueeze(0);
  }
  const int64_t channels = images.size(1);
  if (channels != 1 && channels != 3 && channels != 4) {
    refuse_image(name, tensor);
  }
  if (!is_bytes) {
    images = images.to(at::kFloat).nan_to_num(0, 1, 0).clamp(0, 1).mul(255).round().to(at::kByte);
  }
  images = images.permute({0, 2, 3, 1}).to(at::kCPU).contiguous();
  tracking::Images batch{
      images.size(0), images.size(1), images.size(2), channels, std::vector<uint8_t>()};
  batch.pixels.resize(static_cast<size_t>(images.numel()));
  std::memcpy(batch.pixels.data(), images.data_ptr(), batch.pixels.size());
  return batch;
}

}  // namespace

tracking::ImageBatches image_batches(const std::map<std::string, at::Tensor>& images) {
  tracking::ImageBatches batches;
  for (const auto& [name, tensor] : images) {
    batches.emplace(name, images_of(name, tensor));
  }
  return batches;
}

tracking::Histograms histograms(const std::map<std::string, at::Tensor>& values) {
  tracking::Histograms result;
  for (const auto& [name, tensor] : values) {
    if (tensor.numel() == 0 || tensor.is_complex()) {
      throw ConfigError(
          "log_histograms",
          fmt::format(
              "'{}' cannot be counted; got a tensor of {} elements and dtype {}, expected at least "
              "one real number",
              name,
              tensor.numel(),
              c10::toString(tensor.scalar_type())));
    }
    const at::Tensor numbers = tensor.detach().to(at::kCPU, at::kDouble).contiguous();
    result.emplace(
        name,
        tracking::histogram_of(
            {numbers.const_data_ptr<double>(), static_cast<size_t>(numbers.numel())}));
  }
  return result;
}

}  // namespace lockstep
