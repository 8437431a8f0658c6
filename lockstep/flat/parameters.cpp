// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/parameters.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

/// The bytes of a storage that a tensor spans.
struct Place {
  const c10::StorageImpl* storage;
  int64_t begin;
  int64_t end;
  const NamedTensor* item;
};

Place place_of(const NamedTensor& item) {
  const at::Tensor& tensor = item.tensor;
  int64_t elements = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    elements += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const auto bytes = static_cast<int64_t>(tensor.element_size());
  return {
      .storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(),
      .begin = tensor.storage_offset() * bytes,
      .end = (tensor.storage_offset() + elements) * bytes,
      .item = &item};
}

/// Returns whether tensors whose bytes overlap share elements: two halves of the columns of a
/// matrix do not.
bool have_common_elements(const Place& a, const Place& b) {
  const at::Tensor& one = a.item->tensor;
  const at::Tensor& other = b.item->tensor;
  if (one.scalar_type() != other.scalar_type()) {
    return true;
  }
  const auto bytes = static_cast<int64_t>(one.element_size());
  const int64_t begin = std::min(a.begin, b.begin) / bytes;
  const at::Tensor marks = at::zeros({std::max(a.end, b.end) / bytes - begin}, at::kBool);
  marks.as_strided(one.sizes(), one.strides(), one.storage_offset() - begin).fill_(true);
  return marks.as_strided(other.sizes(), other.strides(), other.storage_offset() - begin)
      .any()
      .item<bool>();
}

}  // namespace

NamedTensors trainable(const NamedTensors& parameters) {
  NamedTensors unique;
  std::unordered_set<at::TensorImpl*> seen;
  for (const NamedTensor& item : parameters) {
    if (item.tensor.requires_grad() && item.tensor.numel() > 0 &&
        seen.insert(item.tensor.unsafeGetTensorImpl()).second) {
      unique.push_back(item);
    }
  }
  return unique;
}

NamedTensors frozen_among(const NamedTensors& parameters) {
  NamedTensors frozen;
  std::set<const at::TensorImpl*> seen;
  for (const NamedTensor& item : parameters) {
    if (!item.tensor.requires_grad() && item.tensor.is_floating_point() &&
        item.tensor.numel() > 0 && seen.insert(item.tensor.unsafeGetTensorImpl()).second) {
      frozen.push_back(item);
    }
  }
  return frozen;
}

void refuse_unfrozen(const NamedTensors& frozen, const char* where) {
  for (const NamedTensor& item : frozen) {
    if (item.tensor.requires_grad()) {
      throw ConfigError(
          where,
          fmt::format(
              "{} requires gradients, but was frozen when the model was prepared, so its gradients "
              "would not be averaged; expected it to stay frozen; unfreeze it before prepare(), "
              "and freeze it afterwards while it is not trained",
              item.name));
    }
  }
}

void refuse_common_memory(const NamedTensors& moved, const NamedTensors& all) {
  std::set<const at::TensorImpl*> moving;
  for (const NamedTensor& item : moved) {
    moving.insert(item.tensor.unsafeGetTensorImpl());
  }
  const auto moves = [&](const Place& place) {
    return moving.contains(place.item->tensor.unsafeGetTensorImpl());
  };
  std::vector<Place> places;
  std::set<const at::TensorImpl*> seen;
  for (const NamedTensor& item : all) {
    if (item.tensor.layout() == at::kStrided && item.tensor.has_storage() &&
        item.tensor.numel() > 0 && seen.insert(item.tensor.unsafeGetTensorImpl()).second) {
      places.push_back(place_of(item));
    }
  }
  std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.storage, a.begin) < std::tie(b.storage, b.begin);
  });
  for (auto a = places.begin(); a != places.end(); ++a) {
    for (auto b = a + 1; b != places.end() && b->storage == a->storage && b->begin < a->end; ++b) {
      if ((moves(*a) || moves(*b)) && have_common_elements(*a, *b)) {
        throw ConfigError(
            "zero",
            fmt::format(
                "{} and {} are two tensors over the same memory, which ZeRO would separate when it "
                "shards them; expected one tensor or separate memory; register the very same "
                "tensor by both names to tie them, or clone() one to separate them",
                a->item->name,
                b->item->name));
      }
    }
  }
}

}  // namespace lockstep
