// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline/stage.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/comm/tensor/mode_key.h"

namespace lockstep::pipeline {
namespace {

/// The loss of a batch, whose gradients are known before its backward.
struct KnownLoss : torch::autograd::Function<KnownLoss> {
  struct Holder final : torch::CustomClassHolder {
    Holder(std::vector<at::Tensor> computed, double scale)
        : gradients(std::move(computed)), loss_scale(scale) {}
    std::vector<at::Tensor> gradients;
    double loss_scale;
  };

  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      at::TensorList /*parameters*/,
      double loss,
      const c10::intrusive_ptr<Holder>& holder) {
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    return at::full({}, loss, at::kDouble);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& outer) {
    const auto holder =
        c10::static_intrusive_pointer_cast<Holder>(context->saved_data["holder"].toCapsule());
    torch::autograd::variable_list gradients = std::exchange(holder->gradients, {});
    if (gradients.empty()) {
      throw ConfigError(
          "pipeline",
          "got a second backward of the loss of one batch; expected one; compute the loss again");
    }
    const c10::AutoGradMode no_grad(false);
    const double factor = outer[0].item<double>() / holder->loss_scale;
    for (at::Tensor& gradient : gradients) {
      if (gradient.defined() && factor != 1) {
        gradient.mul_(factor);
      }
    }
    gradients.resize(gradients.size() + 2);  // The loss and the holder have none.
    return gradients;
  }
};

std::vector<at::Tensor> micro_batches_of(
    const at::Tensor& batch, int micro_batches, const char* name) {
  if (!batch.defined() || batch.dim() == 0 || batch.size(0) % micro_batches != 0 ||
      batch.size(0) == 0) {
    throw ConfigError(
        "pipeline",
        fmt::format(
            "the {} have {}; expected a number of samples in dimension 0 that {} micro-batches "
            "divide",
            name,
            batch.defined() ? fmt::format("the sizes [{}]", fmt::join(batch.sizes(), ", "))
                            : "no tensor",
            micro_batches));
  }
  // A SequenceScope would take the first rows for a table of positions.
  const c10::impl::ExcludeDispatchKeyGuard own_work(comm::kModeKey);
  return batch.chunk(micro_batches);
}

nlohmann::json described(const at::Tensor& tensor) {
  return {static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()};
}

}  // namespace

Stage::Stage(
    std::vector<Chunk> chunks,
    Tensors tensors,
    const Group& line,
    const pipeline_schedule::ScheduleShape& shape,
    LossFunction loss)
    : runner_(std::move(chunks), line, shape),
      tensors_(std::move(tensors)),
      line_(line),
      shape_(shape),
      loss_(std::move(loss)) {
  for (const NamedTensors& each : {tensors_.parameters, tensors_.buffers}) {
    for (const NamedTensor& item : each) {
      names_.emplace(item.tensor.unsafeGetTensorImpl(), item.name);
    }
  }
  find_tied(tensors_.parameters);
}

