// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/offload/scratch_file.h"

namespace lockstep::offload {

/// A flat tensor of the CPU that lies in a file, zeros at first.
///
/// The tensor and the views of it that others keep stay what they are; the memory behind them is
/// the file's own (a mapping), but while it is staged that which a Conveyor has read it into. So
/// whoever reads or writes it now and then (a checkpoint) just does, and what is done in every step
/// goes by way of memory.
///
/// Memory: none but the kernel's pages of what was touched through the tensor, until `settle`.
/// Thread safety: none; `read` and `write` may go beside each other for different tensors.
class FileTensor {
 public:
  /// `options`: the dtype. ConfigError if the disk has no room.
  FileTensor(std::shared_ptr<ScratchFile> file, int64_t numel, const at::TensorOptions& options);
  FileTensor(const FileTensor&) = delete;
  FileTensor& operator=(const FileTensor&) = delete;

  const at::Tensor& tensor() const { return tensor_; }
  int64_t nbytes() const { return nbytes_; }

  /// From and to the file, whatever the tensor's memory is.
  void read(void* to) const { file_->read(offset_, to, nbytes_); }
  void write(const void* from) { file_->write(offset_, from, nbytes_); }

  /// `memory`, of `nbytes`, is what the tensor holds, until `unstage`.
  void stage(void* memory);
  /// It holds what the file does.
  void unstage();
  /// Pages of it that were touched through the tensor leave this process. Not while it is staged.
  void settle();

 private:
  std::shared_ptr<ScratchFile> file_;
  int64_t nbytes_;
  int64_t offset_;
  at::Tensor tensor_;
  at::DataPtr mapping_;  ///< While it is staged.
  bool staged_ = false;
};

}  // namespace lockstep::offload
