// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/zero_setup/dtypes.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/core/ScalarType.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/class_name.h"
#include "lockstep/flat/parameters.h"
#include "lockstep/precision/precision.h"

namespace lockstep::internal {
namespace {

std::string namespace_of(const std::string& type) {
  const size_t colon = type.rfind("::");
  return colon == std::string::npos ? "" : type.substr(0, colon);
}

/// Returns the C++ name of a Python class.
std::string cpp_name(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) {
    return name;
  }
  return (name.starts_with("torch.nn.") ? "torch::nn::" : "") + name.substr(dot + 1);
}

bool is_torchs(const std::string& name) {
  return cpp_name(name).starts_with("torch::nn::");
}

/// Returns the module that owns a parameter: neither names of modules nor of parameters have dots.
std::string owner_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

/// Returns the parameters of modules of one class.
NamedTensors own_parameters(
    const NamedTensors& parameters, const NamedClasses& modules, const std::string& name) {
  std::set<std::string> paths;
  for (const auto& [path, type] : modules) {
    if (is_of_class(type, name)) {
      paths.insert(path);
    }
  }
  NamedTensors own = parameters;
  std::erase_if(own, [&](const NamedTensor& item) { return !paths.contains(owner_of(item.name)); });
  return own;
}

}  // namespace

bool is_of_class(const std::string& type, const std::string& name) {
  const std::string wanted = cpp_name(name);
  const std::string within = namespace_of(wanted);
  return plain_class_name(type) == plain_class_name(wanted) &&
         (within.empty() || within == namespace_of(type));
}

void check_lower_precision(
    const std::vector<std::string>& classes,
    const NamedTensors& parameters,
    const NamedClasses& modules,
    const std::string& where,
    const std::string& option) {
  std::set<std::string> known;
  for (const auto& [unused, type] : modules) {
    known.insert(type);
  }
  bool any = false;
  for (const std::string& name : classes) {
    const bool is_there = std::any_of(known.begin(), known.end(), [&](const std::string& type) {
      return is_of_class(type, name);
    });
    any = any || is_there;
    if (!is_there && is_torchs(name) && (any || &name != &classes.back())) {
      continue;  // DeepSpeed's list names layers of many models.
    }
    if (!is_there) {
      throw ConfigError(
          where,
          fmt::format(
              "{0} names a class that the model does not have; got \"{1}\", expected some of {2}; "
              "remove \"{1}\"",
              option,
              name,
              fmt::join(known, ", ")));
    }
    if (own_parameters(parameters, modules, name).empty()) {
      throw ConfigError(
          where,
          fmt::format(
              "{} needs classes whose modules have parameters themselves; got \"{}\", which has "
              "none itself; use the classes of the modules within it, from {}",
              option,
              name,
              fmt::join(known, ", ")));
    }
  }
}

flat::CommDtypes comm_dtypes(
    const LowerPrecisionModules& lower,
    const NamedTensors& parameters,
    const NamedClasses& modules) {
  const std::string option = "lower_precision_safe_modules";
  if (!lower.classes.empty() && !c10::isReducedFloatingType(lower.dtype)) {
    throw ConfigError(
        "prepare",
        fmt::format(
            "{} needs a 16-bit dtype; got {}, expected at::kHalf or at::kBFloat16",
            option,
            c10::toString(lower.dtype)));
  }
  check_lower_precision(lower.classes, parameters, modules, "prepare", option);
  flat::CommDtypes comm_dtypes{.dtype = lower.dtype};
  for (const std::string& name : lower.classes) {
    for (const NamedTensor& item : own_parameters(parameters, modules, name)) {
      comm_dtypes.parameters.insert(item.tensor.unsafeGetTensorImpl());
    }
  }
  return comm_dtypes;
}

std::optional<at::ScalarType> reduced_comm_dtype(
    const std::optional<at::ScalarType>& communication_data_type,
    const LowerPrecisionModules& lower) {
  if (!communication_data_type || !c10::isReducedFloatingType(*communication_data_type)) {
    return std::nullopt;
  }
  if (!lower.classes.empty()) {
    throw ConfigError(
        "zero",
        "communication_data_type is for all gradients, and lower_precision_safe_modules for those "
        "of some modules; set only one of them");
  }
  return communication_data_type;
}

flat::CommDtypes all_in_comm_dtype(const NamedTensors& parameters, at::ScalarType dtype) {
  flat::CommDtypes comm_dtypes{.dtype = dtype};
  for (const NamedTensor& item : parameters) {
    comm_dtypes.parameters.insert(item.tensor.unsafeGetTensorImpl());
  }
  return comm_dtypes;
}

zero::LowPrecisionPolicy low_precision_policy(const ZeroPlugin& plugin) {
  const std::optional<FloatDtype>& sums = plugin.grad_accum_dtype;
  return {
      .fp32_masters = plugin.fp32_masters,
      .fp32_gradients = plugin.stage == 1 && sums == FloatDtype::kFloat32,
      .fp32_comm = plugin.communication_data_type == FloatDtype::kFloat32,
      .rounded_sums = sums && sums != FloatDtype::kFloat32};
}

void check_sums(const ZeroPlugin& plugin, const NamedTensors& parameters) {
  const std::optional<at::ScalarType> wire = scalar_type_of(plugin.communication_data_type);
  const bool is_narrow = wire && c10::isReducedFloatingType(*wire);
  for (const NamedTensor& item : trainable(parameters)) {
    if (is_narrow && zero::is_trained_in_16_bits(item.tensor) &&
        item.tensor.scalar_type() != *wire) {
      throw ConfigError(
          "zero",
          fmt::format(
              "communication_data_type must be the gradients' own dtype for 16-bit parameters; got "
              "{2} for {0} ({1}); leave it unset, or convert the model before prepare()",
              item.name,
              c10::toString(item.tensor.scalar_type()),
              c10::toString(*wire)));
    }
  }
  if (wire && !is_narrow && !(wire == at::kFloat && low_precision_policy(plugin).fp32_gradients)) {
    throw ConfigError(
        "zero",
        fmt::format(
            "invalid communication_data_type; got {} in stage {}; expected fp16 or bf16 for fp32 "
            "gradients, or fp32 in stage 1 with grad_accum_dtype=fp32; otherwise leave it unset",
            c10::toString(*wire),
            plugin.stage));
  }
  if (!plugin.grad_accum_dtype) {
    return;
  }
  const at::ScalarType sums = scalar_type_of(*plugin.grad_accum_dtype);
  if (!plugin.fp32_masters) {
    throw ConfigError(
        "zero",
        fmt::format(
            "grad_accum_dtype needs fp32_masters, since gradients without masters have the "
            "parameters' dtype; got grad_accum_dtype={} and fp32_masters=false; set fp32_masters, "
            "or leave grad_accum_dtype unset",
            c10::toString(sums)));
  }
  for (const NamedTensor& item : trainable(parameters)) {
    if (sums != at::kFloat && item.tensor.scalar_type() != sums) {
      throw ConfigError(
          "zero",
          fmt::format(
              "gradients of {} ({}) cannot be accumulated in grad_accum_dtype={}; expected "
              "fp32, or the parameters' dtype; leave it unset, or convert the model before "
              "prepare()",
              item.name,
              c10::toString(item.tensor.scalar_type()),
              c10::toString(sums)));
    }
  }
}

}  // namespace lockstep::internal
