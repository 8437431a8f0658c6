// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/background_save.h"

#include <string>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"

namespace lockstep::checkpoint {

BackgroundSave::~BackgroundSave() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_error(
        std::string("an asynchronous save failed, and the program did not wait for it: ") +
        error.what());
  }
}

void BackgroundSave::start(std::function<void()> save) {
  wait();
  const auto run = [this, save = std::move(save), label = current_rank()] {
    const ThreadRankScope as_this_rank(label);
    try {
      save();
    } catch (...) {
      failure_ = std::current_exception();
    }
  };
  try {
    thread_ = std::thread(run);
  } catch (const std::system_error&) {
    run();  // No thread is available, and the other ranks have already started.
  }
}

void BackgroundSave::wait() {
  if (thread_.joinable()) {
    thread_.join();
  }
  if (failure_) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

std::filesystem::path save_despite_failure(
    const std::function<void()>& wait, const std::function<std::filesystem::path()>& save) {
  std::string earlier;
  try {
    wait();
  } catch (const std::exception& error) {
    earlier = without_rank_suffix(error.what());
  }
  std::filesystem::path folder;
  try {
    folder = save();
  } catch (const std::exception&) {
    if (!earlier.empty()) {
      log_error("the previous asynchronous save failed, too: " + earlier);
    }
    throw;
  }
  if (!earlier.empty()) {
    throw CheckpointError(
        folder.string(),
        "is saved (or still being written, if asynchronous), but the previous asynchronous save "
        "failed: " +
            earlier);
  }
  return folder;
}

}  // namespace lockstep::checkpoint
