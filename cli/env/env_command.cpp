// SPDX-License-Identifier: Apache-2.0
#include "cli/env/env_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/common/arguments.h"
#include "cli/common/build_facts.h"
#include "cli/common/usage_formatter.h"
#include "cli/config/settings_report.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kEnvFooter = R"(Examples:
  lockstep env                          facts for a bug report
  lockstep env --json | jq .cpu.allowed
  lockstep env --explain                every setting with its value and origin

Runs ssh, mpirun, srun, nvidia-smi and the Python of lockstep launch for their versions, for a
few seconds at most. Says whether accelerate and deepspeed mean Lockstep there. Shows the
environment variables that affect a job; the value of a variable whose name suggests a
secret is hidden.

Exit code: 0; with --explain 2 if the configuration is invalid; 2 for a usage error.)";

/// Formats a size in MiB or GiB.
std::string mebibytes_text(uint64_t bytes) {
  constexpr double kMebibyte = 1024.0 * 1024.0;
  const double mebibytes = static_cast<double>(bytes) / kMebibyte;
  return mebibytes < 1024 ? fmt::format("{:.0f} MiB", mebibytes)
                          : fmt::format("{:.1f} GiB", mebibytes / 1024);
}

template <typename Number>
Json or_null(const std::optional<Number>& number) {
  return number ? Json(*number) : Json();
}

std::string limit_text(const Machine::Limit& limit) {
  const auto text = [](const std::optional<uint64_t>& number) {
    return number ? std::to_string(*number) : "unlimited";
  };
  return fmt::format("{} {} (hard {})", limit.name, text(limit.soft), text(limit.hard));
}

std::string or_unknown(const std::string& text) {
  return text.empty() ? "unknown" : text;
}

/// Formats lines "name: value", with the names in one column.
class Block {
 public:
  void add(const std::string& name, const std::string& value) {
    text_ += fmt::format("{:<13} {}\n", name + ":", printable(value));
  }
  std::string text() const { return text_; }

 private:
  std::string text_;
};

Json build_json() {
  return {
      {"version", kBuild.version},
      {"commit", kBuild.commit},
      {"build_type", kBuild.type},
      {"compiler", kBuild.compiler},
      {"flags", kBuild.flags},
      {"torch", kBuild.torch}};
}

void add_build(Block& block) {
  block.add(
      "lockstep",
      fmt::format(
          "{} (commit {}, {})",
          kBuild.version,
          or_unknown(kBuild.commit),
          or_unknown(kBuild.type)));
  block.add(
      "built",
      fmt::format(
          "by {} with {}, for torch {}",
          kBuild.compiler,
          or_unknown(kBuild.flags),
          or_unknown(kBuild.torch)));
}

void add_cpu(const Machine::Cpu& cpu, Block& block, Json& json) {
  block.add(
      "cpu",
      fmt::format(
          "{}; {}, {} allowed; {}; {}",
          or_unknown(cpu.model),
          counted(static_cast<size_t>(cpu.cores), "core"),
          cpu.allowed,
          cpu.numa_nodes == 0 ? "NUMA nodes unknown"
                              : counted(static_cast<size_t>(cpu.numa_nodes), "NUMA node"),
          cpu.cgroup_cores ? fmt::format("cgroup limit {:.2f} cores", *cpu.cgroup_cores)
                           : "no cgroup limit"));
  json["cpu"] = {
      {"model", cpu.model},
      {"cores", cpu.cores},
      {"allowed", cpu.allowed},
      {"numa_nodes", cpu.numa_nodes},
      {"cgroup_cores", or_null(cpu.cgroup_cores)}};
}

void add_memory(const Machine& machine, Block& block, Json& json) {
  const Machine::Memory& memory = machine.memory;
  block.add(
      "memory",
      fmt::format(
          "{}, {} available; {}",
          mebibytes_text(memory.bytes),
          mebibytes_text(memory.available_bytes),
          memory.cgroup_bytes ? "cgroup limit " + mebibytes_text(*memory.cgroup_bytes)
                              : "no cgroup limit"));
  json["memory"] = {
      {"bytes", memory.bytes},
      {"available_bytes", memory.available_bytes},
      {"cgroup_bytes", or_null(memory.cgroup_bytes)}};
  json["shared_memory"] = Json();
  if (const auto& shared = machine.shared_memory) {
    block.add(
        "/dev/shm",
        fmt::format(
            "{}, {} free", mebibytes_text(shared->bytes), mebibytes_text(shared->free_bytes)));
    json["shared_memory"] = {{"bytes", shared->bytes}, {"free_bytes", shared->free_bytes}};
  } else {
    block.add("/dev/shm", "none");
  }
}

void add_limits(const Machine& machine, Block& block, Json& json) {
  std::vector<std::string> texts;
  json["limits"] = Json::object();
  for (const Machine::Limit& limit : machine.limits) {
    texts.push_back(limit_text(limit));
    json["limits"][limit.name] = {{"soft", or_null(limit.soft)}, {"hard", or_null(limit.hard)}};
  }
  block.add("limits", fmt::format("{}", fmt::join(texts, ", ")));
}

void add_gpus(const EnvFacts& facts, Block& block, Json& json) {
  const Machine& machine = facts.machine;
  json["gpus"] = {
      {"models", machine.gpus}, {"driver", machine.gpu_driver}, {"nvidia_smi", facts.nvidia_smi}};
  if (machine.gpus.empty() && facts.nvidia_smi.empty()) {
    block.add("gpus", "none");
    return;
  }
  for (const std::string& gpu : machine.gpus) {
    block.add("gpu", or_unknown(gpu));
  }
  if (!machine.gpu_driver.empty()) {
    block.add("gpu driver", machine.gpu_driver);
  }
  for (size_t begin = 0; begin < facts.nvidia_smi.size();) {
    const size_t end = std::min(facts.nvidia_smi.find('\n', begin), facts.nvidia_smi.size());
    block.add("nvidia-smi", facts.nvidia_smi.substr(begin, end - begin));
    begin = end + 1;
  }
}

