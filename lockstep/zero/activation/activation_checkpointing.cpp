// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/activation/activation_checkpointing.h"

#include <chrono>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/sharded_param.h"

namespace lockstep {
namespace {

thread_local std::shared_ptr<ActivationCheckpointing> t_checkpointing;

/// Returns all memory from the first to the last element as a 1-D tensor. Copying it keeps strides,
/// and so the order in which kernels add: results stay bit-exact.
at::Tensor extent_of(const at::Tensor& tensor) {
  int64_t extent = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    extent += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return tensor.detach().as_strided({extent}, {1});
}

void wait_for(std::optional<at::Device> device) {
  if (device && !device->is_cpu()) {
    at::accelerator::synchronizeDevice(device->index());
  }
}

}  // namespace

std::vector<at::Tensor> KeptInputs::restored(const std::vector<at::Tensor>& saved) const {
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < saved.size(); ++i) {
    if (i >= moved_.size() || !moved_[i]) {
      inputs.push_back(saved[i].defined() ? saved[i].detach() : saved[i]);
      if (saved[i].defined() && saved[i].requires_grad()) {
        inputs.back().set_requires_grad(true);
      }
      continue;
    }
    const Moved& moved = *moved_[i];
    at::Tensor flat = saved[i];
    if (flat.device() != moved.device) {
      if (moved.copied) {
        moved.copied->block(
            c10::impl::VirtualGuardImpl(moved.device.type()).getStream(moved.device));
      }
      flat = flat.to(moved.device, /*non_blocking=*/true);
    }
    inputs.push_back(flat.as_strided(moved.sizes, moved.strides));
    inputs.back().set_requires_grad(moved.requires_grad);
  }
  return inputs;
}

ActivationCheckpointing::ActivationCheckpointing(const ActivationCheckpointingOptions& options)
    : options_(options) {
  if (options_.contiguous_memory_optimization && options_.number_checkpoints.value_or(0) < 1) {
    throw ConfigError(
        "activation_checkpointing",
        "contiguous_memory_optimization needs number_checkpoints, at least 1, to know how much "
        "memory to allocate; set it to the number of checkpoints of a forward");
  }
}

ActivationCheckpointing::Scope::Scope(std::shared_ptr<ActivationCheckpointing> inner)
    : outer_(std::exchange(t_checkpointing, std::move(inner))) {}

ActivationCheckpointing::Scope::~Scope() {
  t_checkpointing = std::move(outer_);
}

std::shared_ptr<ActivationCheckpointing> ActivationCheckpointing::current() {
  return t_checkpointing;
}

bool ActivationCheckpointing::moves(const at::Tensor& input) const {
  // Backward unshards sharded parameters of stage 3.
  if (!input.defined() || comm::is_sharded_param(input) || !input.is_floating_point() ||
      input.layout() != at::kStrided || !input.has_storage() || input.is_neg() ||
      input.numel() == 0 || (input.is_leaf() && input.requires_grad())) {
    return false;
  }
  return options_.contiguous_memory_optimization || (options_.cpu_checkpointing && !input.is_cpu());
}

at::Tensor ActivationCheckpointing::buffer_for(size_t index, const at::Tensor& flat, bool to_host) {
  const at::Device device = to_host ? at::Device(at::kCPU) : flat.device();
  const bool pinned = to_host && flat.is_cuda();
  if (!options_.contiguous_memory_optimization) {
    return at::empty({flat.numel()}, flat.options().device(device).pinned_memory(pinned));
  }
  std::shared_ptr<ContiguousBuffers> entries;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& found = slots_[{index, flat.device().type(), flat.device().index()}];
    if (!found) {
      found = std::make_shared<ContiguousBuffers>(*options_.number_checkpoints, device, pinned);
    }
    entries = found;
  }
  return entries->take(flat.numel(), flat.scalar_type());
}

c10::Event ActivationCheckpointing::copy_to_host(const at::Tensor& flat, const at::Tensor& host) {
  const at::Device device = flat.device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  c10::Stream copy_stream = guard.getStream(device);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!stream_ || stream_->device() != device) {
      stream_.emplace(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
    }
    copy_stream = *stream_;
  }
  c10::Event ready(device.type());
  ready.record(guard.getStream(device));
  ready.block(copy_stream);
  const c10::StreamGuard within(copy_stream);
  host.copy_(flat, /*non_blocking=*/true);
  guard.recordDataPtrOnStream(flat.storage().data_ptr(), copy_stream);
  c10::Event copied(device.type());
  copied.record(copy_stream);
  return copied;
}

std::vector<at::Tensor> ActivationCheckpointing::keep(
    const std::vector<at::Tensor>& inputs, KeptInputs& kept) {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> saved = inputs;
  kept.moved_.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    if (!moves(input)) {
      continue;
    }
    const at::Tensor flat = extent_of(input);
    const bool to_host = options_.cpu_checkpointing && !input.is_cpu();
    saved[i] = buffer_for(i, flat, to_host);
    std::optional<c10::Event> copied;
    if (to_host) {
      copied = copy_to_host(flat, saved[i]);
    } else {
      saved[i].copy_(flat);
    }
    kept.moved_[i] = KeptInputs::Moved{
        .device = input.device(),
        .sizes = input.sizes().vec(),
        .strides = input.strides().vec(),
        .requires_grad = input.requires_grad(),
        .copied = std::move(copied)};
  }
  return saved;
}

std::vector<at::Tensor> ActivationCheckpointing::run(
    Part part,
    std::optional<at::Device> device,
    const std::function<std::vector<at::Tensor>()>& work) {
  const bool waits = options_.synchronize_checkpoint_boundary || options_.profile;
  if (waits) {
    wait_for(device);
  }
  const auto began = std::chrono::steady_clock::now();
  std::vector<at::Tensor> result = work();
  if (waits) {
    wait_for(device);
  }
  if (options_.profile) {
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (part == Part::kForward) {
      times_.forward_ms += ms;
      ++times_.checkpoints;
    } else {
      times_.backward_ms += ms;
    }
  }
  return result;
}

CheckpointTimes ActivationCheckpointing::take_times() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(times_, {});
}

}  // namespace lockstep
