// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/prepare/divided_experts.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/sync/agreement.h"

namespace lockstep::internal {
namespace {

/// Averages the gradients of a model's shared parameters and of its experts, in two groups. Facts
/// are compared with the shared ones, which all processes have.
class JointSync final : public GradientSync {
 public:
  JointSync(std::shared_ptr<DataParallel> shared, std::shared_ptr<DataParallel> experts)
      : shared_(std::move(shared)), experts_(std::move(experts)) {}

  void begin_backward() override {
    shared_->begin_backward();
    experts_->begin_backward();
  }
  void finish_backward() override {
    shared_->finish_backward();
    experts_->finish_backward();
  }
  void abandon_backward() noexcept override {
    shared_->abandon_backward();
    experts_->abandon_backward();
  }
  void set_sync(bool sync) override {
    shared_->set_sync(sync);
    experts_->set_sync(sync);
  }
  void set_facts(RankFacts facts) override { shared_->set_facts(std::move(facts)); }
  bool has_gradients() const override {
    return shared_->has_gradients() || experts_->has_gradients();
  }
  void check_alive() const override {
    shared_->check_alive();
    experts_->check_alive();
  }

 private:
  std::shared_ptr<DataParallel> shared_;
  std::shared_ptr<DataParallel> experts_;
};

/// Throws ConfigError unless all mixtures are divided as the mesh does.
void expect_mesh_of_layers(const RunContext& context, const expert_parallel::ModelExperts& given) {
  const int ep = context.mesh.shape.ep;
  for (const int ranks : given.ranks) {
    if (ranks != ep) {
      throw ConfigError(
          "prepare",
          fmt::format(
              "a mixture of experts was made for {} rank{}, and the mesh has ep = {}; expected the "
              "same: construct it with the group accelerator.mesh().experts, and launch with "
              "--mesh ep={}, or set AcceleratorOptions::mesh",
              ranks,
              ranks == 1 ? "" : "s",
              ep,
              std::max(ranks, ep)));
    }
  }
  if (ep > 1 && !given.average_gradients) {
    throw ConfigError(
        "prepare",
        "MoEOptions::average_expert_gradients is false; expected true with an Accelerator, which "
        "averages the gradients of experts over the processes that have them");
  }
}

/// Throws ConfigError for experts that zero_init has divided.
void expect_whole(const NamedTensors& experts) {
  for (const NamedTensor& item : experts) {
    if (comm::is_sharded_param(item.tensor)) {
      throw ConfigError(
          "prepare",
          fmt::format(
              "expert parameter {} was made within zero_init, which gives every process the "
              "experts of the first one; expected a mixture that is constructed outside of it",
              item.name));
    }
  }
}

/// Returns the names on the other ranks of a line. `names`: those of each rank, as JSON. Throws
/// ConfigError for one that two ranks have.
std::set<std::string> names_of_others(const std::vector<std::string>& names, int rank) {
  std::set<std::string> others;
  std::map<std::string, size_t> owners;
  for (size_t other = 0; other < names.size(); ++other) {
    for (const auto& name : nlohmann::json::parse(names[other]).get<std::vector<std::string>>()) {
      const auto [owner, is_new] = owners.emplace(name, other);
      if (!is_new) {
        throw ConfigError(
            "prepare",
            fmt::format(
                "expert parameter {} is on ranks {} and {} of the {} that divide the experts; "
                "expected one; construct the mixture with the group accelerator.mesh().experts",
                name,
                owner->second,
                other,
                names.size()));
      }
      if (other != static_cast<size_t>(rank)) {
        others.insert(name);
      }
    }
  }
  return others;
}

/// Adds the names of the experts of other stages, of all processes there.
void add_other_stages(Group pipeline, DividedExperts& experts) {
  std::set<std::string> all = experts.others;
  for (const NamedTensor& item : experts.own) {
    all.insert(item.name);
  }
  for (const std::string& text : all_gather_bytes(pipeline, nlohmann::json(all).dump())) {
    experts.others.merge(nlohmann::json::parse(text).get<std::set<std::string>>());
  }
  for (const NamedTensor& item : experts.own) {
    experts.others.erase(item.name);
  }
}

}  // namespace

std::shared_ptr<DividedExperts> divide_experts(
    const RunContext& context, const expert_parallel::ModelExperts& given) {
  Group stages = context.mesh.pipeline;
  fail_together(stages, "prepare", "a model does not fit the mesh", [&] {
    expect_mesh_of_layers(context, given);
  });
  Group line = context.mesh.experts;
  if (line.size() == 1) {
    return nullptr;
  }
  auto experts = std::make_shared<DividedExperts>(DividedExperts{.own = given.parameters});
  nlohmann::json names = nlohmann::json::array();
  for (const NamedTensor& item : experts->own) {
    const void* const id = item.tensor.unsafeGetTensorImpl();
    experts->ids.insert(id);
    if (given.stacked.contains(item.name)) {
      experts->stacked.insert(id);
    } else {
      names.push_back(item.name);
    }
  }
  const std::vector<std::string> of_line = all_gather_bytes(line, names.dump());
  fail_together(stages, "prepare", "a model does not fit the mesh", [&] {
    expect_whole(experts->own);
    experts->others = names_of_others(of_line, line.rank());
  });
  add_other_stages(stages, *experts);
  return experts->own.empty() && experts->others.empty() ? nullptr : experts;
}

void broadcast_values(
    const RunContext& context,
    const NamedTensors& parameters,
    const NamedTensors& buffers,
    const DividedExperts* experts) {
  Group all = context.mesh.replicas;
  broadcast_initial_values(all, without_experts(parameters, experts), buffers);
  if (experts != nullptr) {
    Group with_same_experts = context.mesh.expert_replicas;
    broadcast_initial_values(with_same_experts, experts->own, {});
  }
}

NamedTensors without_experts(NamedTensors tensors, const DividedExperts* experts) {
  if (experts != nullptr) {
    std::erase_if(tensors, [&](const NamedTensor& item) { return experts->has(item.tensor); });
  }
  return tensors;
}

std::shared_ptr<GradientSync> joint_sync(
    std::shared_ptr<DataParallel> shared, std::shared_ptr<DataParallel> experts) {
  return std::make_shared<JointSync>(std::move(shared), std::move(experts));
}

}  // namespace lockstep::internal
