// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sample/random.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include <ATen/Context.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"

namespace lockstep::data {
namespace {

at::Generator generator_of(RngType type, const std::optional<at::Generator>& own) {
  switch (type) {
    case RngType::kTorch:
      return at::globalContext().defaultGenerator(at::kCPU);
    case RngType::kCuda:
      if (!at::hasCUDA()) {
        throw ConfigError(
            "synchronize_rng_states", "this process has no CUDA device; omit \"cuda\"");
      }
      return at::globalContext().defaultGenerator(at::kCUDA);
    case RngType::kGenerator:
      break;
  }
  if (!own) {
    throw ConfigError(
        "synchronize_rng_states",
        "no generator was passed for type \"generator\"; pass one, or omit the type: the order of "
        "a Loader is the same on every rank anyway");
  }
  return *own;
}

}  // namespace

void set_seed(uint64_t seed, bool device_specific, int rank) {
  at::manual_seed(device_specific ? seed + static_cast<uint64_t>(rank) : seed);
}

RngType rng_type_of(const std::string& name) {
  static const std::vector<std::string> names = {"torch", "cuda", "generator"};
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    throw ConfigError(
        "rng_types",
        fmt::format(
            "unknown type '{}'; expected torch, cuda or generator{}",
            name,
            did_you_mean(name, names)));
  }
  return static_cast<RngType>(found - names.begin());
}

void synchronize_rng_states(
    Group& group,
    const std::vector<RngType>& types,
    const std::optional<at::Generator>& generator) {
  std::vector<at::Generator> generators;
  for (const RngType type : types) {
    generators.push_back(generator_of(type, generator));
  }
  for (at::Generator& each : generators) {
    // Unlocked during the broadcast: other ranks may be threads with the same default generator.
    at::Tensor state;
    {
      const std::lock_guard<std::mutex> lock(each.mutex());
      state = each.get_state();
    }
    state = group.broadcast(state, 0).wait();
    const std::lock_guard<std::mutex> lock(each.mutex());
    each.set_state(state);
  }
}

}  // namespace lockstep::data
