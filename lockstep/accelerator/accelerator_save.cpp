// SPDX-License-Identifier: Apache-2.0
// What a save is made of; accelerator_write.cpp writes it.
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/training_state/non_finite_json.h"
#include "lockstep/accelerator/training_state/saved_optimizer.h"
#include "lockstep/accelerator/training_state/sharded_state.h"
#include "lockstep/accelerator/training_state/training_state.h"
#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/checkpoint/even_shares.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/storage/state_files.h"

namespace lockstep {
namespace {

namespace files = storage::state_files;

/// Equal for equal states, as far as a checksum can say.
std::string fingerprint(const ObjectState& state) {
  uint32_t crc = crc32c(state.values.dump());
  for (const NamedTensor& item : state.tensors) {
    const at::Tensor plain = item.tensor.detach().to(at::kCPU).contiguous();
    crc = crc32c(crc, item.name.data(), item.name.size());
    crc = crc32c(crc, plain.const_data_ptr(), plain.nbytes());
  }
  return fmt::format("{:08x}", crc);
}

/// Takes the frozen ones of `parameters` out of `tensors`, and returns their names.
std::vector<std::string> take_out_frozen(const NamedTensors& parameters, NamedTensors& tensors) {
  std::set<const void*> frozen;
  for (const NamedTensor& item : parameters) {
    if (!item.tensor.requires_grad()) {
      frozen.insert(item.tensor.unsafeGetTensorImpl());
    }
  }
  std::vector<std::string> names;
  std::erase_if(tensors, [&](const NamedTensor& item) {
    const bool is_frozen = frozen.contains(item.tensor.unsafeGetTensorImpl());
    if (is_frozen) {
      names.push_back(item.name);
    }
    return is_frozen;
  });
  return names;
}

}  // namespace

/// Models and optimizers. `whole`: what is to be touched under `unshard_while` alone, on the main
/// process.
void Accelerator::collect_training(
    checkpoint::Contents& contents,
    checkpoint::Contents& whole,
    nlohmann::json& meta,
    const std::set<size_t>& taken_over,
    const SaveStateOptions& options) {
  State& state = *state_;
  std::vector<std::vector<std::string>> left_out(state.models.size());
  const SavedWhere where{
      .on_each_host = state.saves_on_each_host(), .leads = state.saving->rank() == 0};
  checkpoint::EvenShares shares(
      static_cast<size_t>(state.saving->size()) * static_cast<size_t>(state.writers_per_rank));
  for (size_t i = 0; i < state.models.size(); ++i) {
    if (taken_over.contains(i)) {
      continue;
    }
    NamedTensors tensors = without_ties(state.models[i].parameters(), state.models[i].buffers());
    if (options.exclude_frozen_parameters) {
      left_out[i] = take_out_frozen(state.models[i].parameters(), tensors);
    }
    if (state.is_sharded_param() || (state.sharding && state.sharding->has_masters())) {
      state.sharding->write_back();
      if (state.saves_whole()) {
        if (state.saving->rank() == 0) {
          whole.add_tensors(files::model(i), std::move(tensors), {{"format", "pt"}});
        }
        continue;
      }
      add_sharded_model(contents, files::numbered("model", i), tensors, *state.sharding, where);
      continue;
    }
    int64_t bytes = 0;
    for (const NamedTensor& item : tensors) {
      bytes += static_cast<int64_t>(item.tensor.nbytes());
    }
    shares.claim(0, bytes);
    if (state.saving->rank() == 0) {
      contents.add_tensors(files::model(i), std::move(tensors), {{"format", "pt"}});
    }
  }
  const ParameterName names = state.parameter_names("save_state");
  // With local SGD the optimizers' states have drifted apart, and each goes on from its own.
  const bool own_optimizers = !state.local_sgds.empty();
  nlohmann::json steps = nlohmann::json::array();
  for (size_t i = 0; i < state.optimizers.size(); ++i) {
    steps.push_back(state.optimizers[i].steps());
    torch::optim::Optimizer& inner = state.optimizers[i].inner();
    if (state.sharding) {
      add_sharded_optimizer(contents, files::optimizer(i), inner, *state.sharding, names, where);
      if (state.saving->rank() == 0) {
        contents.add_json(files::optimizer(i) + ".json", optimizer_settings(inner));
      }
      continue;
    }
    if (const AnyCheckpointable* own = state.own_state_of(state.optimizers[i])) {
      if (own_optimizers || state.saving->rank() == 0) {
        const std::string stem =
            own_optimizers ? files::optimizer_of_rank(i, process_index()) : files::optimizer(i);
        add_own_optimizer(contents, stem, *own);
      }
      continue;
    }
    const NamedTensors tensors = optimizer_tensors(inner, names);
    if (own_optimizers) {
      const std::string stem = files::optimizer_of_rank(i, process_index());
      contents.add_tensors(stem + ".safetensors", tensors);
      contents.add_json(stem + ".json", optimizer_settings(inner));
      continue;
    }
    contents.add_shared(
        files::optimizer(i),
        tensors,
        state.saving->rank(),
        static_cast<size_t>(state.writers_per_rank),
        shares);
    if (state.saving->rank() == 0) {
      contents.add_json(files::optimizer(i) + ".json", optimizer_settings(inner));
    }
  }
  meta["models"] = state.models.size();
  if (options.exclude_frozen_parameters) {
    meta["left_out"] = left_out;
  }
  meta["optimizer_steps"] = steps;
  meta["step"] = state.optimizers.empty() ? 0 : state.optimizers.front().steps();
  if (own_optimizers) {
    nlohmann::json counters = nlohmann::json::array();
    for (const auto& [model, local_sgd] : state.local_sgds) {
      counters.push_back(local_sgd->steps());
    }
    meta["local_sgd_steps"] = counters;
  }
}

/// Where each process stands: what only it has.
void Accelerator::collect_position(checkpoint::Contents& contents) {
  State& state = *state_;
  const int rank = process_index();
  for (size_t i = 0; i < state.models.size(); ++i) {
    const CommHookState hook = state.models[i].parallel->hook_state();
    if (hook.iteration > 0) {
      const std::string stem = files::numbered("comm_hook", i);
      contents.add_tensors(files::of_rank(stem, rank, ".safetensors"), hook.tensors);
      contents.add_json(files::of_rank(stem, rank, ".json"), {{"iteration", hook.iteration}});
    }
  }
  if (state.options.data_parallel.broadcast_buffers == false && state.saving->rank() != 0) {
    for (size_t i = 0; i < state.models.size(); ++i) {
      contents.add_tensors(
          files::of_rank(files::numbered("buffers", i), rank, ".safetensors"),
          without_ties(state.models[i].buffers(), {}));
    }
  }
  nlohmann::json cursors = nlohmann::json::array();
  for (const auto& loader : state.loaders) {
    data::Cursor cursor = loader->cursor();
    if (loader->left_early() && !state.active->has_trained(loader.get())) {
      // An evaluation that looks at some batches begins with the next epoch's next time.
      cursor = {.seed = cursor.seed, .epoch = loader->epoch()};
    }
    cursors.push_back(
        {{"cursor", cursor},
         {"samples", loader->layout().samples()},
         {"round_rows", loader->layout().global_batch_rows()}});
  }
  contents.add_json(files::of_rank("loaders", rank, ".json"), std::move(cursors));
  contents.add_tensors(
      files::of_rank("random_states", rank, ".safetensors"), random_states(device()));
  collect_accumulation(contents);
}

/// The place in a group of micro-steps, and the gradients that no update has used yet.
void Accelerator::collect_accumulation(checkpoint::Contents& contents) {
  State& state = *state_;
  const LoopState& loop = *state.loop;
  const int rank = process_index();
  std::set<const void*> due;
  nlohmann::json accumulation{
      {"step", loop.step},
      {"in_group", loop.in_group},
      {"within", !loop.sync_gradients},
      {"num_steps", loop.accumulation.num_steps},
      {"counted", loop.counted ? nlohmann::json(*loop.counted) : nlohmann::json(nullptr)},
      {"non_finite", loop.finite->state()},
      {"due", nlohmann::json::array()}};
  for (const Optimizer& optimizer : state.optimizers) {
    accumulation["due"].push_back(optimizer.gradients_are_due());
    if (optimizer.gradients_are_due()) {
      if (state.sharding) {
        contents.fail(
            "gradients that no update has used yet cannot be saved with ZeRO; save where an "
            "accumulation group ends, after step() and zero_grad()");
      }
      for (const at::Tensor& parameter : optimizer.parameters()) {
        due.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  for (size_t i = 0; !due.empty() && i < state.models.size(); ++i) {
    NamedTensors parameters = state.models[i].parameters();
    std::erase_if(parameters, [&](const NamedTensor& item) {
      return !due.contains(item.tensor.unsafeGetTensorImpl());
    });
    contents.add_tensors(files::gradients(i, rank), gradients_of(parameters));
  }
  contents.add_json(files::of_rank("accumulation", rank, ".json"), std::move(accumulation));
}

/// What the user registered: once, or of every process where theirs differ.
void Accelerator::collect_objects(checkpoint::Contents& contents, nlohmann::json& meta) {
  State& state = *state_;
  std::vector<ObjectState> own;
  nlohmann::json fingerprints = nlohmann::json::array();
  try {
    for (const AnyCheckpointable& object : state.objects) {
      own.push_back(object.state_dict());
      own.back().values = without_non_finite(own.back().values);
      fingerprints.push_back(fingerprint(own.back()));
    }
  } catch (const std::exception& error) {
    contents.fail(fmt::format("the state of custom object {}: {}", own.size(), error.what()));
  }
  meta["custom_objects"] = nlohmann::json::array();
  const std::vector<std::string> all = all_gather_bytes(
      state.group,
      nlohmann::json{{"registered", state.objects.size()}, {"states", fingerprints}}.dump());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto registered = nlohmann::json::parse(all[rank]).at("registered").get<size_t>();
    if (registered != state.objects.size()) {
      contents.fail(fmt::format(
          "rank {} registered {} objects for checkpointing, this one {}; register the same on all",
          rank,
          registered,
          state.objects.size()));
    }
  }
  for (size_t i = 0; i < own.size(); ++i) {
    bool differs = false;
    for (const std::string& text : all) {
      const nlohmann::json other = nlohmann::json::parse(text).at("states");
      differs = differs || i >= other.size() || other[i] != fingerprints[i];
    }
    meta["custom_objects"].push_back(differs ? "each" : "shared");
    if (!differs && state.saving->rank() != 0) {
      continue;
    }
    const std::string stem = differs ? files::object_of_rank(i, process_index()) : files::object(i);
    contents.add_json(stem + ".json", own[i].values);
    if (!own[i].tensors.empty()) {
      contents.add_tensors(stem + ".safetensors", own[i].tensors);
    }
  }
}

checkpoint::Contents Accelerator::collect_state(
    checkpoint::Contents& whole, nlohmann::json& meta, const SaveStateOptions& options) {
  State& state = *state_;
  checkpoint::Contents contents;
  StateBeingSaved being_saved{.contents = contents, .models = state.models.size()};
  meta = {{"processes", num_processes()}, {"loaders", state.loaders.size()}};
  state.loop->update_scaler_if_due();  // Collective, so outside of what one process may leave.
  try {
    // Thrown on one process, the others would wait in the commit.
    state.save_hooks.run(being_saved);
    collect_training(contents, whole, meta, being_saved.taken_over, options);
    collect_position(contents);
  } catch (const std::exception& error) {
    contents.fail(error.what());
  }
  collect_objects(contents, meta);
  contents.must_agree(
      "the models that a hook saves", fmt::format("{}", fmt::join(being_saved.taken_over, ", ")));
  meta["models_taken_over"] = being_saved.taken_over;
  meta["schedulers"] = nlohmann::json::array();
  for (const Scheduler& scheduler : state.schedulers) {
    meta["schedulers"].push_back(scheduler.state());
  }
  if (state.loop->scaler) {
    meta["scaler"] = state.loop->scaler->state();
  }
  return contents;
}

std::function<void()> Accelerator::register_save_state_pre_hook(SaveStatePreHook hook) {
  return state_->save_hooks.add(std::move(hook));
}

std::function<void()> Accelerator::register_load_state_pre_hook(LoadStatePreHook hook) {
  return state_->load_hooks.add(std::move(hook));
}

void Accelerator::add_checkpointable(AnyCheckpointable object) {
  for (const AnyCheckpointable& known : state_->objects) {
    if (known.id == object.id) {
      throw ConfigError(
          "register_for_checkpointing", "the object is registered already; register each once");
    }
  }
  state_->objects.push_back(std::move(object));
}

}  // namespace lockstep
