// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/sharded_batch.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include <ATen/ops/empty.h>

namespace lockstep::optim {
namespace {

constexpr int64_t kRoundBytes = int64_t{25} << 20;  // A rank.

constexpr size_t kNoSlice = std::numeric_limits<size_t>::max();

/// Some of the wholes, worked on at a time.
class Round {
 public:
  Round(const ShardedBatch& batch, const FullUpdate& todo, size_t first, size_t end)
      : batch_(batch), todo_(todo), group_(batch.ranks) {
    const auto from = static_cast<int64_t>(first);
    const auto to = static_cast<int64_t>(end);
    wholes_.assign(batch.full_parameters.begin() + from, batch.full_parameters.begin() + to);
    owners_ =
        owners_of(wholes_, {todo.costs.begin() + from, todo.costs.begin() + to}, group_.size());
    slices_.assign(wholes_.size(), kNoSlice);
    for (size_t slice = 0; slice < batch.full_index.size(); ++slice) {
      const size_t whole = batch.full_index[slice];
      if (whole >= first && whole < end) {
        slices_[whole - first] = slice;
      }
    }
    measure();
  }

  void run() {
    std::vector<at::Tensor> given(wholes_.size());
    for (size_t i = 0; i < wholes_.size(); ++i) {
      if (slices_[i] != kNoSlice) {
        given[i] = todo_.give(slices_[i]);
      }
    }
    const at::Tensor came = travel(batch_.options, [&](int rank, const auto& place) {
      for_each_between(rank, /*mine=*/false, [&](size_t i, int64_t offset, int64_t length) {
        place(offset, length).copy_(given[i]);
      });
    });
    std::vector<at::Tensor> results(wholes_.size());
    for (size_t i = 0; i < wholes_.size(); ++i) {
      if (owners_[i] == group_.rank()) {
        results[i] = at::empty(wholes_[i]->sizes, batch_.options);
      }
    }
    put_together(results, given, came);
    for (at::Tensor& result : results) {
      if (result.defined()) {
        result = todo_.work(result).to(todo_.result).contiguous().view({-1});
      }
    }
    give_back(results);
  }

 private:
  /// The longest of what one rank has for another.
  void measure() {
    const int size = group_.size();
    std::vector<int64_t> lengths(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      lengths.assign(lengths.size(), 0);
      for (size_t i = 0; i < wholes_.size(); ++i) {
        if (owners_[i] != rank) {
          lengths[static_cast<size_t>(owners_[i])] += wholes_[i]->length(rank);
        }
      }
      longest_ = std::max(longest_, *std::max_element(lengths.begin(), lengths.end()));
    }
  }

  /// Calls `visit` with what lies between this rank and `rank`: slices of `rank`'s that are `mine`
  /// to work on, or slices of mine that are its.
  template <typename Visit>
  void for_each_between(int rank, bool mine, const Visit& visit) const {
    const int owner = mine ? group_.rank() : rank;
    const int giver = mine ? rank : group_.rank();
    int64_t offset = 0;
    for (size_t i = 0; i < wholes_.size() && owner != giver; ++i) {
      if (const int64_t length = wholes_[i]->length(giver); owners_[i] == owner && length > 0) {
        visit(i, offset, length);
        offset += length;
      }
    }
  }

  /// One all-to-all: `fill` puts into `place(offset, length)` what goes to a rank. Rows: from each.
  template <typename Fill>
  at::Tensor travel(const at::TensorOptions& options, const Fill& fill) {
    const int size = group_.size();
    if (longest_ == 0) {
      return {};
    }
    const at::Tensor leaving = group_.empty({size, longest_}, options);
    for (int rank = 0; rank < size; ++rank) {
      fill(rank, [&](int64_t offset, int64_t length) {
        return leaving[rank].narrow(0, offset, length);
      });
    }
    return group_.all_to_all_into(group_.empty({size, longest_}, options), leaving).wait();
  }

  void put_together(
      const std::vector<at::Tensor>& whole,
      const std::vector<at::Tensor>& given,
      const at::Tensor& came) const {
    const auto place = [&](size_t i, int rank) {
      return whole[i].view({-1}).narrow(0, wholes_[i]->begin(rank), wholes_[i]->length(rank));
    };
    for (size_t i = 0; i < wholes_.size(); ++i) {
      if (whole[i].defined() && given[i].defined()) {
        place(i, group_.rank()).copy_(given[i]);
      }
    }
    for (int rank = 0; rank < group_.size(); ++rank) {
      for_each_between(rank, /*mine=*/true, [&](size_t i, int64_t offset, int64_t length) {
        place(i, rank).copy_(came[rank].narrow(0, offset, length));
      });
    }
  }

  void give_back(const std::vector<at::Tensor>& results) {
    const at::Tensor came =
        travel(batch_.options.dtype(todo_.result), [&](int rank, const auto& place) {
          for_each_between(rank, /*mine=*/true, [&](size_t i, int64_t offset, int64_t length) {
            place(offset, length).copy_(results[i].narrow(0, wholes_[i]->begin(rank), length));
          });
        });
    const int self = group_.rank();
    for (size_t i = 0; i < wholes_.size(); ++i) {
      if (owners_[i] == self && slices_[i] != kNoSlice) {
        todo_.take(
            slices_[i], results[i].narrow(0, wholes_[i]->begin(self), wholes_[i]->length(self)));
      }
    }
    for (int rank = 0; rank < group_.size(); ++rank) {
      for_each_between(rank, /*mine=*/false, [&](size_t i, int64_t offset, int64_t length) {
        todo_.take(slices_[i], came[rank].narrow(0, offset, length));
      });
    }
  }

  const ShardedBatch& batch_;
  const FullUpdate& todo_;
  Group group_;
  std::vector<const flat::ShardBounds*> wholes_;
  std::vector<int> owners_;
  std::vector<size_t> slices_;  ///< [whole] This rank's, or kNoSlice.
  int64_t longest_ = 0;
};

}  // namespace

std::vector<int> owners_of(
    const std::vector<const flat::ShardBounds*>& full_parameters,
    const std::vector<double>& costs,
    int ranks) {
  std::vector<size_t> dearest_first(full_parameters.size());
  std::iota(dearest_first.begin(), dearest_first.end(), size_t{0});
  std::ranges::stable_sort(dearest_first, [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<double> loads(static_cast<size_t>(ranks));
  std::vector<int> owners(full_parameters.size());
  for (const size_t i : dearest_first) {
    int best = 0;
    for (int rank = 1; rank < ranks; ++rank) {
      const double load = loads[static_cast<size_t>(rank)];
      const double least = loads[static_cast<size_t>(best)];
      if (load < least ||
          (load == least && full_parameters[i]->length(rank) > full_parameters[i]->length(best))) {
        best = rank;
      }
    }
    owners[i] = best;
    loads[static_cast<size_t>(best)] += costs[i];
  }
  return owners;
}

void update_on_owners(const ShardedBatch& batch, const FullUpdate& todo) {
  const auto size = static_cast<size_t>(batch.ranks.size());
  const auto element = static_cast<int64_t>(batch.options.dtype().itemsize());
  const int64_t enough = kRoundBytes * batch.ranks.size() / element;
  for (size_t first = 0, end = 0; first < batch.full_parameters.size(); first = end) {
    for (int64_t elements = 0;
         end < batch.full_parameters.size() && (end - first < size || elements < enough);
         ++end) {
      elements += batch.full_parameters[end]->numel();
    }
    Round(batch, todo, first, end).run();
  }
}

}  // namespace lockstep::optim
