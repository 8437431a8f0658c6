// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/sharded_rule_call.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include <ATen/ops/empty.h>

namespace lockstep::optim {
namespace {

constexpr int64_t kRoundBytes = int64_t{25} << 20;  // For each rank.

constexpr size_t kNoSlice = std::numeric_limits<size_t>::max();

/// Full parameters that are gathered and computed at a time.
class Round {
 public:
  Round(const ShardedRuleCall& call, const FullUpdate& update, size_t first, size_t end)
      : call_(call), update_(update), group_(call.ranks) {
    const auto from = static_cast<int64_t>(first);
    const auto to = static_cast<int64_t>(end);
    parameters_.assign(call.full_parameters.begin() + from, call.full_parameters.begin() + to);
    owners_ = owners_of(
        parameters_, {update.costs.begin() + from, update.costs.begin() + to}, group_.size());
    slices_.assign(parameters_.size(), kNoSlice);
    for (size_t slice = 0; slice < call.full_index.size(); ++slice) {
      const size_t full = call.full_index[slice];
      if (full >= first && full < end) {
        slices_[full - first] = slice;
      }
    }
    measure();
  }

  void run() {
    std::vector<at::Tensor> inputs(parameters_.size());
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (slices_[i] != kNoSlice) {
        inputs[i] = update_.input(slices_[i]);
      }
    }
    const at::Tensor received = exchange(call_.options, [&](int rank, const auto& place) {
      for_each_sent(rank, /*to_owner=*/true, [&](size_t i, int64_t offset, int64_t length) {
        place(offset, length).copy_(inputs[i]);
      });
    });
    std::vector<at::Tensor> results(parameters_.size());
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (owners_[i] == group_.rank()) {
        results[i] = at::empty(parameters_[i]->sizes, call_.options);
      }
    }
    assemble(results, inputs, received);
    for (at::Tensor& result : results) {
      if (result.defined()) {
        result = update_.compute(result).to(update_.result).contiguous().view({-1});
      }
    }
    return_results(results);
  }

 private:
  /// Sets `longest_`: the most elements that any rank sends to another.
  void measure() {
    const int size = group_.size();
    std::vector<int64_t> lengths(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      lengths.assign(lengths.size(), 0);
      for (size_t i = 0; i < parameters_.size(); ++i) {
        if (owners_[i] != rank) {
          lengths[static_cast<size_t>(owners_[i])] += parameters_[i]->length(rank);
        }
      }
      longest_ = std::max(longest_, *std::max_element(lengths.begin(), lengths.end()));
    }
  }

  /// Calls `visit` with each slice that is sent between this rank and `rank`: slices of this rank
  /// to their owner `rank`, or slices of `rank` whose owner is this rank.
  template <typename Visit>
  void for_each_sent(int rank, bool to_owner, const Visit& visit) const {
    const int owner = to_owner ? rank : group_.rank();
    const int holder = to_owner ? group_.rank() : rank;
    int64_t offset = 0;
    for (size_t i = 0; i < parameters_.size() && owner != holder; ++i) {
      const int64_t length = parameters_[i]->length(holder);
      if (owners_[i] == owner && length > 0) {
        visit(i, offset, length);
        offset += length;
      }
    }
  }

  /// Runs one all-to-all. `fill` writes the values for a rank to `place(offset, length)`. Returns a
  /// row from each rank.
  template <typename Fill>
  at::Tensor exchange(const at::TensorOptions& options, const Fill& fill) {
    const int size = group_.size();
    if (longest_ == 0) {
      return {};
    }
    const at::Tensor sent = group_.empty({size, longest_}, options);
    for (int rank = 0; rank < size; ++rank) {
      fill(rank, [&](int64_t offset, int64_t length) {
        return sent[rank].narrow(0, offset, length);
      });
    }
    return group_.all_to_all_into(group_.empty({size, longest_}, options), sent).wait();
  }

  /// Copies all slices of the inputs that this rank owns to `full`.
  void assemble(
      const std::vector<at::Tensor>& full,
      const std::vector<at::Tensor>& inputs,
      const at::Tensor& received) const {
    const auto place = [&](size_t i, int rank) { return slice_of(full[i].view({-1}), i, rank); };
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (full[i].defined() && inputs[i].defined()) {
        place(i, group_.rank()).copy_(inputs[i]);
      }
    }
    for (int rank = 0; rank < group_.size(); ++rank) {
      for_each_sent(rank, /*to_owner=*/false, [&](size_t i, int64_t offset, int64_t length) {
        place(i, rank).copy_(received[rank].narrow(0, offset, length));
      });
    }
  }

  void return_results(const std::vector<at::Tensor>& results) {
    const at::Tensor received =
        exchange(call_.options.dtype(update_.result), [&](int rank, const auto& place) {
          for_each_sent(rank, /*to_owner=*/false, [&](size_t i, int64_t offset, int64_t length) {
            place(offset, length).copy_(slice_of(results[i], i, rank));
          });
        });
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (owners_[i] == group_.rank() && slices_[i] != kNoSlice) {
        update_.apply(slices_[i], slice_of(results[i], i, group_.rank()));
      }
    }
    for (int rank = 0; rank < group_.size(); ++rank) {
      for_each_sent(rank, /*to_owner=*/true, [&](size_t i, int64_t offset, int64_t length) {
        update_.apply(slices_[i], received[rank].narrow(0, offset, length));
      });
    }
  }

  at::Tensor slice_of(const at::Tensor& full, size_t i, int rank) const {
    return full.narrow(0, parameters_[i]->begin(rank), parameters_[i]->length(rank));
  }

  const ShardedRuleCall& call_;
  const FullUpdate& update_;
  Group group_;
  std::vector<const flat::ShardBounds*> parameters_;
  std::vector<int> owners_;     ///< [parameter]
  std::vector<size_t> slices_;  ///< [parameter] This rank's slice, or kNoSlice.
  int64_t longest_ = 0;
};

}  // namespace

std::vector<int> owners_of(
    const std::vector<const flat::ShardBounds*>& full_parameters,
    const std::vector<double>& costs,
    int ranks) {
  std::vector<size_t> costliest_first(full_parameters.size());
  std::iota(costliest_first.begin(), costliest_first.end(), size_t{0});
  std::ranges::stable_sort(
      costliest_first, [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<double> loads(static_cast<size_t>(ranks));
  std::vector<int> owners(full_parameters.size());
  for (const size_t i : costliest_first) {
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

void update_on_owners(const ShardedRuleCall& call, const FullUpdate& update) {
  const auto size = static_cast<size_t>(call.ranks.size());
  const auto element = static_cast<int64_t>(call.options.dtype().itemsize());
  const int64_t round_elements = kRoundBytes * call.ranks.size() / element;
  for (size_t first = 0, end = 0; first < call.full_parameters.size(); first = end) {
    for (int64_t elements = 0;
         end < call.full_parameters.size() && (end - first < size || elements < round_elements);
         ++end) {
      elements += call.full_parameters[end]->numel();
    }
    Round(call, update, first, end).run();
  }
}

}  // namespace lockstep::optim
