// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include "lockstep/optim/flat/flat_parameter.h"

/// Support for updates in a graph: CUDA's, or another device's (at::accelerator::Graph). A graph is
/// recorded once and replayed without host code, so values that change between steps are on the
/// device. Modelled on torch.optim's `capturable`.
///
/// Cost: a few bytes per parameter, and one small kernel per step.
namespace lockstep::optim {

/// Returns whether the current stream of `device` records a graph. False for the CPU.
bool is_capturing(at::Device device);

/// The learning rate of a parameter group on a device: 0-d, float32, as torch's.
class DeviceRate {
 public:
  /// Creates the tensor on `device` if necessary. Throws ConfigError while capturing.
  void place(at::Device device);
  /// Writes a changed `rate`, which the next replay uses. The host does not wait. Throws
  /// ConfigError while capturing, since every replay would write the rate again.
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

/// Counts the updates of each parameter of a group on the device, in float32 as torch does, exactly
/// up to 16777216.
///
/// Parameters can be updated together only with equal counts. The host does not see replays, so it
/// tracks only which counts are equal. Parameters share a `history` if they were set to the same
/// count, and every update and capture since contains all or none of them. That only holds for the
/// next update, so captures update no parameters together.
class DeviceSteps {
 public:
  /// Moves the counts of `items` to `device`, if necessary. Throws ConfigError while capturing.
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
