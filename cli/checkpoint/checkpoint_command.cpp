// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/checkpoint_command.h"

#include <charconv>
#include <limits>
#include <system_error>

#include <fmt/format.h>

#include "cli/checkpoint/checkpoint_reports.h"
#include "cli/common/choices.h"
#include "cli/common/usage_formatter.h"
#include "lockstep/storage/safetensors/byte_size.h"

namespace lockstep::cli {
namespace {

constexpr const char* kListFooter = R"(Examples:
  lockstep checkpoint ls runs/a/checkpoints
  lockstep checkpoint ls runs/a/checkpoints --json | jq -r .newest

In the order in which they were committed, the newest valid one marked with *; then what
else lies there, with the reason why it is no checkpoint. Looks at sizes, not contents;
lockstep checkpoint verify reads all.

Exit code: 0; 1 if the folder cannot be read; 2 for a wrong call.)";

constexpr const char* kShowFooter = R"(Examples:
  lockstep checkpoint show runs/a/checkpoints/checkpoint_3
  lockstep checkpoint show runs/a/checkpoints/checkpoint_3 --json | jq '.sets[].elements'

Files, tensors with dtype and shape, how many values they have (buffers count as
parameters do), and what the program saved as meta.

Exit code: 0; 1 if it cannot be read; 2 for a wrong call.)";

constexpr const char* kVerifyFooter = R"(Examples:
  lockstep checkpoint verify runs/a/checkpoints/checkpoint_3
  lockstep checkpoint verify runs/a/checkpoints/checkpoint_*

Reads every byte and names each file and tensor that is not what was written, then what no
checksum shows: parts that the manifest does not list, slices that are not their tensor,
values of meta that make no sense.

Exit code: 0 if all are whole; 1 if any is damaged; 2 for a wrong call.)";

constexpr const char* kDiffFooter = R"(Examples:
  lockstep checkpoint diff unbroken/checkpoint_3 resumed/checkpoint_3
  lockstep checkpoint diff a/checkpoint_1 a/checkpoint_2 --json | jq '.tensors[].name'

Compares tensors by name, however they are divided among files, then the other files and
meta, but for the random save_id that each has. Equal checksums are not read again. For floats says the largest difference.

Exit code: 0 if they are the same; 1 if they differ, or one cannot be read; 2 for a
wrong call.)";

constexpr const char* kPruneFooter = R"(Examples:
  lockstep checkpoint prune runs/a/checkpoints --keep 3 --dry-run
  lockstep checkpoint prune runs/a/checkpoints --keep 3

Removes the oldest, by the order of commits, until so many whole ones are left, whatever
their names; a program's own total_limit counts and removes those alone that it numbered,
checkpoint_<N>. Reads every byte of those that stay: a damaged one does not count, is
named, and goes only if it is older than all of them. What is no checkpoint is not touched,
but for what a killed save or prune left, at once if that was on this host, after a day if
on another.

Exit code: 0; 1 if one cannot be removed; 2 for a wrong call.)";

constexpr const char* kMergeFooter = R"(Examples:
  lockstep merge-weights runs/a/checkpoints/checkpoint_3 exported
  lockstep merge-weights runs/a/checkpoints/checkpoint_3 exported --dtype keep
  lockstep merge-weights runs/a/checkpoints/checkpoint_3 exported --max-shard-size 5GB
  lockstep merge-weights runs/a/checkpoints/checkpoint_3 exported --model 1

Writes one model.safetensors in float32, whatever its size, with memory for the largest
tensor: of parameters in 16 bits their masters, if the checkpoint has any, or else the same
values. --dtype float16 and bfloat16 round; keep leaves each as it was saved. float64 and
integers stay what they are. With --max-shard-size, what does not fit into one file goes
into shards and model.safetensors.index.json, as transformers and Accelerate read them.
Sizes are decimal: KB, MB, GB, TB.

Exit code: 0; 1 if something cannot be read or written; 2 for a wrong call.)";

/// Says what is wrong with a number given to an option; nothing if all is well.
std::string check_number(const std::string& text) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec == std::errc() && parsed.ptr == end && value >= 0) {
    return "";
  }
  return fmt::format(
      "got {}, expected a whole number that is not negative and at most {}",
      printable(text),
      std::numeric_limits<int>::max());
}

void check_words(
    const std::string& command,
    const std::vector<std::string>& words,
    size_t least,
    size_t most,
    const char* expected) {
  if (words.size() < least || words.size() > most) {
    throw ConfigError(
        command,
        fmt::format(
            "got {}, expected {}; try {} --help",
            words.empty() ? "no path" : counted(words.size(), "path"),
            expected,
            command));
  }
  for (const std::string& word : words) {
    if (word.empty()) {
      throw ConfigError(command, fmt::format("got an empty path, expected {}", expected));
    }
  }
}

