// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/model_parallel.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using ds_config::LayerPartition;
using ds_config::LayerSpec;
using ds_config::TensorParallelSection;

void take_size(
    const MeshShape& mesh,
    int MeshShape::*member,
    const ds_config::Resolved<int64_t>& given,
    const char* key,
    MeshShape& result) {
  if (given.origin.kind != ds_config::Origin::Kind::kFile || given.value == 0) {
    return;
  }
  const int size = static_cast<int>(given.value);
  if (mesh.*member != 1 && mesh.*member != size) {
    throw ConfigError(
        "initialize",
        fmt::format(
            "the mesh is {}, and {} is {} ({}); expected the same size; delete the key",
            mesh_text(mesh),
            key,
            size,
            given.origin.text));
  }
  result.*member = size;
}

/// Returns the module of a parameter: "layers.0" of "layers.0.weight".
std::string module_of(const std::string& parameter) {
  return parameter.substr(0, std::max<size_t>(1, parameter.rfind('.') + 1) - 1);
}

/// The specs of a file, with compiled patterns.
class Specs {
 public:
  explicit Specs(const TensorParallelSection& section) : section_(section) {
    for (const LayerSpec& spec : *section.layers) {
      std::vector<std::regex>& compiled = patterns_.emplace_back();
      for (const std::string& pattern : spec.patterns) {
        compiled.emplace_back(pattern);
      }
    }
  }

  /// Returns the first spec with a pattern of the beginning of `name`; null without one.
  const LayerSpec* find(const std::string& name) const {
    for (size_t i = 0; i < patterns_.size(); ++i) {
      const bool matches = std::ranges::any_of(patterns_[i], [&](const std::regex& pattern) {
        return std::regex_search(name, pattern, std::regex_constants::match_continuous);
      });
      if (matches) {
        return &(*section_.layers)[i];
      }
    }
    return nullptr;
  }

  bool is_output_layer(const std::string& module) const {
    return std::ranges::count(
               section_.lm_head_patterns.value, module.substr(module.rfind('.') + 1)) > 0;
  }

 private:
  const TensorParallelSection& section_;
  std::vector<std::vector<std::regex>> patterns_;
};

TensorStyle style_of(const LayerSpec& spec, const Specs& specs, const std::string& module) {
  if (spec.partition == LayerPartition::kRow) {
    return specs.is_output_layer(module) ? TensorStyle::kRowwiseSplitInput : TensorStyle::kRowwise;
  }
  return spec.gather_output ? TensorStyle::kColwiseGather : TensorStyle::kColwise;
}

/// Throws ConfigError unless sizes of fused layers are those of the weight.
void expect_fused_sizes(const NamedTensor& weight, const LayerSpec& spec) {
  const int64_t sum = std::accumulate(spec.fused.begin(), spec.fused.end(), int64_t{0});
  const int64_t size = weight.tensor.size(spec.partition == LayerPartition::kRow ? 1 : 0);
  const bool equal = std::ranges::all_of(spec.fused, [](int64_t each) { return each == 1; });
  if (equal ? sum == 0 || size % sum == 0 : sum == size) {
    return;
  }
  throw ConfigError(
      "initialize",
      fmt::format(
          "layer_specs has the shape of {} fused layers with sizes {} for {}, which has {} of "
          "them; expected sizes whose sum is that",
          spec.fused.size(),
          fmt::join(spec.fused, ", "),
          weight.name,
          size));
}

}  // namespace

MeshShape mesh_of_file(const ds_config::DsConfig& config, const AcceleratorOptions& options) {
  const MeshShape given = options.mesh.value_or(mesh_from_environment(Environment::process()));
  MeshShape mesh = given;
  take_size(
      given,
      &MeshShape::tp,
      config.tensor_parallel.autotp_size,
      "tensor_parallel.autotp_size",
      mesh);
  take_size(given, &MeshShape::sp, config.sequence_parallel_size, "sequence_parallel_size", mesh);
  return mesh;
}

TensorPlan plan_of_file(
    const TensorParallelSection& section,
    const NamedTensors& parameters,
    const internal::NamedClasses& classes) {
  const Specs specs(section);
  const std::map<std::string, std::string> class_of(classes.begin(), classes.end());
  TensorPlan plan;
  bool divides = false;
  std::vector<std::string> unmatched;
  for (const NamedTensor& item : parameters) {
    const std::string module = module_of(item.name);
    const LayerSpec* const spec = specs.find(item.name);
    const bool is_matrix = item.name.ends_with("weight") && item.tensor.dim() == 2;
    const auto kind = class_of.find(module);
    const bool is_embedding =
        kind != class_of.end() && kind->second.find("Embedding") != std::string::npos;
    if (spec == nullptr) {
      if (is_matrix && !is_embedding) {
        unmatched.push_back(item.name);
      }
      continue;
    }
    const bool is_skipped = spec->partition == LayerPartition::kSkip;
    TensorRule rule{.modules = module, .style = TensorStyle::kWholeSumGradient};
    if (is_skipped ? !spec->grad_allreduce : !is_matrix) {
      continue;
    }
    if (!is_skipped) {
      expect_fused_sizes(item, *spec);
      rule.style = is_embedding ? TensorStyle::kEmbedding : style_of(*spec, specs, module);
      rule.fused = spec->fused;
      divides = true;
    }
    if (plan.empty() || plan.back().modules != module) {
      plan.push_back(std::move(rule));
    } else if (plan.back().style != rule.style || plan.back().fused != rule.fused) {
      throw ConfigError(
          "initialize",
          fmt::format(
              "layer_specs divides two parameters of {} in different ways, {} the last of them; "
              "expected one spec for all parameters of a module",
              module,
              item.name));
    }
  }
  if (section.strict_mode.value && !unmatched.empty()) {
    throw ConfigError(
        "initialize",
        fmt::format(
            "no spec of tensor_parallel.partition_config matches {}, and strict_mode is true; add "
            "one, with partition_type skip if it stays whole",
            fmt::join(unmatched, ", ")));
  }
  if (!divides) {
    throw ConfigError(
        "initialize",
        fmt::format(
            "tensor_parallel.partition_config and preset_model divide no weight of the model; "
            "expected patterns of names like {}",
            parameters.empty() ? "layers.0.up.weight" : parameters.back().name));
  }
  return plan;
}

void set_tensor_plan(
    const TensorParallelSection& section,
    const NamedTensors& parameters,
    const internal::NamedClasses& classes,
    AcceleratorOptions& options) {
  const MeshShape& mesh = *options.mesh;
  if (mesh.tp == 1) {
    return;
  }
  TensorParallelOptions& tensor = options.tensor_parallel;
  if (!section.layers) {
    if (tensor.plan.empty()) {
      throw ConfigError(
          "initialize",
          fmt::format(
              "{} processes divide the layers (tensor_parallel.autotp_size, or the mesh's tp), and "
              "nothing says which; expected AcceleratorOptions::tensor_parallel.plan, or "
              "tensor_parallel.partition_config in the file",
              mesh.tp));
    }
    return;
  }
  if (!tensor.plan.empty()) {
    throw ConfigError(
        "initialize",
        "got tensor_parallel.partition_config or preset_model in the file, and "
        "AcceleratorOptions::tensor_parallel.plan; give only one");
  }
  if (mesh.pp > 1) {
    throw ConfigError(
        "initialize",
        "tensor_parallel.partition_config and preset_model name layers of a whole model, of which "
        "a process of a pipeline has a stage; give AcceleratorOptions::tensor_parallel.plan");
  }
  tensor.plan = plan_of_file(section, parameters, classes);
}

}  // namespace lockstep
