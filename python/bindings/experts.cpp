// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/ones_like.h>

#include "lockstep/base/error.h"
#include "lockstep/expert_parallel/dispatch.h"
#include "lockstep/expert_parallel/router.h"
#include "python/bindings/bindings.h"

namespace lockstep::python {
namespace {

using expert_parallel::DropPolicy;
using expert_parallel::ExpertDispatch;
using expert_parallel::NoisyGatePolicy;
using expert_parallel::RouterOptions;
using expert_parallel::Routing;

template <typename Value>
Value named(
    const std::map<std::string, Value>& values, const std::string& name, const char* option) {
  const auto found = values.find(name);
  if (found == values.end()) {
    throw ConfigError("route", fmt::format("unknown {} '{}'", option, name));
  }
  return found->second;
}

Routing route_of(
    const at::Tensor& logits,
    int64_t k,
    bool norm_topk_prob,
    std::optional<double> capacity_factor,
    int64_t min_capacity,
    const std::string& drop_policy,
    bool noisy,
    bool top2_2nd_expert_sampling) {
  static const std::map<std::string, DropPolicy> policies = {
      {"probs", DropPolicy::kProbs},
      {"position", DropPolicy::kPosition},
      {"choice", DropPolicy::kChoice},
      {"random", DropPolicy::kRandom}};
  return expert_parallel::route(
      logits,
      RouterOptions{
          .k = k,
          .norm_topk_prob = norm_topk_prob,
          .capacity_factor = capacity_factor,
          .min_capacity = min_capacity,
          .drop_policy = named(policies, drop_policy, "drop_policy"),
          .noisy_gate_policy = noisy ? NoisyGatePolicy::kRSample : NoisyGatePolicy::kNone,
          .top2_2nd_expert_sampling = top2_2nd_expert_sampling});
}

}  // namespace

void bind_experts(py::module_& module) {
  py::class_<Routing>(module, "Routing")
      .def_readonly("logits", &Routing::logits)
      .def_readonly("probs", &Routing::probs)
      .def_readonly("experts", &Routing::experts)
      .def_readonly("kept", &Routing::kept)
      .def_readonly("weights", &Routing::weights)
      .def_readonly("exp_counts", &Routing::exp_counts);
  module.def(
      "route",
      &route_of,
      py::arg("logits"),
      py::arg("k"),
      py::arg("norm_topk_prob"),
      py::arg("capacity_factor"),
      py::arg("min_capacity"),
      py::arg("drop_policy"),
      py::arg("noisy"),
      py::arg("top2_2nd_expert_sampling"),
      NoGil());
  module.def(
      "given_routing",
      [](const at::Tensor& experts, const at::Tensor& weights, int64_t num_experts) {
        return Routing{
            .logits = {},
            .probs = weights.new_empty({0, num_experts}),
            .experts = experts,
            .kept = at::ones_like(experts, at::kBool),
            .weights = weights,
            .exp_counts = {}};
      },
      py::arg("experts"),
      py::arg("weights"),
      py::arg("num_experts"));
  module.def(
      "l_aux",
      [](const Routing& routing, const std::optional<Group>& group) {
        return expert_parallel::l_aux(routing, group);
      },
      py::arg("routing"),
      py::arg("group") = std::nullopt,
      NoGil());
  module.def("scale_gradient", &expert_parallel::scale_gradient, NoGil());
  py::class_<ExpertDispatch>(module, "ExpertDispatch", DestroyedWithoutGil())
      .def(py::init<const Group&, const Routing&>(), NoGil())
      .def("dispatch", &ExpertDispatch::dispatch, NoGil())
      .def("combine", &ExpertDispatch::combine, NoGil())
      .def_property_readonly("rows_of_experts", &ExpertDispatch::rows_of_experts);
}

}  // namespace lockstep::python
