// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group_user.h"

#include <pthread.h>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

/// The number of forks between the first process of the program and this one.
int forks = 0;

/// Counts the forks from the first call on. getpid() at each operation would be a system call.
void count_forks() {
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { ++forks; });  // Runs in the new process only.
  LOCKSTEP_ASSERT(registered == 0, "no memory to register a function");
}

}  // namespace

GroupUser::GroupUser() {
  count_forks();
  forks_ = forks;
}

const void* GroupUser::this_thread() {
  thread_local char address = 0;
  return &address;
}

GroupUser::StartScope::StartScope(GroupUser& user, const char* where) : entered_(&user.thread_) {
  if (user.forks_ != forks) {
    throw ConfigError(
        where,
        "this process was forked from a rank, so it cannot use the rank's group; call collectives "
        "and Accelerator functions in the rank itself, not in a forked process such as a worker of "
        "a loader");
  }
  const void* other = nullptr;
  if (user.thread_.compare_exchange_strong(other, this_thread(), std::memory_order_acquire)) {
    return;
  }
  entered_ = nullptr;
  if (other != this_thread()) {
    throw ConfigError(
        where,
        "another thread of this process is using the same group, so ranks would pair the "
        "operations of different threads; give each thread its own group, by split() on one "
        "thread, or call the group from one thread");
  }
}

GroupUser::StartScope::~StartScope() {
  if (entered_ != nullptr) {
    entered_->store(nullptr, std::memory_order_release);
  }
}

GroupUser::WaitScope::WaitScope(GroupUser* user, const void* starter) : entered_(nullptr) {
  const void* other = nullptr;
  if (user != nullptr && starter == this_thread() &&
      user->thread_.compare_exchange_strong(other, starter, std::memory_order_acquire)) {
    entered_ = &user->thread_;
  }
}

GroupUser::WaitScope::~WaitScope() {
  if (entered_ != nullptr) {
    entered_->store(nullptr, std::memory_order_release);
  }
}

}  // namespace lockstep::comm
