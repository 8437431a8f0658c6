// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/comm/fail_together.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/write/temp_folder.h"
#include "lockstep/watch/flight_recorder.h"

namespace lockstep::checkpoint {

class Contents;

/// Returns a group for operations that wait for other ranks' disks. Its timeout is 6 hours, or that
/// of `group` if that is longer. The timeout of `group` is for a training step; `lockstep launch`,
/// which sees the progress of bytes, ends a stuck save after its --stall-timeout. Other launchers
/// do not.
Group with_saving_timeout(const Group& group);

struct WriterOptions {
  /// Replaces an earlier checkpoint at the target. It stays until the new one is complete, then is
  /// removed with all files in its folder. A target that is not a checkpoint is never replaced.
  bool overwrite = false;
  /// Threads that write one rank's files, see Writer::write.
  int threads = 1;
};

/// Saves one checkpoint atomically: it is complete or absent.
///
/// All ranks write into `<target>.tmp-<host>-<pid>-<random>` next to the target. `commit` collects
/// the list of files, writes the manifest, flushes everything to disk, and renames the folder. A
/// crash before the rename leaves the target unchanged; afterwards it is the new checkpoint. With
/// `overwrite` the two folders are exchanged in one step. File systems without RENAME_EXCHANGE need
/// two; remove_stale, which every Writer calls first, repairs the state between them.
///
/// Every rank of the group constructs a Writer, adds any number of files, and calls `commit`; only
/// the constructor and `commit` communicate. `add_` functions do not throw if a rank fails: the
/// failure is kept, and later files are skipped. `commit` then throws the same CheckpointError on
/// every rank, naming the first failed rank and its reason. Nothing is left on disk, and no rank
/// waits for a failed one.
///
/// The ranks must see one file system. Cost besides writing: two small all-reduces, an all-gather
/// of the files' names and checksums, and three broadcasts.
///
/// Modelled on Orbax's atomic directories and DCP's metadata-last commit.
class Writer {
 public:
  /// Collective. Throws CheckpointError on every rank if the target exists (see `overwrite`),
  /// cannot be created, differs between ranks, or some rank cannot see the new folder. Creates
  /// missing parents.
  Writer(const Group& group, const std::filesystem::path& target, WriterOptions options = {});
  /// Without a commit: removes this rank's files, and on rank 0 the folder. Never communicates.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Writes a file of this rank, see write_safetensors. A name belongs to one rank, and is used
  /// once; it must not contain '/' or "..", or begin with '.'.
  void add_tensors(
      const std::string& file_name,
      const NamedTensors& tensors,
      const std::map<std::string, std::string>& metadata = {});
  /// Does the same for a small JSON value. A non-finite number is an error: JSON has none.
  void add_json(const std::string& file_name, const nlohmann::json& value);
  /// Writes all contents, several files at a time; a failure within `contents` counts, too.
  void write(const Contents& contents);
  /// Makes the commit fail on every rank with `why`, for failures of the caller between two files.
  /// The first failure of a rank counts.
  void fail(const std::string& why);

  /// Completes the checkpoint. Collective. `meta` is an object of the caller; that of rank 0 is
  /// written. Returns on every rank after the checkpoint is on disk and visible at the target.
  void commit(const nlohmann::json& meta);

  /// Runs `write` with the temporary folder, in which it may write files and folders of its own
  /// that the manifest does not list. All ranks may call it, and `write` may communicate.
  void add_own(const std::function<void(const std::filesystem::path& folder)>& write);

  /// Returns the absolute path.
  const std::filesystem::path& target() const { return target_; }

 private:
  struct Unstarted {};
  Writer(const Group& group, const std::filesystem::path& target, Unstarted unstarted);
  /// Runs `step` and keeps its exception as this rank's failure; skips it after an earlier failure.
  void attempt(const std::function<void()>& step);
  void make_folder();
  /// Returns whether there is a checkpoint to replace; throws if it must not be replaced.
  bool check_target() const;
  void add(const std::string& file_name, const std::function<storage::FileSummary()>& write);
  /// Returns this rank's report to the others: its files, and the values that must agree.
  std::string own_report() const;
  void check_agreement(const std::vector<std::string>& reports) const;
  /// Throws on all ranks if one of them has failed.
  void throw_together();
  [[noreturn]] void refuse(const FirstFailure& failed);
  void commit_on_disk(const nlohmann::json& meta, const std::vector<std::string>& reports);
  void abandon() noexcept;

  watch::Saving saving_;
  Group group_;
  std::filesystem::path target_;
  bool overwrite_ = false;
  int threads_ = 1;
  std::filesystem::path folder_;  ///< The temporary folder; empty once committed or removed.
  std::optional<storage::OwnedFolder> owned_;
  std::vector<storage::FileRecord> files_;
  std::map<std::string, std::string> agreed_;
  std::string failure_;
};

}  // namespace lockstep::checkpoint
