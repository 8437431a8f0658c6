// SPDX-License-Identifier: Apache-2.0
//
// Times save_state and load_state of a model and its Adam state, for bench/checkpoint.py:
//
//   lockstep launch -n 2 checkpoint_bench --bytes 1000000000 --folder /disk/bench
//
// Rank 0 prints a JSON line for each measurement, with the seconds of the slowest rank between two
// barriers:
// - save;
// - load, and "ready": until all that was loaded has been written once in place; with the files in
//   the page cache, and not;
// - their limit: every rank copies the bytes of all files into memory;
// - the time for which an asynchronous save blocks the loop.
// The first save's folder remains at <folder>/saved.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/lockstep.h"
#include "lockstep/optim/state/optimizer_state.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kLayers = 50;

struct Options {
  int64_t bytes = 1'000'000'000;
  fs::path folder;
};

/// Holds square linear layers with `bytes` of parameters in total. Their forward never runs.
struct Layers : torch::nn::Module {
  explicit Layers(int64_t bytes) {
    const auto each = static_cast<double>(bytes) / sizeof(float) / kLayers;
    // Solves each = width^2 + width.
    const auto width = static_cast<int64_t>(std::sqrt(each + 0.25) - 0.5);
    for (int i = 0; i < kLayers; ++i) {
      const std::string name = "layers_" + std::to_string(i);
      register_parameter(name + "_weight", torch::empty({width, width}).uniform_(-1, 1));
      register_parameter(name + "_bias", torch::empty({width}).uniform_(-1, 1));
    }
  }
};