void add_interfaces(const Machine& machine, Block& block, Json& json) {
  json["interfaces"] = Json::array();
  for (const Machine::Interface& interface : machine.interfaces) {
    block.add(
        "network",
        fmt::format(
            "{} {}{} {}",
            interface.name,
            interface.up ? "up" : "down",
            interface.loopback ? " loopback" : "",
            interface.addresses.empty() ? "without address"
                                        : fmt::format("{}", fmt::join(interface.addresses, " "))));
    json["interfaces"].push_back(
        {{"name", interface.name},
         {"up", interface.up},
         {"loopback", interface.loopback},
         {"addresses", interface.addresses}});
  }
}

/// Does not check libtorch, which this program does not load.
void add_backends(const Machine& machine, Block& block, Json& json) {
  const bool has_gpu = !machine.gpus.empty();
  const std::string why = has_gpu ? "" : "this machine has no NVIDIA GPU";
  block.add(
      "backends",
      "shm (within a host), gloo; " +
          (has_gpu ? "nccl between GPUs, if libtorch is built for CUDA" : "no nccl: " + why));
  json["backends"] = {
      {{"name", "shm"}, {"available", true}, {"why", ""}},
      {{"name", "gloo"}, {"available", true}, {"why", ""}},
      {{"name", "nccl"}, {"available", has_gpu}, {"why", why}}};
}

void add_programs(const EnvFacts& facts, Block& block, Json& json) {
  json["python"] = {
      {"path", facts.python}, {"version", facts.python_version}, {"torch", facts.torch_version}};
  block.add(
      "python",
      facts.python.empty()
          ? "not found"
          : fmt::format(
                "{} ({}), {}",
                or_unknown(facts.python_version),
                facts.python,
                facts.torch_version.empty() ? "no torch" : "torch " + facts.torch_version));
  json["python"]["modules"] = Json::array();
  for (const PythonModule& module : facts.modules) {
    const std::string place = fmt::format("{} ({})", or_unknown(module.version), module.folder);
    block.add(
        module.name,
        module.folder.empty()  ? "not installed; lockstep launch --alias makes it mean Lockstep"
        : module.is_lockstep() ? "means Lockstep, as version " + place
                               : place + "; lockstep launch --alias makes it mean Lockstep");
    json["python"]["modules"].push_back(
        {{"name", module.name},
         {"version", module.version},
         {"path", module.folder},
         {"is_lockstep", module.is_lockstep()}});
  }
  json["programs"] = Json::array();
  for (const ProgramFound& program : facts.programs) {
    block.add(
        program.name,
        program.path.empty() ? "not found"
                             : fmt::format("{} ({})", or_unknown(program.version), program.path));
    json["programs"].push_back(
        {{"name", program.name}, {"path", program.path}, {"version", program.version}});
  }
}

void add_configuration(const Configured& configured, Block& block, Json& json) {
  Json values = Json::array();
  block.add("config file", configured.file.empty() ? "none" : configured.file);
  for (const Configured::Value& value : configured.values) {
    block.add("config", fmt::format("{}={} ({})", value.name, value.value, value.origin));
    values.push_back({{"name", value.name}, {"value", value.value}, {"origin", value.origin}});
  }
  if (!configured.fault.empty()) {
    block.add("config", "not valid: " + configured.fault);
  }
  json["configuration"] = {
      {"file", configured.file.empty() ? Json() : Json(configured.file)},
      {"settings", std::move(values)},
      {"error", configured.fault.empty() ? Json() : Json(configured.fault)}};
}

}  // namespace

Report env_report(const EnvFacts& facts) {
  const Machine& machine = facts.machine;
  Report report;
  Block block;
  Json& json = report.json;
  json["lockstep"] = build_json();
  add_build(block);
  block.add(
      "system",
      fmt::format(
          "{}, {} {}, host {}",
          or_unknown(machine.system.name),
          machine.system.kernel,
          machine.system.architecture,
          machine.system.host));
  json["system"] = {
      {"name", machine.system.name},
      {"kernel", machine.system.kernel},
      {"architecture", machine.system.architecture},
      {"host", machine.system.host}};
  add_cpu(machine.cpu, block, json);
  add_memory(machine, block, json);
  add_limits(machine, block, json);
  add_gpus(facts, block, json);
  add_interfaces(machine, block, json);
  add_backends(machine, block, json);
  add_programs(facts, block, json);
  add_configuration(facts.configured, block, json);
  json["environment"] = facts.variables;
  for (const auto& [name, value] : facts.variables) {
    block.add("environment", fmt::format("{}={}", name, value));
  }
  report.text = block.text();
  return report;
}

EnvCommand::EnvCommand(CLI::App& app)
    : command_(app.add_subcommand("env", "Show the facts of this machine for a bug report")) {
  set_help(*command_, "lockstep env [--explain] [--json]", kEnvFooter);
  command_->add_flag("--explain", explain_, "Show every setting with its value and origin instead");
  command_->add_flag("--json", json_, "Print one JSON object, also for errors");
}

int EnvCommand::run(const std::vector<std::string>& words) const {
  return print_report(explain_ ? "lockstep.env.explain" : "lockstep.env", json_, [&] {
    expect_no_words("lockstep env", words);
    return explain_ ? own_settings_report(std::nullopt) : env_report(gather_env_facts());
  });
}

}  // namespace lockstep::cli
