// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/offload/file_tensor.h"
#include "lockstep/optim/flat/buffer_memory.h"
#include "lockstep/optim/flat/flat_parameter.h"
#include "lockstep/optim/flat/rule.h"

namespace lockstep::optim {

/// The parameters of one group in contiguous flat buffers, and their state with the same layout.
///
/// It moves a parameter's memory (`set_data`) and keeps its strides, invisible to holders of the
/// tensor. Order and sizes are those of DataParallel's buckets, so that a bucket of gradients has
/// the layout of its parameters. Some parameters are not moved: frozen and empty ones, those with
/// gaps in memory, and those that would be alone in their buffer. Neither are parameters that share
/// memory with another tensor, since a view would lose its base.
///
/// Shared buffers are in memory that several ranks map: a write of one is visible to all.
///
/// Memory: during the layout one buffer (25 MiB, or the largest parameter) more than before. A
/// buffer lives as long as this or any parameter in it. `torch::save` of one such parameter writes
/// its full buffer, as for any view; `torch::save` of a module writes each buffer once.
class FlatParameterGroup {
 public:
  /// `fp32_state`: the state of fp16 and bf16 parameters is fp32; else it has their dtype.
  explicit FlatParameterGroup(size_t field_count, bool fp32_state = false)
      : field_count_(field_count), fp32_state_(fp32_state) {}

  void add(const std::vector<at::Tensor>& parameters);
  /// Adds shard slices that are in `buffer` already, in order and without overlap. `file`: the
  /// buffer's file, if any.
  void add_in_place(
      const at::Tensor& buffer,
      const std::vector<at::Tensor>& slices,
      std::shared_ptr<offload::FileTensor> file = nullptr);
  /// Allocates state of the parameters in flat buffer `buffer` in host memory from now on, or in
  /// `file` if given. Call it before there is any.
  void offload_state(size_t buffer, std::shared_ptr<offload::ScratchFile> file);
  /// Moves the buffers, and later ones, into memory that the ranks of `group` share. The values are
  /// rank 0's. From then on a parameter with a gradient must keep its memory. Throws ConfigError,
  /// on all ranks, if they have no shared memory or a parameter cannot be moved. Collective, as are
  /// `add` and `place_state` from then on.
  void share(const Group& group);

  /// Returns the parameters in memory order; those without a buffer are last.
  std::vector<FlatParameter>& items() { return items_; }
  const std::vector<FlatParameter>& items() const { return items_; }
  size_t buffer_count() const { return buffers_.size(); }
  /// The parameters in buffer `buffer`, including gaps.
  const at::Tensor& buffer_values(size_t buffer) const { return buffers_[buffer].parameters; }
  /// Bytes of one state field of all in buffer `buffer`.
  int64_t state_bytes(size_t buffer) const;
  bool state_is_offloaded(size_t buffer) const { return buffers_[buffer].state_on_host; }
  /// One state field of all in buffer `buffer`; undefined until first needed.
  const at::Tensor& buffer_state(size_t buffer, size_t field) const {
    return buffers_[buffer].state[field];
  }
  /// The parts of buffer `buffer` in files: parameters, and existing state.
  std::vector<offload::FileTensor*> files_of(size_t buffer) const;
  /// Releases pages of these files that creating, saving or loading has used. `buffer` may be
  /// FlatParameter::kNoBuffer.
  void release_file_pages(size_t buffer) const;

  /// Allocates field `field` of `item`'s state, in its flat buffer if it has the parameter's shape.
  /// The caller must write the values.
  at::Tensor& place_state(FlatParameter& item, size_t field, StateShape shape);
  /// Returns whether all parameters still use the flat buffers.
  bool all_in_buffers() const;
  /// Moves state to its parameter's new device, dtype or order of dimensions. Throws ConfigError
  /// while capturing.
  void follow_parameter(FlatParameter& item);

  /// Throws ConfigError if buffers are shared and `item` is not, or no longer, in one.
  void check_is_shared(const FlatParameter& item) const;

  /// Returns whether items `a` to `b` of one buffer can be updated as one tensor. They can if
  /// parameters, gradients and state have equal distances. The caller must ensure that for the
  /// items in between.
  bool can_join(const FlatParameter& a, const FlatParameter& b) const;
  /// Returns the range from item `a` to item `b`, with all items in between, as one tensor.
  at::Tensor parameters_between(const FlatParameter& a, const FlatParameter& b) const;
  at::Tensor gradients_between(const FlatParameter& a, const FlatParameter& b) const;
  at::Tensor state_between(const FlatParameter& a, const FlatParameter& b, size_t field) const;

 private:
  struct Buffer {
    at::Tensor parameters;
    std::vector<at::Tensor> state;  ///< [field] Undefined until first needed.
    std::shared_ptr<offload::FileTensor> parameter_file = nullptr;
    bool state_on_host = false;                               ///< Also if the parameters are not.
    std::shared_ptr<offload::ScratchFile> scratch = nullptr;  ///< The file of the state, if given.
    std::vector<std::shared_ptr<offload::FileTensor>> state_files = {};
  };

  bool is_in_buffer(const FlatParameter& item) const;
  /// Makes an unmoved parameter, and its state, a buffer.
  void use_as_buffer(FlatParameter& item);
  void share_buffer(size_t index);
  /// Creates a buffer for the entries of `plan`, and moves `moving` to it.
  void lay_out(const flat::BucketPlan& plan, std::vector<at::Tensor>& moving);
  FlatParameter new_item(const at::Tensor& parameter) const;
  /// The options of new state of `parameter`.
  at::TensorOptions state_options(const at::Tensor& parameter) const;
  /// Allocates a new field of the state of everything in `buffer`; zeros.
  at::Tensor state_memory(Buffer& buffer, const at::TensorOptions& options);

  BufferMemory memory_;
  size_t field_count_;
  bool fp32_state_ = false;
  std::vector<Buffer> buffers_;
  std::vector<FlatParameter> items_;
};

/// Returns whether both have the same element order in memory, without gaps.
bool same_strides(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::optim
