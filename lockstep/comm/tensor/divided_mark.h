// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

/// Marks weights of which each rank of a tp line has a part; see tensor_parallel/divided_param.h.
/// The mark is here since those who move parameters to other memory must keep it.
namespace lockstep::comm {

/// The key of marked tensors and of their views, which torch itself uses in tests only.
constexpr c10::DispatchKey kDividedParamKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

inline bool is_divided(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kDividedParamKey);
}

/// Describes a divided weight; tensor_parallel derives its own description.
struct DividedInfo {
  DividedInfo() = default;
  DividedInfo(const DividedInfo&) = delete;
  DividedInfo& operator=(const DividedInfo&) = delete;
  virtual ~DividedInfo() = default;
};

/// Marks a parameter. Thread-safe for different parameters, as are the functions below.
void mark_divided(const at::Tensor& parameter, std::shared_ptr<const DividedInfo> info);
/// Forgets the information. The parameter stays marked, since it stays a part.
void forget_divided(const at::Tensor& parameter) noexcept;
/// Returns the information of a marked parameter, or of a view that begins where it does; null for
/// any other tensor.
std::shared_ptr<const DividedInfo> divided_info(const at::Tensor& tensor);

/// Does what set_data does; a marked parameter stays marked.
void set_data_keeping_mark(const at::Tensor& parameter, const at::Tensor& data);

/// Returns a tensor of the same memory and version counter without the mark. Without autograd.
at::Tensor alias_without_mark(const at::Tensor& tensor);

}  // namespace lockstep::comm
