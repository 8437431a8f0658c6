// SPDX-License-Identifier: Apache-2.0
#include "lockstep/expert_parallel/dispatch.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"
#include "lockstep/expert_parallel/indices.h"

namespace lockstep::expert_parallel {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The numbers of rows that ranks send to each other.
struct ExchangePlan : torch::CustomClassHolder {
  Group group;
  std::vector<int64_t> to;    ///< [N] Rows from this rank to each rank.
  std::vector<int64_t> from;  ///< [N] Rows from each rank to this rank.
  int64_t largest = 0;        ///< The largest number of rows from any rank to any rank.
};

namespace {

int64_t sum_of(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

bool all_are(const std::vector<int64_t>& numbers, int64_t value) {
  return std::ranges::all_of(numbers, [value](int64_t number) { return number == value; });
}

/// Sends `rows` [sum of send, hidden] to the ranks, in rank order. Returns the received rows.
at::Tensor exchanged(
    Group group,
    const at::Tensor& rows,
    const std::vector<int64_t>& send,
    const std::vector<int64_t>& receive,
    int64_t largest) {
  LOCKSTEP_ASSERT(rows.size(0) == sum_of(send), "the rows do not match the plan");
  const int64_t hidden = rows.size(1);
  if (largest == 0) {
    return rows.new_empty({0, hidden});  // No rank has any row, and all ranks know that.
  }
  at::Tensor padded = rows.contiguous();
  if (!all_are(send, largest)) {
    padded = rows.new_zeros({static_cast<int64_t>(send.size()) * largest, hidden});
    for (size_t rank = 0, start = 0; rank < send.size(); ++rank) {
      padded.narrow(0, static_cast<int64_t>(rank) * largest, send[rank])
          .copy_(rows.narrow(0, static_cast<int64_t>(start), send[rank]));
      start += static_cast<size_t>(send[rank]);
    }
  }
  at::Tensor received = group.all_to_all(padded).wait();
  if (all_are(receive, largest)) {
    return received;
  }
  std::vector<at::Tensor> parts;
  for (size_t rank = 0; rank < receive.size(); ++rank) {
    parts.push_back(received.narrow(0, static_cast<int64_t>(rank) * largest, receive[rank]));
  }
  return at::cat(parts);
}

/// Exchanges rows, and their gradients in the opposite direction.
struct Exchange : torch::autograd::Function<Exchange> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& rows,
      const std::shared_ptr<const ExchangePlan>& plan,
      bool back) {
    context->saved_data["plan"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(plan));
    context->saved_data["back"] = back;
    const auto& [send, receive] =
        back ? std::tie(plan->from, plan->to) : std::tie(plan->to, plan->from);
    return exchanged(plan->group, rows.detach(), send, receive, plan->largest);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto held =
        c10::static_intrusive_pointer_cast<Held>(context->saved_data["plan"].toCapsule());
    const bool back = context->saved_data["back"].toBool();
    return {apply(gradients[0], held->plan, !back), at::Tensor(), at::Tensor()};
  }

 private:
  /// Keeps a plan in a context, which holds values of torch's types only.
  struct Held final : torch::CustomClassHolder {
    explicit Held(std::shared_ptr<const ExchangePlan> the_plan) : plan(std::move(the_plan)) {}
    std::shared_ptr<const ExchangePlan> plan;
  };
};

struct ScaleGradient : torch::autograd::Function<ScaleGradient> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, double factor) {
    context->saved_data["factor"] = factor;
    return tensor.view_as(tensor);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0] * context->saved_data["factor"].toDouble(), at::Tensor()};
  }
};

/// Returns the order that sorts rows, which came by rank and then by expert, by expert: index i is
/// the received row that becomes row i. `counts`: [N][experts of this rank].
std::vector<int64_t> order_by_expert(const std::vector<std::vector<int64_t>>& counts) {
  std::vector<std::vector<int64_t>> starts(counts.size());
  int64_t start = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    for (const int64_t count : counts[rank]) {
      starts[rank].push_back(start);
      start += count;
    }
  }
  std::vector<int64_t> order;
  for (size_t expert = 0; expert < counts[0].size(); ++expert) {
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      for (int64_t i = 0; i < counts[rank][expert]; ++i) {
        order.push_back(starts[rank][expert] + i);
      }
    }
  }
  return order;
}

at::Tensor index_tensor(std::vector<int64_t> values, at::Device device) {
  const auto size = static_cast<int64_t>(values.size());
  return at::from_blob(values.data(), {size}, at::kLong).clone().to(device);
}

}  // namespace

