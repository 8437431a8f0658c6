// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/training_state.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/comm/bytes.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/storage/catalog.h"
#include "lockstep/storage/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// "model.safetensors", then "model_1.safetensors", as Accelerate names them.
std::string numbered(const std::string& stem, size_t index, const std::string& ending) {
  return index == 0 ? stem + ending : fmt::format("{}_{}{}", stem, index, ending);
}

std::string rank_file(const std::string& stem, int rank, const std::string& ending) {
  return fmt::format("{}_{}{}", stem, rank, ending);
}

std::string gradient_file(size_t model, int rank) {
  return rank_file(numbered("gradients", model, ""), rank, ".safetensors");
}

/// Whose: empty, or of one rank where every one has its own.
std::string optimizer_file(size_t index, const std::string& whose, const std::string& ending) {
  return numbered("optimizer", index, whose + ending);
}

std::string of_rank(int rank) {
  return fmt::format("_of_rank_{}", rank);
}

}  // namespace

ParameterName Accelerator::State::parameter_names(const char* where) const {
  auto names = std::make_shared<std::map<const void*, std::string>>();
  for (const Model& model : models) {
    for (const NamedTensor& item : model.parameters()) {
      names->emplace(item.tensor.unsafeGetTensorImpl(), model.prefix + item.name);
    }
  }
  return [names, where = std::string(where)](const at::Tensor& parameter) {
    const auto found = names->find(parameter.unsafeGetTensorImpl());
    if (found == names->end()) {
      throw ConfigError(
          where, "an optimizer has a parameter of no prepared model; prepare that model too");
    }
    return found->second;
  };
}

ParameterName Accelerator::State::optimizer_names(const char* where) const {
  ParameterName names = parameter_names(where);
  for (const Optimizer& optimizer : optimizers) {
    for (const at::Tensor& parameter : optimizer.parameters()) {
      names(parameter);
    }
  }
  return names;
}

void Accelerator::save_state(const fs::path& folder) {
  State& state = *state_;
  for (const auto& [model, local_sgd] : state.local_sgds) {
    local_sgd->average();
  }
  const ParameterName names = state.parameter_names("save_state");
  checkpoint::Writer writer(state.group, folder);
  nlohmann::json steps = nlohmann::json::array();
  for (const Optimizer& optimizer : state.optimizers) {
    steps.push_back(optimizer.steps());
  }
  if (is_main_process()) {
    for (size_t i = 0; i < state.models.size(); ++i) {
      writer.add_tensors(
          numbered("model", i, ".safetensors"),
          without_ties(state.models[i].parameters(), state.models[i].buffers()),
          {{"format", "pt"}});
    }
  }
  // With local SGD the optimizers' states have drifted apart, and each goes on from its own.
  const bool own_optimizers = !state.local_sgds.empty();
  const std::string whose = own_optimizers ? of_rank(process_index()) : "";
  for (size_t i = 0; (own_optimizers || is_main_process()) && i < state.optimizers.size(); ++i) {
    torch::optim::Optimizer& inner = state.optimizers[i].inner();
    try {
      writer.add_json(optimizer_file(i, whose, ".json"), optimizer_settings(inner));
      writer.add_tensors(optimizer_file(i, whose, ".safetensors"), optimizer_tensors(inner, names));
    } catch (const std::exception& error) {
      writer.fail(error.what());  // Thrown here, the other ranks would wait in commit.
    }
  }
  for (size_t i = 0; i < state.models.size(); ++i) {
    const CommHookState hook = state.models[i].parallel->hook_state();
    if (hook.iteration > 0) {
      const std::string stem = numbered("comm_hook", i, "");
      writer.add_tensors(rank_file(stem, process_index(), ".safetensors"), hook.tensors);
      writer.add_json(rank_file(stem, process_index(), ".json"), {{"iteration", hook.iteration}});
    }
  }
  nlohmann::json cursors = nlohmann::json::array();
  for (const auto& loader : state.loaders) {
    cursors.push_back(
        {{"cursor", loader->cursor()},
         {"samples", loader->layout().samples()},
         {"round_rows", loader->layout().round_rows()}});
  }
  writer.add_json(rank_file("loaders", process_index(), ".json"), cursors);
  writer.add_tensors(
      rank_file("random_states", process_index(), ".safetensors"), {{"cpu", random_state()}});
  LoopState& loop = *state.loop;
  loop.update_scaler_if_due();
  nlohmann::json accumulation{{"step", loop.step}, {"in_group", loop.in_group}};
  if (!loop.sync_gradients) {
    // Only this process has them, and what they are a part of is worth nothing without them.
    accumulation["num_steps"] = loop.accumulation.num_steps;
    accumulation["counted"] =
        loop.counted ? nlohmann::json(*loop.counted) : nlohmann::json(nullptr);
    for (size_t i = 0; i < state.models.size(); ++i) {
      writer.add_tensors(
          gradient_file(i, process_index()), gradients_of(state.models[i].parameters()));
    }
  }
  writer.add_json(rank_file("accumulation", process_index(), ".json"), accumulation);
  nlohmann::json schedulers = nlohmann::json::array();
  for (const Scheduler& scheduler : state.schedulers) {
    schedulers.push_back(scheduler.state());
  }
  nlohmann::json meta{
      {"optimizer_steps", steps},
      {"models", state.models.size()},
      {"loaders", state.loaders.size()},
      {"schedulers", schedulers}};
  if (loop.scaler) {
    meta["scaler"] = loop.scaler->state();
  }
  if (own_optimizers) {
    nlohmann::json counters = nlohmann::json::array();
    for (const auto& [model, local_sgd] : state.local_sgds) {
      counters.push_back(local_sgd->steps());
    }
    meta["local_sgd_steps"] = counters;
  }
  writer.commit(meta);
}

