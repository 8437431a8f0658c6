// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/zero/coordinator/flat_param_buffer.h"

namespace lockstep::zero {

/// What autocast made of a paged tensor. Autograd keeps that for backward, and autocast until its
/// scope ends: copies in 16 bits of a whole model, if they stayed. So they come and go, too: there
/// is memory while that of the paged tensor is there, and who touches it later brings the paged
/// tensor, of which it is cast again, to the same bits. ConfigError then if that has been written
/// to since.
///
/// Thread safety: as its source's.
class ParamCast final : public AccessHandler {
 public:
  /// Whether `made`, cast from `source`, which is paged, can be such a one and is worth it.
  static bool is_possible(const at::Tensor& source, const at::Tensor& made);
  /// `from`: where `source` lies, which is here; it must outlive this. Takes the memory of `made`.
  ParamCast(const FlatParamBuffer& from, const at::Tensor& source, const at::Tensor& made);

  /// What is to be used in the place of `made`: that itself where it has a history, else another.
  at::Tensor in_the_place_of(at::Tensor made) const;
  /// Whether any tensor lies here.
  bool is_used() const { return buffer_.is_used(); }
  /// The source's memory goes.
  void let_go();

  void pin(bool writes) override;
  void unpin(bool writes) noexcept override;

 private:
  void cast_again();

  const FlatParamBuffer* from_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;  ///< Of the source.
  int64_t offset_;
  c10::VariableVersion version_counter_;
  uint32_t version_;
  std::vector<int64_t> own_strides_;
  bool written_ = false;  ///< To what was cast: it stays then.
  FlatParamBuffer buffer_;
};

}  // namespace lockstep::zero
