// SPDX-License-Identifier: Apache-2.0
#include "cli/estimate_memory/estimate_memory_command.h"

#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/common/choices.h"
#include "cli/common/numbers.h"
#include "cli/common/usage_formatter.h"
#include "cli/estimate_memory/estimate_memory.h"
#include "cli/estimate_memory/estimate_memory_model.h"
#include "lockstep/base/env.h"
#include "lockstep/base/text/split.h"
#include "lockstep/base/text/suggest.h"

namespace lockstep::cli {
namespace {

constexpr const char* kEstimateMemoryCommand = "lockstep estimate-memory";

constexpr const char* kEstimateMemoryFooter = R"(Examples:
  lockstep estimate-memory exported/model.safetensors
  lockstep estimate-memory --parameters 7b --largest-layer 131M --ranks 8,64 --hosts 8
  lockstep estimate-memory --parameters 70b --ranks 64 --hosts 8 --mesh pp=2,tp=8
  lockstep estimate-memory runs/a/checkpoints/checkpoint_3 --optimizer sgd --json

PATH is a .safetensors file, a folder or index of them, or a checkpoint; only headers are
read. The first table is that of accelerate estimate-memory: the memory to load the model in
each dtype, and to train it with batch size 1. The second table has the parameters,
gradients and optimizer state of each rank in each ZeRO stage: in Lockstep (for a float32
model), by the papers of ZeRO and ZeRO-Offload (see --mixed-precision), and by DeepSpeed's
estimate_zero2/3_model_states_mem_needs (16-bit training with Adam). With --parameters, the
layers are unknown.

Not included: activations, which grow with the batch size, communication buffers, data,
libraries, and the device's driver.

Exit code: 0; 1 if a file cannot be read; 2 for a usage error.)";

int64_t parse_number(const std::string& option, const std::string& text, int64_t most) {
  const std::optional<int64_t> number = parse_integer(text);
  if (!number || *number < 1 || *number > most) {
    throw ConfigError(
        kEstimateMemoryCommand,
        fmt::format(
            "invalid value '{}' for {}; expected a whole number from 1 to {}",
            printable(text),
            option,
            with_commas(most)));
  }
  return *number;
}

std::vector<std::string> checked_dtypes(const std::string& list) {
  const std::vector<std::string> known(kEstimateDtypes.begin(), kEstimateDtypes.end());
  std::vector<std::string> dtypes = split(list, ',');
  for (const std::string& dtype : dtypes) {
    if (std::find(known.begin(), known.end(), dtype) == known.end()) {
      throw ConfigError(
          kEstimateMemoryCommand,
          fmt::format(
              "invalid value '{}' for --dtypes; expected a list of {}{}",
              printable(dtype),
              fmt::join(known, ", "),
              did_you_mean(dtype, known)));
    }
  }
  return dtypes;
}

int64_t optimizer_numbers(const std::string& optimizer, const ModelSize& size) {
  if (const auto numbers = state_numbers_of(optimizer)) {
    return *numbers * size.parameters;
  }
  if (!size.layers) {
    throw ConfigError(
        kEstimateMemoryCommand,
        "adafactor's state depends on the shapes of tensors, which --parameters does not have; "
        "give a file or folder instead");
  }
  return size.layers->adafactor_numbers;
}

std::vector<int64_t> checked_ranks(const std::string& list, int64_t hosts) {
  std::vector<int64_t> numbers;
  for (const std::string& word : split(list, ',')) {
    numbers.push_back(parse_number("--ranks", word, kMostRanks));
    if (numbers.back() % hosts != 0) {
      throw ConfigError(
          kEstimateMemoryCommand,
          fmt::format(
              "{} ranks cannot be divided equally among {} hosts; expected a multiple of the hosts",
              numbers.back(),
              hosts));
    }
  }
  return numbers;
}

}  // namespace

