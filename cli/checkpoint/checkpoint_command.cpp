// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/checkpoint_command.h"

#include <charconv>
#include <limits>
#include <system_error>

#include <fmt/format.h>

#include "cli/checkpoint/checkpoint_reports.h"
#include "cli/common/arguments.h"
#include "cli/common/choices.h"
#include "cli/common/usage_formatter.h"
#include "lockstep/storage/safetensors/byte_size.h"

namespace lockstep::cli {
namespace {

constexpr const char* kListFooter = R"(Examples:
  lockstep checkpoint ls runs/a/checkpoints
  lockstep checkpoint ls runs/a/checkpoints --json | jq -r .newest

Lists the checkpoints in the order of their commits, the newest valid one marked with *,
then other files and folders with the reason why they are not checkpoints. Checks sizes
only; lockstep checkpoint verify reads all data.

Exit code: 0; 1 if the folder cannot be read; 2 for a usage error.)";

constexpr const char* kCheckpointShowFooter = R"(Examples:
  lockstep checkpoint show runs/a/checkpoints/checkpoint_3
  lockstep checkpoint show runs/a/checkpoints/checkpoint_3 --json | jq '.sets[].elements'

Shows the files, the tensors with dtype, shape and number of values (parameters and
buffers), and the meta data that the program saved.

Exit code: 0; 1 if it cannot be read; 2 for a usage error.)";

constexpr const char* kVerifyFooter = R"(Examples:
  lockstep checkpoint verify runs/a/checkpoints/checkpoint_3
  lockstep checkpoint verify runs/a/checkpoints/checkpoint_*

Reads all data and names each file and tensor that has changed since it was written. Then
checks for damage that checksums do not show: files that the manifest does not list, slices
that do not fit their tensor, invalid values in the meta data.

Exit code: 0 if all are complete; 1 if any is damaged; 2 for a usage error.)";

constexpr const char* kDiffFooter = R"(Examples:
  lockstep checkpoint diff unbroken/checkpoint_3 resumed/checkpoint_3
  lockstep checkpoint diff a/checkpoint_1 a/checkpoint_2 --json | jq '.tensors[].name'

Compares tensors by name, independent of their distribution over files, then the other
files and the meta data, except the random save_id. Data with equal checksums is not read.
For floats it prints the largest difference.

Exit code: 0 if they are equal; 1 if they differ, or one cannot be read; 2 for a usage
error.)";

constexpr const char* kPruneFooter = R"(Examples:
  lockstep checkpoint prune runs/a/checkpoints --keep 3 --dry-run
  lockstep checkpoint prune runs/a/checkpoints --keep 3

Removes the oldest checkpoints, in the order of commits, until N complete ones remain. This
command counts checkpoints of any name; total_limit in a program counts only
checkpoint_<N>. Reads all data of the checkpoints to keep. A damaged checkpoint is reported
and does not count; it is removed only if it is older than all kept ones. Other files are
kept, except those that a killed save or prune left: on this host at once, on another host
after a day.

Exit code: 0; 1 if a checkpoint cannot be removed; 2 for a usage error.)";

constexpr const char* kMergeFooter = R"(Examples:
  lockstep merge-weights runs/a/checkpoints/checkpoint_3 exported
  lockstep merge-weights runs/a/checkpoints/checkpoint_3 exported --dtype keep
  lockstep merge-weights runs/a/checkpoints/checkpoint_3 exported --max-shard-size 5GB
  lockstep merge-weights runs/a/checkpoints/checkpoint_3 exported --model 1

Writes one model.safetensors in float32. 16-bit parameters are written as their float32
master copies, if the checkpoint has them, else converted. --dtype float16 and bfloat16
round; keep writes each tensor in its saved dtype. float64 and integers are not converted.
With --max-shard-size, larger models are written as shards and model.safetensors.index.json,
as transformers and Accelerate read them. Sizes are decimal: KB, MB, GB, TB. The command
needs memory for the largest tensor.

Exit code: 0; 1 if a file cannot be read or written; 2 for a usage error.)";

/// Returns the fault of a number for an option; empty if it is valid.
std::string check_number(const std::string& text) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec == std::errc() && parsed.ptr == end && value >= 0) {
    return "";
  }
  return fmt::format(
      "got '{}', expected a whole number from 0 to {}",
      printable(text),
      std::numeric_limits<int>::max());
}

/// Returns "runs/a" for "runs/a/", which has no file name.
std::filesystem::path path_of(const std::string& word) {
  const std::filesystem::path path(word);
  return path.has_filename() || !path.has_relative_path() ? path : path.parent_path();
}

std::vector<std::filesystem::path> paths_of(const std::vector<std::string>& words) {
  std::vector<std::filesystem::path> paths;
  for (const std::string& word : words) {
    paths.push_back(path_of(word));
  }
  return paths;
}

}  // namespace

