// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "lockstep/accelerator/checkpointing/loading.h"
#include "lockstep/accelerator/training_state/saved_optimizer.h"
#include "lockstep/accelerator/training_state/sharded_state.h"
#include "lockstep/accelerator/training_state/training_state.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/storage/state_files.h"

namespace lockstep {
namespace {

namespace files = storage::state_files;

/// The saved state of an optimizer, and the stem of the files that it is in.
struct SavedTensors {
  NamedTensors tensors;
  std::string stem;
};

/// Returns the state that this process continues from. `of_each_rank`: saved within local SGD.
SavedTensors saved_tensors(
    const Loading& loading, size_t index, bool of_each_rank, const ParameterName& names) {
  const PreparedObjects& objects = loading.targets.objects;
  std::string stem =
      of_each_rank ? files::optimizer_of_rank(index, loading.source()) : files::optimizer(index);
  if (of_each_rank && loading.resharded) {
    return {
        .tensors = mean_of(loading.of_all_ranks(
            [&](int rank) { return files::optimizer_of_rank(index, rank) + ".safetensors"; })),
        .stem = std::move(stem)};
  }
  if (of_each_rank) {
    return {.tensors = loading.reader.tensors(stem + ".safetensors"), .stem = std::move(stem)};
  }
  if (is_in_parts(loading.reader, stem)) {
    return {
        .tensors = own_optimizer_part(loading.reader, stem, *objects.sharding, names),
        .stem = std::move(stem)};
  }
  NamedTensors tensors = loading.tensor_set(stem);
  if (objects.sharding) {
    const auto& flat = dynamic_cast<optim::FlatOptimizer&>(objects.optimizers[index].inner());
    tensors = own_slices(std::move(tensors), *objects.sharding, names, flat.traits().factors);
  }
  return {.tensors = std::move(tensors), .stem = std::move(stem)};
}

}  // namespace

void check_optimizers(Loading& loading) {
  PreparedObjects& objects = loading.targets.objects;
  const ParameterName names = objects.parameter_names("load_state");
  const storage::SavedMeta& saved = loading.saved;
  const bool of_each_rank = saved.local_sgd_steps.has_value();
  loading.must_match("optimizers", saved.optimizer_steps.size(), objects.optimizers.size());
  for (size_t i = 0; i < objects.optimizers.size(); ++i) {
    loading.apply.emplace_back([&objects, i, steps = saved.optimizer_steps[i]] {
      objects.optimizers[i].set_steps(steps);
    });
    if (const AnyCheckpointable* own = objects.own_state_of(objects.optimizers[i])) {
      loading.apply.push_back(check_own_optimizer(
          *own,
          loading.reader,
          of_each_rank ? files::optimizer_of_rank(i, loading.source()) : files::optimizer(i)));
      continue;
    }
    const SavedTensors state = saved_tensors(loading, i, of_each_rank, names);
    loading.apply.push_back(check_optimizer(
        objects.optimizers[i].inner(),
        names,
        state.tensors,
        loading.reader.json(state.stem + ".json"),
        loading.set_path(state.stem),
        loading.path(state.stem + ".json")));
  }
  if (of_each_rank) {
    loading.apply.emplace_back(
        [&local_sgds = loading.targets.local_sgds,
         steps = *saved.local_sgd_steps,
         own_states = !loading.resharded] { local_sgds.restore(steps, own_states); });
  }
}

}  // namespace lockstep
