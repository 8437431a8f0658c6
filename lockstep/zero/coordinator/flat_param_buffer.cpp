// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/coordinator/flat_param_buffer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/zero/coordinator/param_cast.h"

namespace lockstep::zero {
namespace {

using comm::kShardedParamKey;

constexpr const char* kGone =
    "[zero] these values are gone: each rank had a part of them, and the Accelerator (or what it "
    "holds) that brought the parts together is no more; keep the Accelerator for as long as its "
    "model is used, or before it goes save_model(), or clone() parameters on all ranks";

/// The buffers there are, by the storage of their tensors.
class Registry {
 public:
  void add(const c10::StorageImpl* storage, FlatParamBuffer* buffer) {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    buffers_[storage] = buffer;
  }
  void remove(const c10::StorageImpl* storage) {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    buffers_.erase(storage);
  }
  FlatParamBuffer* find(const at::Tensor& tensor) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (!impl.key_set().has(kShardedParamKey) || !impl.has_storage()) {
      return nullptr;
    }
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    const auto found = buffers_.find(impl.unsafe_storage().unsafeGetStorageImpl());
    return found == buffers_.end() ? nullptr : found->second;
  }

 private:
  std::shared_mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, FlatParamBuffer*> buffers_;
};

Registry& registry() {
  static auto* const all = new Registry;  // Parameters may outlive the end of main.
  return *all;
}

/// What an operation touches, until it is done.
class Pins {
 public:
  Pins() = default;
  ~Pins() {
    for (const Pin& pin : pins_) {
      pin.owner->unpin(pin.writes);
    }
  }
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;

  void add(const c10::IValue& value, bool writes) {
    if (value.isTensor()) {
      add(value.toTensor(), writes);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        add(tensor, writes);
      }
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) {
          add(item.toTensor(), writes);
        }
      }
    }
  }

 private:
  void add(const at::Tensor& tensor, bool writes) {
    FlatParamBuffer* buffer = tensor.defined() ? registry().find(tensor) : nullptr;
    if (buffer == nullptr || buffer->owner() == nullptr) {
      return;
    }
    AccessHandler* owner = buffer->owner();
    const bool is_there = std::any_of(pins_.begin(), pins_.end(), [&](const Pin& pin) {
      return pin.owner == owner && (pin.writes || !writes);
    });
    if (!is_there) {
      owner->pin(writes);
      pins_.push_back({owner, writes});
    }
  }

  struct Pin {
    AccessHandler* owner;
    bool writes;
  };
  c10::SmallVector<Pin, 4> pins_;
};

