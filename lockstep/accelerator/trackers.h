// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/tracking/tracker.h"
#include "lockstep/tracking/tracker_choice.h"
#include "lockstep/tracking/values/histogram.h"
#include "lockstep/tracking/values/images.h"

namespace lockstep::internal {

/// Converts tensors to what trackers store. `images` have the shape [N, C, H, W], [C, H, W] or
/// [H, W] with 1, 3 or 4 channels; bytes, or floating-point numbers from 0 to 1. Numbers outside
/// are clamped, and NaN is 0. Throws ConfigError, naming the tensor, for another shape or dtype.
tracking::ImageBatches image_batches(const std::map<std::string, at::Tensor>& images);

/// Counts the elements of tensors of any shape, on any device, of a real dtype. Costs a copy in
/// float64. Throws ConfigError, naming the tensor, for an empty or a complex one.
tracking::Histograms histograms(const std::map<std::string, at::Tensor>& values);

/// Holds the open trackers of AcceleratorOptions::log_with on this process.
class Trackers {
 public:
  explicit Trackers(const RunContext& context) : context_(context) {}

  /// See Accelerator::init_trackers. Throws ConfigError if they are open, or one is null.
  void init(const nlohmann::json& config);
  /// Logs to all trackers, which it opens if necessary.
  void log(const std::map<std::string, double>& values, int64_t step);
  /// These four log to the trackers that store such values. Throw ConfigError if none does.
  void log_images(const std::map<std::string, at::Tensor>& images, int64_t step);
  void log_histograms(const std::map<std::string, at::Tensor>& values, int64_t step);
  void log_text(const std::map<std::string, std::string>& texts, int64_t step);
  void log_tables(const tracking::Tables& tables, int64_t step);
  /// See Accelerator::get_tracker.
  std::shared_ptr<tracking::Tracker> get(const std::string& name) const;
  /// Closes the trackers as finished.
  void finish();

 private:
  void open_if_necessary();
  /// Returns the open trackers that store such values.
  std::vector<tracking::Tracker*> that_store(tracking::MediaKind kind);

  const RunContext& context_;
  std::vector<tracking::TrackerChoice> choices_;  ///< Of all processes; without "all".
  std::vector<std::shared_ptr<tracking::Tracker>> trackers_;
  bool open_ = false;
};

}  // namespace lockstep::internal
