// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/accelerator/checkpointing/parts/model_values.h"
#include "lockstep/accelerator/checkpointing/parts/parts.h"
#include "lockstep/storage/state_files.h"

namespace lockstep::internal {
namespace {

namespace files = storage::state_files;

/// Saves and loads the buffers of each process other than rank 0, if they do not follow rank 0's.
class OwnBuffersPart final : public CheckpointPart {
 public:
  explicit OwnBuffersPart(const PreparedObjects& objects) : objects_(objects) {}

  void collect(StateToSave& state) const override {
    if (follow_rank_0() || state.groups.is_writer()) {
      return;
    }
    for (size_t i = 0; i < objects_.models.size(); ++i) {
      state.contents.add_tensors(
          file_of(i, state.rank), without_ties(objects_.models[i].buffers(), {}));
    }
  }

  bool is_loaded(const StateToLoad& /*state*/) const override { return true; }
  void check(StateToLoad& state) const override {
    for (size_t i = 0; i < objects_.models.size() && !follow_rank_0(); ++i) {
      const NamedTensors buffers = without_ties(objects_.models[i].buffers(), {});
      if (!buffers.empty() && !state.excluded_models.contains(i)) {
        check_buffers(state, i, buffers);
      }
    }
  }

 private:
  bool follow_rank_0() const { return objects_.context.options.data_parallel.broadcast_buffers; }
  static std::string file_of(size_t model, int rank) {
    return files::of_rank(files::numbered("buffers", model), rank, ".safetensors");
  }
  static void check_buffers(StateToLoad& state, size_t model, const NamedTensors& buffers);

  const PreparedObjects& objects_;
};

void OwnBuffersPart::check_buffers(StateToLoad& state, size_t model, const NamedTensors& buffers) {
  const std::string file = file_of(model, state.rank);
  if (!state.is_resharded()) {
    if (state.reader.has(file)) {
      state.apply.push_back(check_model(buffers, state.reader.tensors(file), state.path(file)));
    }
    return;
  }
  std::vector<NamedTensors> all(1);
  for (NamedTensor& item : state.tensor_set(files::numbered("model", model))) {
    const bool is_buffer = std::any_of(buffers.begin(), buffers.end(), [&](const auto& buffer) {
      return buffer.name == item.name;
    });
    if (is_buffer) {
      all[0].push_back(std::move(item));
    }
  }
  for (int rank = 1; rank < state.saved_by(); ++rank) {
    if (state.reader.has(file_of(model, rank))) {
      all.push_back(state.reader.tensors(file_of(model, rank)));
    }
  }
  state.apply.push_back(check_model(buffers, mean_of(all), state.path(file_of(model, 1))));
}

}  // namespace

std::unique_ptr<CheckpointPart> own_buffers_part(const PreparedObjects& objects) {
  return std::make_unique<OwnBuffersPart>(objects);
}

}  // namespace lockstep::internal
