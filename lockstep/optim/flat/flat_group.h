// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/flat/layout.h"
#include "lockstep/offload/file_tensor.h"
#include "lockstep/optim/flat/rule.h"

namespace lockstep::optim {

/// One parameter and its optimizer state.
struct FlatParameter {
  static constexpr size_t kLoose = std::numeric_limits<size_t>::max();
  static constexpr int64_t kNoHistory = -1;

  at::Tensor parameter;
  std::vector<int64_t> sizes;        ///< The parameter's when it came: its state has them.
  int64_t step = 0;                  ///< Not kept up while `device_step` counts.
  std::vector<at::Tensor> state;     ///< [field] Undefined until first needed.
  std::vector<float> scalars = {};   ///< As in `traits().scalars`; empty before the first update.
  std::vector<double> factors = {};  ///< What `advance` made of them for this update.
  at::Tensor device_step = {};       ///< 0-d, where updates are counted on the device.
  int64_t history = kNoHistory;      ///< See DeviceSteps.
  bool count_was_set = true;         ///< To `step`, since the last update that the host saw.
  size_t buffer = kLoose;            ///< Which flat buffer has a place for it.
  int64_t offset = 0;                ///< First element there.
  /// Of the parameter that this is a slice of, where an update needs that whole; else none.
  std::vector<int64_t> whole = {};

  const std::vector<int64_t>& whole_sizes() const { return whole.empty() ? sizes : whole; }
};

/// The parameters of one group, side by side in flat buffers, and their state in the same layout.
///
/// Laying out moves a parameter's memory (`set_data`), keeping its strides: whoever holds the
/// tensor sees nothing of it. In the order and sizes of DataParallel's buckets, so that a bucket of
/// gradients lies like its parameters. Left where they are: frozen and empty parameters, those that
/// share their memory with any other tensor (a view somebody holds would be cut off), those whose
/// memory has gaps, and those that would be alone in their buffer.
///
/// Once shared, buffers lie in memory that several ranks have in common: what one of them writes is
/// there for all of them.
///
/// Memory: while laying out, one buffer (25 MiB, or the largest parameter) above what there was. A
/// buffer lives as long as this or any parameter in it. `torch::save` of one such parameter writes
/// its whole buffer, as of any view; of a module, each buffer once.
class FlatGroup {
 public:
  /// `fp32_state`: that of parameters of fp16 and bf16 is fp32; else of their dtype.
  explicit FlatGroup(size_t field_count, bool fp32_state = false)
      : field_count_(field_count), fp32_state_(fp32_state) {}

  /// Takes in more parameters.
  void add(const std::vector<at::Tensor>& parameters);
  /// Takes in `pieces`, which lie in `buffer` already, in order and without overlap. `file`: where
  /// that lies in a file.
  void add_in_place(
      const at::Tensor& buffer,
      const std::vector<at::Tensor>& pieces,
      std::shared_ptr<offload::FileTensor> file = nullptr);
  /// State of the parameters in flat buffer `buffer` is made in the host's memory from now on, or
  /// in `file` if there is one. Before there is any.
  void offload_state(size_t buffer, std::shared_ptr<offload::ScratchFile> file);
  /// Moves what is laid out, and what follows, into memory that the ranks of `group` have in
  /// common. The values are rank 0's. From then on a parameter with a gradient must stay where it
  /// was put. ConfigError, on all ranks, if they have none in common or a parameter cannot be
  /// moved. Collective, as are `add` and `place_state` from then on.
  void share(const Group& group);

  /// In the order they lie in memory; those without a place last.
  std::vector<FlatParameter>& items() { return items_; }
  const std::vector<FlatParameter>& items() const { return items_; }
  size_t buffer_count() const { return buffers_.size(); }
  /// The parameters in buffer `buffer`, and what lies between them.
  const at::Tensor& buffer_values(size_t buffer) const { return buffers_[buffer].parameters; }
  /// Of one field of the state of all in buffer `buffer`.
  int64_t state_bytes(size_t buffer) const;
  bool state_is_offloaded(size_t buffer) const { return buffers_[buffer].state_on_host; }
  /// One field of the state of all in buffer `buffer`; undefined until first needed.
  const at::Tensor& buffer_state(size_t buffer, size_t field) const {
    return buffers_[buffer].state[field];
  }
  /// What of buffer `buffer` lies in files: parameters, and the state that there is.
  std::vector<offload::FileTensor*> files_of(size_t buffer) const;

  /// Makes field `field` of `item`'s state, in its flat place if it has the parameter's shape. What
  /// it holds is for the caller to write.
  at::Tensor& place_state(FlatParameter& item, size_t field, StateShape shape);
  /// Whether all parameters that were laid out lie there still.
  bool all_at_home() const;
  /// Takes state to where its parameter has moved: another device, dtype or order of dimensions.
  /// ConfigError while capturing.
  void follow_parameter(FlatParameter& item);

  /// ConfigError for a parameter that is not, or no longer, where all ranks have it.
  void check_place(const FlatParameter& item) const;

  /// Whether items `a` to `b` of one buffer, their gradients and their state lie with the same
  /// distances between them; that those in between do is for the caller to know.
  bool lie_alike(const FlatParameter& a, const FlatParameter& b) const;
  /// From item `a` to item `b`, everything in between included, as one tensor each.
  at::Tensor parameters_between(const FlatParameter& a, const FlatParameter& b) const;
  at::Tensor gradients_between(const FlatParameter& a, const FlatParameter& b) const;
  at::Tensor state_between(const FlatParameter& a, const FlatParameter& b, size_t field) const;

 private:
  struct Buffer {
    at::Tensor parameters;
    std::vector<at::Tensor> state;  ///< [field] Undefined until first needed.
    std::shared_ptr<offload::FileTensor> parameter_file = nullptr;
    bool state_on_host = false;                               ///< Wherever the parameters are.
    std::shared_ptr<offload::ScratchFile> scratch = nullptr;  ///< Where state goes, if given.
    std::vector<std::shared_ptr<offload::FileTensor>> state_files = {};
  };

  bool at_home(const FlatParameter& item) const;
  void share_buffer(size_t index);
  /// A buffer for the slots of `plan`, which `moving` are moved to.
  void lay_out(const flat::BucketPlan& plan, std::vector<at::Tensor>& moving);
  FlatParameter new_item(const at::Tensor& parameter) const;
  /// What the state of `parameter` is made as.
  at::TensorOptions state_options(const at::Tensor& parameter) const;
  /// Where a new field of the state of everything in `buffer` lies; zeros.
  at::Tensor state_memory(Buffer& buffer, const at::TensorOptions& options);
  /// Zeros, in common if shared.
  at::Tensor memory(int64_t numel, const at::TensorOptions& options);
  /// `from` moved to memory in common.
  at::Tensor shared(const at::Tensor& from);

  std::optional<Group> group_;  ///< Of the ranks that have the buffers in common.
  size_t field_count_;
  bool fp32_state_ = false;
  std::vector<Buffer> buffers_;
  std::vector<FlatParameter> items_;
};

/// Whether both put their elements in memory in the same order, without gaps.
bool same_strides(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::optim
