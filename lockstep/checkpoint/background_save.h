// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <thread>

namespace lockstep::checkpoint {

/// One save at a time on a thread of its own. What it throws is kept for whoever waits next: no
/// failed save goes unnoticed. Thread safety: none, the saves aside.
class BackgroundSave {
 public:
  BackgroundSave() = default;
  /// Waits for the save under way; what it throws then is logged.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// wait(), then begins `save`.
  void start(std::function<void()> save);
  /// Returns once no save is under way; throws what the last one threw, once.
  void wait();

 private:
  std::thread thread_;
  std::exception_ptr failure_;
};

/// Runs `save`, which returns the folder that it saves to, though an earlier save has failed, and
/// returns that folder. `wait` throws the earlier failure. CheckpointError, once `save` has
/// returned, if `wait` threw: it names both. What `save` throws is thrown as it is; the earlier
/// failure is logged then.
std::filesystem::path save_despite_failure(
    const std::function<void()>& wait, const std::function<std::filesystem::path()>& save);

}  // namespace lockstep::checkpoint
