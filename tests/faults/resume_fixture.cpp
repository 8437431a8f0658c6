// SPDX-License-Identifier: Apache-2.0
//
// A training run with all state that a checkpoint must restore: shuffling, dropout, accumulation,
// mixed precision, a schedule, and a custom object. It saves every --every updates, and resumes
// from its newest checkpoint under `lockstep launch --resume`. Each rank appends a line for each
// micro-step to <project>/steps_<rank>: its number, the samples, the loss's bits; and at the end
// the checksum of all weights and the number of updates. One rank can be held within a micro-step:
// it prints "holding", then "told" once a signal has asked it to stop, and continues when the file
// <project>/release exists.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/program/stop_request.h"
#include "lockstep/lockstep.h"
#include "tests/faults/logged_training.h"

namespace {

namespace data = lockstep::data;
namespace faults = lockstep::faults;
namespace fs = std::filesystem;

struct Options {
  fs::path project;
  int64_t steps = 30;  ///< Updates.
  int64_t every = 4;
  int64_t accumulate = 1;
  std::string precision = "no";
  bool async = false;
  bool by_hand = false;  ///< The program calls resume_latest itself.
  int64_t hold_at = 0;   ///< The micro-step in which a rank is held; 0: none.
  int hold_rank = 0;
};

/// Counts micro-steps, also across restarts.
struct Counter {
  int64_t count = 0;
  nlohmann::json state_dict() const { return {{"count", count}}; }
  void load_state_dict(const nlohmann::json& state) { count = state.at("count").get<int64_t>(); }
};

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void hold(const fs::path& release) {
  say("holding");
  for (bool is_stopped = false; !fs::exists(release); ::usleep(1000)) {
    if (!is_stopped && lockstep::StopRequests::signal_received() != 0) {
      is_stopped = true;
      say("told");
    }
  }
}

int train(const Options& options) {
  lockstep::Accelerator accelerator(
      {.mixed_precision = lockstep::parse_precision(options.precision),
       .gradient_accumulation_steps = options.accumulate,
       .project_dir = options.project,
       .project_config = {
           .total_limit = 2,
           .checkpointing_steps = options.every,
           .async_checkpointing = options.async}});
  auto loader_of_all =
      data::Loader(faults::numbered_samples(50), {.batch_size = 4, .shuffle = true, .seed = 3});
  faults::DropoutNet net(32);
  data::set_seed(11, /*device_specific=*/true, accelerator.process_index());
  auto [model, optimizer, loader, scheduler] = accelerator.prepare(
      net,
      lockstep::optim::Adam(net->parameters(), {.lr = 0.01}),
      std::move(loader_of_all),
      lockstep::schedule::warmup_cosine({.warmup_steps = 5, .total_steps = options.steps}));
  Counter counter;
  accelerator.register_for_checkpointing(counter);
  if (options.by_hand) {
    accelerator.resume_latest();
  }
  std::ofstream steps(
      options.project / fmt::format("steps_{}", accelerator.process_index()), std::ios::app);
  say(fmt::format("ready {} {}", accelerator.process_index(), ::getpid()));
  for (const int64_t epoch : accelerator.epochs(1000)) {
    (void)epoch;
    for (auto& batch : loader) {
      auto micro_step = accelerator.accumulate(model);
      const at::Tensor loss = [&] {
        auto cast = accelerator.autocast();
        return model->loss(batch);
      }();
      if (counter.count + 1 == options.hold_at &&
          accelerator.process_index() == options.hold_rank) {
        hold(options.project / "release");
      }
      accelerator.backward(loss);
      if (accelerator.sync_gradients()) {
        accelerator.clip_grad_norm_(net->parameters(), 1.0);
      }
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      steps << faults::line_of_step(++counter.count, batch.target, loss.item<float>())
            << std::flush;
      accelerator.print(fmt::format("step {} ", counter.count));
      if (optimizer.steps() >= options.steps) {
        break;
      }
    }
    if (optimizer.steps() >= options.steps) {
      break;
    }
  }
  steps << fmt::format("end {:08x} {}\n", faults::checksum_of(*net), optimizer.steps());
  steps.close();
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a little, to be killed and resumed.");
  app.add_option("--project", options.project)->required();
  app.add_option("--steps", options.steps);
  app.add_option("--every", options.every);
  app.add_option("--accumulate", options.accumulate);
  app.add_option("--precision", options.precision);
  app.add_flag("--async", options.async);
  app.add_flag("--by-hand", options.by_hand);
  app.add_option("--hold-at", options.hold_at);
  app.add_option("--hold-rank", options.hold_rank);
  CLI11_PARSE(app, argc, argv);
  return lockstep::run_main([&] { return train(options); });
}
