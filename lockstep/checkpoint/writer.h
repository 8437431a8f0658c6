// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/comm/group.h"
#include "lockstep/comm/named_tensor.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/temp_folder.h"
#include "lockstep/watch/flight_recorder.h"

namespace lockstep::checkpoint {

class Contents;

/// The group for operations that wait for other ranks' disks: they may take 6 hours, or the group's
/// timeout if that is longer. That is made for a step; `lockstep launch`, who sees whether bytes
/// move, ends a save that does not go on after its --stall-timeout. Other launchers do not.
Group patient(const Group& group);

struct WriterOptions {
  /// Replace an earlier checkpoint at the target. It stays until the new one is whole, then goes
  /// with all that was put in its folder. A target that is no checkpoint is never replaced.
  bool overwrite = false;
  /// Threads that write the files of one rank, see Writer::write.
  int threads = 1;
};

/// Saves one checkpoint so that it is there as a whole or not at all.
///
/// All ranks write into `<target>.tmp-<host>-<pid>-<random>` beside the target. `commit` gathers
/// what they wrote, writes the manifest, flushes everything to disk, and renames the folder:
/// whatever dies before, the target is what it was; after, it is the new checkpoint. With
/// `overwrite` the two folders change names in one step (on file systems without RENAME_EXCHANGE in
/// two, and remove_stale, which every Writer calls first, repairs what is found between).
///
/// Every rank of the group constructs one, adds files or does not, and calls `commit`; only these
/// two communicate. No `add_` throws for what goes wrong on one rank: it is kept, later files are
/// skipped, and `commit` then throws the same CheckpointError on every rank, which names the first
/// rank that failed and why, with nothing left on disk. So no rank waits for one that gave up.
///
/// The ranks must see one file system. Costs, beside the writing: three small all-gathers and two
/// broadcasts in all.
///
/// Thread safety: none. After: Orbax's atomic directories and DCP's metadata-last commit.
class Writer {
 public:
  /// Collective. CheckpointError on every rank if the target exists (see `overwrite`), cannot be
  /// made, differs between ranks, or some rank cannot see the new folder. Missing parents are made.
  Writer(const Group& group, const std::filesystem::path& target, WriterOptions options = {});
  /// Without a commit: removes what this rank wrote, and on rank 0 the folder. Never communicates.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Writes a file of this rank, see write_safetensors. A name belongs to one rank, once; it is
  /// plain: no '/', no "..", no '.' in front.
  void add_tensors(
      const std::string& file_name,
      const NamedTensors& tensors,
      const std::map<std::string, std::string>& metadata = {});
  /// The same for a small JSON value. A number that is not finite is an error: JSON has none.
  void add_json(const std::string& file_name, const nlohmann::json& value);
  /// All that was put together, several files at a time; a failure among `contents` counts, too.
  void write(const Contents& contents);
  /// Makes the commit fail on every rank with `why`: for what a caller has to give up between two
  /// files. The first failure of a rank is the one that counts.
  void fail(const std::string& why);

  /// Collective. `meta`, an object, is the caller's own and rank 0's counts. Returns once the
  /// checkpoint is on disk and visible at the target, on every rank.
  void commit(const nlohmann::json& meta);

  /// Absolute.
  const std::filesystem::path& target() const { return target_; }

 private:
  struct Unstarted {};
  Writer(const Group& group, const std::filesystem::path& target, Unstarted unstarted);
  /// Keeps what `step` throws as this rank's failure; skips it if there is one already.
  void attempt(const std::function<void()>& step);
  void make_folder();
  /// True if there is something to replace; throws if it must not be.
  bool check_target() const;
  void add(const std::string& file_name, const std::function<FileSummary()>& write);
  /// The text every rank sends the others at the end.
  std::string own_report() const;
  void check_agreement(const std::vector<std::string>& reports) const;
  /// Gives up if a rank reports a failure; `reports` are the same on every rank.
  void throw_first(const std::vector<std::string>& reports);
  void commit_on_disk(const nlohmann::json& meta, const std::vector<std::string>& reports);
  void abandon() noexcept;

  watch::Saving saving_;
  Group group_;
  std::filesystem::path target_;
  bool overwrite_ = false;
  int threads_ = 1;
  std::filesystem::path folder_;  ///< The temporary one; empty once committed or removed.
  std::optional<OwnedFolder> owned_;
  std::vector<FileRecord> files_;
  std::map<std::string, std::string> agreed_;
  std::string failure_;
};

}  // namespace lockstep::checkpoint
