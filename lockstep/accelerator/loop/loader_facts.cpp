// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/loader_facts.h"

#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep::internal {
namespace {

std::string samples_of(const data::LoaderCore& loader) {
  const data::SourceInfo& source = loader.source();
  // A stream's size is a hint, which it may not keep.
  return source.streamed ? "a stream" : fmt::format("{}", source.samples.value_or(0));
}

/// Warns if the first or last sample of the dataset differs between ranks.
void compare_samples(const data::LoaderCore& loader, size_t number, Group& group) {
  const int64_t count = loader.source().samples.value_or(0);
  if (group.size() == 1 || count == 0) {
    return;
  }
  const auto first = loader.sample_checksum(0);
  const auto last = loader.sample_checksum(count - 1);
  const std::vector<std::string> all =
      all_gather_bytes(group, first && last ? fmt::format("{} {}", *first, *last) : "");
  std::set<std::string> different(all.begin(), all.end());
  different.erase("");  // Ranks that cannot read samples, such as Python's.
  if (different.size() > 1) {
    log_warning(fmt::format(
        "the first or last sample of loader {} differs between processes, so some samples would be "
        "repeated, and others missed or tested on: split data with the same seed on every process; "
        "samples that each process has generated itself may differ",
        number));
  }
}

/// Collects the facts of one loader.
class LoaderFacts {
 public:
  LoaderFacts(std::string loader, std::string remedy)
      : loader_(std::move(loader)), remedy_(std::move(remedy)) {}
  void add(const char* what, std::string value) { add(what, std::move(value), remedy_); }
  void add(const char* what, std::string value, std::string remedy) {
    facts_.push_back({what + loader_, std::move(value), std::move(remedy)});
  }
  const std::vector<RankFact>& facts() const { return facts_; }

 private:
  std::string loader_, remedy_;
  std::vector<RankFact> facts_;
};

}  // namespace

void expect_equal_loader(const data::LoaderCore& loader, size_t number, Group group) {
  const data::LoaderOptions& options = loader.options();
  const data::ShardSpec& spec = loader.spec();
  LoaderFacts facts(
      fmt::format(" of loader {}", number),
      "construct it with the same LoaderOptions on every rank");
  facts.add("the batch_size", fmt::format("{}", options.batch_size));
  facts.add("the drop_last", fmt::format("{}", options.drop_last));
  facts.add("the even_batches", fmt::format("{}", spec.even_batches));
  facts.add("the split_batches", fmt::format("{}", spec.split_batches));
  if (!loader.dispatches()) {  // Otherwise rank 0 reads, and the others need no data.
    facts.add(
        "the number of samples",
        samples_of(loader),
        "give every rank all samples; prepare() gives each its share");
    facts.add("the shuffle", fmt::format("{}", options.shuffle));
    facts.add(
        "the seed",
        fmt::format("{}", loader.cursor().seed),
        "else samples would be repeated and missed: set the same seed on all (--seed, "
        "LoaderOptions::seed)");
  }
  expect_equal_facts(group, facts.facts(), "prepare");
  if (!loader.dispatches() && !loader.source().streamed) {
    compare_samples(loader, number, group);
  }
}

std::vector<RankFact> read_facts(const LoaderCores& loaders, const ActiveLoaders& active) {
  std::vector<RankFact> all;
  for (size_t i = 0; i < loaders.size(); ++i) {
    const data::ReadPasses& read = loaders[i]->read_passes();
    const TrainingLoops* const loops = active.training_loops(loaders[i].get());
    const std::string on_purpose =
        "; if ranks read it differently on purpose, set AcceleratorOptions::expect_equal_passes = "
        "false";
    LoaderFacts facts(fmt::format(" loader {}", i), "");
    facts.add(
        "the use in training of",
        loops == nullptr ? "none" : "some",
        "train on the same loaders on every rank" + on_purpose);
    if (loops == nullptr) {
      facts.add(
          "the number of finished passes over",
          fmt::format("{}", read.to_end),
          "a prepared loader gives each rank a share of the samples: loop over it on every rank, "
          "and combine the results by gather_for_metrics or reduce" +
              on_purpose);
    } else {
      facts.add(
          "the number of batches in the training loops over",
          fmt::format("{} in the last of {} finished", loops->last_batches, loops->ended),
          "let all ranks leave the loop at the same batch, by a value that reduce has made equal; "
          "ranks with different numbers of batches need even_batches or join_uneven_inputs" +
              on_purpose);
      facts.add(
          "the order of samples of",
          fmt::format("one with checksum {:08x}", read.order_checksum),
          "else samples would be repeated and missed: give its sampler the same seed on every "
          "rank, and begin the same passes over it on every rank" +
              on_purpose);
    }
    all.insert(all.end(), facts.facts().begin(), facts.facts().end());
  }
  return all;
}

uint64_t read_digest(const LoaderCores& loaders, const ActiveLoaders& active) {
  uint64_t digest = 0;
  for (const auto& loader : loaders) {
    const data::ReadPasses& read = loader->read_passes();
    const TrainingLoops* const loops = active.training_loops(loader.get());
    digest = mix(digest, loops == nullptr ? 0 : 1);
    if (loops == nullptr) {
      digest = mix(digest, static_cast<uint64_t>(read.to_end));
    } else {
      digest = mix(digest, static_cast<uint64_t>(loops->ended));
      digest = mix(digest, static_cast<uint64_t>(loops->last_batches));
      digest = mix(digest, read.order_checksum);
    }
  }
  return digest;
}

}  // namespace lockstep::internal
