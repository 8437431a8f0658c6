// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/coordinator/init.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "lockstep/comm/tensor/sharded_param.h"

namespace lockstep::zero {

/// One tensor: what lies in its buffer is divided evenly.
class Init::Built final : public ShardedUnit {
 public:
  Built(int64_t numel, const at::TensorOptions& options, Group group, std::string name)
      : group_(std::move(group)),
        name_(std::move(name)),
        length_((numel + group_.size() - 1) / group_.size()),
        buffer_(
            length_ * group_.size(),
            options,
            "[zero] this tensor was built in parts (zero_init), and its memory was read past all "
            "operations; prepare its model first, or do that within "
            "Accelerator::with_gathered_parameters") {
    buffer_.make_memory();
  }

  FlatParamBuffer& buffer() override { return buffer_; }
  /// Whether a tensor lies here.
  bool is_used() const { return buffer_.is_used(); }
  bool has(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.has_storage() &&
           tensor.storage().unsafeGetStorageImpl() ==
               buffer_.values().storage().unsafeGetStorageImpl();
  }
  /// Of what no tensor lies in any more. The pager goes on counting it, as on all ranks.
  void forget() { shard_.reset(); }
  /// What is written from now on is equal on all ranks.
  void release() { released_ = true; }
  const std::string& name() const { return name_; }
  Pending start_gather(Source /*source*/) override {
    return group_.all_gather_into(buffer_.values(), shard_);
  }
  void write_back() override {
    if (!shard_.defined()) {
      shard_ = group_.empty({length_}, buffer_.values().options());
    }
    if (!released_) {
      group_.broadcast(buffer_.values()).wait();  // What ranks drew at random differs.
    }
    shard_.copy_(buffer_.values().narrow(0, length_ * group_.rank(), length_));
  }

 private:
  Group group_;
  std::string name_;
  int64_t length_;
  FlatParamBuffer buffer_;
  at::Tensor shard_;
  bool released_ = false;
};

Init::Init(Group group, at::Device device, int64_t min_elements)
    : group_(std::move(group)),
      device_(device),
      min_elements_(min_elements),
      coordinator_(std::make_unique<ParamCoordinator>(
          group_, ParamCoordinatorOptions{.max_live_elements = 0, .prefetch = false})) {}

Init::~Init() = default;

bool Init::takes(const at::Tensor& made) const {
  return made.numel() >= min_elements_ && made.is_floating_point() &&
         made.layout() == at::kStrided && !made.is_meta() && !made.is_inference();
}

at::Tensor Init::take(const at::Tensor& made, bool has_values) {
  if (!takes(made)) {
    return made;
  }
  const c10::AutoGradMode no_grad(false);
  coordinator_->make_room_for(made.numel());
  parts_.push_back(std::make_unique<Built>(
      made.numel(),
      made.options().device(device_),
      group_,
      fmt::format("tensor {} of those built in parts", parts_.size() + 1)));
  Built& part = *parts_.back();
  coordinator_->add(part, part.name());
  at::Tensor taken = part.buffer().view(0, made.sizes());
  coordinator_->mark_written(part);
  if (has_values) {
    part.buffer().values().narrow(0, 0, made.numel()).copy_(made.reshape({-1}));
  }
  return taken;
}

void Init::divide(const std::vector<at::Tensor>& tensors) {
  const c10::AutoGradMode no_grad(false);
  std::map<const c10::StorageImpl*, std::set<const at::TensorImpl*>> by_storage;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.has_storage()) {
      by_storage[tensor.storage().unsafeGetStorageImpl()].insert(tensor.unsafeGetTensorImpl());
    }
  }
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage() || comm::is_sharded_param(tensor) ||
        !takes(tensor)) {
      continue;
    }
    const auto found = by_storage.find(tensor.storage().unsafeGetStorageImpl());
    if (found != by_storage.end() && found->second.size() == 1) {
      tensor.set_data(take(tensor.detach(), /*has_values=*/true));
    }
  }
}

/// Together: what one rank still holds, it may touch, and all must have their parts then.
std::vector<bool> Init::held_anywhere() {
  at::Tensor held = at::empty({static_cast<int64_t>(parts_.size())}, at::kByte);
  std::transform(
      parts_.begin(), parts_.end(), held.mutable_data_ptr<uint8_t>(), [](const auto& part) {
        return part->is_used() ? 1 : 0;
      });
  group_.all_reduce(held, ReduceOp::kMax).wait();
  const auto* flags = held.const_data_ptr<uint8_t>();
  return std::vector<bool>(flags, flags + parts_.size());
}

void Init::finish() {
  coordinator_->release_all();
  if (parts_.empty()) {
    return;
  }
  const std::vector<bool> held = held_anywhere();
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!held[i]) {
      parts_[i]->forget();
    }
  }
}

std::vector<Init::Part> Init::release() {
  coordinator_->release_all();
  std::vector<Part> released;
  if (!parts_.empty()) {
    const std::vector<bool> held = held_anywhere();
    coordinator_.reset();
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (held[i]) {
        parts_[i]->release();
        std::string name = parts_[i]->name();
        released.push_back({std::move(parts_[i]), std::move(name)});
      }
    }
  }
  parts_.clear();
  return released;
}

void Init::make_whole(const std::vector<at::Tensor>& tensors) {
  const c10::AutoGradMode no_grad(false);
  for (const at::Tensor& tensor : tensors) {
    const bool is_here = std::any_of(
        parts_.begin(), parts_.end(), [&](const auto& part) { return part->has(tensor); });
    if (!is_here) {
      continue;
    }
    const Gathered gathered({tensor}, /*writes=*/false);
    const c10::impl::ExcludeDispatchKeyGuard own_work(comm::kShardedParamKey);
    // Its key is not passed on: the copy is an ordinary tensor.
    tensor.set_data(tensor.detach().clone());
  }
}

}  // namespace lockstep::zero
