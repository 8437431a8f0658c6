// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/offload/scratch_file.h"

namespace lockstep::offload {

/// A flat CPU tensor that is stored in a file, initially zeros.
///
/// The tensor and its views stay valid. Their memory is a mapping of the file or, while staged, the
/// memory into which a TensorSwapper has read it. So occasional accesses (a checkpoint) need no
/// special code, and each step uses memory.
///
/// Memory: only the kernel's pages of used parts, until `release_pages`. Not thread-safe; `read`
/// and `write` of different tensors may run in parallel.
class FileTensor {
 public:
  /// `options`: the dtype. Throws ConfigError if the disk has too little space.
  FileTensor(std::shared_ptr<ScratchFile> file, int64_t numel, const at::TensorOptions& options);
  FileTensor(const FileTensor&) = delete;
  FileTensor& operator=(const FileTensor&) = delete;

  const at::Tensor& tensor() const { return tensor_; }
  int64_t nbytes() const { return nbytes_; }

  /// Reads from and writes to the file, staged or not.
  void read(void* to) const { file_->read(offset_, to, nbytes_); }
  void write(const void* from) { file_->write(offset_, from, nbytes_); }

  /// Makes `memory`, of `nbytes`, the tensor's memory until `unstage`.
  void stage(void* memory);
  /// Makes the file's mapping the tensor's memory.
  void unstage();
  /// Releases the mapping's used pages from this process. Not while it is staged.
  void release_pages();

 private:
  std::shared_ptr<ScratchFile> file_;
  int64_t nbytes_;
  int64_t offset_;
  at::Tensor tensor_;
  at::DataPtr mapping_;  ///< Set while it is staged.
  bool staged_ = false;
};

}  // namespace lockstep::offload
