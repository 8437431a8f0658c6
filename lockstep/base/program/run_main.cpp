// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/program/run_main.h"

#include <exception>
#include <string>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

/// Logs the message even if the environment is invalid (LOCKSTEP_LOG_LEVEL=loud), in which case
/// logging throws.
void report(const std::string& message) {
  try {
    log_error(message);
  } catch (const ConfigError& error) {
    set_log_options({});
    log_error(message);
    log_error(error.what());
  }
}

/// Removes the stack frames at the end of torch's errors, which hide the message.
std::string without_frames(std::string message) {
  if (Environment::process().text("TORCH_SHOW_CPP_STACKTRACES").value_or("0") != "0") {
    return message;
  }
  for (const char* beginning : {"\nException raised from ", "\nframe #0: "}) {
    const size_t frames = message.find(beginning);
    if (frames != std::string::npos) {
      message.resize(frames);
      message += " (TORCH_SHOW_CPP_STACKTRACES=1 shows the stack)";
      break;
    }
  }
  return message;
}

}  // namespace

int run_main(const std::function<int()>& body) {
  try {
    return body();
  } catch (const ConfigError& error) {
    report(error.what());
    return kExitUsage;
  } catch (const std::exception& error) {
    report(without_frames(error.what()));
    return kExitFailure;
  } catch (...) {
    report("the program threw an exception that is not a std::exception");
    return kExitFailure;
  }
}

}  // namespace lockstep
