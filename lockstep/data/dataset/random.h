// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include "lockstep/comm/group.h"

namespace lockstep::data {

/// Seeds torch's default generators: of the CPU, and of every CUDA device if there is CUDA.
/// `device_specific`: with seed + rank, so that dropout and the like differ between ranks. Loaders
/// are not affected: their order depends on LoaderOptions::seed and the epoch alone.
void set_seed(uint64_t seed, bool device_specific = false, int rank = 0);

/// A source of random numbers that ranks can bring to the same state.
enum class RngType {
  kTorch,      ///< "torch": the default generator of the CPU.
  kCuda,       ///< "cuda": the default generator of the current CUDA device.
  kGenerator,  ///< "generator": one of the caller's own.
};

/// ConfigError for an unknown name.
RngType rng_type_of(const std::string& name);

/// Gives every rank rank 0's state of each of `types`. Collective; about 5 kB sent for each.
/// ConfigError, before anything is sent, for kCuda without CUDA and kGenerator without `generator`.
void synchronize_rng_states(
    Group& group,
    const std::vector<RngType>& types,
    const std::optional<at::Generator>& generator = std::nullopt);

}  // namespace lockstep::data
