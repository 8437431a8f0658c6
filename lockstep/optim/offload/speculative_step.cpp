// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/offload/speculative_step.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace lockstep::optim {
namespace {

/// Swaps the memory of both storages, also for all views of them.
void swap_memory(const at::Tensor& a, const at::Tensor& b) {
  std::swap(
      a.storage().unsafeGetStorageImpl()->mutable_data_ptr(),
      b.storage().unsafeGetStorageImpl()->mutable_data_ptr());
}

bool is_same(const SpeculativeStep::Source& a, const SpeculativeStep::Source& b) {
  return a.parameters.data_ptr() == b.parameters.data_ptr() &&
         a.parameters.sizes() == b.parameters.sizes() &&
         a.gradient.data_ptr() == b.gradient.data_ptr() && a.step == b.step &&
         a.factors == b.factors && a.numbers == b.numbers;
}

}  // namespace

void SpeculativeStep::begin(
    const Key& key, Source source, std::function<void(const RuleCall& call)> update) {
  discard(key);
  Entry& entry = entries_.try_emplace(key, pinned_).first->second;
  entry.host_staging.begin(
      source.parameters.is_cpu() ? source.gradient.device() : source.parameters.device());
  const std::vector<at::Tensor> host =
      entry.host_staging.fetch(0, {source.parameters, source.gradient});
  // Host tensors are copied at once: the caller may write to them from now on.
  const auto copied = [](const at::Tensor& from, const at::Tensor& fetched, at::Tensor& copy) {
    if (!from.is_cpu()) {
      copy = fetched;
    } else {
      copy = copy.defined() ? copy : at::empty_like(from);
      copy.copy_(from);
    }
  };
  copied(source.parameters, host[0], entry.parameters);
  copied(source.gradient, host[1], entry.gradient);
  entry.state.resize(source.state.size());
  for (size_t field = 0; field < source.state.size(); ++field) {
    if (source.state[field].defined() && !entry.state[field].defined()) {
      entry.state[field] = at::zeros_like(source.state[field]);
    }
  }
  entry.source = std::move(source);
  entry.done = executor_.submit([&entry, update = std::move(update)] {
    const c10::AutoGradMode no_grad(false);
    const Source& from = *entry.source;
    entry.host_staging.wait(0);
    RuleCall call{
        .parameters = {entry.parameters},
        .gradients = {entry.gradient},
        .state = {},
        .steps = {from.step},
        .factors = {from.factors}};
    for (size_t field = 0; field < from.state.size(); ++field) {
      at::Tensor copy;
      if (from.state[field].defined()) {
        copy = entry.state[field].narrow(0, from.begin, from.parameters.numel());
        copy.copy_(from.state[field].narrow(0, from.begin, from.parameters.numel()));
      }
      call.state.push_back({copy});
    }
    update(call);
  });
}

const at::Tensor* SpeculativeStep::gradient(const Key& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() || !found->second.source ? nullptr
                                                          : &found->second.source->gradient;
}

bool SpeculativeStep::take(const Key& key, const Source& source) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || !found->second.source || !is_same(*found->second.source, source)) {
    return false;
  }
  Entry& entry = found->second;
  entry.done.wait();
  entry.source.reset();
  entry.done.get();
  for (size_t field = 0; field < source.state.size(); ++field) {
    if (source.state[field].defined()) {
      swap_memory(source.state[field], entry.state[field]);
    }
  }
  if (source.parameters.is_cpu()) {
    at::Tensor(source.parameters).copy_(entry.parameters);
  } else {
    // The copy waits for work that reads or writes the parameters.
    entry.host_staging.begin(source.parameters.device());
    entry.host_staging.send_back(source.parameters, entry.parameters);
    entry.host_staging.finish();
  }
  ++taken_;
  return true;
}

void SpeculativeStep::discard(const Key& key) noexcept {
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second.source) {
    found->second.done.wait();
    found->second.source.reset();
  }
}

void SpeculativeStep::discard() noexcept {
  for (const auto& [key, entry] : entries_) {
    discard(key);
  }
}

}  // namespace lockstep::optim
