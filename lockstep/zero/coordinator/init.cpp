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

/// One tensor, sharded evenly.
class Init::Unit final : public ShardedUnit {
 public:
  Unit(int64_t numel, const at::TensorOptions& options, Group group, std::string name)
      : group_(std::move(group)),
        name_(std::move(name)),
        length_((numel + group_.size() - 1) / group_.size()),
        buffer_(
            length_ * group_.size(),
            options,
            "[zero] this tensor was created sharded (zero_init), and only torch operations gather "
            "it; its memory was read directly (data_ptr, accessor); prepare its model first, or "
            "read it within Accelerator::with_gathered_parameters") {
    buffer_.make_memory();
  }

  FlatParamBuffer& buffer() override { return buffer_; }
  bool is_used() const { return buffer_.is_used(); }
  bool has(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.has_storage() &&
           tensor.storage().unsafeGetStorageImpl() ==
               buffer_.values().storage().unsafeGetStorageImpl();
  }
  /// Frees the shard of a tensor that no rank uses. The coordinator keeps the unit, as on all
  /// ranks.
  void free_shard() { shard_.reset(); }
  /// Ends the broadcasts: from now on all ranks write equal values.
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
      group_.broadcast(buffer_.values()).wait();  // Random initial values differ between ranks.
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

bool Init::takes(const at::Tensor& created) const {
  return created.numel() >= min_elements_ && created.is_floating_point() &&
         created.layout() == at::kStrided && !created.is_meta() && !created.is_inference();
}

at::Tensor Init::take(const at::Tensor& created, bool has_values) {
  if (!takes(created)) {
    return created;
  }
  const c10::AutoGradMode no_grad(false);
  coordinator_->make_room_for(created.numel());
  units_.push_back(std::make_unique<Unit>(
      created.numel(),
      created.options().device(device_),
      group_,
      fmt::format("tensor {} of zero_init", units_.size() + 1)));
  Unit& unit = *units_.back();
  coordinator_->add(unit, unit.name());
  at::Tensor taken = unit.buffer().view(0, created.sizes());
  coordinator_->mark_written(unit);
  if (has_values) {
    unit.buffer().values().narrow(0, 0, created.numel()).copy_(created.reshape({-1}));
  }
  return taken;
}

void Init::shard(const std::vector<at::Tensor>& tensors) {
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

/// Returns, by unit, whether any rank uses it. Such a rank may unshard it, which needs all shards.
std::vector<bool> Init::used_anywhere() {
  at::Tensor used = at::empty({static_cast<int64_t>(units_.size())}, at::kByte);
  std::transform(
      units_.begin(), units_.end(), used.mutable_data_ptr<uint8_t>(), [](const auto& unit) {
        return unit->is_used() ? 1 : 0;
      });
  group_.all_reduce(used, ReduceOp::kMax).wait();
  const auto* flags = used.const_data_ptr<uint8_t>();
  return std::vector<bool>(flags, flags + units_.size());
}

void Init::finish() {
  coordinator_->release_all();
  if (units_.empty()) {
    return;
  }
  const std::vector<bool> used = used_anywhere();
  for (size_t i = 0; i < units_.size(); ++i) {
    if (!used[i]) {
      units_[i]->free_shard();
    }
  }
}

std::vector<Init::ReleasedUnit> Init::release() {
  coordinator_->release_all();
  std::vector<ReleasedUnit> released;
  if (!units_.empty()) {
    const std::vector<bool> used = used_anywhere();
    coordinator_.reset();
    for (size_t i = 0; i < units_.size(); ++i) {
      if (used[i]) {
        units_[i]->release();
        std::string name = units_[i]->name();
        released.push_back({std::move(units_[i]), std::move(name)});
      }
    }
  }
  units_.clear();
  return released;
}

void Init::make_full(const std::vector<at::Tensor>& tensors) {
  const c10::AutoGradMode no_grad(false);
  for (const at::Tensor& tensor : tensors) {
    const bool is_sharded_here = std::any_of(
        units_.begin(), units_.end(), [&](const auto& unit) { return unit->has(tensor); });
    if (!is_sharded_here) {
      continue;
    }
    const Gathered gathered({tensor}, /*writes=*/false);
    const c10::impl::ExcludeDispatchKeyGuard own_work(comm::kShardedParamKey);
    // The copy lacks the dispatch key: it is an ordinary tensor.
    tensor.set_data(tensor.detach().clone());
  }
}

}  // namespace lockstep::zero
