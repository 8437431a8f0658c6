// SPDX-License-Identifier: Apache-2.0
//
// A small training loop with the fault that its first argument names: on rank 1 (or FAULT_RANK), at
// step 5, before the rank joins, or while it exits. With "reduce" it runs all-reduces of 64 MiB.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <tuple>
#include <unistd.h>

#include <torch/nn/modules/linear.h>

#include "lockstep/lockstep.h"

namespace {

constexpr int64_t kStepOfFault = 5;
constexpr auto kForEver = std::chrono::hours(1);
// A step without it takes much less.
constexpr auto kSlowness = std::chrono::milliseconds(30);

void apply_fault(const std::string& how, int64_t step) {
  if (how == "slow") {
    std::this_thread::sleep_for(kSlowness);
  }
  if (step != kStepOfFault) {
    return;
  }
  if (how == "stop") {
    std::raise(SIGSTOP);
  } else if (how == "sleep") {
    std::this_thread::sleep_for(kForEver);
  } else if (
      how == "kill" ||
      (how == "kill-once" && std::string(std::getenv("TORCHELASTIC_RESTART_COUNT")) == "0")) {
    std::raise(SIGKILL);
  } else if (how == "throw") {
    throw std::runtime_error("this rank does not like step 5");
  }
}

/// Uses the launcher's variables, since there may be no Accelerator yet.
bool has_fault(const std::string& rank) {
  const char* const faulty = std::getenv("FAULT_RANK");
  return rank == (faulty == nullptr ? "1" : faulty);
}

/// Runs until the process is killed.
[[noreturn]] void reduce_for_ever(lockstep::Accelerator& accelerator) {
  const torch::Tensor values = torch::ones({16 << 20});
  std::printf("ready %d %d\n", static_cast<int>(accelerator.process_index()), ::getpid());
  std::fflush(stdout);
  for (;;) {
    std::ignore = accelerator.reduce(values);
  }
}

int train(const std::string& how, int64_t steps) {
  lockstep::Accelerator accelerator;
  if (how == "reduce") {
    reduce_for_ever(accelerator);
  }
  torch::nn::Linear net(4, 2);
  auto [model, optimizer] =
      accelerator.prepare(net, lockstep::optim::SGD(net->parameters(), {.lr = 0.01}));
  if (accelerator.process_index() == 0 && how == "alone") {
    std::this_thread::sleep_for(kForEver);
  }
  const bool is_faulty = has_fault(std::to_string(accelerator.process_index()));
  for (int64_t step = 0; step < steps; ++step) {
    if (is_faulty) {
      apply_fault(how, step);
    }
    if (is_faulty && step == kStepOfFault && how == "leave") {
      return 0;
    }
    if (is_faulty && step == kStepOfFault && how == "exit-0") {
      std::exit(0);
    }
    if (is_faulty && step == kStepOfFault && how == "fewer") {
      break;
    }
    accelerator.backward(model->forward(torch::ones({8, 4})).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  const auto sum = accelerator.reduce(net->weight.detach().clone());
  if (accelerator.is_main_process()) {
    std::printf(
        "trained %d ranks, master %s, pid %d\n",
        accelerator.num_processes(),
        std::getenv("MASTER_ADDR"),
        ::getpid());
  }
  (void)sum;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  const char* const rank = std::getenv("RANK");
  const bool is_faulty = rank != nullptr && has_fault(rank);
  if (is_faulty && how == "stop-before-joining") {
    std::raise(SIGSTOP);
  } else if (is_faulty && how == "end-before-joining") {
    return 0;
  }
  const int code =
      lockstep::run_main([&] { return train(how, argc > 2 ? std::stoll(argv[2]) : 20); });
  if (is_faulty && how == "stop-exiting") {
    std::raise(SIGSTOP);
  }
  return code;
}
