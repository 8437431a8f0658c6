// SPDX-License-Identifier: Apache-2.0
//
// A small training run into which tests inject faults: an MLP with dropout, Adam and a shuffled
// loader, which saves every few steps to <project>/checkpoints. Each rank appends a line for each
// step to <project>/steps_<rank>: the step, the samples, the loss's bits; and at the end the
// checksum of all weights. It writes the error of a failed save to <project>/failure_<rank>, once
// all ranks have that error.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "lockstep/lockstep.h"
#include "tests/faults/logged_training.h"

namespace {

namespace data = lockstep::data;
namespace faults = lockstep::faults;
namespace fs = std::filesystem;

struct Options {
  fs::path project;
  int64_t steps = 12;
  int64_t save_every = 4;
  int64_t width = 16;
  bool resume = false;
  fs::path load;         ///< A checkpoint to load, instead of the newest one.
  int64_t fault_at = 0;  ///< The step whose save may fail (count_calls.cpp).
  bool go_on = false;    ///< Continue training after a save fails.
  fs::path nvme;         ///< ZeRO 1 with the optimizer's state in files of <nvme>_<rank>.
  int64_t kill_at = 0;   ///< In the first attempt, rank 1 is killed after this step.
};

/// Signals the begin or end of a save to count_calls.cpp, if it is preloaded.
void arm(bool on) {
  if (void* function = dlsym(RTLD_DEFAULT, "fault_arm"); function != nullptr) {
    reinterpret_cast<void (*)(int)>(function)(on ? 1 : 0);
  }
}

/// Returns the result of `prepare`. Writes its error to `file`, once all ranks have thrown.
template <typename Prepare>
auto write_failure_of(
    lockstep::Accelerator& accelerator, const fs::path& file, const Prepare& prepare) {
  try {
    return prepare();
  } catch (const lockstep::ConfigError& error) {
    std::ofstream(file) << error.what() << "\n";
    accelerator.wait_for_everyone();
    throw;
  }
}

class Run {
 public:
  explicit Run(const Options& options)
      : options_(options),
        accelerator_({.project_dir = options.project, .zero = zero(options.nvme)}) {}

  void train() {
    auto loader_of_all =
        data::Loader(faults::numbered_samples(40), {.batch_size = 4, .shuffle = true});
    faults::DropoutNet net(options_.width);
    data::set_seed(11, /*device_specific=*/true, accelerator_.process_index());
    auto [model, optimizer, loader] = write_failure_of(accelerator_, of_rank("failure"), [&] {
      return accelerator_.prepare(
          net, lockstep::optim::Adam(net->parameters(), {.lr = 0.01}), std::move(loader_of_all));
    });
    load();
    fs::create_directories(options_.project);
    std::ofstream steps(of_rank("steps"), std::ios::app);
    accelerator_.print("training begins");
    while (optimizer.steps() < options_.steps) {
      for (auto& batch : loader) {
        const at::Tensor loss = model->loss(batch);
        accelerator_.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        steps << faults::line_of_step(optimizer.steps(), batch.target, loss.item<float>())
              << std::flush;
        if (optimizer.steps() % options_.save_every == 0) {
          save(optimizer.steps());
        }
        if (optimizer.steps() == options_.kill_at && accelerator_.process_index() == 1 &&
            std::string(std::getenv("TORCHELASTIC_RESTART_COUNT")) == "0") {
          std::raise(SIGKILL);
        }
        if (optimizer.steps() == options_.steps) {
          break;
        }
      }
    }
    steps << fmt::format("end {:08x}\n", faults::checksum_of(*net));
  }

 private:
  static std::optional<lockstep::ZeroPlugin> zero(const fs::path& nvme) {
    if (nvme.empty()) {
      return std::nullopt;
    }
    const std::string rank = std::getenv("RANK");
    return lockstep::ZeroPlugin{
        .stage = 1,
        .offload_optimizer = {
            .device = lockstep::OffloadDevice::kNvme, .nvme_path = nvme.string() + "_" + rank}};
  }

  fs::path of_rank(const char* stem) const {
    return options_.project / fmt::format("{}_{}", stem, accelerator_.process_index());
  }

  void load() {
    if (!options_.load.empty()) {
      accelerator_.load_state(options_.load);
    } else if (options_.resume) {
      const std::optional<fs::path> from = accelerator_.resume_latest();
      accelerator_.print("resumed " + (from ? from->filename().string() : "nothing"));
    }
  }

  void save(int64_t step) {
    try {
      arm(step == options_.fault_at);
      accelerator_.save_state();
      arm(false);
    } catch (const lockstep::CheckpointError& error) {
      arm(false);
      std::ofstream(of_rank("failure")) << error.what() << "\n";
      // All ranks reach this barrier only if every rank has thrown.
      accelerator_.wait_for_everyone();
      if (!options_.go_on) {
        throw;
      }
    }
  }

  Options options_;
  lockstep::Accelerator accelerator_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a little, for tests that break it.");
  app.add_option("--project", options.project)->required();
  app.add_option("--steps", options.steps);
  app.add_option("--save-every", options.save_every);
  app.add_option("--width", options.width);
  app.add_flag("--resume", options.resume);
  app.add_option("--load", options.load);
  app.add_option("--fault-at", options.fault_at);
  app.add_flag("--go-on", options.go_on);
  app.add_option("--nvme", options.nvme);
  app.add_option("--kill-at", options.kill_at);
  CLI11_PARSE(app, argc, argv);
  return lockstep::run_main([&] {
    Run(options).train();
    return 0;
  });
}
