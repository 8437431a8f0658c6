// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "lockstep/comm/group.h"
#include "lockstep/data/loader/loader_core.h"

namespace lockstep::data {

// Checks of a LoaderCore's arguments. Each throws ConfigError that names the option.

/// Returns `options` if they are valid for the dataset.
LoaderOptions checked_options(
    const SourceInfo& source, const LoaderOptions& options, bool has_sampler);

/// Throws for CUDA if there is none, and for batches that cannot be copied to `device`.
void check_loader_device(const SourceInfo& source, const std::optional<at::Device>& device);

/// Returns `sampler`, or, if that is null, the one of `options`; null for a stream. Throws for
/// `shuffle` together with a sampler or a stream.
std::shared_ptr<const Sampler> choose_sampler(
    const SourceInfo& source, const LoaderOptions& options, std::shared_ptr<const Sampler> sampler);

/// Returns the samples of a pass; for a stream its size(), or 0. Throws if there are none.
int64_t require_samples(const SourceInfo& source, const Sampler* sampler);

/// Throws unless the rows of a SequenceDataset divide equally among the ranks.
void check_rows_divide(int64_t rows, int world);

/// Throws the error for a loader that was sharded by `before`.
[[noreturn]] void refuse_other_shard(const ShardSpec& before, const ShardSpec& spec);

/// Throws unless `group` is that of `spec`, and batches are `transferable`.
void check_dispatch(const ShardSpec& spec, const Group& group, bool transferable);

}  // namespace lockstep::data
