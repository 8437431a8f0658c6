// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/update/speculative_updates.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <c10/core/GradMode.h>

#include "lockstep/optim/flat/update_in_fp32.h"

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

void append_version(std::vector<double>& numbers, const at::Tensor& tensor) {
  append(
      numbers,
      static_cast<double>(tensor.unsafeGetTensorImpl()->version_counter().current_version()));
}

/// Returns the range of a group's items in a buffer.
std::pair<size_t, size_t> items_in(const std::vector<FlatParameter>& items, size_t buffer) {
  const auto is_in = [buffer](const FlatParameter& item) { return item.buffer == buffer; };
  const auto begin = std::ranges::find_if(items, is_in);
  const auto end = std::find_if_not(begin, items.end(), is_in);
  return {
      static_cast<size_t>(std::distance(items.begin(), begin)),
      static_cast<size_t>(std::distance(items.begin(), end))};
}

/// Returns whether the gradients of `items` are views of `gradient`, the gradient of all of them.
bool use_gradient(std::span<const FlatParameter> items, const at::Tensor& gradient) {
  return std::ranges::all_of(items, [&](const FlatParameter& item) {
    const at::Tensor& own = item.parameter.grad();
    const int64_t offset = (item.offset - items.front().offset) * gradient.element_size();
    return own.defined() && own.dtype() == gradient.dtype() &&
           own.data_ptr() == static_cast<char*>(gradient.data_ptr()) + offset;
  });
}

}  // namespace

void SpeculativeUpdates::begin(size_t group, size_t buffer, const at::Tensor& gradient) {
  const c10::AutoGradMode no_grad(false);
  const auto [begin, end] = items_in(flat_groups_.flat(group).items(), buffer);
  if (begin == end || flat_groups_.needs_full(group)) {
    return;
  }
  std::optional<SpeculativeStep::Source> source = source_of(group, begin, end, gradient);
  if (!source) {
    return;
  }
  // A copy, since a scheduler may write to the group's options meanwhile.
  const std::shared_ptr<const torch::optim::OptimizerOptions> options =
      flat_groups_.options(group).clone();
  step_.begin(
      {group, buffer},
      *std::move(source),
      [rule = flat_groups_.rule(), options](const RuleCall& call) {
        update_in_fp32(call, [&](const RuleCall& wide) { rule->update(*options, wide); });
      });
}

bool SpeculativeUpdates::take(size_t group, size_t begin, size_t end) {
  std::vector<FlatParameter>& items = flat_groups_.flat(group).items();
  const size_t buffer = items[begin].buffer;
  const at::Tensor* gradient =
      buffer != FlatParameter::kNoBuffer ? step_.gradient({group, buffer}) : nullptr;
  if (gradient == nullptr) {
    return false;
  }
  const auto source = source_of_gradients(group, begin, end, *gradient);
  if (!source || !step_.take({group, buffer}, *source)) {
    step_.discard({group, buffer});  // It reads state that the usual update writes.
    return false;
  }
  for (size_t i = begin; i < end; ++i) {
    FlatParameter& item = items[i];
    ++item.step;
    item.factors =
        flat_groups_.rule()->advance(flat_groups_.options(group), item.step, item.scalars);
    item.parameter.unsafeGetTensorImpl()->bump_version();
  }
  return true;
}

std::optional<SpeculativeStep::Source> SpeculativeUpdates::source_of_gradients(
    size_t group, size_t begin, size_t end, const at::Tensor& gradient) {
  const std::vector<FlatParameter>& items = flat_groups_.flat(group).items();
  if (!use_gradient(std::span(items).subspan(begin, end - begin), gradient)) {
    return std::nullopt;
  }
  const at::Tensor buffer_gradient = gradient.as_strided(
      {flat_groups_.flat(group).buffer_values(items[begin].buffer).numel()},
      {1},
      gradient.storage_offset() - items[begin].offset);
  return source_of(group, begin, end, buffer_gradient);
}

std::optional<SpeculativeStep::Source> SpeculativeUpdates::source_of(
    size_t group_index, size_t begin, size_t end, const at::Tensor& gradient) {
  const UpdateRule& rule = *flat_groups_.rule();
  const FlatParameterGroup& group = flat_groups_.flat(group_index);
  torch::optim::OptimizerOptions& options = flat_groups_.options(group_index);
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
    return rule.advance(options, item.step + 1, scalars);
  };
  source.factors = advanced(first);
  for (size_t i = begin; i < end; ++i) {
    const FlatParameter& item = group.items()[i];
    if (item.step != first.step || (i > begin && advanced(item) != source.factors)) {
      return std::nullopt;
    }
    for (size_t field = 0; field < item.state.size(); ++field) {
      const bool wanted = rule.shape(options, item.full_sizes, field) != StateShape::kNone;
      if (wanted != item.state[field].defined() || wanted != first.state[field].defined()) {
        return std::nullopt;
      }
    }
    append_version(source.numbers, item.parameter);
  }
  for (size_t field = 0; field < first.state.size(); ++field) {
    source.state.push_back(
        first.state[field].defined() ? group.buffer_state(buffer, field) : at::Tensor());
    if (source.state.back().defined()) {
      append_version(source.numbers, source.state.back());
    }
  }
  append_version(source.numbers, gradient);
  for (const NamedOption& option : rule.named_options(options)) {
    std::visit([&](const auto* value) { append(source.numbers, *value); }, option.value);
  }
  return source;
}

}  // namespace lockstep::optim
