// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/run_main.h"

#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

/// The environment may itself be what is wrong (LOCKSTEP_LOG_LEVEL=loud), and then logging throws
/// too.
void report(const std::string& message) {
  try {
    log_error(message);
  } catch (const ConfigError& error) {
    set_log_options({});
    log_error(message);
    log_error(error.what());
  }
}

}  // namespace

int run_main(const std::function<int()>& body) {
  try {
    return body();
  } catch (const ConfigError& error) {
    report(error.what());
    return kExitUsage;
  } catch (const std::exception& error) {
    report(error.what());
    return kExitFailure;
  } catch (...) {
    report("the program threw something that is no std::exception");
    return kExitFailure;
  }
}

}  // namespace lockstep
