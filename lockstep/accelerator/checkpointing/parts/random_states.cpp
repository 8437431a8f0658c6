// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/parts/random_states.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include "lockstep/accelerator/checkpointing/parts/parts.h"
#include "lockstep/base/error.h"
#include "lockstep/storage/state_files.h"

namespace lockstep::internal {

at::Tensor random_state() {
  return at::globalContext().defaultGenerator(at::kCPU).get_state();
}

NamedTensors random_states(at::Device device) {
  NamedTensors states{{"cpu", random_state()}};
  if (!device.is_cpu()) {
    states.push_back(
        {c10::DeviceTypeName(device.type(), /*lower_case=*/true),
         at::globalContext().defaultGenerator(device).get_state()});
  }
  return states;
}

namespace {

/// Returns a seed from a generator in that state, different for each `stream`.
uint64_t seed_of_stream(const at::Tensor& state, int stream) {
  at::Generator generator = at::detail::createCPUGenerator();
  generator.set_state(state);
  for (int i = 0; i < stream; ++i) {
    at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  }
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

/// Throws CheckpointError unless a generator on the CPU takes the state.
void expect_random_state(const at::Tensor& state, const std::string& path) {
  try {
    at::Generator generator = at::detail::createCPUGenerator();
    generator.set_state(state);
  } catch (const c10::Error&) {
    throw CheckpointError(
        path, "holds no valid state of torch's generator; load another checkpoint", "cpu");
  }
}

}  // namespace

std::function<void()> check_random_state(
    const NamedTensors& saved, int stream, const std::string& path, at::Device device) {
  std::map<std::string, at::Tensor> values;
  for (const NamedTensor& current : random_states(device)) {
    const auto found = std::find_if(saved.begin(), saved.end(), [&](const NamedTensor& item) {
      return item.name == current.name;
    });
    if (found == saved.end() && current.name != "cpu") {
      continue;
    }
    if (found == saved.end() || found->tensor.scalar_type() != current.tensor.scalar_type() ||
        found->tensor.sizes() != current.tensor.sizes()) {
      throw CheckpointError(path, "holds no random state of this version of torch", current.name);
    }
    if (current.name == "cpu") {
      expect_random_state(found->tensor.clone(), path);
    }
    values.emplace(current.name, found->tensor.clone());
  }
  return [values = std::move(values), stream, device] {
    for (const auto& [name, value] : values) {
      at::Generator generator =
          at::globalContext().defaultGenerator(name == "cpu" ? at::Device(at::kCPU) : device);
      if (stream == 0) {
        generator.set_state(value);
      } else {
        generator.set_current_seed(seed_of_stream(values.at("cpu"), stream));
      }
    }
  };
}

namespace {

namespace files = storage::state_files;

/// Saves and loads the states of torch's generators.
class RandomStatesPart final : public CheckpointPart {
 public:
  explicit RandomStatesPart(at::Device device) : device_(device) {}

  void collect(StateToSave& state) const override {
    state.contents.add_tensors(
        files::of_rank("random_states", state.rank, ".safetensors"), random_states(device_));
  }

  void check(StateToLoad& state) const override {
    // Processes that divide a model draw the same numbers.
    const bool other_mesh = state.saved.mesh != state.mesh || !state.mesh.empty();
    const bool has_own = state.rank < state.saved_by() && !(other_mesh && state.is_resharded());
    const int source = has_own ? state.rank : other_mesh ? 0 : state.rank % state.saved_by();
    const std::string file = files::of_rank("random_states", source, ".safetensors");
    state.apply.push_back(check_random_state(
        state.reader.tensors(file),
        has_own      ? 0
        : other_mesh ? state.replica
                     : state.rank,
        state.path(file),
        device_));
  }

 private:
  at::Device device_;
};

}  // namespace

std::unique_ptr<CheckpointPart> random_states_part(at::Device device) {
  return std::make_unique<RandomStatesPart>(device);
}

}  // namespace lockstep::internal
