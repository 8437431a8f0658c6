// SPDX-License-Identifier: Apache-2.0
// FlatOptimizer where updates on the host begin before `step`.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <c10/core/GradMode.h>

#include "lockstep/optim/flat/update_in_fp32.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/offload/speculative_step.h"

namespace lockstep::optim {
namespace {

void append(std::vector<double>& numbers, double value) {
  numbers.push_back(value);
}

void append(std::vector<double>& numbers, bool value) {
  numbers.push_back(value ? 1 : 0);
}

void append(std::vector<double>& numbers, const std::optional<double>& value) {
  numbers.push_back(value ? 1 : 0);
  numbers.push_back(value.value_or(0));
}

template <typename Pair>
void append(std::vector<double>& numbers, const Pair& pair) {
  append(numbers, std::get<0>(pair));
  append(numbers, std::get<1>(pair));
}

int64_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

std::pair<size_t, size_t> FlatOptimizer::items_in(size_t group, size_t buffer) const {
  const std::vector<FlatParameter>& items = groups_[group].items();
  const auto is_in = [buffer](const FlatParameter& item) { return item.buffer == buffer; };
  const auto begin = std::find_if(items.begin(), items.end(), is_in);
  const auto end = std::find_if_not(begin, items.end(), is_in);
  return {
      static_cast<size_t>(std::distance(items.begin(), begin)),
      static_cast<size_t>(std::distance(items.begin(), end))};
}

/// Nothing if some of what items `begin` to `end` need is not there yet, or not the same for all.
std::optional<SpeculativeStep::Source> FlatOptimizer::speculative_source(
    size_t group_index, size_t begin, size_t end, const at::Tensor& gradient) {
  const FlatGroup& group = groups_[group_index];
  torch::optim::OptimizerOptions& options = param_groups_[group_index].options();
  const FlatParameter& first = group.items()[begin];
  const FlatParameter& last = group.items()[end - 1];
  const size_t buffer = first.buffer;
  if (!group.state_is_offloaded(buffer) || !group.files_of(buffer).empty() ||
      gradient.scalar_type() != first.parameter.scalar_type() ||
      gradient.numel() != group.buffer_values(buffer).numel()) {
    return std::nullopt;
  }
  SpeculativeStep::Source source;
  source.parameters = group.parameters_between(first, last);
  source.gradient = gradient.narrow(0, first.offset, source.parameters.numel());
  source.begin = first.offset;
  source.step = first.step + 1;
  const auto advanced = [&](const FlatParameter& item) {
    std::vector<float> scalars = item.scalars;
    return advance(options, item.step + 1, scalars);
  };
  source.factors = advanced(first);
  for (size_t i = begin; i < end; ++i) {
    const FlatParameter& item = group.items()[i];
    if (item.step != first.step || (i > begin && advanced(item) != source.factors)) {
      return std::nullopt;
    }
    for (size_t field = 0; field < item.state.size(); ++field) {
      const bool wanted = shape(options, item.whole_sizes(), field) != StateShape::kNone;
      if (wanted != item.state[field].defined() || wanted != first.state[field].defined()) {
        return std::nullopt;
      }
    }
    append(source.numbers, static_cast<double>(version_of(item.parameter)));
  }
  for (size_t field = 0; field < first.state.size(); ++field) {
    source.state.push_back(
        first.state[field].defined() ? group.buffer_state(buffer, field) : at::Tensor());
    if (source.state.back().defined()) {
      append(source.numbers, static_cast<double>(version_of(source.state.back())));
    }
  }
  append(source.numbers, static_cast<double>(version_of(gradient)));
  for (const NamedOption& option : named_options(options)) {
    std::visit([&](const auto* value) { append(source.numbers, *value); }, option.value);
  }
  return source;
}

void FlatOptimizer::begin_speculative(size_t group, size_t buffer, const at::Tensor& gradient) {
  const c10::AutoGradMode no_grad(false);
  const auto [begin, end] = items_in(group, buffer);
  if (begin == end || group_needs_full(group)) {
    return;
  }
  std::optional<SpeculativeStep::Source> source = speculative_source(group, begin, end, gradient);
  if (!source) {
    return;
  }
  // Its own: a scheduler may write to the group's meanwhile.
  const std::shared_ptr<const torch::optim::OptimizerOptions> options =
      param_groups_[group].options().clone();
  early_->begin(
      {group, buffer}, *std::move(source), [rule = update_function(), options](const Batch& batch) {
        update_in_fp32(batch, [&](const Batch& wide) { rule(*options, wide); });
      });
}

/// Whether gradients of items `begin` to `end` are what lies in `gradient`, that of all of these.
bool FlatOptimizer::have_gradient(
    size_t group, size_t begin, size_t end, const at::Tensor& gradient) const {
  const std::vector<FlatParameter>& items = groups_[group].items();
  return std::all_of(
      items.begin() + static_cast<std::ptrdiff_t>(begin),
      items.begin() + static_cast<std::ptrdiff_t>(end),
      [&, first = items[begin].offset](const FlatParameter& item) {
        const at::Tensor& own = item.parameter.grad();
        const int64_t offset = (item.offset - first) * gradient.element_size();
        return own.defined() && own.dtype() == gradient.dtype() &&
               own.data_ptr() == static_cast<char*>(gradient.data_ptr()) + offset;
      });
}

/// Whether the update of items `begin` to `end` was begun before, and is done now.
bool FlatOptimizer::take_speculative(size_t group, size_t begin, size_t end) {
  std::vector<FlatParameter>& items = groups_[group].items();
  const size_t buffer = items[begin].buffer;
  const at::Tensor* gradient =
      early_ && buffer != FlatParameter::kLoose ? early_->gradient({group, buffer}) : nullptr;
  if (gradient == nullptr) {
    return false;
  }
  std::optional<SpeculativeStep::Source> source;
  if (have_gradient(group, begin, end, *gradient)) {
    const at::Tensor whole = gradient->as_strided(
        {groups_[group].buffer_values(buffer).numel()},
        {1},
        gradient->storage_offset() - items[begin].offset);
    source = speculative_source(group, begin, end, whole);
  }
  if (!source || !early_->take({group, buffer}, *source)) {
    early_->forget({group, buffer});  // Before the state is written to that it reads.
    return false;
  }
  for (size_t i = begin; i < end; ++i) {
    FlatParameter& item = items[i];
    ++item.step;
    item.factors = advance(param_groups_[group].options(), item.step, item.scalars);
    item.parameter.unsafeGetTensorImpl()->bump_version();
  }
  return true;
}

void FlatOptimizer::discard_speculative(size_t group, size_t buffer) noexcept {
  early_->forget({group, buffer});
}

int64_t FlatOptimizer::speculative_count() const {
  return early_ ? early_->taken() : 0;
}

}  // namespace lockstep::optim
