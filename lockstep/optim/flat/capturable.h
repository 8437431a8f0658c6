// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include "lockstep/optim/flat/flat_group.h"

/// What lets an update be part of a graph (CUDA's, or another device's: at::accelerator::Graph),
/// which is recorded once and replayed without the host's code: all that changes from step to step
/// lies on the device. After torch.optim's `capturable`.
///
/// Cost: a few bytes a parameter, and one small kernel a step. Thread safety: none.
namespace lockstep::optim {

/// Whether what the current stream of `device` is told is recorded, not done. False for the CPU.
bool is_capturing(at::Device device);

/// The learning rate of a parameter group where an update can read it: 0-d, float32, as torch's.
class DeviceRate {
 public:
  /// Makes the tensor on `device`, if it is not there yet. ConfigError while capturing.
  void place(at::Device device);
  /// Puts `rate` there, if it is another than before: the next replay sees it. The host does not
  /// wait. ConfigError while capturing, which would write it again in every replay.
  void write(double rate);
  const at::Tensor& tensor() const { return tensor_; }

 private:
  at::Tensor tensor_;
  double written_ = 0;
};

/// Options of a group whose rate may lie on a device, too.
class CapturableOptions : public torch::optim::OptimizerOptions {
 public:
  virtual bool capturable() const = 0;
  /// Written to by `set_lr`. Null where the group's update reads the host's.
  std::shared_ptr<DeviceRate> device_rate;
};

/// How many updates each parameter of a group has seen, counted on the device, in float32 as
/// torch's: exact up to 16777216.
///
/// What may be updated as one must have seen as many. The host cannot know how many these are, as
/// it does not see replays, but which are equal: parameters have one `history` as long as every
/// update, and every capture, was of all of them or of none, and they were set to the same count.
/// That holds for the next update only, so a graph, which is replayed among others, joins none.
class DeviceSteps {
 public:
  /// The counts of `items` go to `device`, if they are not there. ConfigError while capturing.
  void place(std::vector<FlatParameter>& items, at::Device device);
  /// They go back to the host, if they are not there; that waits for the device.
  void take_back(std::vector<FlatParameter>& items);
  /// Counts one update of each of `items` that has a gradient.
  void advance(std::vector<FlatParameter>& items);

 private:
  at::Tensor counts_;  ///< [item]
  int64_t next_history_ = 0;
};

/// Updates that `item` has seen. One that is counted on the device is read from there.
int64_t steps_of(const FlatParameter& item);

}  // namespace lockstep::optim
