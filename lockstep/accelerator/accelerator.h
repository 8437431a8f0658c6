// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/operations.h"
#include "lockstep/accelerator/optimizer.h"
#include "lockstep/accelerator/options.h"
#include "lockstep/accelerator/prepare.h"
#include "lockstep/accelerator/progress_range.h"
#include "lockstep/base/world.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/named_tensor.h"
#include "lockstep/data/loader_core.h"

namespace lockstep {

/// The training loop's one object: write the loop for one process, run it on many.
///
/// Constructing it finds out who this process is (torchrun's, MPI's or SLURM's variables, or
/// alone), meets the other ranks and takes its share of the cores. `prepare` shards loaders, makes
/// models data parallel and wraps optimizers; after it the loop is the one for a single process.
/// Alone it adds nothing to a step.
///
/// Every function marked collective must be called by all processes. Destroying it never
/// communicates; call `end_training()` so that logs are closed as finished.
///
/// Thread safety: none. After Hugging Face Accelerate's class of the same name.
class Accelerator {
 public:
  explicit Accelerator(AcceleratorOptions options = {});
  /// In a world that is already connected: ranks as threads, or part of a job.
  Accelerator(AcceleratorOptions options, WorldSpec world, Group group);
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // --- who am I
  int process_index() const;
  int num_processes() const;
  int local_process_index() const;
  bool is_main_process() const;
  bool is_local_main_process() const;
  bool is_last_process() const;
  bool use_distributed() const;
  /// "NO" or "MULTI_CPU", as Accelerate calls them.
  std::string distributed_type() const;
  at::Device device() const;
  const WorldSpec& world() const;
  /// The group of all processes, for collectives of your own.
  Group& group();

  // --- prepare and step
  /// Makes models, optimizers and loaders ready, in any order and number; returns them in that
  /// order (a single one bare). Collective. Preparing something again does nothing.
  ///
  /// - A model (a module holder or shared_ptr) keeps its type and is the same module: rank 0's
  /// weights
  ///   everywhere, gradients averaged during backward.
  /// - A torch::optim optimizer becomes a lockstep::Optimizer. Passed as an lvalue it is referred
  /// to and
  ///   must outlive the result; as an rvalue it is moved in, as a shared_ptr shared.
  /// - A data::Loader is the same loader, giving this process its share.
  template <typename... Objects>
  auto prepare(Objects&&... objects) {
    (prepare_first(objects), ...);
    std::tuple prepared{prepare_one(std::forward<Objects>(objects))...};
    if constexpr (sizeof...(Objects) == 1) {
      return std::get<0>(std::move(prepared));
    } else {
      return prepared;
    }
  }

  /// Computes gradients and, with several processes, averages them. Also when this process's loss
  /// does not reach the (single) prepared model. With several prepared models, a backward must
  /// reach the same ones on every process.
  void backward(const at::Tensor& loss);

  // --- one process at a time
  /// Runs `body` on one kind of process only; the others go on at once.
  void on_main_process(const std::function<void()>& body) const;
  void on_local_main_process(const std::function<void()>& body) const;
  void on_last_process(const std::function<void()>& body) const;
  void on_process(int process_index, const std::function<void()>& body) const;
  void on_local_process(int local_process_index, const std::function<void()>& body) const;
  /// Runs `body` on the main process (of each host) first, then on the others: for downloads and
  /// caches. Collective. If it throws on the main process, the others are told.
  void main_process_first(const std::function<void()>& body);
  void local_main_process_first(const std::function<void()>& body);
  /// Writes a line to stdout, once on each host.
  void print(const std::string& line) const;
  /// Returns when every process has called it. Collective.
  void wait_for_everyone();

