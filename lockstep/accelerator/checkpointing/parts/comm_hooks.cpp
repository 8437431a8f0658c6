// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/parts/model_values.h"
#include "lockstep/accelerator/checkpointing/parts/parts.h"
#include "lockstep/storage/safetensors/saved_values.h"
#include "lockstep/storage/state_files.h"
#include "lockstep/sync/data_parallel.h"

namespace lockstep::internal {
namespace {

namespace files = storage::state_files;

/// Saves and loads the states of comm hooks, such as errors that later gradients include.
class CommHooksPart final : public CheckpointPart {
 public:
  explicit CommHooksPart(const PreparedObjects& objects) : objects_(objects) {}

  void collect(StateToSave& state) const override;
  void check(StateToLoad& state) const override;

 private:
  const PreparedObjects& objects_;
};

void CommHooksPart::collect(StateToSave& state) const {
  for (size_t i = 0; i < objects_.models.size(); ++i) {
    const CommHookState hook = objects_.models[i].parallel->hook_state();
    if (hook.iteration > 0) {
      const std::string stem = files::numbered("comm_hook", i);
      state.contents.add_tensors(files::of_rank(stem, state.rank, ".safetensors"), hook.tensors);
      state.contents.add_json(
          files::of_rank(stem, state.rank, ".json"), {{"iteration", hook.iteration}});
    }
  }
}

void CommHooksPart::check(StateToLoad& state) const {
  for (size_t i = 0; i < objects_.models.size(); ++i) {
    const std::shared_ptr<DataParallel>& parallel = objects_.models[i].parallel;
    const std::string stem = files::numbered("comm_hook", i);
    const auto tensors_of = [&](int rank) { return files::of_rank(stem, rank, ".safetensors"); };
    const int source = state.source();
    if (!state.reader.has(tensors_of(source))) {
      // Saved before anything was compressed: errors that are fed back here are of another run.
      state.apply.emplace_back([parallel] {
        if (parallel->hook_state().iteration > 0) {
          parallel->load_hook_state({});
        }
      });
      continue;
    }
    const std::string counter = files::of_rank(stem, source, ".json");
    state.expect_same_mesh(counter);
    const nlohmann::json counted = state.reader.json(counter);
    // With other ranks, each gets the mean of what the former ranks have still to send.
    CommHookState hook{
        .iteration = storage::SavedValues(counted, state.path(counter)).count("iteration"),
        .tensors = state.is_resharded() ? mean_of(state.of_all_ranks(tensors_of))
                                        : state.reader.tensors(tensors_of(source))};
    parallel->check_hook_state(hook);
    state.apply.emplace_back(
        [parallel, hook = std::move(hook)] { parallel->load_hook_state(hook); });
  }
}

}  // namespace

std::unique_ptr<CheckpointPart> comm_hooks_part(const PreparedObjects& objects) {
  return std::make_unique<CommHooksPart>(objects);
}

}  // namespace lockstep::internal
