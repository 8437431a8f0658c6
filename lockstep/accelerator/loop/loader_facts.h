// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/comm/group.h"
#include "lockstep/data/loader/loader_core.h"
#include "lockstep/sync/rank_facts.h"

namespace lockstep::internal {

using LoaderCores = std::vector<std::shared_ptr<data::LoaderCore>>;

/// Throws ConfigError if ranks would take their shares of different data: another number of
/// samples, batch size, seed or way of sharding. Warns if the first or last sample of a
/// TensorDataset differs, since ranks may have split it differently. `loader`: sharded. `number`:
/// of the loader, in the order of prepare(). Collective.
void expect_equal_loader(const data::LoaderCore& loader, size_t number, Group group);

/// Returns what ranks must have read alike: of loaders that train, the batches of the last loop and
/// the order of samples; of others, the number of passes that were read to their end.
std::vector<RankFact> read_facts(const LoaderCores& loaders, const ActiveLoaders& active);
/// Returns a digest of read_facts. Cost: some tens of nanoseconds for each loader.
uint64_t read_digest(const LoaderCores& loaders, const ActiveLoaders& active);

}  // namespace lockstep::internal
