// SPDX-License-Identifier: Apache-2.0
#include "lockstep/offload/tensor_swapper.h"

#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include "lockstep/base/test_folder.h"

namespace lockstep::offload {
namespace {

constexpr int64_t kLength = 1000;
constexpr int64_t kSwappedBytes = kLength * 4;

/// Sets of two tensors each, of which number k is full of k.
struct Files {
  explicit Files(size_t count) {
    for (size_t i = 0; i < 2 * count; ++i) {
      tensors.push_back(std::make_unique<FileTensor>(file, kLength, at::kFloat));
      tensors.back()->tensor().fill_(static_cast<double>(i));
    }
    for (size_t i = 0; i < count; ++i) {
      sets.push_back({tensors[2 * i].get(), tensors[2 * i + 1].get()});
    }
  }
  at::Tensor in_file(size_t index) const {
    at::Tensor values = at::empty({kLength});
    tensors[index]->read(values.mutable_data_ptr());
    return values;
  }

  TestFolder folder;
  std::shared_ptr<ScratchFile> file = std::make_shared<ScratchFile>(folder.path(), "state");
  std::vector<std::unique_ptr<FileTensor>> tensors;
  std::vector<TensorSwapper::Set> sets;
};

/// Whether `condition` comes true within some seconds.
template <typename Condition>
bool eventually(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

TEST(TensorSwapper, EachSetIsWorkedOnInMemoryAndIsInItsFileAfterwards) {
  for (const int64_t slots : {1, 2, 3, 7}) {
    for (const bool read_ahead : {false, true}) {
      for (const bool write_behind : {false, true}) {
        Files files(5);
        TensorSwapper swapper({slots, read_ahead, write_behind});
        for (int pass = 1; pass <= 3; ++pass) {
          swapper.run(files.sets, [&](size_t i) {
            for (FileTensor* tensor : files.sets[i]) {
              tensor->tensor().add_(100);
            }
          });
          for (size_t i = 0; i < 10; ++i) {
            const double expected = static_cast<double>(i) + 100 * pass;
            EXPECT_TRUE(at::equal(files.in_file(i), at::full({kLength}, expected, at::kFloat)))
                << slots << read_ahead << write_behind << i;
          }
        }
        EXPECT_EQ(swapper.bytes_read(), 3 * 10 * kSwappedBytes);
        EXPECT_EQ(swapper.bytes_written(), 3 * 10 * kSwappedBytes);
      }
    }
  }
}

TEST(TensorSwapper, MemoryIsThatOfTheSlotsForAnyAmountOfData) {
  for (const int64_t slots : {1, 3}) {
    Files files(20);
    TensorSwapper swapper({.slots = slots});
    swapper.run(files.sets, [](size_t) {});
    EXPECT_GE(swapper.memory_bytes(), slots * 2 * kSwappedBytes);
    EXPECT_LE(swapper.memory_bytes(), slots * 2 * (kSwappedBytes + 64));
  }
}

TEST(TensorSwapper, TheNextSetIsReadWhileOneIsWorkedOnIfItMayBe) {
  Files files(4);
  TensorSwapper ahead({.slots = 2});
  bool came = false;
  ahead.run(files.sets, [&](size_t i) {
    came = came || (i == 0 && eventually([&] { return ahead.bytes_read() == 4 * kSwappedBytes; }));
  });
  EXPECT_TRUE(came);
  TensorSwapper one_by_one({.slots = 2, .read_ahead = false});
  one_by_one.run(files.sets, [&](size_t i) {
    EXPECT_EQ(one_by_one.bytes_read(), static_cast<int64_t>(i + 1) * 2 * kSwappedBytes);
  });
}

TEST(TensorSwapper, TheLastSetIsWrittenWhileOneIsWorkedOnIfItMayBe) {
  Files files(4);
  TensorSwapper behind({.slots = 3});
  bool went = false;
  behind.run(files.sets, [&](size_t i) {
    went =
        went || (i == 1 && eventually([&] { return behind.bytes_written() == 2 * kSwappedBytes; }));
  });
  EXPECT_TRUE(went);
  TensorSwapper one_by_one({.slots = 3, .write_behind = false});
  one_by_one.run(files.sets, [&](size_t i) {
    EXPECT_EQ(one_by_one.bytes_written(), static_cast<int64_t>(i) * 2 * kSwappedBytes);
  });
}

TEST(TensorSwapper, WorkThatThrowsLeavesTheFilesIntactAndTheSwapperUsable) {
  Files files(6);
  TensorSwapper swapper({.slots = 3});
  EXPECT_THROW(
      swapper.run(
          files.sets,
          [&](size_t i) {
            files.sets[i][0]->tensor().add_(100);
            if (i == 2) {
              throw std::runtime_error("work");
            }
          }),
      std::runtime_error);
  EXPECT_EQ(files.in_file(2)[0].item<float>(), 102) << "was done";
  EXPECT_EQ(files.in_file(4)[0].item<float>(), 4) << "was not";
  EXPECT_EQ(files.in_file(6)[0].item<float>(), 6) << "was not reached";
  EXPECT_EQ(files.tensors[4]->tensor()[0].item<float>(), 4) << "holds what the file does";
  swapper.run(files.sets, [&](size_t i) { files.sets[i][0]->tensor().fill_(1); });
  EXPECT_EQ(files.in_file(10)[0].item<float>(), 1);
}

TEST(TensorSwapper, SetsMayBeEmptyOrNone) {
  TensorSwapper swapper({.slots = 2});
  swapper.run({}, [](size_t) { FAIL(); });
  int calls = 0;
  swapper.run({{}, {}, {}}, [&](size_t) { ++calls; });
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace lockstep::offload
