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

/// Who is told when an operation is about to touch the tensors of a FlatParamBuffer.
class AccessHandler {
 public:
  AccessHandler() = default;
  virtual ~AccessHandler() = default;
  AccessHandler(const AccessHandler&) = delete;
  AccessHandler& operator=(const AccessHandler&) = delete;

  /// Returns when the values are there, and keeps them until `unpin`. `writes`: the operation will
  /// change them. What it throws comes out of the operation.
  virtual void pin(bool writes) = 0;
  virtual void unpin(bool writes) noexcept = 0;
};

/// One flat tensor whose memory comes and goes while tensors that lie in it stay what they are:
/// demand paging for the parameters of unmodified modules.
///
/// `view` gives tensors with a dispatch key that no part of torch uses. An operation on one of
/// them, or on a view of one, forward or backward, is told to the owner first, who sees to it that
/// the values are there. What only makes a view, or reads sizes, is not; of operations that are not
/// torch's own all count as touching what they are given. Memory that is read past all operations
/// (`data_ptr` and all that is built on it) while there is none is an error that says what to do.
/// What autocast makes of one comes and goes with it (ParamCast).
///
/// Only this file and comm/sharded_param.h know of the key. Cost: 1 to 4 us an operation on such a
/// tensor, none on others. Thread safety: registration is safe; the rest is its owner's. After
/// torchdistx's deferred initialisation, which had the key first.
class FlatParamBuffer {
 public:
  /// No memory yet. `untouchable`: what is said to whoever reads it while there is none.
  /// ConfigError if something else in this process has taken the key.
  FlatParamBuffer(int64_t numel, const at::TensorOptions& options, std::string freed_message);
  /// The tensors that lie here cannot be read any more, and an error says so; memory that is there
  /// goes with the last of them, since something may still be on its way into it.
  ~FlatParamBuffer();
  FlatParamBuffer(const FlatParamBuffer&) = delete;
  FlatParamBuffer& operator=(const FlatParamBuffer&) = delete;

  /// Must be set before a view is used, and live as long as this.
  void set_owner(AccessHandler* owner) { owner_ = owner; }
  AccessHandler* owner() const { return owner_; }

  /// `sizes` at element `offset`; an operation on it is told of.
  at::Tensor view(int64_t offset, at::IntArrayRef sizes) const;
  /// The same, from the first element on.
  at::Tensor view(at::IntArrayRef sizes, at::IntArrayRef strides) const;
  /// All of it, 1-D, for who owns it: nobody is told. Only to be touched while there is memory.
  const at::Tensor& values() const { return values_; }
  int64_t numel() const { return values_.numel(); }

  bool has_memory() const { return has_memory_; }
  /// Whether any tensor lies here.
  bool is_used() const { return values_.storage().use_count() > 1; }
  size_t nbytes() const { return values_.nbytes(); }
  /// Memory that is not initialised: `given`, of at least as many bytes, or new, on the current
  /// stream of a device.
  void make_memory(at::DataPtr given = {});
  /// Returns what it was. That of casts goes, too.
  at::DataPtr take_memory();
  /// Keeps it for as long as a tensor lies there.
  void keep(std::unique_ptr<ParamCast> cast);

  /// Who is told of operations on `tensor`; null if nobody is (any more).
  static AccessHandler* owner_of(const at::Tensor& tensor);

 private:
  at::Tensor values_;
  std::string freed_message_;
  AccessHandler* owner_ = nullptr;
  bool has_memory_ = false;
  std::vector<std::unique_ptr<ParamCast>> casts_;  ///< Of what lies here.
};

/// Who may have what operations make.
class InitInterceptor {
 public:
  InitInterceptor() = default;
  virtual ~InitInterceptor() = default;
  InitInterceptor(const InitInterceptor&) = delete;
  InitInterceptor& operator=(const InitInterceptor&) = delete;
  /// What is to be used in the place of `made`: itself, or a view of a FlatParamBuffer.
  virtual at::Tensor take(const at::Tensor& made, bool has_values) = 0;
};

/// While it lives, `taker` is asked about every tensor that operations of this thread make from
/// nothing, and about the one that any operation of the program itself gives. Not one in another.
class InitInterceptScope {
 public:
  explicit InitInterceptScope(InitInterceptor& interceptor);
  ~InitInterceptScope();
  InitInterceptScope(const InitInterceptScope&) = delete;
  InitInterceptScope& operator=(const InitInterceptScope&) = delete;
};

/// Keeps values of paged tensors here while it lives; of others nothing is needed. Collective, in
/// the order of `tensors`.
class Gathered {
 public:
  /// `writes`: they will be changed, through pointers maybe.
  Gathered(const std::vector<at::Tensor>& tensors, bool writes);
  ~Gathered();
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

 private:
  void let_go() noexcept;

  std::vector<AccessHandler*> owners_;
  bool writes_;
};

}  // namespace lockstep::zero
