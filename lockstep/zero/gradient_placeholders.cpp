// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/gradient_placeholders.h"

#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/zero/coordinator/flat_param_buffer.h"

namespace lockstep::zero {
namespace {

constexpr const char* kRemedy =
    "clip by accelerator.clip_grad_norm_ or clip_grad_value_ (in ds_config.json "
    "gradient_clipping), read and change gradients by safe_get_full_grad and safe_set_full_grad, "
    "and drop them by zero_grad()";

}  // namespace

class GradientPlaceholders::Placeholder final : public AccessHandler {
 public:
  explicit Placeholder(const NamedTensor& parameter)
      : parameter_(parameter),
        buffer_(
            parameter.tensor.numel(),
            parameter.tensor.options(),
            fmt::format(
                "[zero] the memory of the gradient of {} was read, but each rank has a part of "
                "that gradient; {}",
                parameter.name,
                kRemedy)) {
    buffer_.set_owner(this);
    view_ = buffer_.view(0, parameter.tensor.sizes());
  }

  void put() {
    is_put_ = true;
    is_zeroed_ = false;
    parameter_.tensor.mutable_grad() = view_;
  }
  bool is_put() const { return is_put_; }
  bool was_dropped() const {
    const at::Tensor& gradient = parameter_.tensor.grad();
    if (!is_put_ || is_mine(gradient)) {
      return is_put_ && is_zeroed_;
    }
    if (gradient.defined()) {
      throw ConfigError(
          "zero",
          fmt::format(
              "the program assigned a gradient to {}, which step() would ignore: under ZeRO each "
              "rank has a part of the averaged gradient; {}",
              parameter_.name,
              kRemedy));
    }
    return true;
  }
  void remove() {
    if (is_put_ && is_mine(parameter_.tensor.grad())) {
      parameter_.tensor.mutable_grad().reset();
    }
    is_put_ = false;
  }

  void pin(bool /*writes*/) override {
    throw ConfigError(
        "zero",
        fmt::format(
            "an operation used the gradient of {}, of which each rank has a part under ZeRO; {}",
            parameter_.name,
            kRemedy));
  }
  void unpin(bool /*writes*/) noexcept override {}
  bool absorb_zero() override {
    is_zeroed_ = true;
    return true;
  }

 private:
  bool is_mine(const at::Tensor& gradient) const {
    // Module::zero_grad(false) replaces it by a view.
    return gradient.is_same(view_) || FlatParamBuffer::owner_of(gradient) == this;
  }

  NamedTensor parameter_;
  FlatParamBuffer buffer_;
  at::Tensor view_;
  bool is_put_ = false;
  bool is_zeroed_ = false;
};

GradientPlaceholders::GradientPlaceholders(const NamedTensors& parameters) {
  for (const NamedTensor& parameter : parameters) {
    placeholders_.push_back(std::make_unique<Placeholder>(parameter));
  }
}

GradientPlaceholders::~GradientPlaceholders() {
  for (const auto& placeholder : placeholders_) {
    placeholder->remove();
  }
}

void GradientPlaceholders::put(size_t parameter) {
  placeholders_[parameter]->put();
}

bool GradientPlaceholders::is_put(size_t parameter) const {
  return placeholders_[parameter]->is_put();
}

bool GradientPlaceholders::was_dropped(size_t parameter) const {
  return placeholders_[parameter]->was_dropped();
}

void GradientPlaceholders::remove(size_t parameter) {
  placeholders_[parameter]->remove();
}

bool is_gradient_placeholder(const at::Tensor& gradient) {
  return comm::is_sharded_param(gradient);
}

}  // namespace lockstep::zero
