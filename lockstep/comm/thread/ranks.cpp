// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/thread/ranks.h"

#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/rank.h"
#include "lockstep/comm/thread/thread_transport.h"

namespace lockstep {

void ranks(int size, const std::function<void(Group group)>& body, comm::Milliseconds timeout) {
  const auto transports = comm::make_thread_transports(size);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  threads.reserve(transports.size());
  for (const auto& transport : transports) {
    threads.emplace_back([&, transport] {
      const ThreadRankScope label({transport->rank(), transport->size()});
      try {
        body(Group(transport, timeout));
      } catch (const std::exception& error) {
        {
          const std::lock_guard<std::mutex> lock(mutex);
          if (!first) {
            first = std::current_exception();
          }
        }
        comm::abort_thread_group(
            *transport, "rank " + std::to_string(transport->rank()) + " failed: " + error.what());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace lockstep
