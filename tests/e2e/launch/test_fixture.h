// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::e2e {

/// The program that the tests of the launcher start as ranks.
inline const std::string kFixture = LAUNCH_FIXTURE;

}  // namespace lockstep::e2e
