// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/background_save.h"

#include <string>
#include <system_error>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"

namespace lockstep::checkpoint {

BackgroundSave::~BackgroundSave() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_error(
        std::string("an asynchronous save failed, and nobody waited for it: ") + error.what());
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
    run();  // No thread to be had: the other ranks are in it already.
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

}  // namespace lockstep::checkpoint
