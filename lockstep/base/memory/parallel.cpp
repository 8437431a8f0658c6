// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory/parallel.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "lockstep/base/rank.h"

namespace lockstep {

void for_each_index(size_t count, int threads, const std::function<void(size_t index)>& body) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard<std::mutex> guard(mutex);
        if (!failure) {
          failure = std::current_exception();
        }
        next = count;
      }
    }
  };
  const RankLabel label = current_rank();
  std::vector<std::thread> others;
  for (int i = 1; i < threads && static_cast<size_t>(i) < count; ++i) {
    try {
      others.emplace_back([&] {
        const ThreadRankScope as_the_caller(label);
        work();
      });
    } catch (const std::system_error&) {
      break;  // The existing threads do the work.
    }
  }
  work();
  for (std::thread& thread : others) {
    thread.join();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace lockstep
