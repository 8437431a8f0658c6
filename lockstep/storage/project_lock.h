// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <sys/types.h>
#include <utility>

namespace lockstep::checkpoint {

constexpr const char* kProjectLockName = ".lockstep_lock";

/// A lock on a project folder: while it lives, no other process gets one on the same folder.
///
/// It is a POSIX record lock (fcntl) on `<folder>/.lockstep_lock`. The kernel releases it when the
/// process ends, however it ends; children that were forked off do not have it. Locks of one
/// process on one folder share it. Other hosts see it where the file system passes such locks on:
/// NFS 4, NFS 3 with lockd, CephFS, GPFS, Lustre mounted with flock. When a host dies with it, the
/// file server releases it after its lease, on NFS 4 90 s. The file stays, and names the last
/// process that had the lock.
///
/// Thread-safe.
class ProjectLock {
 public:
  /// Waits for another process that has the lock, but no longer than `patience`. CheckpointError,
  /// naming that process, if it still has it then, or if the file cannot be made.
  explicit ProjectLock(
      const std::filesystem::path& folder,
      std::chrono::milliseconds patience = std::chrono::milliseconds(0));
  ~ProjectLock();
  ProjectLock(const ProjectLock&) = delete;
  ProjectLock& operator=(const ProjectLock&) = delete;

  /// False where the file system has no locks, or the file is another user's: then nothing keeps
  /// another process out.
  bool is_held() const { return held_; }

 private:
  bool try_lock(const std::filesystem::path& file);

  std::pair<dev_t, ino_t> id_{};  ///< Of the file.
  bool held_ = false;
};

}  // namespace lockstep::checkpoint
