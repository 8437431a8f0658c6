// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/sync/comm_hook/comm_hook.h"
#include "lockstep/sync/comm_hook/message.h"

namespace lockstep {

/// Averages each bucket by one all-reduce, in float16 or bfloat16 if the options or the bucket say
/// so.
class AllReduceHook final : public CommHook {
 public:
  AllReduceHook(
      const CommHookOptions& options,
      Group group,
      const std::vector<flat::GradBucket>& buckets,
      const NamedTensors& parameters);

  void start(size_t bucket) override;
  void finish() override;
  void abandon(bool wait) noexcept override;
  CommHookState state() const override;
  void check_state(const CommHookState& state) const override;
  void load_state(const CommHookState& state) override;

 private:
  void pack_with_feedback(size_t bucket);

  CommHookType type_;
  Group group_;
  const std::vector<flat::GradBucket>& buckets_;
  std::vector<std::string> names_;  ///< [parameter]
  std::vector<Message> messages_;   ///< [bucket]
  std::vector<at::Tensor> errors_;  ///< [bucket] like its gradients; undefined without feedback
  size_t started_ = 0;
  int64_t iteration_ = 0;
};

}  // namespace lockstep
