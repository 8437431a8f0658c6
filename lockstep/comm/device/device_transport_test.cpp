// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/device/device_transport.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/connect/connect.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/device/test_device.h"
#include "lockstep/comm/shm/shm_transport.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor on_device(const at::Tensor& tensor) {
  return tensor.to(test_device(0));
}

at::Tensor numbers(int rank) {
  return at::sin(at::arange(24, at::kFloat) + 100.0 * rank).reshape({12, 2});
}

/// Expects `own`, computed on the device, to be bit-exact with `host`.
void expect_same(const at::Tensor& own, const at::Tensor& host) {
  EXPECT_EQ(own.device().type(), at::kPrivateUse1);
  EXPECT_TRUE(at::equal(own.cpu(), host));
}

void expect_all_operations_as_on_the_host(Group group) {
  const at::Tensor own = numbers(group.rank());
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kProduct}) {
    expect_same(
        group.all_reduce(on_device(own), op).wait(), group.all_reduce(own.clone(), op).wait());
    expect_same(
        group.reduce_scatter(on_device(own), op).wait(), group.reduce_scatter(own, op).wait());
  }
  expect_same(group.all_gather(on_device(own)).wait(), group.all_gather(own).wait());
  expect_same(group.all_to_all(on_device(own)).wait(), group.all_to_all(own).wait());
  expect_same(group.broadcast(on_device(own), 1).wait(), numbers(1));
  const at::Tensor gathered = group.gather(on_device(own), 1).wait();
  EXPECT_EQ(gathered.defined(), group.rank() == 1);
  const at::Tensor all = group.all_gather(own).wait();
  if (gathered.defined()) {
    expect_same(gathered, all);
  }
  expect_same(
      group.scatter(on_device(at::zeros({12, 2})), on_device(all), 1).wait(),
      numbers(group.rank()));
}

TEST(DeviceTransport, AllOperationsAreThoseOfTheHost) {
  for (const int size : {2, 3, 4}) {
    shm_ranks(size, &expect_all_operations_as_on_the_host);
  }
  gloo_ranks(2, &expect_all_operations_as_on_the_host);
}

TEST(DeviceTransport, RanksMaySendToEachOtherBeforeTheyReceive) {
  shm_ranks(2, [](Group group) {
    const int peer = 1 - group.rank();
    const at::Tensor theirs = on_device(at::zeros({12, 2}));
    Pending sent = group.send(on_device(numbers(group.rank())), peer);
    group.recv(theirs, peer).wait();
    sent.wait();
    expect_same(theirs, numbers(peer));
  });
}

TEST(DeviceTransport, OperationsMayOverlapAndEndInAnyOrder) {
  shm_ranks(2, [](Group group) {
    std::vector<at::Tensor> tensors;
    std::vector<Pending> pending;
    for (int i = 0; i < 5; ++i) {
      tensors.push_back(on_device(at::full({1000}, i + group.rank())));
      pending.push_back(group.all_reduce(tensors.back()));
    }
    for (int i = 4; i >= 0; --i) {
      expect_same(pending[static_cast<size_t>(i)].wait(), at::full({1000}, 2 * i + 1));
    }
  });
}

TEST(DeviceTransport, PartsOfAGroupWorkOnDevicesToo) {
  shm_ranks(4, [](Group group) {
    Group part = group.split(group.rank() % 2);
    expect_same(
        part.all_reduce(on_device(at::full({3}, group.rank()))).wait(),
        at::full({3}, group.rank() % 2 == 0 ? 2 : 4));
  });
}

TEST(DeviceTransport, ItsNameSaysTheBackendOnceItIsKnown) {
  shm_ranks(2, [](Group group) {
    EXPECT_STREQ(group.transport_name(), "shm");
    group.all_reduce(on_device(at::ones({2}))).wait();
    EXPECT_STREQ(group.transport_name(), "shm, host");
  });
}

/// Returns the error of each of two ranks.
std::vector<std::string> errors_of(const std::function<void(Group)>& body) {
  std::vector<std::string> errors(2, "no error");
  shm_ranks(2, [&](Group group) {
    try {
      body(group);
    } catch (const Error& error) {
      errors[static_cast<size_t>(group.rank())] = error.what();
    }
  });
  return errors;
}

TEST(DeviceTransport, AMismatchIsAnErrorOnAllRanks) {
  EXPECT_THAT(
      errors_of([](Group group) {
        group.all_reduce(on_device(at::ones({group.rank() == 0 ? 3 : 5}))).wait();
      }),
      ::testing::Each(AllOf(HasSubstr("float[3]"), HasSubstr("float[5]"))));
  // One tensor is on the device, the other is not: ranks compare devices before they begin.
  EXPECT_THAT(
      errors_of([](Group group) {
        const at::Tensor own = at::ones({3});
        group.all_reduce(group.rank() == 0 ? own : on_device(own)).wait();
      }),
      ::testing::Each(HasSubstr("rank 0 calls all_reduce(sum) of float[3]")));
}

TEST(DeviceTransport, NcclIsRefusedWhereItCannotBe) {
  const auto options =
      ConnectOptions::from_environment(Environment::of({{"LOCKSTEP_DEVICE_COMM", "nccl"}}));
  std::vector<std::thread> threads;
  for (const auto& host : comm::make_shm_thread_transports({.ranks = 2})) {
    threads.emplace_back([&, host] {
      Group group(comm::with_devices(host, options.device_comm, 0), std::chrono::seconds(20));
      try {
        group.all_reduce(on_device(at::ones({3}))).wait();
        ADD_FAILURE() << "the test device has no NCCL";
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), HasSubstr("NCCL needs CUDA devices; got test:0"));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace lockstep
