// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/import/import_accelerate.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/base/text/words.h"
#include "lockstep/config/import/import_deepspeed.h"
#include "lockstep/config/import/import_fsdp.h"
#include "lockstep/config/import/import_section.h"
#include "lockstep/config/import/model_parallel_options.h"
#include "lockstep/mesh/mesh_shape.h"

namespace lockstep::config {
namespace {

using Kind = Node::Kind;

/// Returns the distributed types of Accelerate that Lockstep does not support, with the reason.
const std::map<std::string, std::string>& refused_types() {
  constexpr const char* kNoDevice = "Lockstep supports only CPUs and CUDA devices";
  static const std::map<std::string, std::string> types = {
      {"XLA", kNoDevice},
      {"TPU", kNoDevice},
      {"MULTI_XPU", kNoDevice},
      {"MULTI_NPU", kNoDevice},
      {"MULTI_MLU", kNoDevice},
      {"MULTI_SDAA", kNoDevice},
      {"MULTI_MUSA", kNoDevice},
      {"MULTI_HPU", kNoDevice},
      {"MULTI_NEURON", kNoDevice}};
  return types;
}

class Importer {
 public:
  Importer(const Document& file, const Environment& environment)
      : file_(file), environment_(environment), root_(file, file.root, "") {}

  Import run() {
    refuse_other_files();
    read_type(*file_.root.find("distributed_type"));
    for (const Entry& entry : file_.root.entries) {
      const auto found = handlers().find(entry.key);
      if (found == handlers().end()) {
        refuse_unknown(entry);
      }
      if (is_empty(entry.value)) {
        continue;
      }
      if (found->second == nullptr) {
        import_.without_meaning.push_back(entry.key);
      } else {
        (this->*found->second)(entry);
      }
    }
    if (type_ == "FSDP" && import_.values.settings.count("zero_stage") == 0) {
      import_fsdp(file_, {}, import_);  // Without fsdp_config the default strategy applies.
    }
    finish_processes();
    finish_precision();
    return std::move(import_);
  }

 private:
  using Handler = void (Importer::*)(const Entry&);

  /// Returns all keys of Accelerate. One without a handler has no effect.
  static const std::map<std::string, Handler>& handlers() {
    static const std::map<std::string, Handler> all = {
        {"compute_environment", &Importer::skip},
        {"distributed_type", &Importer::skip},
        {"mixed_precision", &Importer::mixed_precision},
        {"fp16", &Importer::old_fp16},
        {"use_cpu", &Importer::use_cpu},
        {"debug", &Importer::copy_setting},
        {"num_processes", &Importer::num_processes},
        {"num_machines", &Importer::copy_setting},
        {"machine_rank", &Importer::copy_setting},
        {"main_process_ip", &Importer::copy_setting},
        {"main_process_port", &Importer::copy_setting},
        {"gpu_ids", &Importer::gpu_ids},
        {"enable_cpu_affinity", &Importer::cpu_affinity},
        {"deepspeed_config", &Importer::deepspeed},
        {"mpirun_config", &Importer::mpirun},
        {"parallelism_config", &Importer::parallelism},
        {"dynamo_config", nullptr},
        {"dynamo_backend", nullptr},
        {"fsdp_config", &Importer::fsdp},
        {"megatron_lm_config", &Importer::megatron},
        {"fp8_config", nullptr},
        {"rdzv_backend", nullptr},
        {"same_network", nullptr},
        {"main_training_function", nullptr},
        {"downcast_bf16", nullptr},
        {"tpu_name", nullptr},
        {"tpu_zone", nullptr},
        {"tpu_use_cluster", nullptr},
        {"tpu_use_sudo", nullptr},
        {"tpu_vm", nullptr},
        {"tpu_env", nullptr},
        {"command_file", nullptr},
        {"commands", nullptr}};
    return all;
  }

  static bool is_empty(const Node& node) {
    return node.kind == Kind::kNull ||
           (node.kind != Kind::kScalar && node.items.empty() && node.entries.empty());
  }

  void refuse_other_files() const {
    if (file_.root.kind != Kind::kMap || file_.root.find("distributed_type") == nullptr) {
      throw ConfigError(
          where(file_, file_.root.place),
          "not a configuration of Accelerate; expected lines like distributed_type: MULTI_CPU");
    }
    const auto environment = root_.text("compute_environment");
    if (environment && *environment != "LOCAL_MACHINE") {
      throw ConfigError(
          where(file_, file_.root.find("compute_environment")->place),
          fmt::format(
              "compute_environment {} cannot be imported; Lockstep starts processes on machines "
              "that it can reach, not on a service",
              *environment));
    }
  }

