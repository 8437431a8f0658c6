// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/import/import_deepspeed.h"

#include <filesystem>
#include <map>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/config/import/import_section.h"

namespace lockstep::config {
namespace {

constexpr const char* kPrefix = "deepspeed_config.";

const std::vector<std::string>& known_keys() {
  static const std::vector<std::string> keys = {
      "deepspeed_config_file",
      "zero_stage",
      "gradient_accumulation_steps",
      "gradient_clipping",
      "offload_optimizer_device",
      "offload_param_device",
      "offload_optimizer_nvme_path",
      "offload_param_nvme_path",
      "zero3_init_flag",
      "zero3_save_16bit_model",
      "deepspeed_moe_layer_cls_names",
      "deepspeed_multinode_launcher",
      "deepspeed_hostfile",
      "deepspeed_exclusion_filter",
      "deepspeed_inclusion_filter"};
  return keys;
}

void read_launcher(const Section& section, Import& import) {
  const std::map<std::string, std::string> launchers = {
      {"pdsh", "ssh"},
      {"standard", "local"},
      {"nossh", "local"},
      {"openmpi", "openmpi"},
      {"slurm", "slurm"}};
  const auto name = section.text("deepspeed_multinode_launcher");
  if (!name) {
    return;
  }
  const auto found = launchers.find(*name);
  if (found == launchers.end()) {
    throw ConfigError(
        section.place_of("deepspeed_multinode_launcher"),
        fmt::format(
            "deepspeed_multinode_launcher {} cannot be imported; expected pdsh, standard, nossh, "
            "openmpi or slurm",
            *name));
  }
  import.values.settings["launcher"] = found->second;
}

/// Returns a map in DeepSpeed's JSON; an empty one if it is absent.
Section part_of(const Document& json, const std::string& key) {
  static const Node nothing;
  const Node* const node = json.root.find(key);
  return {json, node == nullptr ? nothing : *node, key + "."};
}

Setting precision_of(const Document& json) {
  Setting found;
  for (const auto& [key, name] : std::map<std::string, std::string>{
           {"fp16", "fp16"}, {"bf16", "bf16"}, {"bfloat16", "bf16"}}) {
    const Section part = part_of(json, key);
    // "auto" means Accelerate's own setting.
    if (part.text("enabled") == "auto" || !part.truth("enabled")) {
      continue;
    }
    if (!found.text.empty() && found.text != name) {
      throw ConfigError(
          part.place_of("enabled"),
          fmt::format(
              "two mixed precisions are set; got {} and {}; remove one of them", found.text, name));
    }
    found = {name, part.place_of("enabled")};
  }
  return found;
}

/// Reads DeepSpeed's JSON. Throws ConfigError with the position of its name in Accelerate's file if
/// it does not exist.
Document read_json_of(
    const std::filesystem::path& path, const Section& section, const std::string& key) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw ConfigError(
        section.place_of(key),
        fmt::format(
            "no such file: {}; a relative path starts at the folder of this command",
            path.native()));
  }
  return read_document(path, Format::kCommentedJson);
}

Setting read_file(const Section& section, const Environment& environment, Import& import) {
  const std::string key = "deepspeed_config_file";
  const auto name = section.text(key);
  // Accelerate writes "none" for an empty answer.
  if (!name || *name == "none") {
    return {};
  }
  const std::filesystem::path path =
      std::filesystem::absolute(expand_home(*name, environment)).lexically_normal();
  const Document json = read_json_of(path, section, key);
  const Section root(json, json.root, "");
  import.values.settings["deepspeed_config_file"] = path.native();
  if (root.text("gradient_accumulation_steps").value_or("auto") != "auto") {
    root.set(import.values, "gradient_accumulation_steps", "gradient_accumulation_steps");
  }
  const Section zero = part_of(json, "zero_optimization");
  if (zero.text("stage").value_or("auto") != "auto") {
    zero.set(import.values, "stage", "zero_stage");
  }
  for (const std::string part_name : {"offload_optimizer", "offload_param"}) {
    const Node* const section_node = json.root.find("zero_optimization");
    const Node* const part = section_node == nullptr ? nullptr : section_node->find(part_name);
    const auto device = part == nullptr ? std::nullopt : Section(json, *part, "").text("device");
    if (device && *device != "none" && *device != "auto") {
      import.notes.push_back(fmt::format(
          "zero_optimization.{}.device: {} of {}: not imported; set it in the program; by default "
          "nothing is offloaded",
          part_name,
          *device,
          path.native()));
    }
  }
  const auto clipping = root.text("gradient_clipping");
  if (clipping && *clipping != "auto" && *clipping != "0" && *clipping != "0.0") {
    import.notes.push_back(fmt::format(
        "gradient_clipping: {0} of {1}: not imported; a program with an Accelerator must call "
        "clip_grad_norm_(parameters, {0})",
        *clipping,
        path.native()));
  }
  return precision_of(json);
}

void note_program_settings(const Section& section, Import& import) {
  const auto clipping = section.text("gradient_clipping");
  if (clipping) {
    import.notes.push_back(fmt::format(
        "{0}gradient_clipping: {1}: not imported; call clip_grad_norm_(parameters, {1}) in the "
        "program",
        kPrefix,
        *clipping));
  }
  for (const std::string key : {"offload_optimizer_device", "offload_param_device"}) {
    const auto device = section.text(key);
    if (device && *device != "none") {
      import.notes.push_back(fmt::format(
          "{}{}: {}: not imported; set it in the program; by default nothing is offloaded",
          kPrefix,
          key,
          *device));
    }
  }
  for (const std::string key :
       {"offload_optimizer_nvme_path",
        "offload_param_nvme_path",
        "zero3_init_flag",
        "zero3_save_16bit_model",
        "deepspeed_moe_layer_cls_names"}) {
    if (section.text(key)) {
      import.without_meaning.push_back(kPrefix + key);
    }
  }
}

}  // namespace

Setting import_deepspeed(
    const Document& file, const Node& map, const Environment& environment, Import& import) {
  const Section section(file, map, kPrefix);
  section.refuse_unknown(known_keys());
  Setting precision = read_file(section, environment, import);
  if (section.text("gradient_accumulation_steps").value_or("auto") != "auto") {
    section.set(import.values, "gradient_accumulation_steps", "gradient_accumulation_steps");
  }
  section.set(import.values, "zero_stage", "zero_stage");
  read_launcher(section, import);
  section.set(import.values, "deepspeed_hostfile", "hostfile");
  section.set(import.values, "deepspeed_inclusion_filter", "include");
  section.set(import.values, "deepspeed_exclusion_filter", "exclude");
  note_program_settings(section, import);
  return precision;
}

}  // namespace lockstep::config
