// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/device/device.h"

#include <any>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/ops/add.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/sample/batch.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Plain {
  at::Tensor tensor;
};
struct Hiding {
  at::Tensor tensor;
  Plain plain;
  LOCKSTEP_FIELDS(tensor, plain)
};

static_assert(Transferable<Batch>);
static_assert(Transferable<std::map<std::string, std::vector<std::optional<at::Tensor>>>>);
static_assert(Transferable<std::tuple<Batch, int, std::array<std::pair<bool, std::string>, 2>>>);
static_assert(Transferable<std::vector<bool>>);
static_assert(!Transferable<Plain>);
static_assert(!Transferable<Hiding>);
static_assert(!Transferable<std::vector<std::any>>);
static_assert(!Transferable<std::shared_ptr<at::Tensor>>);
static_assert(!Transferable<at::Tensor*>);

// "meta" is a device every machine has.
const at::Device kMeta(at::kMeta);

TEST(ToDevice, MovesEveryTensorOfANestedValue) {
  std::map<std::string, std::vector<at::Tensor>> value;
  value["a"] = {at::ones({2}), at::Tensor()};
  const auto moved = to_device(std::pair(value, 7), kMeta);
  EXPECT_TRUE(moved.first.at("a")[0].is_meta());
  EXPECT_FALSE(moved.first.at("a")[1].defined());
  EXPECT_EQ(moved.second, 7);
  EXPECT_TRUE(value["a"][0].is_cpu());
}

TEST(ToDevice, KeepsTensorsOnTheirDevice) {
  const at::Tensor tensor = at::ones({2});
  EXPECT_TRUE(to_device(tensor, at::kCPU).is_same(tensor));
  EXPECT_TRUE(to_device(tensor, at::kCPU, /*non_blocking=*/true).is_same(tensor));
}

TEST(StoredParts, AreAllThatASparseTensorKeepsMemoryFor) {
  const at::Tensor dense = at::eye(4);
  EXPECT_TRUE(stored_parts(dense)[0].is_same(dense));
  for (const auto& [sparse, parts] :
       {std::pair(dense.to_sparse(), 2U),
        std::pair(dense.to_sparse_csr(), 3U),
        std::pair(dense.to_sparse_csc(), 3U),
        std::pair(dense.to_sparse_bsr({2, 2}), 3U)}) {
    const std::vector<at::Tensor> stored = stored_parts(sparse);
    ASSERT_EQ(stored.size(), parts);
    for (const at::Tensor& part : stored) {
      EXPECT_TRUE(part.has_storage());
    }
    EXPECT_EQ(
        stored.back().const_data_ptr(),
        (parts == 2 ? sparse._values() : sparse.values()).const_data_ptr());
  }
}

TEST(ToDevice, ToTheHostIsCompleteOnReturn) {
  if (!at::hasCUDA()) {
    GTEST_SKIP() << "needs CUDA";
  }
  // Large enough that the copy would still be under way.
  const at::Tensor tensor = at::ones({int64_t{1} << 26}, at::TensorOptions(at::kCUDA));
  for (int i = 0; i < 5; ++i) {
    const at::Tensor here = to_device(at::add(tensor, i), at::kCPU, /*non_blocking=*/true);
    EXPECT_EQ(here[-1].item<float>(), static_cast<float>(i + 1));
    EXPECT_TRUE(at::equal(here, at::add(tensor, i).cpu()));
  }
}

TEST(Loader, HandsOutBatchesOnItsDevice) {
  for (const int workers : {0, 1}) {
    Loader loader(
        TensorDataset(at::ones({5, 2}), at::ones({5})),
        {.batch_size = 2, .workers = workers, .device = kMeta});
    for (const auto& batch : loader) {
      EXPECT_TRUE(batch.data.is_meta() && batch.target.is_meta());
    }
    loader.core()->set_device(at::kCPU);
    for (const auto& batch : loader) {
      EXPECT_TRUE(batch.data.is_cpu());
      EXPECT_THROW(loader.core()->set_device(kMeta), ConfigError);
    }
  }
}

TEST(Loader, RefusesADeviceThatIsNotHere) {
  if (at::hasCUDA()) {
    GTEST_SKIP() << "CUDA is here";
  }
  const TensorDataset dataset(at::ones({5, 2}), at::ones({5}));
  EXPECT_THAT(
      [&] { Loader(dataset, {.device = at::kCUDA}); },
      ThrowsMessage<ConfigError>(HasSubstr("batches cannot be moved to cuda")));
  Loader loader(dataset);
  EXPECT_THROW(loader.core()->set_device(at::kCUDA), ConfigError);
  EXPECT_FALSE(loader.core()->options().device.has_value());
}

/// Batches that may hide a tensor.
struct HiddenTensors {
  using Batch = Plain;
  int64_t size() const { return 2; }
  Batch get_batch(std::span<const int64_t> /*indices*/) const { return {at::ones({1})}; }
};

TEST(Loader, RefusesADeviceForOpaqueBatches) {
  EXPECT_THAT(
      [] { Loader(HiddenTensors(), {.device = kMeta}); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("to meta"), HasSubstr("LOCKSTEP_FIELDS"))));
  Loader loader(HiddenTensors(), {.device = at::kCPU});
  EXPECT_THROW(loader.core()->set_device(kMeta), ConfigError);
}

}  // namespace
}  // namespace lockstep::data
