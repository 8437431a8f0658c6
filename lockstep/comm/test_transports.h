// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/log/comms_log.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep {

/// Runs the ranks of a group over one transport.
struct NamedRunner {
  const char* name;
  void (*run)(int size, const std::function<void(Group)>& body, comm::Milliseconds timeout);
};

/// Runs the same tests on every transport, with groups of 2 to 4 ranks.
class TransportTest : public ::testing::TestWithParam<std::tuple<NamedRunner, int>> {
 protected:
  int size() const { return std::get<1>(GetParam()); }
  void run(
      const std::function<void(Group)>& body,
      comm::Milliseconds timeout = std::chrono::seconds(30)) const {
    std::get<0>(GetParam()).run(size(), body, timeout);
  }
};

/// Runs the ranks of a group whose operations are logged.
inline void logged_ranks(
    int size, const std::function<void(Group)>& body, comm::Milliseconds timeout) {
  shm_ranks(
      size,
      [&](const Group& group) { body(logged(group, std::make_shared<CommsLog>())); },
      timeout);
}

inline auto every_transport() {
  return ::testing::Combine(
      ::testing::Values(
          NamedRunner{"thread", &ranks},
          NamedRunner{"gloo", &gloo_ranks},
          NamedRunner{"shm", &shm_ranks},
          NamedRunner{"logged", &logged_ranks},
          NamedRunner{"hierarchy", &two_host_ranks}),
      ::testing::Values(2, 3, 4));
}

inline std::string name_of_transport(
    const ::testing::TestParamInfo<TransportTest::ParamType>& test) {
  return std::string(std::get<0>(test.param).name) + "_" + std::to_string(std::get<1>(test.param));
}

}  // namespace lockstep