ExpertDispatch::ExpertDispatch(const Group& group, const Routing& routing)
    : tokens_(routing.experts.size(0)) {
  const int64_t experts = routing.probs.size(1);
  const int64_t ranks = group.size();
  if (experts % ranks != 0) {
    throw ConfigError(
        "ExpertDispatch",
        fmt::format(
            "the ranks cannot have equal numbers of experts; got {} experts and {} ranks of the "
            "expert-parallel group, expected a multiple of {}; change one of them",
            experts,
            ranks,
            ranks));
  }
  const at::Tensor choices = routing.kept.flatten().nonzero().squeeze(1);
  const at::Tensor expert = routing.experts.flatten().index_select(0, choices);
  const at::Tensor order = at::argsort(expert, /*stable=*/true, 0, /*descending=*/false);
  const at::Tensor sorted = choices.index_select(0, order);
  token_of_row_ = sorted.div(routing.experts.size(1), "floor");
  weights_ = routing.weights.flatten().index_select(0, sorted);
  const at::Tensor own_counts =
      at::zeros({experts}, expert.options()).scatter_add_(0, expert, at::ones_like(expert)).cpu();
  const auto* own = own_counts.const_data_ptr<int64_t>();
  if (ranks == 1) {
    rows_of_experts_.assign(own, own + experts);
    return;
  }

  auto plan = std::make_shared<ExchangePlan>();
  plan->group = group;
  const at::Tensor all_counts = plan->group.all_gather(own_counts).wait();
  const auto* all = all_counts.const_data_ptr<int64_t>();
  const int64_t local = experts / ranks;
  std::vector<std::vector<int64_t>> mine;  // [rank][expert of this rank]
  for (int64_t from = 0; from < ranks; ++from) {
    for (int64_t to = 0; to < ranks; ++to) {
      const int64_t* first = all + from * experts + to * local;
      const int64_t rows = std::accumulate(first, first + local, int64_t{0});
      plan->largest = std::max(plan->largest, rows);
      if (from == group.rank()) {
        plan->to.push_back(rows);
      }
      if (to == group.rank()) {
        plan->from.push_back(rows);
        mine.emplace_back(first, first + local);
      }
    }
  }
  rows_of_experts_.assign(static_cast<size_t>(local), 0);
  for (const std::vector<int64_t>& of_rank : mine) {
    std::ranges::transform(of_rank, rows_of_experts_, rows_of_experts_.begin(), std::plus<>());
  }
  if (local > 1) {
    to_experts_ = index_tensor(order_by_expert(mine), routing.experts.device());
    to_ranks_ = at::empty_like(to_experts_);
    to_ranks_.scatter_(0, to_experts_, indices(to_experts_.size(0), to_experts_.options()));
  }
  plan_ = std::move(plan);
}

at::Tensor ExpertDispatch::dispatch(const at::Tensor& tokens) const {
  if (tokens.dim() != 2 || tokens.size(0) != tokens_) {
    throw ConfigError(
        "dispatch",
        fmt::format(
            "the tokens do not match the routing; got {} dimensions and {} tokens, expected "
            "[{}, hidden]",
            tokens.dim(),
            tokens.dim() == 0 ? 1 : tokens.size(0),
            tokens_));
  }
  at::Tensor rows = tokens.index_select(0, token_of_row_);
  if (plan_) {
    rows = Exchange::apply(rows, plan_, false);
  }
  return to_experts_.defined() ? rows.index_select(0, to_experts_) : rows;
}

at::Tensor ExpertDispatch::combine(const at::Tensor& outputs) const {
  if (outputs.dim() != 2 || outputs.size(0) != sum_of(rows_of_experts_)) {
    throw ConfigError(
        "combine",
        fmt::format(
            "the experts' outputs do not match dispatch; got {} dimensions and {} rows, expected "
            "[{}, hidden]",
            outputs.dim(),
            outputs.dim() == 0 ? 1 : outputs.size(0),
            sum_of(rows_of_experts_)));
  }
  at::Tensor rows = to_ranks_.defined() ? outputs.index_select(0, to_ranks_) : outputs;
  if (plan_) {
    rows = Exchange::apply(rows, plan_, true);
  }
  const at::Tensor weighted = rows * weights_.unsqueeze(1);
  return at::zeros({tokens_, rows.size(1)}, weighted.options())
      .index_add(0, token_of_row_, weighted)
      .to(outputs.scalar_type());
}

at::Tensor scale_gradient(const at::Tensor& tensor, double factor) {
  return ScaleGradient::apply(tensor, factor);
}

}  // namespace lockstep::expert_parallel
