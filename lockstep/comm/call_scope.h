// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::comm {

/// RAII scope: names the program's call for which this thread starts operations, so that messages
/// about them say "save_state" besides "all_gather". Within another scope it has no effect: the
/// outermost call is the program's. `call`: a text that is never freed, at most 23 characters.
class CallScope {
 public:
  explicit CallScope(const char* call);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  bool is_outermost_;
};

/// Returns the call of the calling thread; null outside of any scope.
const char* current_call();

}  // namespace lockstep::comm
