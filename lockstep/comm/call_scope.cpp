// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/call_scope.h"

namespace lockstep::comm {
namespace {

thread_local const char* call_of_thread = nullptr;

}  // namespace

CallScope::CallScope(const char* call) : is_outermost_(call_of_thread == nullptr) {
  if (is_outermost_) {
    call_of_thread = call;
  }
}

CallScope::~CallScope() {
  if (is_outermost_) {
    call_of_thread = nullptr;
  }
}

const char* current_call() {
  return call_of_thread;
}

}  // namespace lockstep::comm