bool begins_with(std::string_view text, std::string_view beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

bool ends_with(std::string_view text, std::string_view ending) {
  return text.size() >= ending.size() && text.substr(text.size() - ending.size()) == ending;
}

/// torch's operations that are told from their declaration to touch values, and do not: they look
/// at a tensor's sizes, or say which memory is its own. Some are not dispatched at all where they
/// are methods. Not here: what may look into the memory (resize_, set_, record_stream, is_pinned).
constexpr std::array kLooksAtNoValues = std::to_array<std::string_view>(
    {"_assert_tensor_metadata",
     "_debug_has_internal_overlap",
     "_has_compatible_shallow_copy_type",
     "_has_same_storage_numel",
     "_is_zerotensor",
     "_version",
     "as_strided_",
     "cudnn_is_acceptable",
     "data",
     "dense_dim",
     "detach_",
     "dim",
     "element_size",
     "get_device",
     "numel",
     "output_nr",
     "requires_grad_",
     "result_type",
     "retain_grad",
     "retains_grad",
     "set_data",
     "size",
     "sparse_dim",
     "squeeze_",
     "storage_offset",
     "stride",
     "swapaxes_",
     "swapdims_",
     "t_",
     "transpose_",
     "unsqueeze_"});

/// Whether an operation looks at values, as far as its declaration tells. What returns a view of
/// its argument does not: where it copies after all (reshape, contiguous, to), it does so by an
/// operation of its own, which is told of in its turn. That, and what names mean, goes for torch's
/// own operations; of others nothing is known.
bool touches_values(const c10::FunctionSchema& schema) {
  constexpr std::string_view kOwn = "aten::";
  std::string_view name = schema.name();
  if (!begins_with(name, kOwn)) {
    return true;
  }
  name.remove_prefix(kOwn.size());
  if (ends_with(name, "_like") || begins_with(name, "new_") ||
      (begins_with(name, "is_") && name != "is_pinned") || begins_with(name, "sym_") ||
      std::find(kLooksAtNoValues.begin(), kLooksAtNoValues.end(), name) != kLooksAtNoValues.end()) {
    return false;
  }
  return std::none_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

thread_local InitInterceptor* g_interceptor = nullptr;

/// Of operations of this thread, one within another.
thread_local int g_depth = 0;

class NestingScope {
 public:
  NestingScope() { ++g_depth; }
  ~NestingScope() { --g_depth; }
  NestingScope(const NestingScope&) = delete;
  NestingScope& operator=(const NestingScope&) = delete;
};

/// What an operation has made is offered to the taker: one that was given no tensors, or that the
/// program itself called.
void offer(const c10::FunctionSchema& schema, torch::jit::Stack* stack) {
  c10::IValue& result = stack->back();
  if (schema.returns().size() != 1 || schema.returns()[0].alias_info() != nullptr ||
      !result.isTensor() || !result.toTensor().defined() ||
      comm::is_sharded_param(result.toTensor()) || result.toTensor().grad_fn() != nullptr) {
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard own_work(kShardedParamKey);
  result = g_interceptor->take(result.toTensor(), !begins_with(schema.name(), "aten::empty"));
}

/// Nobody is asked about what an operation makes for itself.
class Unwatched {
 public:
  explicit Unwatched(bool unwatched) : was_(g_interceptor) {
    g_interceptor = unwatched ? nullptr : was_;
  }
  ~Unwatched() { g_interceptor = was_; }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;

 private:
  InitInterceptor* was_;
};

/// What it returns is what it was given, so what it makes on its way is not for the caller.
bool only_writes(const c10::FunctionSchema& schema) {
  return std::any_of(
      schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
        return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      });
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::any_of(
      schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
        return argument.type()->str().find("Tensor") != std::string::npos;
      });
}

bool touches_values_cached(const c10::FunctionSchema& schema) {
  thread_local std::unordered_map<const c10::FunctionSchema*, bool> known;
  const auto found = known.find(&schema);
  if (found != known.end()) {
    return found->second;
  }
  return known[&schema] = touches_values(schema);
}

/// What autocast does to an operation's arguments, it does within that operation, with itself off.
thread_local bool g_casts = false;

class WithinAutocast {
 public:
  explicit WithinAutocast(bool casts) : was_(g_casts) { g_casts = g_casts || casts; }
  ~WithinAutocast() { g_casts = was_; }
  WithinAutocast(const WithinAutocast&) = delete;
  WithinAutocast& operator=(const WithinAutocast&) = delete;

 private:
  bool was_;
};

/// `result` is what autocast made of `source`: it is to come and go as that does.
void page_cast(const at::Tensor& source, c10::IValue& result) {
  FlatParamBuffer* buffer = registry().find(source);
  if (buffer == nullptr || buffer->owner() == nullptr || !buffer->has_memory() ||
      !result.isTensor()) {
    return;
  }
  at::Tensor made = std::move(result).toTensor();
  if (ParamCast::is_possible(source, made)) {
    const c10::impl::ExcludeDispatchKeyGuard own_work(kShardedParamKey);
    auto cast = std::make_unique<ParamCast>(*buffer, source, made);
    made = cast->in_the_place_of(std::move(made));
    buffer->keep(std::move(cast));
  }
  result = std::move(made);
}

void unshard_what_it_touches(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const bool autocasts = !(keys & c10::autocast_dispatch_keyset).empty();
  at::Tensor to_cast;
  Pins pins;  // Before that: what it casts stays here till the result can be cast again.
  if (touches_values_cached(schema)) {
    const c10::impl::ExcludeDispatchKeyGuard own_work(kShardedParamKey);
    const size_t count = schema.arguments().size();
    for (size_t i = 0; i < count; ++i) {
      const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
      pins.add((*stack)[stack->size() - count + i], alias != nullptr && alias->isWrite());
    }
    if (g_casts && !autocasts && g_interceptor == nullptr && schema.name() == "aten::_to_copy") {
      to_cast = (*stack)[stack->size() - count].toTensor();
    }
  }
  {
    const NestingScope within_this;
    const Unwatched own_tensors(g_interceptor != nullptr && only_writes(schema));
    const WithinAutocast within(autocasts);
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kShardedParamKey), stack);
  }
  if (to_cast.defined()) {
    page_cast(to_cast, stack->back());
  }
  if (g_interceptor != nullptr && (g_depth == 0 || !takes_tensors(schema))) {
    offer(schema, stack);
  }
}

