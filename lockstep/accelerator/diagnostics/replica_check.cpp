// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/diagnostics/replica_check.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/optim/state/optimizer_state.h"

namespace lockstep::internal {
namespace {

/// The updates between two checksums of all parameters. A checksum reads them once; an update reads
/// and writes them several times, and so do forward and backward.
constexpr int64_t kUpdatesPerChecksum = 100;

/// Returns a checksum of the bits of a tensor. On a device it is their sum, a single kernel.
uint64_t checksum(const at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  const at::Tensor plain = tensor.detach();
  if (plain.is_cpu()) {
    const at::Tensor here = plain.contiguous();
    return crc32c(0, here.const_data_ptr(), here.nbytes());
  }
  const at::Tensor bytes = plain.contiguous().view({-1}).view(at::kByte);
  return static_cast<uint64_t>(at::sum(bytes, at::kLong).item<int64_t>());
}

/// Returns what makes two processes round alike.
std::string hardware(const RunContext& context) {
  return fmt::format(
      "{} {} {}", at::get_cpu_capability(), at::get_num_threads(), context.device.str());
}

uint64_t checksum_of(const NamedTensors& parameters) {
  uint64_t all = 0;
  for (const NamedTensor& item : parameters) {
    all = mix(all, checksum(item.tensor));
  }
  return all;
}

std::string settings_text(const PreparedObjects& objects, const Optimizer& optimizer) {
  if (is_known_optimizer(optimizer.inner())) {
    return optimizer_settings(optimizer.inner()).dump();
  }
  const AnyCheckpointable* own = objects.own_state_of(optimizer);
  return own != nullptr ? own->state_dict().values.dump() : std::string();
}

}  // namespace

void ReplicaCheck::objects_prepared() {
  expect_known_parameters("prepare");
  for (const PreparedModel& model : objects_.models) {
    if (known_.contains(model.id)) {
      continue;
    }
    for (const NamedTensor& item : model.parameters()) {
      known_[model.id].insert(item.tensor.unsafeGetTensorImpl());
    }
  }
  if (!objects_.context.is_distributed()) {
    return;
  }
  find_rates();
  for (const PreparedModel& model : objects_.models) {
    if (model.sync) {
      model.sync->set_facts(facts_while_alive());
    }
    if (model.experts && model.experts->parallel) {
      model.experts->parallel->set_facts(expert_facts_while_alive());
    }
  }
  compare_settings();
}

/// Returns the functions that a model calls in backward. They do nothing once this is destroyed.
RankFacts ReplicaCheck::facts_while_alive() {
  const std::weak_ptr<const void> alive = alive_;
  return {
      .digest = [this, alive] { return alive.expired() ? 0 : digest(); },
      .list = [this, alive] { return alive.expired() ? std::vector<RankFact>() : facts(); },
      .has_report = [this, alive] { return !alive.expired() && losses_.has_report(); },
      .exchange_reports =
          [this, alive] {
            if (!alive.expired()) {
              losses_.exchange_reports();
            }
          }};
}

/// Returns those of the experts, which other processes have than the shared parameters.
RankFacts ReplicaCheck::expert_facts_while_alive() {
  const std::weak_ptr<const void> alive = alive_;
  return {
      .digest = [this, alive] { return alive.expired() ? 0 : expert_digest(); },
      .list =
          [this, alive] {
            return alive.expired() || !has_expert_checksum_ ? std::vector<RankFact>()
                                                            : parameter_facts(experts());
          }};
}

uint64_t ReplicaCheck::expert_digest() {
  has_expert_checksum_ = is_checksum_due(updates_at_expert_checksum_);
  return has_expert_checksum_ ? checksum_of(experts()) : 0;
}

/// Returns whether to compare parameters in this backward, and notes it in `updates_at_last`.
bool ReplicaCheck::is_checksum_due(int64_t& updates_at_last) const {
  const int64_t steps = step_.calls().steps;
  const bool is_due = steps / kUpdatesPerChecksum != updates_at_last / kUpdatesPerChecksum &&
                      compares_parameters(/*are_averaged=*/false);
  if (is_due) {
    updates_at_last = steps;
  }
  return is_due;
}

/// Finds the optimizers whose options have a learning rate; a program's own class may lack it.
void ReplicaCheck::find_rates() {
  while (has_rates_.size() < objects_.optimizers.size()) {
    bool has_rates = true;
    try {
      objects_.optimizers[has_rates_.size()].learning_rates();
    } catch (const c10::Error&) {
      has_rates = false;
    }
    has_rates_.push_back(has_rates);
  }
}

std::vector<double> ReplicaCheck::rates_of(size_t optimizer) const {
  return has_rates_[optimizer] ? objects_.optimizers[optimizer].learning_rates()
                               : std::vector<double>();
}

void ReplicaCheck::compare_settings() {
  if (compared_optimizers_ == objects_.optimizers.size()) {
    return;
  }
  const comm::MeshGroups& mesh = objects_.context.mesh;
  std::vector<RankFact> settings;
  std::vector<RankFact> settings_of_stage;
  for (size_t i = compared_optimizers_; i < objects_.optimizers.size(); ++i) {
    RankFact fact{
        fmt::format("the settings of optimizer {}", i),
        settings_text(objects_, objects_.optimizers[i]),
        "construct it with the same options on every rank"};
    // The state of a program's own class lists parameters, of which each stage has others.
    if (mesh.shape.pp > 1 && !is_known_optimizer(objects_.optimizers[i].inner())) {
      settings_of_stage.push_back(fact);
      fact.value = fmt::format("the learning rates {}", rates_of(i));
    }
    settings.push_back(std::move(fact));
  }
  compared_optimizers_ = objects_.optimizers.size();
  Group group = objects_.context.group;
  expect_equal_facts(group, settings, "prepare");
  Group replicas = mesh.replicas;
  expect_equal_facts(replicas, settings_of_stage, "prepare");
  is_same_hardware_ = !any_differs(group, hardware(objects_.context));
}

/// Returns the loaders that ranks must read alike.
const LoaderCores& ReplicaCheck::compared_loaders() const {
  static const LoaderCores none;
  return objects_.context.options.expect_equal_passes ? objects_.loaders : none;
}

uint64_t ReplicaCheck::digest() {
  uint64_t digest = mix(0, static_cast<uint64_t>(step_.calls().steps));
  digest = mix(digest, static_cast<uint64_t>(step_.calls().clippings));
  digest = mix(digest, read_digest(compared_loaders(), active_));
  for (size_t i = 0; i < has_rates_.size(); ++i) {
    digest = mix(digest, static_cast<uint64_t>(objects_.optimizers[i].steps()));
    for (const double rate : rates_of(i)) {
      digest = mix(digest, std::bit_cast<uint64_t>(rate));
    }
  }
  has_checksum_ = is_checksum_due(updates_at_checksum_);
  if (has_checksum_) {
    digest = mix(digest, checksum_of(replicated_parameters()));
  }
  return digest;
}

std::vector<RankFact> ReplicaCheck::facts() const {
  std::vector<RankFact> facts = read_facts(compared_loaders(), active_);
  for (size_t i = 0; i < has_rates_.size(); ++i) {
    facts.push_back(
        {fmt::format("the number of updates of optimizer {}", i),
         fmt::format("{}", objects_.optimizers[i].steps()),
         "call step() in the same iterations on every rank"});
    facts.push_back(
        {fmt::format("the learning rates of optimizer {}", i),
         fmt::format("{}", rates_of(i)),
         "set the same rates on every rank; reduce a loss over the ranks before deciding by it"});
  }
  facts.push_back(
      {"the number of step() calls",
       fmt::format("{}", step_.calls().steps),
       "call step() in the same iterations on every rank"});
  facts.push_back(
      {"the number of gradient clippings",
       fmt::format("{}", step_.calls().clippings),
       "clip in the same iterations on every rank"});
  if (has_checksum_) {
    const std::vector<RankFact> parameters = parameter_facts(replicated_parameters());
    facts.insert(facts.end(), parameters.begin(), parameters.end());
  }
  return facts;
}

std::vector<RankFact> ReplicaCheck::parameter_facts(const NamedTensors& parameters) {
  std::vector<RankFact> facts;
  for (const NamedTensor& item : parameters) {
    facts.push_back(
        {"parameter " + item.name,
         fmt::format("a value with checksum {:08x}", checksum(item.tensor)),
         "write to parameters, gradients and optimizers in the same way on every rank, and before "
         "prepare() if only one rank has the values"});
  }
  return facts;
}

/// Returns the parameters of which every process has all values.
NamedTensors ReplicaCheck::replicated_parameters() const {
  NamedTensors all;
  for (const PreparedModel& model : objects_.models) {
    for (const NamedTensor& item : model.parameters()) {
      const bool is_expert = model.experts && model.experts->has(item.tensor);
      if (!comm::is_sharded_param(item.tensor) && !is_expert) {
        all.push_back({model.prefix + item.name, item.tensor});
      }
    }
  }
  return all;
}

/// Returns the parameters of the experts that this process has.
NamedTensors ReplicaCheck::experts() const {
  NamedTensors all;
  for (const PreparedModel& model : objects_.models) {
    for (const NamedTensor& item : model.experts ? model.experts->own : NamedTensors()) {
      all.push_back({model.prefix + item.name, item.tensor});
    }
  }
  return all;
}

bool ReplicaCheck::compares_parameters(bool are_averaged) const {
  return objects_.context.has_replicas() && is_same_hardware_ && !step_.is_joining() &&
         (are_averaged || local_sgds_.empty());
}

void ReplicaCheck::compare_now(const char* where, bool are_averaged) {
  compare(where, compares_parameters(are_averaged));
}

void ReplicaCheck::compare_at_end() {
  const bool compares = compares_parameters(/*are_averaged=*/false);
  compare("end_training", compares && !were_equal_at_barrier());
}

void ReplicaCheck::compare(const char* where, bool with_parameters) {
  expect_known_parameters(where);
  if (!objects_.context.is_distributed() || step_.is_joining()) {
    return;
  }
  Group group = objects_.context.group;
  std::vector<RankFact> facts = read_facts(compared_loaders(), active_);
  if (!with_parameters) {
    expect_equal_facts(group, facts, where);
    return;
  }
  const std::vector<RankFact> parameters = parameter_facts(replicated_parameters());
  if (objects_.context.mesh.shape.is_data_parallel()) {
    facts.insert(facts.end(), parameters.begin(), parameters.end());
    expect_equal_facts(group, facts, where);
    return;
  }
  expect_equal_facts(group, facts, where);
  // Only replicas have equal parts of parameters. The others must not wait for them.
  const std::string failure = failure_of([&] {
    Group replicas = objects_.context.mesh.replicas;
    expect_equal_facts(replicas, parameters, where);
    if (objects_.context.mesh.shape.ep > 1) {
      Group with_same_experts = objects_.context.mesh.expert_replicas;
      expect_equal_facts(with_same_experts, parameter_facts(experts()), where);
    }
  });
  if (const auto failed = first_failure(group, failure)) {
    throw ConfigError(where, fmt::format("rank {} found: {}", failed->rank, failed->why));
  }
}

void ReplicaCheck::note_at_barrier() {
  if (compares_parameters(/*are_averaged=*/false) && (!at_barrier_ || !is_current(*at_barrier_))) {
    at_barrier_ =
        Noted{step_.backward_passes(), step_.updates(), checksum_of(replicated_parameters())};
  }
}

/// Returns whether nothing was trained since.
bool ReplicaCheck::is_current(const Noted& noted) const {
  return noted.backwards == step_.backward_passes() && noted.updates == step_.updates();
}

/// Returns whether all processes had the same parameters at the last barrier, and have trained
/// nothing since. Collective.
bool ReplicaCheck::were_equal_at_barrier() const {
  Group group = objects_.context.mesh.replicas;
  const bool is_noted = at_barrier_ && is_current(*at_barrier_);
  const std::vector<std::string> all = all_gather_bytes(
      group,
      is_noted
          ? fmt::format(
                "{} {} {}", at_barrier_->backwards, at_barrier_->updates, at_barrier_->parameters)
          : "");
  return std::all_of(all.begin(), all.end(), [&](const std::string& theirs) {
    return !theirs.empty() && theirs == all.front();
  });
}

/// Warns once if all processes probably train on the same samples.
void ReplicaCheck::warn_of_own_data() {
  const RunContext& context = objects_.context;
  if (has_warned_of_own_data_) {
    return;
  }
  has_warned_of_own_data_ = true;
  if (context.mesh.data.size() > 1 && context.rank() == 0 && objects_.loaders.empty() &&
      context.options.expect_prepared_loader) {
    log_warning(fmt::format(
        "{} processes train, and no loader was prepared: if each reads all samples, all compute "
        "the same; pass the loader to prepare(), or set "
        "AcceleratorOptions::expect_prepared_loader = false if each process has its own samples",
        context.size()));
  }
}

void ReplicaCheck::before_update(const Optimizer& /*optimizer*/) {
  warn_of_own_data();
  if (step_.calls().steps < 2 || step_.calls().steps % kUpdatesPerChecksum == 0) {
    expect_known_parameters("optimizer");
  }
}

/// Throws ConfigError for a trained parameter that a model has got since it was prepared. Warns
/// once if no optimizer has it. Local.
void ReplicaCheck::expect_known_parameters(const char* where) {
  for (const PreparedModel& model : objects_.models) {
    const auto known = known_.find(model.id);
    if (known == known_.end()) {
      continue;
    }
    for (const NamedTensor& item : model.parameters()) {
      if (!item.tensor.requires_grad() ||
          known->second.contains(item.tensor.unsafeGetTensorImpl())) {
        continue;
      }
      if (objects_.is_in_optimizer(item.tensor)) {
        throw ConfigError(
            where,
            fmt::format(
                "parameter {}{} was added to the model after prepare(), so its gradients are not "
                "averaged; add or replace layers before prepare(), or call free_memory() and "
                "prepare the model and its optimizer again",
                model.prefix,
                item.name));
      }
      if (!std::exchange(has_warned_, true)) {
        log_warning(fmt::format(
            "parameter {}{} was added to the model after prepare(), and no prepared optimizer has "
            "it, so it is never trained; add layers before the optimizer is constructed and "
            "prepare() is called",
            model.prefix,
            item.name));
      }
    }
  }
}

void ReplicaCheck::objects_forgotten() {
  known_.clear();
  has_rates_.clear();
  compared_optimizers_ = 0;
  updates_at_checksum_ = 0;
  updates_at_expert_checksum_ = 0;
  at_barrier_.reset();
}

}  // namespace lockstep::internal
