// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/loader_facts.h"

#include <string>

#include <fmt/format.h>

#include "lockstep/base/log.h"

namespace lockstep {
namespace {

std::string samples_of(const data::LoaderCore& loader) {
  const data::SourceInfo& source = loader.source();
  // A stream's size is a hint, which it may not keep.
  return source.streamed ? "a stream" : fmt::format("{}", source.samples.value_or(0));
}

/// Warns if the first or last sample of the dataset differs between ranks.
void compare_samples(const data::LoaderCore& loader, Group& group) {
  const int64_t count = loader.source().samples.value_or(0);
  if (group.size() == 1 || count == 0) {
    return;
  }
  const uint32_t first = loader.sample_checksum(0).value_or(0);
  const uint32_t last = loader.sample_checksum(count - 1).value_or(0);
  if (any_differs(group, fmt::format("{} {}", first, last))) {
    log_warning(
        "the first or last sample of a loader's dataset differs between processes, so some samples "
        "would be repeated, and others missed or tested on: split data with the same seed on every "
        "process, and sort the files of a folder; if the dataset generates random samples, they "
        "may differ, or draw them from torch, or from data::random_seed()");
  }
}

}  // namespace

void expect_equal_loader(const data::LoaderCore& loader, Group group) {
  const data::LoaderOptions& options = loader.options();
  const data::ShardSpec& spec = loader.spec();
  const std::string same_options = "construct it with the same LoaderOptions on every rank";
  std::vector<RankFact> facts = {
      {"the batch_size of a loader", fmt::format("{}", options.batch_size), same_options},
      {"the drop_last of a loader", fmt::format("{}", options.drop_last), same_options},
      {"the even_batches of a loader", fmt::format("{}", spec.even_batches), same_options},
      {"the split_batches of a loader", fmt::format("{}", spec.split_batches), same_options}};
  if (!loader.dispatches()) {  // Otherwise rank 0 reads, and the others need no data.
    facts.push_back(
        {"the number of samples of a loader",
         samples_of(loader),
         "give every rank all samples; prepare() gives each its share"});
    facts.push_back({"the shuffle of a loader", fmt::format("{}", options.shuffle), same_options});
    facts.push_back(
        {"the seed of a loader",
         fmt::format("{}", loader.cursor().seed),
         "else samples would be repeated and missed: set the same seed on all (--seed, "
         "LoaderOptions::seed)"});
  }
  expect_equal_facts(group, facts, "prepare");
  if (!loader.dispatches() && !loader.source().streamed) {
    compare_samples(loader, group);
  }
}

std::vector<RankFact> read_facts(const LoaderCores& loaders, const ActiveLoaders& active) {
  std::vector<RankFact> facts;
  for (size_t i = 0; i < loaders.size(); ++i) {
    const data::ReadPasses& read = loaders[i]->read_passes();
    if (!active.has_trained(loaders[i].get())) {
      facts.push_back(
          {fmt::format("the number of passes over loader {} that were read to their end", i),
           fmt::format("{}", read.to_end),
           "a prepared loader gives each rank a share of the samples: loop over it on every rank, "
           "and combine the results by gather_for_metrics or reduce"});
    } else {
      facts.push_back(
          {fmt::format("the number of batches in the training loops over loader {}", i),
           fmt::format("{} in the last of {} finished", read.last_batches, read.ended),
           "let all ranks leave the loop at the same batch, by a value that reduce has made equal; "
           "ranks with different numbers of batches need even_batches or join_uneven_inputs"});
      facts.push_back(
          {fmt::format("the order of samples of loader {}", i),
           fmt::format("one with checksum {:08x}", read.order_checksum),
           "else samples would be repeated and missed: give its sampler the same seed on every "
           "rank, and begin the same passes over it on every rank"});
    }
  }
  return facts;
}

uint64_t read_digest(const LoaderCores& loaders, const ActiveLoaders& active) {
  uint64_t digest = 0;
  for (const auto& loader : loaders) {
    const data::ReadPasses& read = loader->read_passes();
    if (!active.has_trained(loader.get())) {
      digest = mix(digest, static_cast<uint64_t>(read.to_end));
    } else {
      digest = mix(digest, static_cast<uint64_t>(read.ended));
      digest = mix(digest, static_cast<uint64_t>(read.last_batches));
      digest = mix(digest, read.order_checksum);
    }
  }
  return digest;
}

}  // namespace lockstep