/// Opens a file for reading.
class Input {
 public:
  explicit Input(const fs::path& path) : path_(path), file_(open(path.c_str(), O_RDONLY)) {
    check(file_ >= 0, "cannot be opened");
  }
  ~Input() { close(file_); }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  void read_into(char* memory) const {
    for (auto left = static_cast<int64_t>(fs::file_size(path_)); left > 0;) {
      const ssize_t got = read(file_, memory, static_cast<size_t>(left));
      check(got > 0, "cannot be read");
      memory += got;
      left -= got;
    }
  }
  /// Drops the file from the page cache.
  void drop() const {
    check(fdatasync(file_) == 0, "cannot be flushed to disk");
    check(posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED) == 0, "cannot be dropped from memory");
  }

 private:
  void check(bool done, const char* failure) const {
    if (!done) {
      throw lockstep::CheckpointError(path_.string(), failure);
    }
  }

  fs::path path_;
  int file_;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : folder_(options.folder), model_(std::make_shared<Layers>(options.bytes)) {
    model_ = accelerator_.prepare(model_);
    optimizer_ = accelerator_.prepare(lockstep::optim::Adam(model_->parameters()));
    for (torch::Tensor& parameter : model_->parameters()) {
      parameter.mutable_grad() = torch::full_like(parameter, 1e-3);
    }
    optimizer_.step();
    for (torch::Tensor& parameter : model_->parameters()) {
      parameter.mutable_grad().reset();  // A checkpoint does not contain gradients.
    }
    wanted_ = samples();
  }

  void run() {
    const fs::path saved = folder_ / "saved";
    time("save", [&] { accelerator_.save_state(saved); });
    for (const bool verify : {true, false}) {
      const std::string name = verify ? "" : "_unchecked";
      time_load(name + "_warm", saved, verify);
      drop(saved);
      time_load(name + "_cold", saved, verify);
    }
    std::vector<char> memory = memory_for(saved);
    time("copy_warm", [&] { read_all(saved, memory); });
    drop(saved);
    time("copy_cold", [&] { read_all(saved, memory); });
    memory = {};
    // The first save allocates the memory of the snapshot.
    for (const char* name : {"async_stall_first", "async_stall"}) {
      const fs::path folder = folder_ / name;
      time(name, [&] { accelerator_.save_state(folder, {.async = true}); });
      time(std::string(name) + "_write", [&] { accelerator_.wait_for_save(); });
      remove(folder);
    }
    accelerator_.end_training();
  }

 private:
  /// Starts a measurement on all ranks at once, after earlier data have been written to disk.
  Clock::time_point begin() {
    accelerator_.on_main_process([] { sync(); });
    accelerator_.wait_for_everyone();
    return Clock::now();
  }

  void report(const std::string& what, double own) {
    const auto all = accelerator_.gather(torch::tensor({own}, torch::kDouble));
    accelerator_.print(
        nlohmann::json{{"measured", what}, {"seconds", all.max().item<double>()}}.dump());
  }

  template <typename Body>
  void time(const std::string& what, const Body& body) {
    const Clock::time_point began = begin();
    body();
    report(what, seconds_since(began));
  }

  /// Appends `what` to the names of both measurements.
  void time_load(const std::string& what, const fs::path& folder, bool verify) {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model_->parameters()) {
      parameter.zero_();
    }
    const Clock::time_point began = begin();
    accelerator_.load_state(folder, {.verify = verify});
    const double loaded = seconds_since(began);
    write_once();
    const double ready = seconds_since(began);
    report("load" + what, loaded);
    report("ready" + what, ready);
    if (!torch::equal(samples(), wanted_)) {
      throw lockstep::CheckpointError(
          folder.string(), "load_state returned other values than save_state wrote");
    }
  }

  static double seconds_since(Clock::time_point began) {
    return std::chrono::duration<double>(Clock::now() - began).count();
  }

  /// Writes everything that was loaded, in place, as the first training step does.
  void write_once() {
    for (torch::Tensor& parameter : model_->parameters()) {
      parameter.mul_(1);
    }
    const auto any_name = [](const torch::Tensor&) { return std::string(); };
    for (auto& [name, state] : lockstep::optimizer_tensors(optimizer_.inner(), any_name)) {
      state.mul_(1);
    }
  }

  /// Returns a few elements of every parameter.
  torch::Tensor samples() const {
    std::vector<torch::Tensor> some;
    for (const torch::Tensor& parameter : model_->parameters()) {
      some.push_back(parameter.detach().flatten().slice(0, 0, {}, 4099).clone());
    }
    return torch::cat(some);
  }

  static std::vector<fs::path> files_in(const fs::path& folder) {
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  void drop(const fs::path& folder) {
    accelerator_.on_main_process([&] {
      for (const fs::path& path : files_in(folder)) {
        Input(path).drop();
      }
    });
    accelerator_.wait_for_everyone();
  }

  /// Allocates memory for the largest file, and writes it once.
  static std::vector<char> memory_for(const fs::path& folder) {
    uint64_t bytes = 0;
    for (const fs::path& path : files_in(folder)) {
      bytes = std::max<uint64_t>(bytes, fs::file_size(path));
    }
    return std::vector<char>(bytes, 1);
  }

  static void read_all(const fs::path& folder, std::vector<char>& memory) {
    for (const fs::path& path : files_in(folder)) {
      Input(path).read_into(memory.data());
    }
  }

  void remove(const fs::path& folder) {
    accelerator_.on_main_process([&] { fs::remove_all(folder); });
    accelerator_.wait_for_everyone();
  }

  fs::path folder_;
  lockstep::Accelerator accelerator_;
  std::shared_ptr<Layers> model_;
  lockstep::Optimizer optimizer_;
  torch::Tensor wanted_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times save_state and load_state; see bench/checkpoint.py, which runs it.");
  app.add_option(
         "--bytes", options.bytes, "Bytes of parameters; their Adam state has twice as many")
      ->check(CLI::Range(int64_t{10'000}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--folder", options.folder, "An empty folder on the disk to measure")
      ->required()
      ->check(CLI::ExistingDirectory);
  CLI11_PARSE(app, argc, argv);
  return lockstep::run_main([&] {
    Bench(options).run();
    return 0;
  });
}