/// "runs/a/" as "runs/a", so that it has a name.
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
    : command_(app.add_subcommand("checkpoint", "List, show, verify, compare and prune them")) {
  command_->set_help_flag("-h,--help", "Print this and exit");
  command_->footer("lockstep checkpoint COMMAND --help says more about one command.");
  list_ = add("ls", "List the checkpoints in a folder", "ls FOLDER [--json]");
  list_->footer(kListFooter);
  show_ = add("show", "Show what one holds", "show CHECKPOINT [--json]");
  show_->footer(kShowFooter);
  verify_ =
      add("verify", "Read all of it and name what is damaged", "verify CHECKPOINT... [--json]");
  verify_->footer(kVerifyFooter);
  diff_ = add("diff", "Compare two", "diff CHECKPOINT OTHER [--json]");
  diff_->footer(kDiffFooter);
  prune_ = add("prune", "Remove all but the newest", "prune FOLDER --keep N [--dry-run] [--json]");
  prune_->footer(kPruneFooter);
  keep_option_ = prune_->add_option("--keep", prune_options_.keep, "So many of the newest stay")
                     ->type_name("N")
                     ->check(check_number);
  prune_->add_flag("--dry-run", prune_options_.dry_run, "Only say what would be removed");
}

CLI::App* CheckpointCommand::add(
    const std::string& name, const std::string& what, const std::string& usage) {
  CLI::App* command = command_->add_subcommand(name, what);
  set_help(*command, "lockstep checkpoint " + usage, "");
  command->add_flag("--json", json_, "Say it as one object of JSON, errors too");
  return command;
}

Report CheckpointCommand::make_report(const std::vector<std::string>& words) const {
  constexpr size_t kAny = std::numeric_limits<size_t>::max();
  const std::vector<std::filesystem::path> paths = paths_of(words);
  if (list_->parsed()) {
    check_words("lockstep checkpoint ls", words, 1, 1, "one folder of checkpoints");
    return list_report(paths[0]);
  }
  if (show_->parsed()) {
    check_words("lockstep checkpoint show", words, 1, 1, "one checkpoint");
    return show_report(paths[0]);
  }
  if (verify_->parsed()) {
    check_words("lockstep checkpoint verify", words, 1, kAny, "one checkpoint or more");
    return verify_report(paths);
  }
  if (diff_->parsed()) {
    check_words("lockstep checkpoint diff", words, 2, 2, "two checkpoints");
    return diff_report(paths[0], paths[1]);
  }
  check_words("lockstep checkpoint prune", words, 1, 1, "one folder of checkpoints");
  if (keep_option_->empty()) {
    throw ConfigError("lockstep checkpoint prune", "how many are to stay? expected --keep N");
  }
  return prune_report(paths[0], prune_options_);
}

int CheckpointCommand::run(const std::vector<std::string>& words) const {
  const std::vector<CLI::App*> given = command_->get_subcommands();
  if (given.empty()) {
    throw ConfigError(
        "lockstep checkpoint", "which command? expected one of ls, show, verify, diff, prune");
  }
  return print_report("lockstep.checkpoint." + given.front()->get_name(), json_, [&] {
    return make_report(words);
  });
}

MergeWeightsCommand::MergeWeightsCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "merge-weights", "Write the weights in a checkpoint as one float32 file")) {
  set_help(
      *command_,
      "lockstep merge-weights CHECKPOINT OUT [--dtype float32] [--max-shard-size SIZE] [--model N] "
      "[--force] [--json]",
      kMergeFooter);
  command_->add_option("--dtype", dtype_, "Of float16, bfloat16 and float32 tensors (float32)")
      ->type_name("NAME")
      ->check(one_of({kMergeDtypes.begin(), kMergeDtypes.end()}));
  shard_option_ =
      command_
          ->add_option(
              "--max-shard-size", max_shard_size_, "Most bytes in one file, like 5GB (any)")
          ->type_name("SIZE");
  command_
      ->add_option(
          "--model",
          options_.model,
          "Which, in the order in which they were prepared: 0 is the set model, 1 is model_1 (0)")
      ->type_name("N")
      ->check(check_number);
  command_->add_flag("--force", options_.force, "Replace weights that are in OUT already");
  command_->add_flag("--json", json_, "Say it as one object of JSON, errors too");
}

int MergeWeightsCommand::run(const std::vector<std::string>& words) const {
  return print_report("lockstep.merge-weights", json_, [&] {
    check_words("lockstep merge-weights", words, 2, 2, "a checkpoint and a folder to write to");
    MergeOptions options = options_;
    options.dtype = parse_merge_dtype(dtype_);
    if (!shard_option_->empty()) {
      options.max_shard_bytes = storage::parse_bytes("--max-shard-size", max_shard_size_);
    }
    return merge_weights(path_of(words[0]), path_of(words[1]), options);
  });
}

}  // namespace lockstep::cli
