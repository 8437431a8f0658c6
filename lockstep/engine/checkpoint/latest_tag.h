// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/base/error.h"

namespace lockstep {

/// Throws ConfigError unless `tag` can be the name of a checkpoint's folder.
void check_tag(const std::string& tag);

/// Creates the error for a tag without a folder; it lists the existing tags.
CheckpointError missing_tag_error(const std::filesystem::path& load_dir, const std::string& tag);

/// Writes and reads the file `latest`, which names the newest checkpoint of a folder. If each host
/// saves separately (use_node_local_storage), each has such a file.
class LatestTag {
 public:
  LatestTag(Accelerator& accelerator, bool saves_on_each_host);

  /// Returns whether each of several hosts writes its own checkpoints.
  bool is_on_each_host() const { return on_each_host_; }
  /// Returns whether this rank writes the files that a host, or the job, has once.
  bool is_writer() const;
  /// Writes `tag` on all hosts, or on none. Throws CheckpointError on all ranks if one fails.
  /// Collective.
  void write(const std::filesystem::path& save_dir, const std::string& tag) const;
  /// Returns the tag; empty without the file. If hosts have different ones, returns one that all
  /// hosts have a folder of; throws CheckpointError if there is none. Collective.
  std::string read(const std::filesystem::path& load_dir) const;

 private:
  std::string tag_on_all_hosts(
      const std::filesystem::path& load_dir, const std::vector<std::string>& tags) const;

  Accelerator& accelerator_;
  bool on_each_host_;
};

}  // namespace lockstep
