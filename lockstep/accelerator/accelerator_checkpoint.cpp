// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/optimizer_state.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/catalog.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/checkpoint/temp_folder.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/comm/bytes.h"

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

/// Parameters and buffers, each tensor once though it may have several names.
NamedTensors without_ties(NamedTensors parameters, const NamedTensors& buffers) {
  parameters.insert(parameters.end(), buffers.begin(), buffers.end());
  std::set<const void*> seen;
  NamedTensors unique;
  for (NamedTensor& item : parameters) {
    if (seen.insert(item.tensor.unsafeGetTensorImpl()).second) {
      unique.push_back({std::move(item.name), item.tensor.detach()});
    }
  }
  return unique;
}

at::Tensor random_state() {
  return at::globalContext().defaultGenerator(at::kCPU).get_state();
}

/// Checks that `saved` is `current`'s names, shapes and dtypes; returns what copies the values
/// over.
std::function<void()> check_model(
    const NamedTensors& current, NamedTensors saved, const std::string& path) {
  std::map<std::string, at::Tensor> left;
  for (NamedTensor& item : saved) {
    left.emplace(item.name, item.tensor);
  }
  std::vector<std::string> missing;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const NamedTensor& item : current) {
    const auto found = left.find(item.name);
    if (found == left.end()) {
      missing.push_back(item.name);
      continue;
    }
    const at::Tensor& value = found->second;
    if (value.sizes() != item.tensor.sizes() || value.scalar_type() != item.tensor.scalar_type()) {
      throw CheckpointError(
          path,
          fmt::format(
              "is {}[{}]; this program's model has {}[{}]",
              c10::toString(value.scalar_type()),
              fmt::join(value.sizes(), ", "),
              c10::toString(item.tensor.scalar_type()),
              fmt::join(item.tensor.sizes(), ", ")),
          item.name);
    }
    copies.emplace_back(item.tensor, value);
    left.erase(found);
  }
  std::vector<std::string> unexpected;
  for (const auto& [name, unused] : left) {
    unexpected.push_back(name);
  }
  if (!missing.empty() || !unexpected.empty()) {
    throw CheckpointError(
        path,
        fmt::format(
            "is of another model; missing: [{}], unexpected: [{}]",
            fmt::join(missing, ", "),
            fmt::join(unexpected, ", ")));
  }
  return [copies = std::move(copies)] {
    const c10::AutoGradMode no_grad(false);
    for (const auto& [parameter, value] : copies) {
      parameter.detach().copy_(value);
    }
  };
}

/// The same for a loader's position, which means something only over the same data and batches.
std::function<void()> check_loader(
    const std::shared_ptr<data::LoaderCore>& loader,
    const nlohmann::json& saved,
    const fs::path& path) {
  const auto must_match = [&](const char* what, int64_t here) {
    const auto there = saved.at(what).get<int64_t>();
    if (there != here) {
      throw CheckpointError(
          path.string(),
          fmt::format(
              "was saved with {} {}, this loader has {}; give it the same data and batch size",
              there,
              what,
              here));
    }
  };
  must_match("samples", loader->layout().samples());
  must_match("round_rows", loader->layout().round_rows());
  const auto cursor = saved.at("cursor").get<data::Cursor>();
  loader->check_cursor(cursor);
  return [loader, cursor] { loader->load_cursor(cursor); };
}

std::function<void()> check_random_state(const NamedTensors& saved, const std::string& path) {
  const at::Tensor current = random_state();
  if (saved.size() != 1 || saved[0].tensor.scalar_type() != current.scalar_type() ||
      saved[0].tensor.sizes() != current.sizes()) {
    throw CheckpointError(path, "holds no random state of this version of torch");
  }
  return [value = saved[0].tensor.clone()] {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    generator.set_state(value);
  };
}

/// All ranks go on, or all throw what the first of them met.
void throw_together(Group& group, const std::string& failure, const fs::path& folder) {
  const std::vector<std::string> failures = all_gather_bytes(group, failure);
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank].empty()) {
      throw CheckpointError(
          folder.string(), fmt::format("rank {} cannot load it: {}", rank, failures[rank]));
    }
  }
}

/// Names of the prepared models' parameters, for the optimizers' state.
struct ParameterNames {
  explicit ParameterNames(const std::vector<std::pair<std::string, NamedTensors>>& models) {
    for (const auto& [prefix, parameters] : models) {
      for (const NamedTensor& item : parameters) {
        names.emplace(item.tensor.unsafeGetTensorImpl(), prefix + item.name);
      }
    }
  }
  std::string operator()(const at::Tensor& parameter) const {
    const auto found = names.find(parameter.unsafeGetTensorImpl());
    if (found == names.end()) {
      throw ConfigError(
          "save_state",
          "an optimizer has a parameter of no prepared model; prepare that model too");
    }
    return found->second;
  }
  std::map<const void*, std::string> names;
};

template <typename Models>
ParameterNames names_in(const Models& models) {
  std::vector<std::pair<std::string, NamedTensors>> all;
  for (const auto& model : models) {
    all.emplace_back(model.prefix, model.parameters());
  }
  return ParameterNames(all);
}

}  // namespace

void Accelerator::save_state(const fs::path& folder) {
  State& state = *state_;
  const ParameterNames names = names_in(state.models);
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
    for (size_t i = 0; i < state.optimizers.size(); ++i) {
      torch::optim::Optimizer& inner = state.optimizers[i].inner();
      try {
        writer.add_json(numbered("optimizer", i, ".json"), optimizer_settings(inner));
        writer.add_tensors(
            numbered("optimizer", i, ".safetensors"), optimizer_tensors(inner, names));
      } catch (const std::exception& error) {
        writer.fail(error.what());  // Thrown here, the other ranks would wait in commit.
      }
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
  writer.commit(
      {{"optimizer_steps", steps},
       {"models", state.models.size()},
       {"loaders", state.loaders.size()}});
}

void Accelerator::load_state(const fs::path& folder) {
  State& state = *state_;
  std::vector<std::function<void()>> apply;
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
    const ParameterNames names = names_in(state.models);
    for (size_t i = 0; i < state.models.size(); ++i) {
      const std::string file = numbered("model", i, ".safetensors");
      apply.push_back(check_model(
          without_ties(state.models[i].parameters(), state.models[i].buffers()),
          reader.tensors(file),
          (folder / file).string()));
    }
    for (size_t i = 0; i < state.optimizers.size(); ++i) {
      const std::string file = numbered("optimizer", i, ".safetensors");
      apply.push_back(check_optimizer(
          state.optimizers[i].inner(),
          names,
          reader.tensors(file),
          reader.json(numbered("optimizer", i, ".json")),
          (folder / file).string()));
      apply.emplace_back([&state, i, steps = meta.at("optimizer_steps").at(i).get<int64_t>()] {
        state.optimizers[i].set_steps(steps);
      });
    }
    const std::string cursor_file = rank_file("loaders", process_index(), ".json");
    const nlohmann::json cursors = reader.json(cursor_file);
    for (size_t i = 0; i < state.loaders.size(); ++i) {
      apply.push_back(check_loader(state.loaders[i], cursors.at(i), folder / cursor_file));
    }
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
