// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/trackers.h"

#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/tracking/registry/registry.h"

namespace lockstep::internal {
namespace {

/// Stands for a tracker on processes that do not log: does nothing.
class BlankTracker final : public tracking::Tracker {
 public:
  explicit BlankTracker(std::string name) : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  bool stores(tracking::MediaKind /*kind*/) const override { return true; }

 private:
  void do_store_config(const nlohmann::json& /*config*/) override {}
  void do_log(const tracking::Values& /*values*/, int64_t /*step*/) override {}
  void do_log_images(const tracking::ImageBatches& /*images*/, int64_t /*step*/) override {}
  void do_log_histograms(const tracking::Histograms& /*histograms*/, int64_t /*step*/) override {}
  void do_log_text(const tracking::Texts& /*texts*/, int64_t /*step*/) override {}
  void do_log_tables(const tracking::Tables& /*tables*/, int64_t /*step*/) override {}
  void do_flush() override {}
  void do_finish(tracking::RunStatus /*status*/) override {}

  std::string name_;
};

std::string name_of(const tracking::TrackerChoice& choice) {
  return choice.is_own() ? choice.tracker()->name() : choice.name();
}

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

void Trackers::init(const nlohmann::json& config) {
  if (open_) {
    throw ConfigError(
        "init_trackers",
        "the trackers are already open; call init_trackers() once, before the first log()");
  }
  const AcceleratorOptions& options = context_.options;
  for (const tracking::TrackerChoice& choice : options.log_with) {
    if (choice.is_own() && choice.tracker() == nullptr) {
      throw ConfigError(
          "init_trackers",
          "log_with holds a null pointer; got no tracker, expected a name or "
          "std::make_shared<MyTracker>()");
    }
  }
  open_ = true;
  choices_ = tracking::with_all_replaced(options.log_with);
  for (const tracking::TrackerChoice& choice : choices_) {
    const bool main_only = !choice.is_own() || choice.tracker()->main_process_only();
    if (main_only && context_.rank() != 0) {
      continue;
    }
    trackers_.push_back(
        tracking::make_tracker(choice, {options.project_config.logging_dir, options.project_name}));
    if (!config.empty()) {
      trackers_.back()->store_config(config);
    }
  }
}

void Trackers::open_if_necessary() {
  if (!open_) {
    init(nlohmann::json::object());
  }
}

void Trackers::log(const std::map<std::string, double>& values, int64_t step) {
  open_if_necessary();
  for (const auto& tracker : trackers_) {
    tracker->log(values, step);
  }
}

std::vector<tracking::Tracker*> Trackers::that_store(tracking::MediaKind kind) {
  open_if_necessary();
  std::vector<tracking::Tracker*> found;
  std::vector<std::string> names;
  for (const auto& tracker : trackers_) {
    names.push_back(tracker->name());
    if (tracker->stores(kind)) {
      found.push_back(tracker.get());
    }
  }
  if (found.empty() && !trackers_.empty()) {
    throw ConfigError(
        "log",
        fmt::format(
            "no tracker stores {0}; got {1}, expected one that stores {0}; add \"tensorboard\" to "
            "log_with",
            tracking::name_of(kind),
            fmt::join(names, ", ")));
  }
  return found;
}

void Trackers::log_images(const std::map<std::string, at::Tensor>& images, int64_t step) {
  const auto trackers = that_store(tracking::MediaKind::kImages);
  if (!trackers.empty()) {
    const tracking::ImageBatches batches = image_batches(images);
    for (tracking::Tracker* tracker : trackers) {
      tracker->log_images(batches, step);
    }
  }
}

void Trackers::log_histograms(const std::map<std::string, at::Tensor>& values, int64_t step) {
  const auto trackers = that_store(tracking::MediaKind::kHistograms);
  if (!trackers.empty()) {
    const tracking::Histograms counted = histograms(values);
    for (tracking::Tracker* tracker : trackers) {
      tracker->log_histograms(counted, step);
    }
  }
}

void Trackers::log_text(const std::map<std::string, std::string>& texts, int64_t step) {
  for (tracking::Tracker* tracker : that_store(tracking::MediaKind::kText)) {
    tracker->log_text(texts, step);
  }
}

void Trackers::log_tables(const tracking::Tables& tables, int64_t step) {
  for (tracking::Tracker* tracker : that_store(tracking::MediaKind::kTables)) {
    tracker->log_tables(tables, step);
  }
}

std::shared_ptr<tracking::Tracker> Trackers::get(const std::string& name) const {
  if (!open_) {
    throw ConfigError("get_tracker", "the trackers are not open yet; call init_trackers() first");
  }
  for (const auto& tracker : trackers_) {
    if (tracker->name() == name) {
      return tracker;
    }
  }
  std::vector<std::string> names;
  for (const tracking::TrackerChoice& choice : choices_) {
    names.push_back(name_of(choice));
    if (names.back() == name) {
      return std::make_shared<BlankTracker>(name);
    }
  }
  throw ConfigError(
      "get_tracker",
      fmt::format(
          "there is no tracker '{}'; got log_with = {{{}}}, expected one of them",
          name,
          fmt::join(names, ", ")));
}

void Trackers::finish() {
  for (const auto& tracker : trackers_) {
    tracker->finish();
  }
}

}  // namespace lockstep::internal
