// SPDX-License-Identifier: Apache-2.0
// Uses a simulated NCCL (fake_nccl.cpp), since CI has no GPU.
#include "lockstep/comm/nccl/nccl_backend.h"

#include <chrono>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/comm/device/test_device.h"
#include "lockstep/comm/shm/shm_transport.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
constexpr Milliseconds kLong = std::chrono::seconds(20);
constexpr Milliseconds kShort = std::chrono::seconds(5);

const NcclApi& fake() {
  static const NcclApi api = NcclApi::load(FAKE_NCCL);
  return api;
}

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

struct Rank {
  std::shared_ptr<Transport> host;
  std::unique_ptr<DeviceBackend> link;  ///< Null if it could not be had.
  std::string why;

  at::Tensor run(Collective c, Milliseconds timeout = kLong) const {
    const at::Tensor result = c.output;
    link->start(std::move(c), timeout)->wait(timeout);
    return result.defined() ? result.cpu() : result;
  }
};

/// Returns the error of each rank; "" if it has none.
std::vector<std::string> linked_ranks(
    int size, const std::function<void(Rank&)>& body, const NcclApi& api = fake()) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (const auto& host : make_shm_thread_transports({.ranks = size})) {
    threads.emplace_back([&, host] {
      const ThreadRankScope label({host->rank(), size});
      Rank rank{host, nullptr, ""};
      rank.link = make_nccl_backend(rank.host, test_device(0), api, 1, kLong, rank.why);
      try {
        body(rank);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank.host->rank())] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

at::Tensor numbers(int rank, int64_t rows = 12) {
  return at::arange(2 * rows, at::kFloat).reshape({rows, 2}) + 100.0 * rank;
}

at::Tensor device(const at::Tensor& tensor) {
  return tensor.to(test_device(0));
}

TEST(NcclApi, ReadsItsVersionAndRefusesOtherLibraries) {
  EXPECT_EQ(fake().version(), "2.20.5");
  EXPECT_THROW(NcclApi::load("libm.so.6"), Error);
  try {
    NcclApi::load("/nowhere/libnccl.so.2");
    FAIL() << "there is no such file";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("/nowhere/libnccl.so.2"));
  }
}

TEST(NcclApi, ASecondLibraryUsesItsOwnFunctions) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers refuse RTLD_DEEPBIND";
#endif
  const TestFolder folder;
  const auto copy = [&](const char* name) {
    std::filesystem::copy_file(FAKE_NCCL, folder.path() / name);
    return folder.path() / name;
  };
  // As libtorch for CUDA loads its NCCL.
  void* const of_libtorch = ::dlopen(copy("first.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
  ASSERT_NE(of_libtorch, nullptr) << ::dlerror();
  const NcclApi second = NcclApi::load(copy("second.so"));
  ::dlclose(of_libtorch);
  const auto errors = linked_ranks(
      2,
      [](Rank& rank) {
        ASSERT_TRUE(rank.link) << rank.why;
        const at::Tensor sum = rank.run({.op = Op::kAllReduce, .output = device(at::ones({3}))});
        EXPECT_TRUE(at::equal(sum, at::full({3}, 2.0)));
      },
      second);
  EXPECT_THAT(errors, Each(""));
}

TEST(NcclBackend, EveryOperationGivesItsResult) {
  for (const int size : {2, 3}) {
    EXPECT_THAT(
        linked_ranks(
            size,
            [size](Rank& rank) {
              ASSERT_TRUE(rank.link) << rank.why;
              const int me = rank.host->rank();
              std::vector<at::Tensor> each;
              for (int r = 0; r < size; ++r) {
                each.push_back(numbers(r));
              }
              const at::Tensor all = at::cat(each);
              const at::Tensor stacked = at::stack(each);
              const at::Tensor own = device(numbers(me));
              const int64_t part = 12 / size;
              const auto reduced = [&](ReduceOp op) {
                return rank.run({.op = Op::kAllReduce, .output = own.clone(), .reduce = op});
              };
              EXPECT_TRUE(at::equal(reduced(ReduceOp::kSum), stacked.sum(0)));
              EXPECT_TRUE(at::equal(reduced(ReduceOp::kAvg), stacked.mean(0)));
              EXPECT_TRUE(at::equal(reduced(ReduceOp::kMax), numbers(size - 1)));
              EXPECT_TRUE(at::equal(reduced(ReduceOp::kMin), numbers(0)));
              EXPECT_TRUE(at::equal(reduced(ReduceOp::kProduct), stacked.prod(0)));
              const at::Tensor rows = device(at::zeros({part, 2}));
              EXPECT_TRUE(at::equal(
                  rank.run({.op = Op::kReduceScatter, .input = own, .output = rows}),
                  stacked.sum(0).narrow(0, me * part, part)));
              const at::Tensor room = device(at::zeros({int64_t{12} * size, 2}));
              EXPECT_TRUE(
                  at::equal(rank.run({.op = Op::kAllGather, .input = own, .output = room}), all));
              const at::Tensor swapped = rank.run(
                  {.op = Op::kAllToAll, .input = own, .output = device(at::zeros({12, 2}))});
              for (int r = 0; r < size; ++r) {
                EXPECT_TRUE(at::equal(
                    swapped.narrow(0, r * part, part), numbers(r).narrow(0, me * part, part)));
              }
              EXPECT_TRUE(at::equal(
                  rank.run({.op = Op::kBroadcast, .output = own.clone(), .root = 1}), numbers(1)));
              const at::Tensor gathered = rank.run(
                  {.op = Op::kGather,
                   .input = own,
                   .output = me == 1 ? device(at::zeros_like(all)) : at::Tensor(),
                   .root = 1});
              EXPECT_TRUE(me == 1 ? at::equal(gathered, all) : !gathered.defined());
              EXPECT_TRUE(at::equal(
                  rank.run(
                      {.op = Op::kScatter,
                       .input = me == 1 ? device(all) : at::Tensor(),
                       .output = device(at::zeros({12, 2})),
                       .root = 1}),
                  numbers(me)));
            }),
        Each(""));
  }
}

TEST(NcclBackend, RanksMayStartOperationsOfTwoGroupsInDifferentOrders) {
  const auto errors = linked_ranks(2, [](Rank& rank) {
    ASSERT_TRUE(rank.link) << rank.why;
    const auto host = rank.host->split(0, rank.host->rank(), kLong);
    const auto second = make_nccl_backend(host, test_device(0), fake(), 2, kLong, rank.why);
    ASSERT_TRUE(second) << rank.why;
    std::vector<DeviceBackend*> order = {rank.link.get(), second.get()};
    if (host->rank() == 1) {
      std::swap(order[0], order[1]);
    }
    std::vector<std::shared_ptr<Work>> works;
    std::vector<at::Tensor> sums;
    for (DeviceBackend* const backend : order) {
      sums.push_back(device(at::ones({3})));
      works.push_back(backend->start({.op = Op::kAllReduce, .output = sums.back()}, kShort));
    }
    for (size_t i = 0; i < works.size(); ++i) {
      works[i]->wait(kShort);
      EXPECT_TRUE(at::equal(sums[i].cpu(), at::full({3}, 2.0)));
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(NcclBackend, AnOperationThatAnotherRankDoesNotStartFailsAndNamesTheRank) {
  set_log_sink([](const std::string&) {});
  const auto errors = linked_ranks(2, [](Rank& rank) {
    if (rank.host->rank() == 0) {
      rank.run({.op = Op::kAllReduce, .output = device(at::ones({3}))}, Milliseconds(200));
    } else {
      std::this_thread::sleep_for(Milliseconds(400));
    }
  });
  set_log_sink(nullptr);
  EXPECT_THAT(errors[0], HasSubstr("rank 1 did not call the operation within 0.2 s"));
}

TEST(NcclBackend, ARankThatCannotJoinIsNamedToAllAndNoneHasIt) {
  const Variable bad("FAKE_NCCL_NO_JOIN", "1");
  linked_ranks(2, [](Rank& rank) {
    EXPECT_FALSE(rank.link);
    EXPECT_THAT(rank.why, AllOf(HasSubstr("rank 1: "), HasSubstr("NCCL: invalid usage")));
  });
}

TEST(NcclBackend, AMismatchBetweenRanksIsReportedBeforeNcclHangs) {
  EXPECT_THAT(
      linked_ranks(
          2,
          [](Rank& rank) {
            const at::Tensor own = device(at::ones({rank.host->rank() == 0 ? 3 : 5}));
            rank.run({.op = Op::kAllReduce, .output = own});
          }),
      Each(AllOf(HasSubstr("float[3]"), HasSubstr("float[5]"))));
}

TEST(NcclBackend, AfterAFailureItIsDeadAndSaysWhy) {
  const Variable bad("FAKE_NCCL_FAIL_REDUCE", "7");
  set_log_sink([](const std::string&) {});
  const auto errors = linked_ranks(2, [](Rank& rank) {
    EXPECT_THROW(rank.run({.op = Op::kAllReduce, .output = device(at::ones({7}))}), CommError);
    rank.run({.op = Op::kAllReduce, .output = device(at::ones({8}))});
  });
  set_log_sink(nullptr);
  EXPECT_THAT(
      errors,
      Each(
          AllOf(HasSubstr("the group failed earlier"), HasSubstr("NCCL: unhandled system error"))));
}

/// Counts communicators. `how`: "fake_nccl_destroyed" or "fake_nccl_aborted".
int count(const char* how) {
  void* const library = ::dlopen(FAKE_NCCL, RTLD_NOW);
  return reinterpret_cast<int (*)()>(::dlsym(library, how))();
}

/// RAII scope: events of the device report that no work is done; nothing is logged.
class HeldEvents {
 public:
  HeldEvents() {
    hold_test_device_events(true);
    set_log_sink([](const std::string&) {});
  }
  ~HeldEvents() {
    hold_test_device_events(false);
    set_log_sink(nullptr);
  }
  HeldEvents(const HeldEvents&) = delete;
  HeldEvents& operator=(const HeldEvents&) = delete;
};

/// Blocks until the link has failed. Returns its error.
std::string group_error(const DeviceBackend& link) {
  for (int i = 0; i < 2000; ++i) {
    try {
      link.check_alive(Op::kAllReduce);
    } catch (const CommError& error) {
      return error.what();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return "it lives";
}

TEST(NcclBackend, AnOperationBeyondItsTimeoutEndsIt) {
  const HeldEvents held;
  linked_ranks(2, [](Rank& rank) {
    const auto work = rank.link->start(
        {.op = Op::kAllReduce, .output = device(at::ones({3}))}, Milliseconds(100));
    EXPECT_FALSE(work->done());
    work->wait(kLong);  // The stream waits, not the host.
    EXPECT_THAT(group_error(*rank.link), HasSubstr("all_reduce was not done within 0.1 s"));
    EXPECT_THROW(work->wait(kLong), CommError);
  });
}

TEST(NcclBackend, AnErrorInARunningOperationEndsIt) {
  const Variable bad("FAKE_NCCL_LATE_ERROR", "7");
  const HeldEvents held;
  linked_ranks(2, [](Rank& rank) {
    rank.run({.op = Op::kAllReduce, .output = device(at::ones({7}))});
    EXPECT_THAT(
        group_error(*rank.link),
        AllOf(HasSubstr("all_reduce"), HasSubstr("NCCL: unhandled system error")));
  });
}

TEST(NcclBackend, DestructionFinishesItsOwnWorkWithoutAborting) {
  const int aborted = count("fake_nccl_aborted");
  const int destroyed = count("fake_nccl_destroyed");
  hold_test_device_events(true);
  linked_ranks(2, [](Rank& rank) {
    rank.run({.op = Op::kAllReduce, .output = device(at::ones({3}))});
    std::thread later([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      hold_test_device_events(false);
    });
    rank.link.reset();
    later.join();
  });
  EXPECT_EQ(count("fake_nccl_aborted"), aborted);
  EXPECT_EQ(count("fake_nccl_destroyed"), destroyed + 2);
}

TEST(NcclBackend, DestructionDropsAnOperationThatAnotherRankDoesNotStart) {
  const int aborted = count("fake_nccl_aborted");
  const auto errors = linked_ranks(2, [](Rank& rank) {
    if (rank.host->rank() == 0) {
      const at::Tensor own = device(at::ones({3}));
      const auto work = rank.link->start({.op = Op::kAllReduce, .output = own}, Milliseconds(1500));
      const auto began = std::chrono::steady_clock::now();
      rank.link.reset();
      EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
      EXPECT_THROW(work->wait(kLong), CommError);
    } else {
      std::this_thread::sleep_for(Milliseconds(2000));
    }
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(count("fake_nccl_aborted"), aborted + 1);
}

TEST(NcclBackend, TensorsOfAnotherDeviceAreRefused) {
  EXPECT_THAT(
      linked_ranks(
          2,
          [](Rank& rank) {
            rank.run({.op = Op::kAllReduce, .output = at::ones({3}).to(test_device(1))});
          }),
      Each(AllOf(HasSubstr("expected test:0"), HasSubstr("got test:1"))));
}

}  // namespace
}  // namespace lockstep::comm
