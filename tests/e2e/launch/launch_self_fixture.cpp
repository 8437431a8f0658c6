// SPDX-License-Identifier: Apache-2.0
//
// A program that starts ranks of its own by lockstep::launch, in the way that its first argument
// names. Started by launch_self_e2e_test.cpp.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <torch/torch.h>

#include "lockstep/lockstep.h"

namespace {

using lockstep::Accelerator;

void print(const std::vector<double>& values) {
  for (const double value : values) {
    std::printf("%g ", value);
  }
  std::printf("\n");
}

/// What two steps of a small net on all ranks' data end with.
torch::Tensor train() {
  Accelerator accelerator;
  torch::manual_seed(1);
  torch::nn::Linear net(3, 1);
  auto [model, optimizer] =
      accelerator.prepare(net, lockstep::optim::SGD(net->parameters(), {.lr = 0.1}));
  for (int step = 0; step < 2; ++step) {
    const auto rank = static_cast<double>(accelerator.process_index());
    accelerator.backward(model->forward(torch::full({4, 3}, rank + step)).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  return net->weight.detach();
}

/// MiB that this process has, what it has in common with others divided among them.
double own_mib() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    if (word == "Pss:") {
      double kib = 0;
      rollup >> kib;
      return kib / 1024;
    }
  }
  return 0;
}

/// MiB that training adds to each of three ranks: 16 of parameters, 32 of Adam's state, 16 of
/// gradients.
std::vector<double> train_large(bool shared) {
  return lockstep::launch(
      [shared] {
        Accelerator accelerator({.shared_parameters = shared});
        const double before = own_mib();
        torch::nn::Sequential net(torch::nn::Linear(2048, 1024), torch::nn::Linear(1024, 2048));
        auto [model, optimizer] =
            accelerator.prepare(net, lockstep::optim::AdamW(net->parameters(), {.lr = 0.1}));
        for (int step = 0; step < 2; ++step) {
          accelerator.backward(model->forward(torch::ones({1, 2048})).sum());
          optimizer.step();
          optimizer.zero_grad();
        }
        accelerator.wait_for_everyone();
        const double after = own_mib();
        accelerator.wait_for_everyone();
        return after - before;
      },
      3);
}

int memory() {
  const auto total = [](const std::vector<double>& each) {
    return std::accumulate(each.begin(), each.end(), 0.0);
  };
  const double own = total(train_large(false));
  print({own, total(train_large(true))});
  return 0;
}

int results() {
  print(lockstep::launch(
      [] {
        Accelerator accelerator;
        const torch::Tensor sum = accelerator.reduce(torch::ones({}));
        return sum.item<double>() + 10 * accelerator.process_index();
      },
      3));
  return 0;
}

int tensors() {
  const std::vector<torch::Tensor> weights = lockstep::launch(train, 2);
  std::printf("%d\n", weights.size() == 2 && weights[0].equal(weights[1]) ? 1 : 0);
  return 0;
}

int nothing(const std::vector<std::string>& arguments) {
  lockstep::launch(
      [&] {
        const Accelerator accelerator;
        std::printf(
            "rank %lld %s\n",
            static_cast<long long>(accelerator.process_index()),
            arguments.back().c_str());
      },
      2);
  std::printf("after\n");
  return 0;
}

/// The second call's ranks must get the first one's results, and its error, without running it.
int twice() {
  int runs = 0;
  const auto first = lockstep::launch([] { return static_cast<int>(::getpid()); }, 2);
  std::string caught;
  try {
    lockstep::launch([] { throw std::runtime_error("the second"); }, 1);
  } catch (const lockstep::Error& error) {
    caught = error.what();
  }
  ++runs;
  const auto seen = lockstep::launch(
      [&] {
        return std::vector<std::string>{std::to_string(first.at(1)), caught};
      },
      2);
  const bool same = seen.at(0).at(0) == std::to_string(first.at(1)) && seen.at(1).at(1) == caught;
  std::printf("%d %d %s\n", static_cast<int>(same), runs, caught.c_str());
  return 0;
}

/// A refused call that the program catches, and two calls after it.
int refused() {
  std::string caught;
  try {
    lockstep::launch([] {}, 0);
  } catch (const lockstep::ConfigError& error) {
    caught = error.what();
  }
  const auto first = lockstep::launch([] { return 1; }, 2);
  const auto second = lockstep::launch(
      [&] {
        return std::vector<std::string>{std::to_string(first.at(1)), caught};
      },
      2);
  std::printf("%s %s\n", second.at(1).at(0).c_str(), second.at(1).at(1).c_str());
  return 0;
}

int fail_on_rank_1(const std::string& how) {
  lockstep::launch(
      [&] {
        Accelerator accelerator;
        if (accelerator.process_index() == 1) {
          if (how == "throw") {
            throw std::runtime_error("no such picture");
          }
          if (how == "config") {
            throw lockstep::ConfigError("lr", "it must be positive");
          }
          std::raise(SIGKILL);
        }
        accelerator.wait_for_everyone();
      },
      2);
  return 0;
}

int before_the_call() {
  if (std::getenv("RANK") != nullptr) {
    return 0;
  }
  lockstep::launch([] {}, 2);
  return 0;
}

int nested() {
  lockstep::launch([] { lockstep::launch([] {}, 2); }, 1);
  return 0;
}

/// Rank 1 fails the first time.
int restarted() {
  lockstep::LaunchOptions options;
  options.max_restarts = 1;
  options.restart_backoff_seconds = 0;
  print(lockstep::launch(
      [] {
        Accelerator accelerator;
        const std::string count = std::getenv("TORCHELASTIC_RESTART_COUNT");
        if (count == "0" && accelerator.process_index() == 1) {
          throw std::runtime_error("not yet");
        }
        accelerator.wait_for_everyone();
        return std::stod(count);
      },
      2,
      options));
  return 0;
}

/// Other threads run in the process that waits: signals may come to any of them.
int wait_for_signal(bool saved) {
  std::thread other;
  if (std::getenv("RANK") == nullptr) {
    other = std::thread([] { std::this_thread::sleep_for(std::chrono::hours(1)); });
  }
  lockstep::launch(
      [&] {
        std::signal(SIGTERM, saved ? [](int) { ::_exit(lockstep::kExitPreempted); } : SIG_DFL);
        std::printf("ready\n");
        std::fflush(stdout);
        std::this_thread::sleep_for(std::chrono::hours(1));
      },
      2);
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  const std::string& how = arguments.at(1);
  if (how == "results") {
    return results();
  }
  if (how == "memory") {
    return memory();
  }
  if (how == "tensors") {
    return tensors();
  }
  if (how == "nothing") {
    return nothing(arguments);
  }
  if (how == "twice") {
    return twice();
  }
  if (how == "refused") {
    return refused();
  }
  if (how == "before") {
    return before_the_call();
  }
  if (how == "nested") {
    return nested();
  }
  if (how == "restarted") {
    return restarted();
  }
  if (how == "wait" || how == "save") {
    return wait_for_signal(how == "save");
  }
  if (how == "none") {
    lockstep::launch([] {}, 0);
  }
  return fail_on_rank_1(how);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run({argv, argv + argc}); });
}