void Accelerator::check_optimizers(
    const checkpoint::Reader& reader, std::vector<std::function<void()>>& apply) {
  State& state = *state_;
  const ParameterName names = state.parameter_names("load_state");
  const nlohmann::json& meta = reader.meta();
  const bool local = meta.contains("local_sgd_steps");
  const std::string whose = local ? of_rank(process_index()) : "";
  for (size_t i = 0; i < state.optimizers.size(); ++i) {
    const std::string file = optimizer_file(i, whose, ".safetensors");
    apply.push_back(check_optimizer(
        state.optimizers[i].inner(),
        names,
        reader.tensors(file),
        reader.json(optimizer_file(i, whose, ".json")),
        (reader.path() / file).string()));
    apply.emplace_back([&state, i, steps = meta.at("optimizer_steps").at(i).get<int64_t>()] {
      state.optimizers[i].set_steps(steps);
    });
  }
  if (local) {
    apply.emplace_back([&state, counters = meta.at("local_sgd_steps")] {
      state.optimizers_differ = state.local_sgds.size() < counters.size();
      for (size_t i = 0; i < counters.size(); ++i) {
        const auto steps = counters[i].get<int64_t>();
        if (i < state.local_sgds.size()) {
          state.local_sgds[i].second->load_steps(steps);
          state.restored_local_steps.emplace_back();
        } else {
          state.restored_local_steps.emplace_back(steps);
        }
      }
    });
  }
  for (size_t i = 0; i < state.models.size(); ++i) {
    const std::string stem = numbered("comm_hook", i, "");
    const std::string tensors = rank_file(stem, process_index(), ".safetensors");
    if (reader.has(tensors)) {
      CommHookState hook{
          .iteration =
              reader.json(rank_file(stem, process_index(), ".json")).at("iteration").get<int64_t>(),
          .tensors = reader.tensors(tensors)};
      state.models[i].parallel->check_hook_state(hook);
      apply.emplace_back([parallel = state.models[i].parallel, hook = std::move(hook)] {
        parallel->load_hook_state(hook);
      });
    }
  }
}

void Accelerator::check_loop(
    const checkpoint::Reader& reader, std::vector<std::function<void()>>& apply) {
  State& state = *state_;
  LoopState& loop = *state.loop;
  const fs::path& folder = reader.path();
  if (loop.scaler.has_value() != reader.meta().contains("scaler")) {
    throw CheckpointError(
        folder.string(),
        loop.scaler ? "was saved without fp16's loss scaler; this program uses fp16"
                    : "was saved with fp16's loss scaler; this program does not use fp16");
  }
  if (loop.scaler) {
    loop.scaler->check_state(reader.meta().at("scaler"));
    apply.emplace_back([&loop, saved = reader.meta().at("scaler")] {
      loop.scaler_update_due = false;
      loop.scaler->load_state(saved);
    });
  }
  const std::string file = rank_file("accumulation", process_index(), ".json");
  const nlohmann::json saved = reader.json(file);
  const bool within = saved.contains("num_steps");
  if (within && saved.at("num_steps") != loop.accumulation.num_steps) {
    throw CheckpointError(
        (folder / file).string(),
        fmt::format(
            "was saved within a group of {} accumulation steps; this program has {}",
            saved.at("num_steps").dump(),
            loop.accumulation.num_steps));
  }
  apply.emplace_back([&loop, saved, within] {
    loop.step = saved.at("step").get<int64_t>();
    loop.in_group = saved.at("in_group").get<int64_t>();
    loop.sync_gradients = !within;
    loop.counted.reset();
    if (within && saved.at("counted").is_number()) {
      loop.counted = saved.at("counted").get<double>();
    }
  });
  for (size_t i = 0; within && i < state.models.size(); ++i) {
    const std::string gradients = gradient_file(i, process_index());
    apply.push_back(check_gradients(
        state.models[i].parameters(), reader.tensors(gradients), (folder / gradients).string()));
  }
}