CheckpointCommand::CheckpointCommand(CLI::App& app)
    : command_(
          app.add_subcommand("checkpoint", "List, show, verify, compare and prune checkpoints")) {
  set_help(
      *command_,
      "lockstep checkpoint ls|show|verify|diff|prune [OPTIONS]",
      "lockstep checkpoint COMMAND --help describes one command.");
  list_ = add("ls", "List the checkpoints in a folder", "ls FOLDER [--json]");
  list_->footer(kListFooter);
  show_ = add("show", "Show the content of a checkpoint", "show CHECKPOINT [--json]");
  show_->footer(kCheckpointShowFooter);
  verify_ = add("verify", "Read all data and report damage", "verify CHECKPOINT... [--json]");
  verify_->footer(kVerifyFooter);
  diff_ = add("diff", "Compare two checkpoints", "diff CHECKPOINT OTHER [--json]");
  diff_->footer(kDiffFooter);
  prune_ =
      add("prune",
          "Remove all but the newest checkpoints",
          "prune FOLDER --keep N [--dry-run] [--json]");
  prune_->footer(kPruneFooter);
  keep_option_ =
      prune_->add_option("--keep", prune_options_.keep, "Number of the newest checkpoints to keep")
          ->type_name("N")
          ->check(check_number);
  prune_->add_flag("--dry-run", prune_options_.dry_run, "Only print what would be removed");
}

CLI::App* CheckpointCommand::add(
    const std::string& name, const std::string& what, const std::string& usage) {
  CLI::App* command = command_->add_subcommand(name, what);
  set_help(*command, "lockstep checkpoint " + usage, "");
  command->add_flag("--json", json_, "Print one JSON object, also for errors");
  return command;
}

Report CheckpointCommand::make_report(const std::vector<std::string>& words) const {
  constexpr size_t kAny = std::numeric_limits<size_t>::max();
  const std::vector<std::filesystem::path> paths = paths_of(words);
  if (list_->parsed()) {
    expect_words("lockstep checkpoint ls", words, 1, 1, "one folder of checkpoints");
    return list_report(paths[0]);
  }
  if (show_->parsed()) {
    expect_words("lockstep checkpoint show", words, 1, 1, "one checkpoint");
    return show_report(paths[0]);
  }
  if (verify_->parsed()) {
    expect_words("lockstep checkpoint verify", words, 1, kAny, "one or more checkpoints");
    return verify_report(paths);
  }
  if (diff_->parsed()) {
    expect_words("lockstep checkpoint diff", words, 2, 2, "two checkpoints");
    return diff_report(paths[0], paths[1]);
  }
  expect_words("lockstep checkpoint prune", words, 1, 1, "one folder of checkpoints");
  if (keep_option_->empty()) {
    throw ConfigError(
        "lockstep checkpoint prune",
        "--keep is missing; expected --keep N, the number of checkpoints to keep");
  }
  return prune_report(paths[0], prune_options_);
}

int CheckpointCommand::run(const std::vector<std::string>& words) const {
  const std::vector<CLI::App*> given = command_->get_subcommands();
  if (given.empty()) {
    throw ConfigError(
        "lockstep checkpoint", "the command is missing; expected ls, show, verify, diff or prune");
  }
  return print_report("lockstep.checkpoint." + given.front()->get_name(), json_, [&] {
    return make_report(words);
  });
}

MergeWeightsCommand::MergeWeightsCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "merge-weights", "Write the weights of a checkpoint as one float32 file")) {
  set_help(
      *command_,
      "lockstep merge-weights CHECKPOINT OUT [--dtype float32] [--max-shard-size SIZE] [--model N] "
      "[--force] [--json]",
      kMergeFooter);
  command_
      ->add_option("--dtype", dtype_, "Dtype of float16, bfloat16 and float32 tensors (float32)")
      ->type_name("NAME")
      ->check(one_of({kMergeDtypes.begin(), kMergeDtypes.end()}));
  shard_option_ =
      command_
          ->add_option(
              "--max-shard-size", max_shard_size_, "Largest size of a file, like 5GB (unlimited)")
          ->type_name("SIZE");
  command_
      ->add_option(
          "--model",
          options_.model,
          "Number of the model, in the order of prepare(): 0 is `model`, 1 is `model_1` (0)")
      ->type_name("N")
      ->check(check_number);
  command_->add_flag("--force", options_.force, "Replace existing weights in OUT");
  command_->add_flag("--json", json_, "Print one JSON object, also for errors");
}

int MergeWeightsCommand::run(const std::vector<std::string>& words) const {
  return print_report("lockstep.merge-weights", json_, [&] {
    expect_words("lockstep merge-weights", words, 2, 2, "a checkpoint and a folder to write to");
    MergeOptions options = options_;
    options.dtype = parse_merge_dtype(dtype_);
    if (!shard_option_->empty()) {
      options.max_shard_bytes = storage::parse_bytes("--max-shard-size", max_shard_size_);
    }
    return merge_weights(path_of(words[0]), path_of(words[1]), options);
  });
}

}  // namespace lockstep::cli
