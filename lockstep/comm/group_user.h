// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// The thread that is using a group. Finds a second thread that starts an operation meanwhile:
/// ranks would pair the operations of different threads, and get each other's values.
///
/// Threads may take turns, and one may wait for an operation that another has started. A process
/// that was forked from a rank has the rank's connections, but none of its threads: it is refused,
/// too. Cost: two atomic operations for each start and wait. Thread-safe.
class GroupUser {
 public:
  GroupUser();

  /// RAII scope: the calling thread starts an operation. Throws ConfigError, in the name of
  /// `where`, while another thread starts one or waits for its own, and in a forked process.
  class StartScope {
   public:
    StartScope(GroupUser& user, const char* where);
    ~StartScope();
    StartScope(const StartScope&) = delete;
    StartScope& operator=(const StartScope&) = delete;

   private:
    std::atomic<const void*>* entered_;  ///< Null inside another scope of this thread.
  };

  /// RAII scope: the calling thread waits for an operation. No effect unless it is the `starter`.
  class WaitScope {
   public:
    WaitScope(GroupUser* user, const void* starter);
    ~WaitScope();
    WaitScope(const WaitScope&) = delete;
    WaitScope& operator=(const WaitScope&) = delete;

   private:
    std::atomic<const void*>* entered_;
  };

  /// Returns an address that no other living thread has.
  static const void* this_thread();

 private:
  std::atomic<const void*> thread_{nullptr};  ///< Null: no thread is in the group.
  int forks_;                                 ///< Forks that led to the process of the group.
};

}  // namespace lockstep::comm
