// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/optimizer.h"

#include <utility>

#include <torch/optim/optimizer.h>

#include "lockstep/sync/data_parallel.h"

namespace lockstep {

struct Optimizer::State {
  std::shared_ptr<torch::optim::Optimizer> inner;
  std::shared_ptr<const DataParallels> models;
  int64_t steps = 0;
};

Optimizer::Optimizer(
    std::shared_ptr<torch::optim::Optimizer> inner, std::shared_ptr<const DataParallels> models)
    : state_(std::make_shared<State>(State{std::move(inner), std::move(models)})) {}

void Optimizer::step() {
  state_->inner->step();
  ++state_->steps;
}

void Optimizer::zero_grad() {
  std::vector<at::Tensor> left = parameters();
  for (const auto& model : *state_->models) {
    left = model->zero_grad(left);
  }
  for (at::Tensor& parameter : left) {
    parameter.mutable_grad().reset();
  }
}

int64_t Optimizer::steps() const {
  return state_->steps;
}

void Optimizer::set_steps(int64_t steps) {
  state_->steps = steps;
}

torch::optim::Optimizer& Optimizer::inner() const {
  return *state_->inner;
}

std::vector<at::Tensor> Optimizer::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& group : state_->inner->param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

}  // namespace lockstep
