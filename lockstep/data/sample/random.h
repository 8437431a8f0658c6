// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include "lockstep/comm/group.h"

namespace lockstep::data {

/// Seeds torch's default generators of the CPU and, if there is CUDA, of every CUDA device.
/// `device_specific`: uses seed + rank, so that dropout differs between ranks. Loaders are not
/// affected: their order depends only on LoaderOptions::seed and the epoch.
void set_seed(uint64_t seed, bool device_specific = false, int rank = 0);

/// A random generator whose state ranks can synchronize.
enum class RngType {
  kTorch,      ///< "torch": the default generator of the CPU.
  kCuda,       ///< "cuda": the default generator of the current CUDA device.
  kGenerator,  ///< "generator": a generator that the caller passes.
};

/// Returns the type with this name. Throws ConfigError for an unknown name.
RngType rng_type_of(const std::string& name);

/// Copies rank 0's state of each of `types` to all ranks. Sends about 5 kB for each type.
/// Collective: all ranks must call it. Throws ConfigError before sending for kCuda without CUDA and
/// for kGenerator without `generator`.
void synchronize_rng_states(
    Group& group,
    const std::vector<RngType>& types,
    const std::optional<at::Generator>& generator = std::nullopt);

}  // namespace lockstep::data
