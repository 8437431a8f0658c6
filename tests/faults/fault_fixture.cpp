// SPDX-License-Identifier: Apache-2.0
//
// A small training run to be broken: an MLP with dropout under Adam, fed by a shuffled loader,
// which saves every few steps to <project>/checkpoints. Each rank appends a line a step to
// <project>/steps_<rank>: the step, the samples, the loss's bits; and at the end one with the bits
// of all weights. What went wrong in a save it writes to <project>/failure_<rank>, once all ranks
// have come to know of it.
#include <bit>
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

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/memory/crc32c.h"
#include "lockstep/lockstep.h"

namespace {

namespace data = lockstep::data;
namespace fs = std::filesystem;

struct Options {
  fs::path project;
  int64_t steps = 12;
  int64_t save_every = 4;
  int64_t width = 16;
  bool resume = false;
  fs::path load;         ///< This checkpoint, instead of the newest one.
  int64_t fault_at = 0;  ///< The step whose save may go wrong (count_calls.cpp).
  bool go_on = false;    ///< Train on if a save fails.
  fs::path nvme;         ///< ZeRO 1 with the optimizer's state in files of <nvme>_<rank>.
  int64_t kill_at = 0;   ///< Rank 1 is killed after this step, the first time.
};

class NetImpl : public torch::nn::Module {
 public:
  explicit NetImpl(int64_t width)
      : in_(register_module("in", torch::nn::Linear(6, width))),
        out_(register_module("out", torch::nn::Linear(width, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    return out_->forward(at::dropout(at::relu(in_->forward(x)), 0.3, is_training()));
  }

 private:
  torch::nn::Linear in_;
  torch::nn::Linear out_;
};
TORCH_MODULE(Net);

/// Sample i has the target i, so that a batch says what it is made of.
data::TensorDataset samples() {
  data::set_seed(5);
  constexpr int64_t kSamples = 40;
  const at::Tensor rows = at::rand({kSamples, 6});
  return {rows, at::arange(kSamples)};
}

/// Tells count_calls.cpp, if it is preloaded, that a save begins or has ended.
void arm(bool on) {
  if (void* function = dlsym(RTLD_DEFAULT, "fault_arm"); function != nullptr) {
    reinterpret_cast<void (*)(int)>(function)(on ? 1 : 0);
  }
}

/// What `prepare` returns; what it throws is written to `file`, once it was thrown on all ranks.
template <typename Prepare>
auto noting_failure(
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
    auto loader_of_all = data::Loader(samples(), {.batch_size = 4, .shuffle = true});
    Net net(options_.width);
    data::set_seed(11, /*device_specific=*/true, accelerator_.process_index());
    auto [model, optimizer, loader] = noting_failure(accelerator_, of_rank("failure"), [&] {
      return accelerator_.prepare(
          net, lockstep::optim::Adam(net->parameters(), {.lr = 0.01}), std::move(loader_of_all));
    });
    load();
    fs::create_directories(options_.project);
    std::ofstream steps(of_rank("steps"), std::ios::app);
    accelerator_.print("training begins");
    while (optimizer.steps() < options_.steps) {
      for (auto& batch : loader) {
        const at::Tensor loss =
            at::cross_entropy_loss(model->forward(batch.data), batch.target.remainder(4));
        accelerator_.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        steps << line_of(optimizer.steps(), batch.target, loss.item<float>()) << std::flush;
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
    uint32_t weights = 0;
    for (const at::Tensor& parameter : net->parameters()) {
      weights = lockstep::crc32c(weights, parameter.const_data_ptr(), parameter.nbytes());
    }
    steps << fmt::format("end {:08x}\n", weights);
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

  static std::string line_of(int64_t step, const at::Tensor& indices, float loss) {
    std::string line = fmt::format("{}:", step);
    for (int64_t i = 0; i < indices.numel(); ++i) {
      line += fmt::format(" {}", indices[i].item<int64_t>());
    }
    return line + fmt::format(" {:08x}\n", std::bit_cast<uint32_t>(loss));
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
      // Only where every rank has thrown do all of them meet here.
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