/// Not when the library is loaded, where an error would end the program.
void take_key() {
  static torch::Library* const library = [] {
    try {
      auto* made =
          new torch::Library(torch::Library::IMPL, "_", kShardedParamKey, __FILE__, __LINE__);
      made->fallback(torch::CppFunction::makeFromBoxedFunction<&unshard_what_it_touches>());
      return made;
    } catch (const c10::Error& error) {
      throw ConfigError(
          "zero",
          fmt::format(
              "stage 3 needs torch's dispatch key DeferredInit, which something else in this "
              "process has taken (torchdistx?); go without it, or use stage 2: {}",
              error.what_without_backtrace()));
    }
  }();
  static_cast<void>(library);
}

}  // namespace

FlatParamBuffer::FlatParamBuffer(
    int64_t numel, const at::TensorOptions& options, std::string freed_message)
    : freed_message_(std::move(freed_message)) {
  take_key();
  const c10::InferenceMode ordinary(false);  // Views of inference tensors could not be trained.
  values_ = at::empty({0}, options.requires_grad(false));
  c10::StorageImpl* storage = values_.storage().unsafeGetStorageImpl();
  // The size stays what it is while there is no memory: views are checked against it.
  storage->set_nbytes(static_cast<size_t>(numel) * values_.element_size());
  values_.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  registry().add(storage, this);
  take_memory();
}

FlatParamBuffer::~FlatParamBuffer() {
  c10::StorageImpl* storage = values_.storage().unsafeGetStorageImpl();
  registry().remove(storage);
  // Whether there is memory or not, which differs between ranks, and between parameters.
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kGone);
}

at::Tensor FlatParamBuffer::view(int64_t offset, at::IntArrayRef sizes) const {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(values_.storage()), values_.key_set().add(kShardedParamKey), values_.dtype());
  impl->set_storage_offset(values_.storage_offset() + offset);
  impl->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(impl));
}

at::Tensor FlatParamBuffer::view(at::IntArrayRef sizes, at::IntArrayRef strides) const {
  at::Tensor lies_here = view(0, {numel()});
  lies_here.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return lies_here;
}

void FlatParamBuffer::keep(std::unique_ptr<ParamCast> cast) {
  std::erase_if(casts_, [](const auto& each) { return !each->is_used(); });
  casts_.push_back(std::move(cast));
}

void FlatParamBuffer::make_memory(at::DataPtr given) {
  LOCKSTEP_ASSERT(!has_memory_, "a unit was brought that is here already");
  const c10::DeviceGuard device(values_.device());
  c10::StorageImpl* storage = values_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(
      given ? std::move(given) : storage->allocator()->allocate(storage->nbytes()));
  storage->clear_data_ptr_access_error_msg_();
  has_memory_ = true;
}

at::DataPtr FlatParamBuffer::take_memory() {
  for (const auto& cast : casts_) {
    cast->let_go();
  }
  c10::StorageImpl* storage = values_.storage().unsafeGetStorageImpl();
  at::DataPtr taken(nullptr, values_.device());
  std::swap(taken, storage->_mutable_data_ptr_no_checks());
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(freed_message_);
  has_memory_ = false;
  return taken;
}

AccessHandler* FlatParamBuffer::owner_of(const at::Tensor& tensor) {
  const FlatParamBuffer* buffer = tensor.defined() ? registry().find(tensor) : nullptr;
  return buffer == nullptr ? nullptr : buffer->owner();
}

InitInterceptScope::InitInterceptScope(InitInterceptor& interceptor) {
  LOCKSTEP_ASSERT(g_interceptor == nullptr, "tensors are watched already");
  take_key();
  g_interceptor = &interceptor;
  c10::impl::tls_set_dispatch_key_included(kShardedParamKey, true);
}

InitInterceptScope::~InitInterceptScope() {
  c10::impl::tls_set_dispatch_key_included(kShardedParamKey, false);
  g_interceptor = nullptr;
}

Gathered::Gathered(const std::vector<at::Tensor>& tensors, bool writes) : writes_(writes) {
  try {
    for (const at::Tensor& tensor : tensors) {
      if (AccessHandler* owner = FlatParamBuffer::owner_of(tensor)) {
        owner->pin(writes);
        owners_.push_back(owner);
      }
    }
  } catch (...) {
    let_go();
    throw;
  }
}

Gathered::~Gathered() {
  let_go();
}

void Gathered::let_go() noexcept {
  for (AccessHandler* owner : owners_) {
    owner->unpin(writes_);
  }
}

}  // namespace lockstep::zero
