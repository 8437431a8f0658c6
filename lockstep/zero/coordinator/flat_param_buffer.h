// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::zero {

class ParamCast;

/// Called before and after an operation uses the tensors of a FlatParamBuffer.
class AccessHandler {
 public:
  AccessHandler() = default;
  virtual ~AccessHandler() = default;
  AccessHandler(const AccessHandler&) = delete;
  AccessHandler& operator=(const AccessHandler&) = delete;

  /// Blocks until the values are available, and keeps them until `unpin`. `writes`: the operation
  /// will change them. An exception propagates out of the operation.
  virtual void pin(bool writes) = 0;
  virtual void unpin(bool writes) noexcept = 0;
  /// Called instead of an operation that sets the tensor to zero (zero_). Returns whether nothing
  /// is left to do.
  virtual bool absorb_zero() { return false; }
};

/// A flat tensor whose memory exists only while its unit is unsharded. Its views, the parameters of
/// unmodified modules, always stay valid tensors.
///
/// `view` returns tensors with a dispatch key that no part of torch uses. Before an operation on
/// one of them or on its view, in forward or backward, the handler makes the values available.
/// Operations that only make a view or read sizes are exempt; operations from outside torch count
/// as using all their arguments. Reading freed memory without an operation (`data_ptr` and
/// functions built on it) throws an error that names the remedy. Tensors that autocast casts from a
/// view are freed and restored with it (ParamCast).
///
/// Cost: 1 to 4 us an operation on such a tensor, none on others. Registration is thread-safe; the
/// rest is not. Modelled on torchdistx's deferred initialisation, which used the key first.
class FlatParamBuffer {
 public:
  /// Starts without memory. `freed_message`: the error for reading it while it is freed. Throws
  /// ConfigError if other code in this process uses the key.
  FlatParamBuffer(int64_t numel, const at::TensorOptions& options, std::string freed_message);
  /// Makes later reads of views throw an error. Existing memory is freed with the last view, since
  /// a transfer into it may still run.
  ~FlatParamBuffer();
  FlatParamBuffer(const FlatParamBuffer&) = delete;
  FlatParamBuffer& operator=(const FlatParamBuffer&) = delete;

  /// Must be set before a view is used, and must outlive this object.
  void set_owner(AccessHandler* owner) { owner_ = owner; }
  AccessHandler* owner() const { return owner_; }

  /// Returns a view of `sizes` at element `offset`; operations on it call the handler.
  at::Tensor view(int64_t offset, at::IntArrayRef sizes) const;
  /// Does the same from the first element on.
  at::Tensor view(at::IntArrayRef sizes, at::IntArrayRef strides) const;
  /// Returns the complete buffer, 1-D, for its owner: no handler is called. Use it only while it
  /// has memory.
  const at::Tensor& values() const { return values_; }
  int64_t numel() const { return values_.numel(); }

  bool has_memory() const { return has_memory_; }
  /// Returns whether any view exists.
  bool is_used() const { return values_.storage().use_count() > 1; }
  size_t nbytes() const { return values_.nbytes(); }
  /// Allocates uninitialized memory: `given`, of at least as many bytes, or new memory on the
  /// current stream of a device.
  void make_memory(at::DataPtr given = {});
  /// Returns the memory and leaves the buffer without memory. Frees the memory of its casts, too.
  at::DataPtr take_memory();
  /// Keeps `cast` while a view exists.
  void keep(std::unique_ptr<ParamCast> cast);

  /// Returns the buffer of `tensor`, a view; null if it is none, or its buffer was destroyed.
  static FlatParamBuffer* find(const at::Tensor& tensor);
  /// Returns the handler of operations on `tensor`; null if it has none.
  static AccessHandler* owner_of(const at::Tensor& tensor);

 private:
  at::Tensor values_;
  std::string freed_message_;
  AccessHandler* owner_ = nullptr;
  bool has_memory_ = false;
  std::vector<std::unique_ptr<ParamCast>> casts_;  ///< Casts of views of this buffer.
};

/// Installs the fallback of the dispatch key of views, once. Throws ConfigError if other code in
/// this process uses the key.
void install_unshard_dispatch();

/// Replaces the results of operations.
class InitInterceptor {
 public:
  InitInterceptor() = default;
  virtual ~InitInterceptor() = default;
  InitInterceptor(const InitInterceptor&) = delete;
  InitInterceptor& operator=(const InitInterceptor&) = delete;
  /// Returns the tensor to use in place of `created`: itself, or a view of a FlatParamBuffer.
  virtual at::Tensor take(const at::Tensor& created, bool has_values) = 0;
};

/// RAII scope: `interceptor` sees tensors that operations of this thread create. These are all
/// tensors created without inputs, and the results of operations that the program calls directly.
/// Results of nested operations with inputs are not seen.
class InitInterceptScope {
 public:
  explicit InitInterceptScope(InitInterceptor& interceptor);
  ~InitInterceptScope();
  InitInterceptScope(const InitInterceptScope&) = delete;
  InitInterceptScope& operator=(const InitInterceptScope&) = delete;
};

/// RAII scope: keeps the values of sharded tensors available. Collective, in the order of
/// `tensors`.
class Gathered {
 public:
  /// `writes`: the values will be changed, possibly through pointers.
  Gathered(const std::vector<at::Tensor>& tensors, bool writes);
  ~Gathered();
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

 private:
  void release() noexcept;

  std::vector<AccessHandler*> owners_;
  bool writes_;
};

}  // namespace lockstep::zero
