// SPDX-License-Identifier: Apache-2.0
#include "cli/config/questionnaire.h"

#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/config/document/scalars.h"
#include "lockstep/config/setting_table.h"

namespace lockstep::cli {
namespace {

class Questionnaire {
 public:
  Questionnaire(Menu& menu, config::ConfigValues present)
      : menu_(menu), values_(std::move(present)) {}

  config::ConfigValues run() {
    ask("num_machines", "How many machines will the job use?");
    if (value("num_machines") == "1") {
      forget({"machine_rank", "main_process_ip", "launcher"});
    } else {
      ask_machines();
    }
    ask_processes();
    choose(
        "mixed_precision",
        "What should autocast compute in?",
        {{"as the program says", ""},
         {"no", "float32 throughout"},
         {"fp16", "half precision, with loss scaling"},
         {"bf16", "bfloat16"}},
        {"", "no", "fp16", "bf16"});
    choose(
        "zero_stage",
        "What should each process have only a part of (ZeRO)?",
        {{"as the program says", ""},
         {"nothing", "data parallel"},
         {"stage 1", "the optimizer's state"},
         {"stage 2", "gradients, too"},
         {"stage 3", "parameters, too"}},
        {"", "0", "1", "2", "3"});
    ask("max_restarts", "How often should a job that failed be started again?");
    ask_optional("log_dir", "Which folder should get a file for each process's output?");
    choose(
        "debug",
        "Should mismatched collectives say what each process had? It costs some speed.",
        {{"no", ""}, {"yes", ""}},
        {"false", "true"});
    ask_optional("deepspeed_config_file", "Which DeepSpeed JSON should programs get?");
    return std::move(values_);
  }

 private:
  void ask_machines() {
    choose(
        "launcher",
        "What starts the processes of the other machines?",
        {{"local", "you, with lockstep launch on each machine"},
         {"ssh", "this command, with ssh and a hostfile"},
         {"openmpi", "mpirun, with a hostfile"},
         {"slurm", "srun, within an allocation"}},
        {"local", "ssh", "openmpi", "slurm"});
    const std::string launcher = value("launcher");
    if (launcher == "local") {
      ask("machine_rank", "Which machine is this one? The first is 0.", [&](const auto& answer) {
        const int64_t machines = config::integer_value(value("num_machines")).value_or(1);
        const bool fits = config::integer_value(answer).value_or(0) < machines;
        return fits ? std::string()
                    : fmt::format("got {}, expected less than {}", answer, machines);
      });
      ask("main_process_ip", "At which address do the others find the first machine?");
      if (value("main_process_port").empty()) {
        values_.settings["main_process_port"] = "29500";
      }
      ask("main_process_port", "At which port?");
      return;
    }
    forget({"machine_rank"});
    if (launcher != "slurm") {
      ask("hostfile", "Which hostfile names the machines?");
    }
  }

  void ask_processes() {
    const std::vector<std::string> words = {"auto", "gpu", "cpu", ""};
    const std::string present = value("num_processes");
    size_t preset = present.empty() ? 0 : 3;
    for (size_t i = 0; i < 3; ++i) {
      preset = present == words[i] ? i : preset;
    }
    const size_t taken = menu_.choose(
        "How many processes?",
        {{"auto", "one a GPU, or one a core where there is none"},
         {"gpu", "one a GPU"},
         {"cpu", "one a core"},
         {"a number", "of all machines together"}},
        preset);
    if (taken < 3) {
      values_.settings["num_processes"] = words[taken];
      return;
    }
    if (preset != 3) {
      values_.settings["num_processes"] = "2";
    }
    ask("num_processes", "Which number?");
  }

  /// What it is now, or would be; empty if it is not set.
  std::string value(const std::string& name) const {
    const auto found = values_.settings.find(name);
    return found != values_.settings.end() ? found->second
                                           : config::find_setting(name)->default_value;
  }

  void set(const std::string& name, const std::string& text) {
    // The default stays unsaid, unless it was said already.
    if (text != value(name)) {
      values_.settings[name] = text;
    }
  }

  void forget(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      values_.settings.erase(name);
    }
  }

  static std::string fault_of(const std::string& name, const std::string& answer) {
    try {
      config::check_value(*config::find_setting(name), answer, "answer", name);
      return "";
    } catch (const ConfigError& error) {
      const std::string what = error.what();
      return what.substr(what.find("got "));
    }
  }

  using Check = std::function<std::string(const std::string&)>;

  /// `check`: what else there is to say against an answer.
  void ask(const std::string& name, const std::string& question, const Check& check = {}) {
    set(name, menu_.ask(question, value(name), [&](const std::string& answer) {
      const std::string fault = fault_of(name, answer);
      return fault.empty() && check ? check(answer) : fault;
    }));
  }

  /// Of a path: "none" stands for not set.
  void ask_optional(const std::string& name, const std::string& question) {
    const std::string present = value(name).empty() ? "none" : value(name);
    const std::string answer =
        menu_.ask(question, present, [](const std::string& /*any*/) { return std::string(); });
    set(name, answer == "none" ? "" : answer);
  }

  void choose(
      const std::string& name,
      const std::string& question,
      const std::vector<Choice>& choices,
      const std::vector<std::string>& texts) {
    size_t preset = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      preset = texts[i] == value(name) ? i : preset;
    }
    set(name, texts[menu_.choose(question, choices, preset)]);
  }

  Menu& menu_;
  config::ConfigValues values_;
};

}  // namespace

config::ConfigValues ask_settings(Menu& menu, config::ConfigValues present) {
  return Questionnaire(menu, std::move(present)).run();
}

}  // namespace lockstep::cli