  void refuse_unknown(const Entry& entry) const {
    std::vector<std::string> known;
    for (const auto& [key, handler] : handlers()) {
      known.push_back(key);
    }
    throw ConfigError(
        where(file_, entry.place),
        fmt::format(
            "unknown key '{}', which Accelerate 1.15 does not have{}",
            entry.key,
            did_you_mean(entry.key, known)));
  }

  void skip(const Entry& /*entry*/) {}

  void copy_setting(const Entry& entry) { root_.set(import_.values, entry.key, entry.key); }

  void read_type(const Node& node) {
    type_ = root_.text("distributed_type").value_or("");
    std::transform(type_.begin(), type_.end(), type_.begin(), [](unsigned char c) {
      return static_cast<char>(std::toupper(c));
    });
    const auto refused = refused_types().find(type_);
    if (refused != refused_types().end()) {
      throw ConfigError(
          where(file_, node.place),
          fmt::format("distributed_type {} cannot be imported; {}", type_, refused->second));
    }
    const std::vector<std::string> known = {
        "NO", "MULTI_CPU", "MULTI_GPU", "DEEPSPEED", "FSDP", "MEGATRON_LM"};
    if (std::find(known.begin(), known.end(), type_) == known.end()) {
      throw ConfigError(
          where(file_, node.place),
          fmt::format(
              "invalid value '{}' for distributed_type; expected one of NO, MULTI_CPU, MULTI_GPU, "
              "DEEPSPEED, FSDP, MEGATRON_LM{}",
              type_,
              did_you_mean(type_, known)));
    }
  }

  void num_processes(const Entry& entry) {
    const auto text = root_.text("num_processes");
    if (text == "-1") {
      import_.notes.emplace_back("num_processes: -1 is unset; give -n N to each launch");
      return;
    }
    copy_setting(entry);
  }

  /// Sets one process for distributed_type NO, as Accelerate does for every num_processes.
  void finish_processes() {
    if (type_ != "NO") {
      return;
    }
    std::string& number = import_.values.settings["num_processes"];
    if (!number.empty() && number != "1") {
      import_.notes.push_back(fmt::format(
          "num_processes: {}: imported as 1, the only number for distributed_type: NO", number));
    }
    number = "1";
  }

  void mixed_precision(const Entry& entry) {
    std::string text = lower(root_.text("mixed_precision").value_or(""));
    if (text == "fp8") {
      throw ConfigError(
          where(file_, entry.value.place),
          "mixed_precision fp8 cannot be imported; expected no, fp16 or bf16; try bf16");
    }
    // Other programs rewrite an unquoted `no` as false.
    const auto truth = truth_value(text);
    text = truth && !*truth ? "no" : text;
    check_value(
        *find_setting("mixed_precision"), text, where(file_, entry.value.place), "mixed_precision");
    precision_ = {text, where(file_, entry.place)};
  }

  void old_fp16(const Entry& entry) {
    if (root_.truth("fp16") && file_.root.find("mixed_precision") == nullptr) {
      precision_ = {"fp16", where(file_, entry.place)};
    }
  }

  void finish_precision() {
    if (!deepspeed_precision_.text.empty() && !precision_.text.empty() &&
        deepspeed_precision_.text != precision_.text) {
      throw ConfigError(
          deepspeed_precision_.origin,
          fmt::format(
              "two mixed precisions are set; got {} here and {} ({}); remove one of them",
              deepspeed_precision_.text,
              precision_.text,
              precision_.origin));
    }
    const Setting& found = precision_.text.empty() ? deepspeed_precision_ : precision_;
    if (!found.text.empty()) {
      import_.values.settings["mixed_precision"] = found.text;
    }
  }

  void use_cpu(const Entry& /*entry*/) {
    if (root_.truth("use_cpu")) {
      import_.values.variables["CUDA_VISIBLE_DEVICES"] = "";
      import_.notes.emplace_back("use_cpu: an empty CUDA_VISIBLE_DEVICES hides all GPUs");
    }
  }

  void gpu_ids(const Entry& entry) {
    const auto text = root_.text("gpu_ids");
    const Node* const cpu = file_.root.find("use_cpu");
    if (!text || *text == "all" || (cpu != nullptr && root_.truth("use_cpu"))) {
      import_.without_meaning.push_back(entry.key);
      return;
    }
    import_.values.variables["CUDA_VISIBLE_DEVICES"] = *text;
    import_.notes.push_back(fmt::format("gpu_ids: imported as CUDA_VISIBLE_DEVICES={}", *text));
  }

  void cpu_affinity(const Entry& /*entry*/) {
    if (root_.truth("enable_cpu_affinity")) {
      import_.values.settings["cpu_bind"] = "numa";
    }
  }

