// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <thread>

namespace lockstep::checkpoint {

/// Runs one save at a time on a thread. Its exception is kept for the next wait, so that no failed
/// save is missed. Not thread-safe, except for the save itself.
class BackgroundSave {
 public:
  BackgroundSave() = default;
  /// Waits for the running save; logs its exception.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Calls wait(), then begins `save`.
  void start(std::function<void()> save);
  /// Blocks until no save is running. Throws the exception of the last save, once.
  void wait();

 private:
  std::thread thread_;
  std::exception_ptr failure_;
};

/// Calls `wait`, which throws the failure of an earlier save, and then `save` in any case. Returns
/// the folder that `save` returns. Throws CheckpointError, naming both saves, if only `wait` threw.
/// If both threw, logs the earlier failure and throws that of `save`.
std::filesystem::path save_despite_failure(
    const std::function<void()>& wait, const std::function<std::filesystem::path()>& save);

}  // namespace lockstep::checkpoint
