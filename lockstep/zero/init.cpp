// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/init.h"

#include <utility>

#include <fmt/format.h>

#include <c10/core/GradMode.h>

namespace lockstep::zero {

/// One tensor: what lies in its buffer is divided evenly.
class Init::Part final : public Pageable {
 public:
  Part(int64_t numel, const at::TensorOptions& options, Group& group)
      : group_(&group),
        length_((numel + group.size() - 1) / group.size()),
        buffer_(
            length_ * group.size(),
            options,
            "[zero] this tensor was built in parts (zero_init), and its memory was read past all "
            "operations; prepare its model first") {
    buffer_.make_memory();
  }

  PagedBuffer& buffer() override { return buffer_; }
  Pending start_gather(Source /*source*/) override {
    return group_->all_gather_into(buffer_.values(), shard_);
  }
  void write_back() override {
    if (!shard_.defined()) {
      shard_ = group_->empty({length_}, buffer_.values().options());
    }
    group_->broadcast(buffer_.values()).wait();  // What ranks drew at random differs.
    shard_.copy_(buffer_.values().narrow(0, length_ * group_->rank(), length_));
  }

 private:
  Group* group_;
  int64_t length_;
  PagedBuffer buffer_;
  at::Tensor shard_;
};

Init::Init(Group group, at::Device device, int64_t min_elements)
    : group_(std::move(group)),
      device_(device),
      min_elements_(min_elements),
      pager_(group_, {.max_live_elements = 0, .prefetch = false}) {}

Init::~Init() = default;

at::Tensor Init::take(const at::Tensor& made, bool has_values) {
  if (made.numel() < min_elements_ || !made.is_floating_point() || made.layout() != at::kStrided ||
      made.is_meta() || made.is_inference()) {
    return made;
  }
  const c10::AutoGradMode no_grad(false);
  pager_.make_room_for(made.numel());
  parts_.push_back(std::make_unique<Part>(made.numel(), made.options().device(device_), group_));
  Part& part = *parts_.back();
  pager_.add(part, fmt::format("tensor {} of those built in parts", parts_.size()));
  at::Tensor taken = part.buffer().view(0, made.sizes());
  pager_.mark_written(part);
  if (has_values) {
    part.buffer().values().narrow(0, 0, made.numel()).copy_(made.reshape({-1}));
  }
  return taken;
}

void Init::finish() {
  pager_.release_all();
}

}  // namespace lockstep::zero
