// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include "lockstep/optim/flat/flat_parameter.h"

/// Support for updates in a graph (CUDA's, or another device's: at::accelerator::Graph), which is
/// recorded once and replayed without host code. So values that change between steps are on the
/// device. Modelled on torch.optim's `capturable`.
///
/// Cost: a few bytes a parameter, and one small kernel a step. Not thread-safe.
namespace lockstep::optim {

/// Returns whether the current stream of `device` records a graph. False for the CPU.
bool is_capturing(at::Device device);

/// The learning rate of a parameter group on a device: 0-d, float32, as torch's.
class DeviceRate {
 public:
  /// Creates the tensor on `device` if necessary. ConfigError while capturing.
  void place(at::Device device);
  /// Writes `rate`, if it has changed: the next replay uses it. The host does not wait. ConfigError
  /// while capturing, since every replay would write it again.
  void write(double rate);
  const at::Tensor& tensor() const { return tensor_; }

 private:
  at::Tensor tensor_;
  double written_ = 0;
};

/// Options of a group whose learning rate may be on a device.
class CapturableOptions : public torch::optim::OptimizerOptions {
 public:
  virtual bool capturable() const = 0;
  /// Written by `set_lr`. Null if the update reads the host's rate.
  std::shared_ptr<DeviceRate> device_rate;
};

/// Counts the updates of each parameter of a group on the device, in float32 as torch does: exact
/// up to 16777216.
///
/// Parameters can be updated together only with equal counts. The host does not see replays, so it
/// knows only which counts are equal: parameters share a `history` while every update, and every
/// capture, contains all or none of them, and they were set to the same count. That only holds for
/// the next update, so captures update no parameters together.
class DeviceSteps {
 public:
  /// Moves the counts of `items` to `device`, if necessary. ConfigError while capturing.
  void place(std::vector<FlatParameter>& items, at::Device device);
  /// Moves them back to the host, if necessary; waits for the device.
  void take_back(std::vector<FlatParameter>& items);
  /// Counts one update of each of `items` that has a gradient.
  void advance(std::vector<FlatParameter>& items);

 private:
  at::Tensor counts_;  ///< [item]
  int64_t next_history_ = 0;
};

/// Returns the number of updates of `item`. Reads a count on the device.
int64_t steps_of(const FlatParameter& item);

}  // namespace lockstep::optim