  // --- values across processes (collective; see operations.h)
  at::Tensor gather(const at::Tensor& tensor);
  /// `gather` for tensors with a row per sample of the current batch, without the samples that were
  /// only repeated to fill the last round. Tensors with another number of rows are gathered whole.
  at::Tensor gather_for_metrics(const at::Tensor& tensor);
  template <typename... Tensors>
  requires(sizeof...(Tensors) > 0) auto gather_for_metrics(
      const at::Tensor& first, const Tensors&... others) {
    return std::tuple{gather_for_metrics(first), gather_for_metrics(others)...};
  }
  at::Tensor reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  at::Tensor pad_across_processes(
      const at::Tensor& tensor, int64_t dim = 0, double pad_index = 0, bool pad_first = false);
  at::Tensor broadcast(const at::Tensor& tensor, int from_process = 0);
  std::vector<nlohmann::json> gather_object(const nlohmann::json& value);
  nlohmann::json broadcast_object(const nlohmann::json& value, int from_process = 0);

  // --- watching
  /// `range` with a progress bar on the main process, on a terminal. A loader's total is known.
  template <typename Range>
  auto progress(Range range, std::string label = "") {
    ProgressOptions options{.label = std::move(label)};
    if constexpr (requires { range.cursor().batches; }) {
      options.unit = "batch";
      options.initial = range.epoch() == range.cursor().epoch ? range.cursor().batches : 0;
    }
    if constexpr (requires { range.size(); }) {
      options.total = static_cast<int64_t>(range.size());
    }
    return ProgressRange<Range>(std::move(range), std::move(options));
  }
  /// The epochs left of `count`: from the first prepared loader's epoch on, so that a resumed
  /// program goes on where it was. Without a loader, 0 to count.
  std::ranges::iota_view<int64_t, int64_t> epochs(int64_t count) const;
  /// Opens the trackers of `log_with` on the main process and stores `config`. log() does it,
  /// without a config, if nobody has.
  void init_trackers(const nlohmann::json& config);
  /// Logs on the main process. `step`: by default how many updates the first prepared optimizer has
  /// done.
  void log(const std::map<std::string, double>& values, std::optional<int64_t> step = std::nullopt);
  /// Closes the trackers as finished, after all processes have come. Collective.
  void end_training();

  // --- saving
  /// Writes models, optimizers, loader positions and every process's random state to `folder`,
  /// which must not exist: whole or absent. Collective. CheckpointError on every process if it
  /// fails on any.
  void save_state(const std::filesystem::path& folder);
  /// The same to the next `<project_dir>/checkpoints/checkpoint_<n>`. Returns the folder.
  std::filesystem::path save_state();
  /// Restores what save_state wrote, into the objects prepared in the same order. Collective.
  /// Checks everything before it changes anything; CheckpointError names file and tensor.
  void load_state(const std::filesystem::path& folder);
  /// From the newest whole checkpoint of `<project_dir>/checkpoints`; returns it, or nothing, with
  /// nothing loaded, if there is none.
  std::optional<std::filesystem::path> load_state();

 private:
  struct State;

  template <typename Object>
  void prepare_first(Object& object) {
    using Type = std::remove_cvref_t<Object>;
    static_assert(
        ModuleHandle<Type> || OptimizerHandle<Type> || LoaderHandle<Type> ||
            std::is_same_v<Type, Optimizer>,
        "prepare takes modules (a holder made by TORCH_MODULE, or a shared_ptr), torch::optim "
        "optimizers and "
        "lockstep::data loaders");
    if constexpr (ModuleHandle<Type>) {
      add_model(
          object.get(),
          [object] { return parameters_of(*object); },
          [object] { return buffers_of(*object); });
    } else if constexpr (LoaderHandle<Type>) {
      add_loader(object.core());
    }
  }
  template <typename Object>
  auto prepare_one(Object&& object) {
    using Type = std::remove_cvref_t<Object>;
    if constexpr (OptimizerHandle<Type>) {
      return add_optimizer(shared_optimizer(std::forward<Object>(object)));
    } else {
      return Type(object);
    }
  }
  using Tensors = std::function<NamedTensors()>;
  void add_model(const void* id, Tensors parameters, Tensors buffers);
  void add_loader(std::shared_ptr<data::LoaderCore> loader);
  Optimizer add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);

  std::unique_ptr<State> state_;
};

}  // namespace lockstep