  void mpirun(const Entry& entry) {
    Section section(file_, entry.value, "mpirun_config.");
    section.refuse_unknown({"mpirun_hostfile", "mpirun_ccl"});
    if (section.text("mpirun_hostfile")) {
      import_.values.settings["launcher"] = "openmpi";
      section.set(import_.values, "mpirun_hostfile", "hostfile");
    }
    if (section.text("mpirun_ccl")) {
      import_.without_meaning.emplace_back("mpirun_config.mpirun_ccl");
    }
  }

  void deepspeed(const Entry& entry) {
    if (type_ != "DEEPSPEED") {
      import_.without_meaning.push_back(entry.key);
      return;
    }
    deepspeed_precision_ = import_deepspeed(file_, entry.value, environment_, import_);
  }

  void fsdp(const Entry& entry) {
    if (type_ != "FSDP") {
      import_.without_meaning.push_back(entry.key);
      return;
    }
    import_fsdp(file_, entry.value, import_);
  }

  void parallelism(const Entry& entry) {
    for (const Entry& part : entry.value.entries) {
      const std::string name = without_prefix(part.key, "parallelism_config_");
      const auto option = parallelism_option(name, part.value.text);
      if (!option) {
        refuse_unknown_part(entry, part, name, parallelism_option_names());
      }
      // FSDP shards over all processes, with any mesh.
      const bool is_data_parallel =
          name == "dp_replicate_size" || (name == "dp_shard_size" && type_ == "FSDP");
      if (!is_data_parallel) {
        import_option(*option, part);
      }
      note_mesh(name, part);
    }
  }

  void megatron(const Entry& entry) {
    if (type_ != "MEGATRON_LM") {
      import_.without_meaning.push_back(entry.key);
      return;
    }
    for (const Entry& part : entry.value.entries) {
      const std::string name = without_prefix(part.key, "megatron_lm_");
      const auto option = megatron_option(name, part.value.text);
      if (!option) {
        refuse_unknown_part(entry, part, name, megatron_option_names());
      }
      if (name == "gradient_clipping" && !option->refusal.empty()) {  // Each file has it.
        import_.notes.push_back(
            fmt::format("{}: {}: not imported; {}", part.key, part.value.text, option->refusal));
        continue;
      }
      import_option(*option, part);
    }
  }

  static std::string without_prefix(const std::string& key, const std::string& prefix) {
    return key.starts_with(prefix) ? key.substr(prefix.size()) : key;
  }

  [[noreturn]] void refuse_unknown_part(
      const Entry& section,
      const Entry& part,
      const std::string& name,
      const std::vector<std::string>& known) const {
    throw ConfigError(
        where(file_, part.place),
        fmt::format("unknown key '{}.{}'{}", section.key, part.key, did_you_mean(name, known)));
  }

  void import_option(const ModelParallelOption& option, const Entry& part) {
    if (!option.refusal.empty()) {
      throw ConfigError(
          where(file_, part.value.place),
          fmt::format("{} {} cannot be imported: {}", part.key, part.value.text, option.refusal));
    }
    if (option.is_distributed_adam) {
      import_.values.settings["zero_stage"] = "1";
    }
    if (!option.mesh_part.empty()) {
      std::string& mesh = import_.values.settings["mesh"];
      mesh += (mesh.empty() ? "" : ",") + option.mesh_part;
      parse_mesh(mesh, where(file_, part.value.place));
    }
  }

  void note_mesh(const std::string& name, const Entry& part) {
    if (type_ == "FSDP" && name == "dp_replicate_size" && part.value.text != "1") {
      import_.notes.push_back(fmt::format(
          "{}: {}: not imported; to keep a copy of the parameters in each group of processes "
          "(HSDP), set ShardingStrategy::kHybridShard in the program; results are the same without "
          "it",
          part.key,
          part.value.text));
    }
  }

  const Document& file_;
  const Environment& environment_;
  Section root_;
  Import import_;
  std::string type_;
  Setting precision_;
  Setting deepspeed_precision_;
};

}  // namespace

Import import_accelerate(const Document& file, const Environment& environment) {
  return Importer(file, environment).run();
}

std::filesystem::path accelerate_config_path(const Environment& environment) {
  const auto cache = environment.text("XDG_CACHE_HOME");
  const std::filesystem::path home =
      environment.text("HF_HOME").value_or(cache.value_or("~/.cache") + "/huggingface");
  return std::filesystem::path(expand_home(home.native(), environment)) / "accelerate" /
         "default_config.yaml";
}

}  // namespace lockstep::config
