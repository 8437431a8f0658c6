// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <sys/types.h>
#include <utility>

namespace lockstep::storage {

constexpr const char* kProjectLockName = "checkpoints/.lockstep_lock";

/// A lock on a project folder: no other process can lock the same folder at the same time.
///
/// It is a POSIX record lock (fcntl) on `<folder>/checkpoints/.lockstep_lock`. The kernel releases
/// it with the process; forked children do not have it. Locks of one process on one folder share
/// it. Other hosts see it if the file system supports that: NFS 4, NFS 3 with lockd, CephFS, GPFS,
/// Lustre mounted with flock. After a host dies, the file server releases it after its lease, on
/// NFS 4 90 s. The file stays, and names the last process with the lock.
///
/// Thread-safe.
class ProjectLock {
 public:
  /// Waits at most `patience` while another process has the lock. Throws CheckpointError, naming
  /// that process, if it still has the lock then, and if the file cannot be created. Creates the
  /// folder `checkpoints`.
  explicit ProjectLock(
      const std::filesystem::path& folder,
      std::chrono::milliseconds patience = std::chrono::milliseconds(0));
  ~ProjectLock();
  ProjectLock(const ProjectLock&) = delete;
  ProjectLock& operator=(const ProjectLock&) = delete;

  /// Returns false if the file system has no locks, or the file belongs to another user: then other
  /// processes are not excluded.
  bool is_held() const { return held_; }

 private:
  bool try_lock(const std::filesystem::path& file);

  std::pair<dev_t, ino_t> id_{};  ///< Device and inode of the file.
  bool held_ = false;
};

}  // namespace lockstep::storage