EstimateMemoryCommand::EstimateMemoryCommand(CLI::App& app)
    : command_(
          app.add_subcommand("estimate-memory", "Estimate the memory to load and train a model")) {
  set_help(
      *command_,
      "lockstep estimate-memory PATH|--parameters N [OPTIONS] [--json]",
      kEstimateMemoryFooter);
  command_
      ->add_option(
          "--parameters", parameters_, "Number of parameters, like 7b or 350M, instead of PATH")
      ->type_name("N");
  command_
      ->add_option(
          "--largest-layer",
          largest_layer_,
          "Number of parameters of the largest layer, with --parameters")
      ->type_name("N");
  command_->add_option("--ranks", ranks_, "Numbers of ranks, with one table for each (2)")
      ->type_name("N,...");
  command_->add_option("--hosts", hosts_, "Number of hosts, with equal numbers of ranks (1)")
      ->type_name("H");
  command_
      ->add_option(
          "--mesh", mesh_, "Dimensions of the ranks, like pp=2,tp=4; the rest shares data (none)")
      ->type_name("DIMS");
  command_->add_option("--dtypes", dtypes_, "Dtypes of the first table (all)")
      ->type_name(fmt::format("{}", fmt::join(kEstimateDtypes, ",")));
  command_->add_option("--optimizer", optimizer_, "Optimizer whose state is included (adamw)")
      ->type_name("NAME")
      ->check(one_of(estimate_optimizers()));
  command_
      ->add_option(
          "--mixed-precision",
          mixed_precision_,
          "Precision in the papers' columns; no: all float32 (bf16)")
      ->type_name("NAME")
      ->check(one_of({"no", "fp16", "bf16"}));
  command_
      ->add_option(
          "--model", model_, "Number of a checkpoint's model: 0 is `model`, 1 is `model_1` (0)")
      ->type_name("N")
      ->check(integer_between(0, std::numeric_limits<int>::max()));
  command_->add_flag("--json", json_, "Print one JSON object, also for errors");
}

EstimateRequest EstimateMemoryCommand::request_of(const std::vector<std::string>& words) const {
  if (words.size() + (parameters_.empty() ? 0 : 1) != 1 || (!words.empty() && words[0].empty())) {
    throw ConfigError(
        kEstimateMemoryCommand,
        "the model is missing; expected one path, or --parameters N; try --parameters 7b");
  }
  if (!largest_layer_.empty() && parameters_.empty()) {
    throw ConfigError(
        kEstimateMemoryCommand, "--largest-layer needs --parameters; a file has its layers");
  }
  EstimateRequest request;
  request.path = words.empty() ? "" : words[0];
  request.size = words.empty() ? size_of_parameters(parse_count("--parameters", parameters_))
                               : size_of_model(tensors_of_model(words[0], model_));
  if (request.size.parameters < 1 || request.size.parameters > kMostParameters) {
    throw ConfigError(
        request.path,
        fmt::format(
            "has {} parameters, expected 1 to {}",
            with_commas(request.size.parameters),
            with_commas(kMostParameters)));
  }
  if (request.size.layers) {
    request.largest_layer_parameters = request.size.layers->largest_own_parameters;
  } else if (!largest_layer_.empty()) {
    request.largest_layer_parameters = parse_count("--largest-layer", largest_layer_);
    if (*request.largest_layer_parameters > request.size.parameters) {
      throw ConfigError(
          kEstimateMemoryCommand,
          "--largest-layer is larger than --parameters; expected at most that number");
    }
  }
  request.dtypes = checked_dtypes(dtypes_);
  request.optimizer = optimizer_;
  request.optimizer_numbers = optimizer_numbers(optimizer_, request.size);
  request.mixed_precision = mixed_precision_;
  request.hosts = parse_number("--hosts", hosts_, kMostRanks);
  request.ranks = checked_ranks(ranks_, request.hosts);
  if (!mesh_.empty()) {
    request.mesh = parse_mesh(mesh_, std::string(kEstimateMemoryCommand) + " --mesh");
    if (request.mesh.ep > 1) {
      throw ConfigError(
          kEstimateMemoryCommand,
          "--mesh has ep, but which parameters are experts is unknown; expected a mesh without it");
    }
  }
  return request;
}

int EstimateMemoryCommand::run(const std::vector<std::string>& words) const {
  return print_report(
      "lockstep.estimate-memory", json_, [&] { return estimate_report(request_of(words)); });
}

}  // namespace lockstep::cli