/// Finds the names that several ranks have, and those that this rank does not have. Collective.
void Stage::find_tied(const NamedTensors& parameters) {
  if (line_.size() == 1) {
    return;
  }
  nlohmann::json own{
      {"parameters", nlohmann::json::object()}, {"buffers", nlohmann::json::array()}};
  std::map<std::string, at::Tensor> by_name;
  for (const NamedTensor& item : parameters) {
    own["parameters"][item.name] = described(item.tensor);
    by_name.emplace(item.name, item.tensor);
  }
  for (const NamedTensor& item : tensors_.buffers) {
    own["buffers"].push_back(item.name);
  }
  std::map<std::string, std::vector<int>> holders;
  std::map<std::string, nlohmann::json> kinds;
  const std::vector<std::string> all = all_gather_bytes(line_, own.dump());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const nlohmann::json theirs = nlohmann::json::parse(all[rank]);
    for (const auto& [name, kind] : theirs.at("parameters").items()) {
      holders[name].push_back(static_cast<int>(rank));
      if (kinds.emplace(name, kind).first->second != kind) {
        throw ConfigError(
            "pipeline",
            fmt::format(
                "the tied parameter {} has other sizes or another dtype on rank {} of the "
                "pipeline than on rank {}; expected equal layers",
                name,
                rank,
                holders[name].front()));
      }
    }
    for (const nlohmann::json& name : theirs.at("buffers")) {
      holders[name.get<std::string>()];
    }
  }
  std::map<std::vector<int>, Group> groups;
  for (const auto& [name, ranks] : holders) {
    if (ranks.size() > 1 && !groups.contains(ranks)) {
      const bool is_in = std::ranges::find(ranks, line_.rank()) != ranks.end();
      groups.emplace(
          ranks, static_cast<int>(ranks.size()) == line_.size() ? line_ : line_.split(is_in));
    }
    if (const auto held = by_name.find(name); held != by_name.end() && ranks.size() > 1) {
      tied_.push_back({held->second, groups.at(ranks)});
    }
    elsewhere_.insert(name);
  }
  for (const auto& [tensor, name] : names_) {
    elsewhere_.erase(name);
  }
}

void Stage::set_micro_batches(int micro_batches) {
  if (micro_batches == shape_.micro_batches) {
    return;
  }
  runner_.set_micro_batches(micro_batches);
  shape_.micro_batches = micro_batches;
}

at::Tensor Stage::forward(const MicroBatches& batch) {
  if (!c10::GradMode::is_enabled()) {
    return at::full({}, runner_.eval_batch(batch, loss_), at::kDouble);
  }
  const double scale = loss_scale_ ? loss_scale_() : 1;
  BatchGradients computed = runner_.compute_gradients(batch, loss_, scale);
  add_tied_gradients(computed);
  return KnownLoss::apply(
      at::TensorList(computed.parameters),
      computed.loss,
      c10::make_intrusive<KnownLoss::Holder>(std::move(computed.gradients), scale));
}

at::Tensor Stage::forward(const at::Tensor& inputs, const at::Tensor& targets) {
  MicroBatches batch;
  if (line_.rank() == 0) {
    batch.inputs = micro_batches_of(inputs, shape_.micro_batches, "inputs");
  }
  if (line_.rank() == line_.size() - 1) {
    batch.targets = micro_batches_of(targets, shape_.micro_batches, "targets");
  }
  return forward(batch);
}

void Stage::add_tied_gradients(BatchGradients& computed) {
  const c10::AutoGradMode no_grad(false);
  for (Tied& tied : tied_) {
    if (!tied.parameter.requires_grad()) {
      continue;
    }
    const auto place = std::ranges::find_if(computed.parameters, [&](const at::Tensor& parameter) {
      return parameter.is_same(tied.parameter);
    });
    at::Tensor& gradient =
        computed.gradients[static_cast<size_t>(place - computed.parameters.begin())];
    if (!gradient.defined()) {
      gradient = at::zeros_like(tied.parameter);
    }
    if (gradient.is_sparse()) {
      gradient = gradient.to_dense();
    }
    gradient = tied.copies.all_reduce(gradient.contiguous()).wait();
  }
}

void Stage::make_copies_equal() {
  const c10::AutoGradMode no_grad(false);
  for (Tied& tied : tied_) {
    const at::Tensor values = tied.parameter.detach().contiguous();
    tied.parameter.copy_(tied.copies.broadcast(values.clone()).wait());
  }
}

NamedTensors Stage::with_full_names(NamedTensors tensors) const {
  for (NamedTensor& item : tensors) {
    const auto name = names_.find(item.tensor.unsafeGetTensorImpl());
    if (name != names_.end()) {
      item.name = name->second;
    }
  }
  return tensors;
}

bool Stage::is_later_copy(const at::Tensor& parameter) const {
  return std::ranges::any_of(tied_, [&](const Tied& tied) {
    return tied.parameter.is_same(parameter) && tied.copies.rank() > 0;
  });
}

}  // namespace lockstep::pipeline
