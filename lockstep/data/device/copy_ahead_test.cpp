// SPDX-License-Identifier: Apache-2.0
// Uses the test device, which runs the work of its streams as late as possible.
#include "lockstep/data/device/copy_ahead.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/comm/device/test_device.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"

namespace lockstep::data {
namespace {

/// Holds the device's streams.
class Held {
 public:
  Held() { hold_test_device_streams(true); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { hold_test_device_streams(false); }
};

constexpr int64_t kSamples = 24;

TensorDataset numbers() {
  const at::Tensor x = at::arange(1, kSamples * 4 + 1, at::kFloat).reshape({kSamples, 4});
  return TensorDataset(x, x.sum(1));
}

c10::Stream default_stream() {
  return c10::impl::VirtualGuardImpl(test_device().type()).getDefaultStream(test_device());
}

TEST(CopyAhead, BatchesWithoutAWaitMayBeIncomplete) {
  const Held held;
  const CopyAhead ahead(test_device());
  const at::Tensor values = at::arange(1, 100, at::kFloat) * 0.123;
  const auto arriving = ahead.send(values);
  EXPECT_EQ(arriving.batch.device(), test_device());
  EXPECT_FALSE(at::equal(arriving.batch.cpu(), values));
  EXPECT_TRUE(at::equal(ahead.receive(arriving).cpu(), values));
}

TEST(CopyAhead, HostWritesAfterTheCopyAreNotSent) {
  const Held held;
  const CopyAhead ahead(test_device());
  at::Tensor values = at::full({10}, 3.0);
  const auto arriving = ahead.send(values);
  values.fill_(4);
  EXPECT_TRUE(at::equal(ahead.receive(arriving).cpu(), at::full({10}, 3.0)));
}

TEST(CopyAhead, MemoryIsKeptForTheStreamThatReceives) {
  const CopyAhead ahead(test_device());
  const auto arriving = ahead.send(std::vector<at::Tensor>{at::full({10}, 3.0), at::Tensor()});
  EXPECT_FALSE(test_device_keeps_for(arriving.batch[0], default_stream()));
  const auto batch = ahead.receive(arriving);
  EXPECT_TRUE(test_device_keeps_for(batch[0], default_stream()));
  const c10::Stream other = c10::impl::VirtualGuardImpl(test_device().type())
                                .getStreamFromGlobalPool(test_device(), false);
  const c10::StreamGuard on_it(other);
  EXPECT_TRUE(test_device_keeps_for(ahead.receive(ahead.send(batch))[0], other));
}

TEST(CopyAhead, AllCopiesGoByOneStreamWhichHasTheirMemoryAgain) {
  const Held held;
  // These values occur in no other test, whose memory they may reuse.
  const auto first = CopyAhead(test_device()).send(at::full({10}, 71.0));
  const auto other = CopyAhead(test_device(1)).send(at::full({10}, 72.0));
  const CopyAhead later(test_device());
  later.receive(later.send(at::full({10}, 73.0)));
  // The stream that waits for a later copy also waits for the earlier ones.
  EXPECT_TRUE(at::equal(first.batch.cpu(), at::full({10}, 71.0)));
  EXPECT_FALSE(at::equal(other.batch.cpu(), at::full({10}, 72.0)));
}

TEST(CopyAhead, TensorsMadeOnTheDeviceAreAwaitedToo) {
  const Held held;
  const CopyAhead ahead(test_device());
  const at::Tensor values = at::arange(1, 100, at::kFloat) * 0.321;
  const auto arriving = [&] {
    const c10::StreamGuard elsewhere(c10::impl::VirtualGuardImpl(test_device().type())
                                         .getStreamFromGlobalPool(test_device(), false));
    return ahead.send(values.to(test_device()));
  }();
  EXPECT_FALSE(at::equal(arriving.batch.cpu(), values));
  EXPECT_TRUE(at::equal(ahead.receive(arriving).cpu(), values));
}

TEST(CopyAhead, DoesNotChangeTheHostsBatches) {
  const at::Tensor values = at::full({10}, 3.0);
  EXPECT_TRUE(CopyAhead().send(values).batch.is_same(values));
  EXPECT_TRUE(CopyAhead(at::Device(at::kCPU)).send(values).batch.is_same(values));
  EXPECT_EQ(CopyAhead(at::Device(at::kCPU)).send(values).copied, nullptr);
}

TEST(LoaderCopyAhead, EveryBatchIsThereWhenTheLoopHasIt) {
  const Held held;
  for (const int workers : {0, 1, 3}) {
    Loader loader(numbers(), {.batch_size = 5, .workers = workers, .device = test_device()});
    for (int pass = 0; pass < 2; ++pass) {
      int64_t first = 0;
      for (const auto& [x, y] : loader) {
        EXPECT_TRUE(at::equal(x.cpu(), numbers().data().slice(0, first, first + 5))) << first;
        EXPECT_TRUE(at::equal(y.cpu(), numbers().target().slice(0, first, first + 5)));
        first += 5;
      }
      EXPECT_EQ(first, 25);
    }
  }
}

TEST(LoaderCopyAhead, TheHostWaitsForNothing) {
  Loader loader(numbers(), {.batch_size = 5, .device = test_device()});
  const int64_t reads = test_device_reads();
  for (const auto& [x, y] : loader) {
    EXPECT_EQ(x.device(), test_device());
  }
  EXPECT_EQ(test_device_reads(), reads);
}

/// Returns whether the device holds `bytes` within 5 s.
bool comes_to_hold(int64_t bytes) {
  for (int i = 0; i < 1000 && test_device_bytes() != bytes; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return test_device_bytes() == bytes;
}

TEST(LoaderCopyAhead, AsManyBatchesWaitOnTheDeviceAsTheOptionsSay) {
  const int64_t before = test_device_bytes();
  const int64_t batch = 2 * (4 + 1) * static_cast<int64_t>(sizeof(float));
  Loader loader(
      numbers(), {.batch_size = 2, .workers = 1, .prefetch_batches = 2, .device = test_device()});
  limit_test_device(before + 4 * batch);  // One more would be an error.
  bool is_first = true;
  for (const auto& each : loader) {
    EXPECT_EQ(each.data.device(), test_device());
    if (std::exchange(is_first, false)) {
      EXPECT_TRUE(comes_to_hold(before + 4 * batch)) << test_device_bytes() - before;
    }
  }
  limit_test_device(std::nullopt);
  EXPECT_EQ(test_device_bytes(), before);
}

TEST(LoaderCopyAhead, ALoopThatEndsEarlyLeavesNothingOnTheDevice) {
  const int64_t before = test_device_bytes();
  {
    const Held held;
    Loader loader(numbers(), {.batch_size = 2, .workers = 2, .device = test_device()});
    for (int pass = 0; pass < 3; ++pass) {
      for (const auto& [x, y] : loader) {
        EXPECT_EQ(x.cpu()[0][0].item<float>(), 1);
        break;
      }
    }
  }
  EXPECT_EQ(test_device_bytes(), before);
}

/// Its third batch cannot be had.
struct Failing {
  using Batch = at::Tensor;
  int64_t size() const { return 5; }
  at::Tensor get_batch(std::span<const int64_t> indices) const {
    if (indices[0] == 2) {
      throw std::runtime_error("no such sample");
    }
    return at::full({4}, static_cast<double>(indices[0]));
  }
};

TEST(LoaderCopyAhead, AnErrorIsThrownInPlaceOfItsBatch) {
  const int64_t before = test_device_bytes();
  {
    const Held held;
    Loader loader(Failing(), {.device = test_device()});
    int64_t seen = 0;
    const auto loop = [&] {
      for (const at::Tensor& batch : loader) {
        EXPECT_EQ(batch.cpu()[0].item<float>(), static_cast<float>(seen++));
      }
    };
    EXPECT_THROW(loop(), std::runtime_error);
    EXPECT_EQ(seen, 2);
  }
  EXPECT_EQ(test_device_bytes(), before);
}

TEST(LoaderCopyAhead, ADeviceThatIsFullIsAnErrorOfTheLoop) {
  Loader loader(numbers(), {.batch_size = 5, .device = test_device()});
  limit_test_device(test_device_bytes() + 50);  // Half a batch.
  const auto loop = [&] {
    for (const auto& batch : loader) {
      EXPECT_TRUE(batch.data.defined());
    }
  };
  EXPECT_THROW(loop(), c10::OutOfMemoryError);
  limit_test_device(std::nullopt);
  int64_t batches = 0;
  for (const auto& batch : loader) {
    batches += batch.data.defined() ? 1 : 0;
  }
  EXPECT_EQ(batches, 5);
}

TEST(LoaderCopyAhead, DispatchedBatchesToo) {
  const Held held;
  ranks(2, [](Group group) {
    Loader loader(numbers(), {.batch_size = 3, .device = test_device(group.rank())});
    loader.shard({.rank = group.rank(), .world = 2, .dispatch_batches = true}, group);
    int64_t first = group.rank() * 3;
    for (const auto& [x, y] : loader) {
      EXPECT_EQ(x.device(), test_device(group.rank()));
      EXPECT_EQ(x.cpu()[0][0].item<float>(), static_cast<float>(first * 4 + 1));
      first += 6;
    }
    EXPECT_EQ(first, group.rank() * 3 + kSamples);
  });
}

}  // namespace
}  // namespace lockstep::data
