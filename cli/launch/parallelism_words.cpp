// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/parallelism_words.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "cli/launch/launch_flags.h"
#include "lockstep/config/import/model_parallel_options.h"

namespace lockstep::cli {
namespace {

constexpr const char* kMegatron = "--megatron-lm-";
constexpr const char* kParallelism = "--parallelism-config-";
constexpr const char* kUsesParallelism = "--use-parallelism-config";

/// Returns the option of a word like "--megatron-lm-tp-degree=2"; nullopt for other words.
std::optional<config::ModelParallelOption> option_of(const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) {
    return std::nullopt;
  }
  const std::string value = word.substr(equals + 1);
  const auto name_after = [&](const std::string& prefix) {
    std::string name = word.substr(prefix.size(), equals - prefix.size());
    std::ranges::replace(name, '-', '_');
    return name;
  };
  if (word.starts_with(kMegatron)) {
    return config::megatron_option(name_after(kMegatron), value);
  }
  return word.starts_with(kParallelism)
             ? config::parallelism_option(name_after(kParallelism), value)
             : std::nullopt;
}

}  // namespace

void replace_parallelism_options(std::vector<std::string>& words) {
  std::string mesh;
  bool is_distributed_adam = false;
  std::erase_if(words, [&](const std::string& word) {
    if (word == kUsesParallelism) {
      return true;
    }
    const auto option = option_of(word);
    if (!option) {
      return false;
    }
    if (!option->refusal.empty()) {
      refuse_launch(fmt::format("{} is not supported: {}", word, option->refusal));
    }
    is_distributed_adam |= option->is_distributed_adam;
    if (!option->mesh_part.empty()) {
      mesh += (mesh.empty() ? "" : ",") + option->mesh_part;
    }
    return true;
  });
  const bool has_mesh =
      std::ranges::any_of(words, [](const auto& word) { return word.starts_with("--mesh="); });
  if (has_mesh && !mesh.empty()) {
    refuse_launch(fmt::format(
        "--mesh and other options for the mesh {} are given; add the sizes to --mesh", mesh));
  }
  if (!mesh.empty()) {
    words.push_back("--mesh=" + mesh);
  }
  if (is_distributed_adam) {
    words.emplace_back("--zero-stage=1");
  }
}

std::vector<std::string> parallelism_option_flags() {
  std::vector<std::string> flags;
  const auto add = [&flags](const char* prefix, const std::vector<std::string>& names) {
    for (std::string name : names) {
      std::ranges::replace(name, '_', '-');
      flags.push_back(prefix + name);
    }
  };
  add(kMegatron, config::megatron_option_names());
  add(kParallelism, config::parallelism_option_names());
  return flags;
}

}  // namespace lockstep::cli
