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
  /// Blocks until no save is running; throws the last one's exception, once.
  void wait();

 private:
  std::thread thread_;
  std::exception_ptr failure_;
};

/// Runs `save`, which returns its folder, even if an earlier save has failed, and returns that
/// folder. `wait` throws the earlier failure. CheckpointError, after `save` has returned, if `wait`
/// threw: it names both. An exception of `save` propagates; the earlier failure is logged then.
std::filesystem::path save_despite_failure(
    const std::function<void()>& wait, const std::function<std::filesystem::path()>& save);

}  // namespace lockstep::checkpoint
