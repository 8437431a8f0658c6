// SPDX-License-Identifier: Apache-2.0
#include "lockstep/offload/file_tensor.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "lockstep/base/error.h"

namespace lockstep::offload {

FileTensor::FileTensor(
    std::shared_ptr<ScratchFile> file, int64_t numel, const at::TensorOptions& options)
    : file_(std::move(file)),
      nbytes_(numel * static_cast<int64_t>(options.dtype().itemsize())),
      offset_(file_->take(nbytes_)) {
  const c10::InferenceMode ordinary(false);  // Views of inference tensors could not be trained.
  tensor_ = at::empty({0}, options.device(at::kCPU).requires_grad(false).pinned_memory(false));
  c10::StorageImpl* storage = tensor_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(file_->map(offset_, nbytes_));
  storage->set_nbytes(static_cast<size_t>(nbytes_));
  tensor_.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
}

void FileTensor::stage(void* memory) {
  LOCKSTEP_ASSERT(!staged_, "a tensor in a file was staged twice");
  c10::StorageImpl* storage = tensor_.storage().unsafeGetStorageImpl();
  mapping_ = storage->set_data_ptr(at::DataPtr(memory, at::kCPU));
  staged_ = true;
}

void FileTensor::unstage() {
  if (staged_) {
    tensor_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(mapping_));
    staged_ = false;
  }
}

void FileTensor::release_pages() {
  offload::release_pages(tensor_.storage().mutable_data(), nbytes_);
}

}  // namespace lockstep::offload
