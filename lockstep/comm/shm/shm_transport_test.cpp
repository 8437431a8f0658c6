// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/shm_transport.h"

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <set>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/shm/member.h"
#include "lockstep/comm/shm/progress_engine.h"

namespace lockstep::comm {
namespace {

using ::testing::HasSubstr;

/// Runs ranks that share one mapping, so that ThreadSanitizer sees their accesses.
void over_one_mapping(
    shm::SegmentSizes sizes,
    const std::function<void(Group)>& body,
    Milliseconds timeout = std::chrono::seconds(60)) {
  const auto transports = make_shm_thread_transports(sizes);
  std::vector<std::thread> threads;
  for (const auto& transport : transports) {
    threads.emplace_back([&body, transport, timeout] { body(Group(transport, timeout)); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

/// Generates a random sequence, the same on every rank.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  int64_t below(int64_t limit) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<int64_t>((state_ >> 33U) % static_cast<uint64_t>(limit));
  }

 private:
  uint64_t state_;
};

/// Returns data that no other rank, step or place has.
at::Tensor step_data(int rank, int64_t step, int64_t count) {
  return (at::arange(count, at::kLong) * 31 + step * 1009 + rank * 100003).to(at::kDouble);
}

/// Runs `steps` random operations of all kinds and sizes and counts wrong results.
int64_t wrong_results(Group& group, int64_t steps, int64_t largest) {
  Dice dice(7);
  const int n = group.size();
  const int me = group.rank();
  int64_t wrong = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const auto kind = dice.below(6);
    const int root = static_cast<int>(dice.below(n));
    const int64_t count = (1 + dice.below(dice.below(4) == 0 ? largest : 300)) * n;
    const bool shared = dice.below(3) == 0;
    const auto made = [&](const at::Tensor& values) {
      if (!shared) {
        return values.clone();
      }
      at::Tensor tensor = group.empty(values.sizes(), values.options());
      return tensor.copy_(values);
    };
    at::Tensor sum = step_data(0, step, count);
    for (int rank = 1; rank < n; ++rank) {
      sum = sum + step_data(rank, step, count);
    }
    const at::Tensor own = made(step_data(me, step, count));
    at::Tensor got;
    at::Tensor want;
    switch (kind) {
      case 0:
      case 1:
        got = group.all_reduce(own).wait();
        want = sum;
        break;
      case 2:
        got = group.reduce_scatter(own).wait();
        want = sum.narrow(0, me * (count / n), count / n);
        break;
      case 3:
        got = group.broadcast(own, root).wait();
        want = step_data(root, step, count);
        break;
      case 4: {
        got = group.all_gather(own.narrow(0, 0, 1 + count / n)).wait();
        std::vector<at::Tensor> all;
        for (int rank = 0; rank < n; ++rank) {
          all.push_back(step_data(rank, step, count).narrow(0, 0, 1 + count / n));
        }
        want = at::cat(all);
        break;
      }
      default: {
        const Pending sent = group.send(own, (me + 1) % n);
        got = group.recv(at::empty_like(own), (me + n - 1) % n).wait();
        want = step_data((me + n - 1) % n, step, count);
        Pending(sent).wait();
      }
    }
    wrong += at::equal(got, want) ? 0 : 1;
  }
  return wrong;
}

constexpr shm::SegmentSizes kSmall{
    .ranks = 4, .slots = 2, .slot_bytes = 8192, .chunk_bytes = 4096, .arena_bytes = 64 << 20};

TEST(ShmStress, RandomOperationsOfMoreRanksThanCoresAreAllRight) {
  std::atomic<int64_t> wrong{0};
  over_one_mapping(kSmall, [&](Group group) { wrong += wrong_results(group, 300, 6000); });
  EXPECT_EQ(wrong, 0);
}

#if !defined(__SANITIZE_THREAD__)
TEST(ShmStress, FindsTheRaceOfASlotThatIsWrittenAgainTooSoon) {
  shm::SegmentSizes racy = kSmall;
  racy.slots = 1;
  std::atomic<int64_t> wrong{0};
  for (int round = 0; round < 20 && wrong == 0; ++round) {
    over_one_mapping(racy, [&](Group group) { wrong += wrong_results(group, 100, 6000); });
  }
  EXPECT_GT(wrong, 0) << "the stress above would not have seen it";
}
#endif

TEST(ShmStress, WorksOverMappingsOfEachRankToo) {
  std::atomic<int64_t> wrong{0};
  shm_ranks(3, [&](Group group) { wrong += wrong_results(group, 60, 400'000); });
  EXPECT_EQ(wrong, 0);
}

/// Counts the writes to a slot that another rank still has to read, in all possible states. Each
/// rank does `phases` phases: writes its slot, publishes, waits for all ranks, reads all slots.
int64_t overwritten_slots(int ranks, int phases, int slots) {
  enum Step { kWrite, kPublish, kRead, kSteps };
  // A rank's state is phase * kSteps + step; it has published `phase` phases, one more in kRead.
  std::vector<std::vector<int>> open{std::vector<int>(static_cast<size_t>(ranks), 0)};
  std::set<std::vector<int>> seen(open.begin(), open.end());
  int64_t found = 0;
  const auto phase_of = [](int state) { return state / kSteps; };
  const auto published = [&](int state) {
    return phase_of(state) + (state % kSteps == kRead ? 1 : 0);
  };
  while (!open.empty()) {
    const std::vector<int> now = open.back();
    open.pop_back();
    for (size_t me = 0; me < now.size(); ++me) {
      const int phase = phase_of(now[me]);
      if (phase == phases) {
        continue;
      }
      const int step = now[me] % kSteps;
      if (step == kRead && !std::all_of(now.begin(), now.end(), [&](int state) {
            return published(state) > phase;
          })) {
        continue;
      }
      if (step == kWrite) {
        // A rank that has not ended the last phase of this slot still has to read the slot.
        found += std::count_if(now.begin(), now.end(), [&](int state) {
          return phase >= slots && phase_of(state) <= phase - slots;
        });
      }
      std::vector<int> next = now;
      ++next[me];
      if (seen.insert(next).second) {
        open.push_back(next);
      }
    }
  }
  return found;
}

TEST(ShmProtocol, InEveryOrderOfStepsNoSlotIsOverwrittenBeforeAllHaveReadIt) {
  EXPECT_EQ(overwritten_slots(2, 6, 2), 0);
  EXPECT_EQ(overwritten_slots(3, 5, 2), 0);
  EXPECT_EQ(overwritten_slots(4, 4, 2), 0);
  EXPECT_GT(overwritten_slots(2, 6, 1), 0) << "one slot is the race that the model must find";
}

TEST(ShmGroup, AddsInRankOrder) {
  // 1e8 swallows the ones one by one; see Ranks.ReductionOrderIsRankOrder.
  for (const int64_t count : {1, 100'000}) {
    shm_ranks(3, [&](Group group) {
      const std::array<float, 3> values{1e8F, 1.0F, 1.0F};
      const at::Tensor sum =
          group.all_reduce(at::full({count}, values[static_cast<size_t>(group.rank())])).wait();
      EXPECT_TRUE(at::equal(sum, at::full({count}, 1e8F)));
    });
  }
}

TEST(ShmGroup, ReducesInPlaceAndMixesWithOtherTensors) {
  shm_ranks(2, [](Group group) {
    const at::TensorOptions floats(at::kFloat);
    at::Tensor tensor = group.empty({300'000}, floats).fill_(group.rank() + 1);
    const void* place = tensor.data_ptr();
    EXPECT_TRUE(at::equal(group.all_reduce(tensor).wait(), at::full({300'000}, 3.0F)));
    EXPECT_EQ(tensor.data_ptr(), place);
    // Only rank 0 has the tensor in its arena.
    const at::Tensor mixed = group.rank() == 0 ? tensor : tensor.clone();
    EXPECT_TRUE(at::equal(group.all_reduce(mixed).wait(), at::full({300'000}, 6.0F)));
    // A view in the middle of a tensor, at a different place on each rank.
    const at::Tensor part = tensor.fill_(1).narrow(0, 1000 + 7 * group.rank(), 77'777);
    group.all_reduce(part).wait();
    EXPECT_EQ(part.sum().item<float>(), 2 * 77'777);
    EXPECT_EQ(tensor.sum().item<float>(), 300'000 + 77'777);
  });
}

TEST(ShmGroup, AnOperationWithoutAWaitCompletes) {
  std::atomic<bool> received = false;
  shm_ranks(2, [&](Group group) {
    if (group.rank() == 0) {
      group.broadcast(at::full({4'000'000}, 5.0F));
      group.send(at::full({1'000'000}, 6.0F), 1);
      while (!received) {  // No call of this rank helps its operations.
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    } else {
      EXPECT_EQ(group.broadcast(at::empty({4'000'000})).wait()[3'999'999].item<float>(), 5.0F);
      EXPECT_EQ(group.recv(at::empty({1'000'000}), 0).wait()[999'999].item<float>(), 6.0F);
      received = true;
    }
    group.barrier();
    // After more than a second of rest the progress thread must wake up again.
    std::this_thread::sleep_for(std::chrono::milliseconds(1600));
    const Pending pending = group.all_reduce(at::ones({4'000'000}));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    if (group.rank() == 0) {
      while (!pending.done() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_TRUE(pending.done());
    } else {
      Pending(pending).wait();
    }
  });
}

TEST(ShmGroup, MessagesToOnePeerDoNotWaitForThoseToAnother) {
  shm_ranks(3, [](Group group) {
    const auto filled = [](float value) { return at::full({500'000}, value); };
    const auto received_from = [&group](int peer) {
      return group.recv(at::empty({500'000}), peer).wait();
    };
    if (group.rank() == 0) {
      Pending first = group.send(filled(1), 1);
      Pending second = group.send(filled(2), 2);
      first.wait();
      second.wait();
    } else if (group.rank() == 2) {
      EXPECT_TRUE(at::equal(received_from(0), filled(2)));
      group.send(filled(3), 1).wait();
    } else {
      EXPECT_TRUE(at::equal(received_from(2), filled(3)));
      EXPECT_TRUE(at::equal(received_from(0), filled(1)));
    }
  });
}

TEST(ShmGroup, AThreadThatWaitsDoesNotKeepAnotherFromItsTurn) {
  over_one_mapping({.ranks = 2}, [](Group group) {
    const int other = 1 - group.rank();
    const at::Tensor received = at::zeros({100'000});
    Pending message = group.recv(received, other);
    std::thread waiter([message]() mutable { message.wait(); });
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(group.all_reduce(at::ones({3})).wait()[0].item<float>(), 2);
    }
    group.send(at::full({100'000}, group.rank() + 1, at::kFloat), other).wait();
    waiter.join();
    EXPECT_EQ(received[99'999].item<int>(), other + 1);
  });
}

TEST(ShmGroup, MessagesWithDifferentTagsAreAnErrorOnBothRanks) {
  over_one_mapping({.ranks = 2}, [](Group group) {
    const at::Tensor tensor = at::ones({3});
    Pending message = group.rank() == 0 ? group.send(tensor, 1, 5) : group.recv(tensor, 0, 6);
    try {
      message.wait();
      ADD_FAILURE() << "expected a CommError";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("send(tag 5)"));
      EXPECT_THAT(error.what(), HasSubstr("recv(tag 6)"));
    }
  });
}

TEST(ShmGroup, OneThatLeftIsNamedAtOnce) {
  shm_ranks(3, [](Group group) {
    group.barrier();
    if (group.rank() == 1) {
      return;
    }
    try {
      group.all_reduce(at::ones({100})).wait(std::chrono::seconds(2));
      ADD_FAILURE() << "rank 1 took no part";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 has left the group"));
      EXPECT_EQ(error.peer(), 1);
    }
  });
}

TEST(ShmGroup, ATimeoutNamesTheMissingRankAndReachesTheOthers) {
  std::atomic<int> errors = 0;
  shm_ranks(3, [&](Group group) {
    group.barrier();
    if (group.rank() == 2) {
      while (errors < 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      return;
    }
    const auto timeout = std::chrono::milliseconds(group.rank() == 0 ? 300 : 60'000);
    try {
      group.all_reduce(at::ones({100})).wait(timeout);
      ADD_FAILURE() << "rank 2 took no part";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 2 did not call the operation within 0.3 s"));
    }
    ++errors;
  });
}

/// Runs `body` in another process that shares this one's mappings. Returns its process id.
template <typename Body>
pid_t in_another_process(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  return child;
}

TEST(ShmGroup, OneThatIsKilledIsNamedWithinTwoSeconds) {
  constexpr auto kDelay = std::chrono::milliseconds(150);  // Rank 0 waits by then.
  for (const bool message : {false, true}) {
    const auto segment = shm::Segment::create({.ranks = 2});
    const pid_t child = in_another_process([&] {
      const shm::Member member(segment, 1);
      ::pause();
    });
    const auto progress_engine =
        std::make_shared<shm::ProgressEngine>(std::make_unique<shm::Member>(segment, 0), 0);
    while (segment->control(1).state.load() != shm::RankState::kJoined) {
      std::this_thread::yield();
    }
    progress_engine->watch_peers();
    const auto work = progress_engine->start(
        {.op = message ? Op::kRecv : Op::kAllReduce,
         .output = at::ones({100}),
         .root = message ? 1 : 0});
    std::thread killer([&] {
      std::this_thread::sleep_for(kDelay);
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    });
    try {
      work->wait(kDelay + std::chrono::seconds(2));
      ADD_FAILURE() << "rank 1 is dead";
    } catch (const CommError& error) {
      EXPECT_THAT(
          error.what(), HasSubstr("rank 1 (process " + std::to_string(child) + ") has died"));
      EXPECT_EQ(error.peer(), 1);
    }
    killer.join();
    progress_engine->close();
  }
}

TEST(ShmGroup, RefusesTensorsWithoutValues) {
  shm_ranks(2, [](Group group) {
    const at::Tensor elsewhere = at::empty({4}, at::TensorOptions().device(at::kMeta));
    EXPECT_THROW(group.all_reduce(elsewhere), ConfigError);
    EXPECT_STREQ(group.transport_name(), "shm");
  });
}

}  // namespace
}  // namespace lockstep::comm
