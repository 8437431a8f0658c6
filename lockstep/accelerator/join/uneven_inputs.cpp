// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/join/uneven_inputs.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/prepare/equal_optimizers.h"
#include "lockstep/accelerator/values/operations.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/sync/join.h"

namespace lockstep::internal {
namespace {

/// Sets even_batches of all loaders, and restores it at its end.
class EvenBatches {
 public:
  EvenBatches(
      const std::vector<std::shared_ptr<data::LoaderCore>>& loaders, std::optional<bool> even) {
    for (const auto& loader : loaders) {
      if (even && loader->spec().even_batches != *even && !loader->dispatches()) {
        loader->set_even_batches(*even);
        changed_.push_back(loader);
      } else if (even && loader->dispatches()) {
        log_warning(
            "join_uneven_inputs: a loader that dispatches batches keeps its even_batches, since "
            "all its processes end together");
      }
    }
    even_ = even.value_or(false);
  }
  ~EvenBatches() {
    for (const auto& loader : changed_) {
      try {
        loader->set_even_batches(!even_);
      } catch (const std::exception& error) {
        log_error(error.what());
      }
    }
  }
  EvenBatches(const EvenBatches&) = delete;
  EvenBatches& operator=(const EvenBatches&) = delete;

 private:
  std::vector<std::shared_ptr<data::LoaderCore>> changed_;
  bool even_ = false;
};

/// Lets the models of a running loop join, and restores what it has changed when it is destroyed.
struct JoinedLoop {
  JoinedLoop(
      const PreparedObjects& objects, TrainingStep& training_step, const JoinUnevenInputs& options)
      : even(objects.loaders, options.even_batches),
        step(training_step),
        join(parallels_of(objects), options.join) {
    step.set_joining(true);
  }
  ~JoinedLoop() { step.set_joining(false); }
  JoinedLoop(const JoinedLoop&) = delete;
  JoinedLoop& operator=(const JoinedLoop&) = delete;

  static std::vector<std::shared_ptr<DataParallel>> parallels_of(const PreparedObjects& objects) {
    std::vector<std::shared_ptr<DataParallel>> parallels;
    for (const PreparedModel& model : objects.models) {
      parallels.push_back(model.parallel);
    }
    return parallels;
  }

  EvenBatches even;
  TrainingStep& step;
  Join join;
};

}  // namespace

CollectiveScope UnevenInputs::begin(const JoinUnevenInputs& options) {
  check_mode();
  step_.scaling().update_if_due();
  const auto loop = std::make_shared<JoinedLoop>(objects_, step_, options);
  return {loop, [this, &join = loop->join] {
            join.finish();
            step_.scaling().update_if_due();
            if (objects_.context.is_distributed()) {
              make_equal();
            }
          }};
}

void UnevenInputs::check_mode() const {
  constexpr const char* kWhere = "join_uneven_inputs";
  if (step_.is_joining() || !local_sgds_.empty()) {
    throw ConfigError(
        kWhere,
        step_.is_joining()
            ? "join_uneven_inputs() was called inside another join_uneven_inputs(); use "
              "one for the loop"
            : "join_uneven_inputs() cannot be combined with LocalSgd; call its finish() "
              "first");
  }
  if (!objects_.context.mesh.shape.is_data_parallel()) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "join_uneven_inputs() needs processes that each compute full models; got the mesh {}; "
            "use "
            "loaders with even_batches",
            mesh_text(objects_.context.mesh.shape)));
  }
  constexpr const char* kBecause = "a process without data does not update its share";
  objects_.refuse_shared_parameters(kWhere, kBecause);
  objects_.refuse_zero(kWhere, kBecause);
  if (objects_.context.options.non_finite != NonFinitePolicy::kIgnore &&
      objects_.context.is_distributed()) {
    throw ConfigError(
        kWhere,
        "join_uneven_inputs() cannot be combined with a NonFinitePolicy: all processes must agree "
        "on every update, but a process without data makes none; use NonFinitePolicy::kIgnore");
  }
  objects_.optimizer_names(kWhere);  // Needed at the end; better an error now.
}

/// Gives all processes the state of one that has done the most updates.
void UnevenInputs::make_equal() {
  // Processes have seen different numbers of micro-steps: all begin a new group.
  step_.reset_accumulation();
  active_.forget_training_loops();
  for (const auto& loader : objects_.loaders) {
    loader->forget_read_passes();
  }
  gradients_.clear();
  make_optimizers_equal(objects_, "join_uneven_inputs");
  make_scalers_equal();
  Group group = objects_.context.group;
  for (Scheduler& scheduler : objects_.schedulers) {
    std::vector<nlohmann::json> states = gather_object(group, scheduler.state());
    const auto most = std::max_element(states.begin(), states.end(), [](auto& a, auto& b) {
      return a.at("steps").template get<int64_t>() < b.at("steps").template get<int64_t>();
    });
    scheduler.check_state(*most, "join_uneven_inputs")();
  }
}

void UnevenInputs::make_scalers_equal() {
  LossScaling& scaling = step_.scaling();
  if (scaling.scaler() == nullptr) {
    return;
  }
  // Skipped updates count here, and not in the optimizers' steps.
  Group group = objects_.context.group;
  const std::vector<nlohmann::json> updates = gather_object(group, scaling.updates());
  const auto most = std::max_element(updates.begin(), updates.end());
  scaling.scaler()->load_state(
      broadcast_object(group, scaling.scaler()->state(), static_cast<int>(most - updates.begin())));
  scaling.set_updates(most->get<int64_t>());
}

}  // namespace lockstep::internal
