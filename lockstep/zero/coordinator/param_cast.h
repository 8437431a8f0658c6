// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/zero/coordinator/flat_param_buffer.h"

namespace lockstep::zero {

/// A tensor that autocast has cast from a sharded parameter. Its memory is freed with the
/// parameter's. A later use unshards the parameter and casts it again, bit-exact, and throws
/// ConfigError if the parameter was written to in between. Without this class 16-bit copies of the
/// full model would stay: autograd keeps them for backward, and autocast until its scope ends.
///
/// Thread safety: that of the parameter's buffer.
class ParamCast final : public AccessHandler {
 public:
  /// Returns whether `cast`, from the sharded `source`, can be managed and is large enough.
  static bool is_possible(const at::Tensor& source, const at::Tensor& cast);
  /// `from`: the buffer of `source`, which has memory; it must outlive this. Takes the memory of
  /// `cast`.
  ParamCast(const FlatParamBuffer& from, const at::Tensor& source, const at::Tensor& cast);

  /// Returns the tensor to use in place of `cast`: `cast` itself if it has a grad_fn, else another
  /// one.
  at::Tensor replacement_for(at::Tensor cast) const;
  /// Returns whether any tensor uses it.
  bool is_used() const { return buffer_.is_used(); }
  /// Frees the memory, with the source's.
  void free_memory();

  void pin(bool writes) override;
  void unpin(bool writes) noexcept override;

 private:
  void cast_again();

  const FlatParamBuffer* from_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;  ///< The source's.
  int64_t offset_;
  c10::VariableVersion version_counter_;
  uint32_t version_;
  std::vector<int64_t> own_strides_;
  bool written_ = false;  ///< The cast was written to: its memory stays.
  FlatParamBuffer buffer_;
};

}  // namespace lockstep::zero