void Accelerator::load_state(const fs::path& folder) {
  State& state = *state_;
  std::vector<std::function<void()>> apply;
  apply.emplace_back([this] {
    clear_gradients();  // Of a group that the loaded state knows nothing of.
    state_->restored_local_steps.clear();
    state_->optimizers_differ = false;
  });
  std::string failure;
  try {
    const checkpoint::Reader reader(folder);
    const auto must_match = [&](const char* what, size_t saved, size_t here) {
      if (saved != here) {
        throw CheckpointError(
            folder.string(),
            fmt::format("holds {} {}, this program prepared {}", saved, what, here));
      }
    };
    const nlohmann::json& meta = reader.meta();
    must_match("models", meta.at("models").get<size_t>(), state.models.size());
    must_match("optimizers", meta.at("optimizer_steps").size(), state.optimizers.size());
    must_match("loaders", meta.at("loaders").get<size_t>(), state.loaders.size());
    if (reader.world_size() != num_processes()) {
      throw CheckpointError(
          folder.string(),
          fmt::format(
              "was saved by {} processes, this job has {}; the positions of loaders and random "
              "numbers are per "
              "process; start {}, or load model.safetensors alone",
              reader.world_size(),
              num_processes(),
              reader.world_size()));
    }
    for (size_t i = 0; i < state.models.size(); ++i) {
      const std::string file = numbered("model", i, ".safetensors");
      apply.push_back(check_model(
          without_ties(state.models[i].parameters(), state.models[i].buffers()),
          reader.tensors(file),
          (folder / file).string()));
    }
    check_optimizers(reader, apply);
    const std::string cursor_file = rank_file("loaders", process_index(), ".json");
    const nlohmann::json cursors = reader.json(cursor_file);
    for (size_t i = 0; i < state.loaders.size(); ++i) {
      apply.push_back(check_loader(state.loaders[i], cursors.at(i), folder / cursor_file));
    }
    must_match("schedulers", meta.at("schedulers").size(), state.schedulers.size());
    for (size_t i = 0; i < state.schedulers.size(); ++i) {
      apply.push_back(
          state.schedulers[i].check_state(meta.at("schedulers").at(i), folder.string()));
    }
    check_loop(reader, apply);
    const std::string random_file = rank_file("random_states", process_index(), ".safetensors");
    apply.push_back(
        check_random_state(reader.tensors(random_file), (folder / random_file).string()));
  } catch (const std::exception& error) {
    failure = error.what();
  }
  throw_together(state.group, failure, folder);
  for (const auto& step : apply) {
    step();
  }
}

namespace {

fs::path checkpoints_folder(const AcceleratorOptions& options) {
  if (options.project_dir.empty()) {
    throw ConfigError(
        "save_state",
        "without a folder it needs AcceleratorOptions::project_dir; set it, or pass one");
  }
  return options.project_dir / "checkpoints";
}

/// What the main process says, on every process; what it throws, too, or the others would wait for
/// it.
std::string told_by_main(
    Group& group, const fs::path& folder, const std::function<std::string()>& say) {
  std::string said;
  if (group.rank() == 0) {
    try {
      said = "+" + say();
    } catch (const std::exception& error) {
      said = std::string("-") + error.what();
    }
  }
  said = broadcast_bytes(group, said);
  if (said.front() == '-') {
    throw CheckpointError(folder.string(), said.substr(1));
  }
  return said.substr(1);
}

}  // namespace

fs::path Accelerator::save_state() {
  const fs::path folder = checkpoints_folder(state_->options);
  const std::string name = told_by_main(state_->group, folder, [&] {
    int64_t number = checkpoint::next_sequence(folder);
    while (fs::exists(folder / fmt::format("checkpoint_{}", number))) {
      ++number;
    }
    return fmt::format("checkpoint_{}", number);
  });
  save_state(folder / name);
  told_by_main(state_->group, folder, [&] {
    checkpoint::write_latest(folder, name);
    return "";
  });
  return folder / name;
}

std::optional<fs::path> Accelerator::load_state() {
  const fs::path folder = checkpoints_folder(state_->options);
  const std::string name = told_by_main(state_->group, folder, [&] {
    checkpoint::remove_stale(
        folder);  // Also mends what a save that was cut short has left between two names.
    const checkpoint::Newest newest = checkpoint::find_newest(folder);
    for (const checkpoint::Skipped& skipped : newest.skipped) {
      log_warning(fmt::format("passed over {}: {}", skipped.path.string(), skipped.why));
    }
    return newest.path ? newest.path->filename().string() : "";
  });
  if (name.empty()) {
    return std::nullopt;
  }
  load_state(folder / name);
  return folder / name;
}

}  // namespace lockstep
