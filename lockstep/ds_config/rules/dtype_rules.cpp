// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/ds_config/rules/section_rules.h"

namespace lockstep::ds_config {
namespace {

constexpr const char* kParamDtype = "data_types.param_dtype";

/// Returns the dtype that fp16 or bf16 gives parameters; torch_autocast does not change them.
std::optional<FloatDtype> low_precision_dtype(const DsConfig& config) {
  return config.fp16.enabled.value   ? std::optional(FloatDtype::kFloat16)
         : config.bf16.enabled.value ? std::optional(FloatDtype::kBfloat16)
                                     : std::nullopt;
}

bool is_16_bit(const Resolved<std::optional<FloatDtype>>& dtype) {
  return dtype.value && *dtype.value != FloatDtype::kFloat32;
}

/// Checks that a 16-bit dtype is that of fp16.enabled or bf16.enabled, as DeepSpeed does.
void check_mode(KeyReader& reader, const DsConfig& config) {
  const auto& param = config.data_types.param_dtype;
  const std::optional<FloatDtype> mode = low_precision_dtype(config);
  if (is_16_bit(param) && param.value != mode) {
    const std::string word = word_of(*param.value);
    refuse_key(
        reader,
        kParamDtype,
        fmt::format(
            "is {0}, but {1}; set {0}.enabled, or delete param_dtype",
            word,
            mode ? word_of(*mode) + ".enabled is set" : "neither fp16 nor bf16 is enabled"));
  }
  if (is_16_bit(config.data_types.buffer_dtype) && !mode) {
    refuse_key(
        reader,
        "data_types.buffer_dtype",
        fmt::format(
            "{} needs fp16.enabled or bf16.enabled; set one of them, or delete it",
            word_of(*config.data_types.buffer_dtype.value)));
  }
}

/// Notes that parameters stay float32, unless the file gives their dtype: DeepSpeed casts them.
void note_float32_parameters(KeyReader& reader, const DsConfig& config) {
  const std::optional<FloatDtype> mode = low_precision_dtype(config);
  if (!mode || config.data_types.param_dtype.value) {
    return;
  }
  const std::string word = word_of(*mode);
  const KeyValue* const found = reader.find(word + ".enabled");
  if (found != nullptr) {
    reader.note(
        found->key,
        fmt::format(
            "parameters stay float32, without a second copy, and operations of the engine compute "
            "in {0}; DeepSpeed keeps {0} parameters and a float32 copy of them: for that, and to "
            "compute in {0} outside of the engine, write data_types.param_dtype {0}; fp32 keeps it "
            "as it is",
            word));
  }
}

void read_patterns(KeyReader& reader, DsConfig& config) {
  const std::string path = "data_types.keep_in_fp32_modules";
  std::vector<std::string>& patterns = config.data_types.keep_in_fp32_modules.value;
  const KeyValue* const found = reader.find(path);
  if (found != nullptr && found->value->kind != config::Node::Kind::kList) {
    if (!is_auto(*found->value)) {
      refuse_key(
          reader, path, "needs a list of parts of names, or \"auto\"; write [ ] around the text");
    }
    patterns.clear();  // "auto" is the list of a transformers model, which modules of C++ lack.
  }
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '*';
  };
  for (const std::string& pattern : patterns) {
    if (pattern.empty() || !std::all_of(pattern.begin(), pattern.end(), is_plain)) {
      refuse_key(
          reader,
          path,
          fmt::format(
              "has an invalid part of a name; got \"{}\", expected letters, digits, _ and ., and * "
              "for any text",
              shown(pattern)));
    }
  }
}

bool is_adam(const DsConfig& config) {
  const std::string& name = config.optimizer->name.value;
  return (name == "adam" || name == "adamw") && !config.optimizer->parameters.flag("torch_adam");
}

/// Checks 16-bit masters, whose dtype is that of the parameters. In DeepSpeed only DeepSpeedCPUAdam
/// updates them with float32 state.
void apply_16_bit_masters(KeyReader& reader, DsConfig& config) {
  const bool is_fp16 = config.fp16.master_weights_and_grads.value;
  if (!is_fp16 && !config.bf16.master_weights_and_grads.value) {
    return;
  }
  const FloatDtype dtype = is_fp16 ? FloatDtype::kFloat16 : FloatDtype::kBfloat16;
  const std::string section = word_of(dtype);
  const std::string path = fmt::format("{0}.{0}_master_weights_and_grads", section);
  auto& param = config.data_types.param_dtype;
  if (low_precision_dtype(config) != dtype) {
    refuse_key(reader, path, fmt::format("needs {}.enabled; set it, or delete this", section));
  } else if (param.value && *param.value != dtype) {
    refuse_key(
        reader,
        kParamDtype,
        fmt::format("{} conflicts with {}; delete one of them", word_of(*param.value), path));
  } else if (!param.value) {
    param = {dtype, {Origin::Kind::kDerived, path}};
  }
  if (config.zero.plugin.stage == 0) {
    refuse_key(reader, path, "needs ZeRO; got stage 0, expected 1, 2 or 3");
  }
  const bool offloads = config.zero.plugin.offload_optimizer.device != OffloadDevice::kNone;
  const bool has_16_bit_state = !is_fp16 && config.bf16.optimizer_states.value;
  if (!offloads && !has_16_bit_state) {
    refuse_key(
        reader,
        path,
        fmt::format(
            "needs the optimizer on the CPU; set zero_optimization.offload_optimizer.device{}",
            is_fp16 ? "" : ", or bf16.bf16_optimizer_states"));
  }
  if (offloads && config.optimizer && !is_adam(config)) {
    refuse_key(
        reader,
        path,
        "with offload_optimizer works only with Adam or AdamW, and not with torch_adam; use one of "
        "these optimizers, and delete torch_adam");
  }
}

void check_16_bit_state(KeyReader& reader, const DsConfig& config) {
  if (config.bf16.optimizer_states.value && !config.bf16.master_weights_and_grads.value) {
    refuse_key(
        reader,
        "bf16.bf16_optimizer_states",
        "needs bf16.bf16_master_weights_and_grads; set it, or delete this");
  }
  const bool any =
      config.fp16.master_weights_and_grads.value || config.bf16.master_weights_and_grads.value;
  if (!any && config.optimizer && config.optimizer->parameters.has("fp32_optimizer_states") &&
      !config.optimizer->parameters.flag("fp32_optimizer_states")) {
    refuse_key(
        reader,
        "optimizer.params",
        "has fp32_optimizer_states false, but float32 masters need float32 state; set "
        "fp16.fp16_master_weights_and_grads or bf16.bf16_master_weights_and_grads, or delete it");
  }
}

void check_gradients(KeyReader& reader, const DsConfig& config) {
  const auto& sum = config.data_types.grad_accum_dtype;
  const FloatDtype param = config.data_types.param_dtype.value.value_or(FloatDtype::kFloat32);
  const bool own_masters =
      config.fp16.master_weights_and_grads.value || config.bf16.master_weights_and_grads.value;
  if (is_16_bit(sum) && *sum.value != param) {
    refuse_key(
        reader,
        "data_types.grad_accum_dtype",
        fmt::format(
            "cannot be {1} for {0} parameters; set data_types.param_dtype to {1}, or write {0}",
            word_of(param),
            word_of(*sum.value)));
  }
  if (sum.value == FloatDtype::kFloat32 && own_masters) {
    refuse_key(
        reader,
        "data_types.grad_accum_dtype",
        fmt::format(
            "fp32 conflicts with {0}.{0}_master_weights_and_grads; delete one of them",
            word_of(param)));
  }
  const bool has_fp32_sums = sum.value == FloatDtype::kFloat32 && config.zero.plugin.stage < 2;
  const auto& wire = config.communication_data_type;
  if (param != FloatDtype::kFloat32 && wire.value && *wire.value != param &&
      !(has_fp32_sums && *wire.value == FloatDtype::kFloat32)) {
    refuse_key(
        reader,
        "communication_data_type",
        fmt::format(
            "cannot be {0} for {1} parameters; write {1}{2}, or delete it",
            word_of(*wire.value),
            word_of(param),
            has_fp32_sums ? " or fp32, as grad_accum_dtype" : ""));
  }
}

void check_wire(KeyReader& reader, const DsConfig& config) {
  if (is_16_bit(config.communication_data_type) && config.zero.plugin.zero_quantized_gradients) {
    refuse_key(
        reader,
        "communication_data_type",
        fmt::format(
            "{} cannot be combined with zero_quantized_gradients, which sends gradients in 4 bits; "
            "delete one of them",
            word_of(*config.communication_data_type.value)));
  }
}

/// Refuses other communication dtypes beside torch_autocast.dtype.
void check_safe_modules(KeyReader& reader, const DsConfig& config) {
  const std::string path = "torch_autocast.lower_precision_safe_modules";
  if (reader.find(path) == nullptr) {
    return;
  }
  if (!config.torch_autocast.enabled.value) {
    refuse_key(reader, path, "needs torch_autocast.enabled; set it, or delete this");
  }
  const auto& wire = config.communication_data_type;
  if (is_16_bit(wire)) {
    refuse_key(
        reader,
        "communication_data_type",
        fmt::format(
            "{} is for all gradients and cannot be combined with {}; write fp32, or delete one of "
            "them",
            word_of(*wire.value),
            path));
  }
  for (const auto& [key, is_on] :
       {std::pair("zero_quantized_weights", config.zero.plugin.zero_quantized_weights),
        std::pair("zero_quantized_gradients", config.zero.plugin.zero_quantized_gradients)}) {
    if (is_on) {
      refuse_key(
          reader,
          std::string("zero_optimization.") + key,
          fmt::format(
              "cannot be combined with {}, since both round the same values for communication; "
              "delete one of them",
              path));
    }
  }
}

}  // namespace

void apply_dtype_rules(KeyReader& reader, DsConfig& config) {
  check_mode(reader, config);
  read_patterns(reader, config);
  apply_16_bit_masters(reader, config);
  note_float32_parameters(reader, config);
  check_16_bit_state(reader, config);
  check_gradients(reader, config);
  check_wire(reader, config);
  check_safe_modules(reader, config);
}

}  // namespace lockstep::ds_config
