// SPDX-License-Identifier: Apache-2.0
#include "lockstep/offload/tensor_swapper.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/offload/alignment.h"

namespace lockstep::offload {
namespace {

int64_t bytes_of(const TensorSwapper::Set& set) {
  int64_t bytes = 0;
  for (const FileTensor* tensor : set) {
    bytes += aligned(tensor->nbytes());
  }
  return bytes;
}

}  // namespace

/// One pass over the sets.
class TensorSwapper::Run {
 public:
  Run(TensorSwapper& swapper, const std::vector<Set>& sets)
      : swapper_(swapper), sets_(sets), reads_(sets.size()), writes_(sets.size()) {}

  /// Waits for running operations, since the slots are used again.
  ~Run() {
    for (const auto* jobs : {&reads_, &writes_}) {
      for (const auto& job : *jobs) {
        if (job.valid()) {
          job.wait();
        }
      }
    }
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  void read(size_t index) {
    if (index >= sets_.size() || reads_[index].valid()) {
      return;
    }
    const std::shared_future<void> before =
        index >= slots() ? writes_[index - slots()] : std::shared_future<void>();
    reads_[index] = swapper_.reader_.submit([this, index, before] {
      if (before.valid()) {
        before.get();  // The slot's last set is in its files.
      }
      each(index, [this](FileTensor& tensor, char* memory) {
        tensor.read(memory);
        swapper_.bytes_read_ += tensor.nbytes();
      });
    });
  }

  void stage(size_t index) {
    reads_[index].get();
    each(index, [](FileTensor& tensor, char* memory) { tensor.stage(memory); });
  }

  void unstage(size_t index) {
    for (FileTensor* tensor : sets_[index]) {
      tensor->unstage();
    }
  }

  void write(size_t index) {
    writes_[index] = swapper_.writer_.submit([this, index] {
      each(index, [this](FileTensor& tensor, char* memory) {
        tensor.write(memory);
        swapper_.bytes_written_ += tensor.nbytes();
      });
    });
  }
  void wait_write(size_t index) { writes_[index].get(); }

 private:
  size_t slots() const { return static_cast<size_t>(swapper_.options_.slots); }

  template <typename Visit>
  void each(size_t index, const Visit& visit) {
    auto* memory = static_cast<char*>(swapper_.slots_[index % slots()].mutable_data_ptr());
    for (FileTensor* tensor : sets_[index]) {
      visit(*tensor, memory);
      memory += aligned(tensor->nbytes());
    }
  }

  TensorSwapper& swapper_;
  const std::vector<Set>& sets_;
  std::vector<std::shared_future<void>> reads_;
  std::vector<std::shared_future<void>> writes_;
};

TensorSwapper::TensorSwapper(const TensorSwapperOptions& options) : options_(options) {
  LOCKSTEP_ASSERT(options_.slots > 0, "a TensorSwapper needs a slot");
}

TensorSwapper::~TensorSwapper() = default;

void TensorSwapper::run(
    const std::vector<Set>& sets, const std::function<void(size_t index)>& work) {
  int64_t largest = 0;
  for (const Set& set : sets) {
    largest = std::max(largest, bytes_of(set));
  }
  const size_t wanted = std::min(sets.size(), static_cast<size_t>(options_.slots));
  if (slots_.size() < wanted || (wanted > 0 && slots_[0].numel() < largest)) {
    const int64_t bytes = std::max(largest, slots_.empty() ? 0 : slots_[0].numel());
    const size_t count = std::max(wanted, slots_.size());
    slots_.clear();  // Before the new ones are made.
    for (size_t i = 0; i < count; ++i) {
      slots_.push_back(at::empty({bytes}, at::kByte));
    }
  }
  Run run(*this, sets);
  for (size_t i = 0; i < sets.size(); ++i) {
    run.read(i);
    for (size_t ahead = 1; options_.read_ahead && ahead < static_cast<size_t>(options_.slots);
         ++ahead) {
      run.read(i + ahead);
    }
    run.stage(i);
    try {
      work(i);
    } catch (...) {
      run.unstage(i);
      throw;
    }
    run.unstage(i);
    run.write(i);
    if (!options_.write_behind) {
      run.wait_write(i);
    }
  }
  for (size_t i = 0; i < sets.size(); ++i) {
    run.wait_write(i);
  }
}

int64_t TensorSwapper::memory_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& slot : slots_) {
    bytes += slot.numel();
  }
  return bytes;
}

}  // namespace lockstep::offload
