// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/sequence_state.h"

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/sgd.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kRows = 4;
constexpr int64_t kLength = 5;

at::Tensor signal() {
  return at::sin(at::arange(4 * 23 + 1, at::kFloat).mul(0.3)).unsqueeze(1);  // 5 batches a pass.
}

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl()
      : lstm(register_module(
            "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(1, 6).batch_first(true)))),
        head(register_module("head", torch::nn::Linear(6, 1))) {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) {
      parameter.copy_(at::linspace(-0.4, 0.5, parameter.numel()).view(parameter.sizes()));
    }
  }
  torch::nn::LSTM lstm;
  torch::nn::Linear head;
};
TORCH_MODULE(Recurrent);

using Hidden = std::optional<std::tuple<at::Tensor, at::Tensor>>;

/// The loss of one batch; replaces `hidden` by what the next batch starts with.
at::Tensor sequence_loss(Recurrent& model, const data::SequenceBatch& batch, Hidden& hidden) {
  auto [output, next] = model->lstm->forward(batch.data, hidden);
  hidden = std::tuple(std::get<0>(next).detach(), std::get<1>(next).detach());
  return (model->head->forward(output) - batch.target).pow(2).mean();
}

std::vector<at::Tensor> copies_of(Recurrent& model) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : model->parameters()) {
    values.push_back(parameter.detach().clone());
  }
  return values;
}

/// Plain torch in one process: two passes over all rows.
std::vector<at::Tensor> reference() {
  Recurrent model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.2));
  const data::SequenceDataset dataset(signal(), kRows, kLength);
  for (int epoch = 0; epoch < 2; ++epoch) {
    Hidden hidden;
    for (int64_t first = 0; first < dataset.size(); first += kRows) {
      optimizer.zero_grad();
      sequence_loss(
          model,
          dataset.get_batch(std::vector<int64_t>{first, first + 1, first + 2, first + 3}),
          hidden)
          .backward();
      optimizer.step();
    }
  }
  return copies_of(model);
}

/// Trains until `stop_at` batches are done, from what `from` holds, and saves to `to`.
std::vector<at::Tensor> train_until(
    Accelerator& accelerator, int64_t stop_at, const fs::path& from, const fs::path& to) {
  Recurrent net;
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      optim::SGD(net->parameters(), {.lr = 0.2}),
      data::sequence_loader(signal(), {.rows = kRows, .length = kLength}));
  SequenceState state(accelerator);
  accelerator.register_for_checkpointing(state);
  if (!from.empty()) {
    accelerator.load_state(from);
  }
  while (loader.epoch() < 2) {
    for (auto& batch : loader) {
      if (batch.position == 0) {
        state.reset();
      }
      Hidden hidden =
          state.empty() ? Hidden() : Hidden(std::tuple(state.tensors()[0], state.tensors()[1]));
      accelerator.backward(sequence_loss(net, batch, hidden));
      optimizer.step();
      optimizer.zero_grad();
      state.set({std::get<0>(*hidden), std::get<1>(*hidden)});
      if (loader.epoch() * 5 + loader.cursor().batches == stop_at) {
        accelerator.save_state(to);
        return copies_of(net);
      }
    }
  }
  return copies_of(net);
}

std::vector<at::Tensor> train_on(
    int world, int64_t stop_at = -1, const fs::path& from = {}, const fs::path& to = {}) {
  std::mutex mutex;
  std::vector<at::Tensor> values;
  accelerated_ranks(world, {}, [&](Accelerator& accelerator) {
    std::vector<at::Tensor> own = train_until(accelerator, stop_at, from, to);
    const std::lock_guard lock(mutex);
    values = std::move(own);
  });
  return values;
}

void expect_near(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-5, 1e-6)) << i;
  }
}

TEST(SequenceState, AnLstmOnAnyNumberOfRanksEqualsOneProcess) {
  const std::vector<at::Tensor> expected = reference();
  for (const int world : {1, 2, 4}) {
    SCOPED_TRACE(world);
    expect_near(train_on(world), expected);
  }
}

TEST(SequenceState, AResumedLstmContinuesExactlyAlsoOnOtherNumbersOfRanks) {
  const TestFolder folder;
  const std::vector<at::Tensor> unbroken = train_on(2);
  train_on(2, 3, {}, folder.path() / "at_3");
  const std::vector<at::Tensor> resumed = train_on(2, -1, folder.path() / "at_3");
  for (size_t i = 0; i < unbroken.size(); ++i) {
    EXPECT_TRUE(at::equal(resumed[i], unbroken[i])) << i;
  }
  train_on(4, 7, folder.path() / "at_3", folder.path() / "at_7");
  expect_near(train_on(1, -1, folder.path() / "at_7"), unbroken);
}

TEST(SequenceState, RefusesRowsThatRanksCannotShare) {
  accelerated_ranks(3, {}, [](Accelerator& accelerator) {
    SequenceState state(accelerator);
    ObjectState saved;
    saved.values["tensors"] = 1;
    saved.tensors = {{"state_000", at::zeros({1, 4, 6})}};
    EXPECT_THAT(
        [&] { state.load_state_dict(saved); },
        ThrowsMessage<ConfigError>(HasSubstr("got 4 rows in dimension 1 for 3 ranks")));
    EXPECT_THAT(
        [&] { state.set({at::zeros({6})}); },
        ThrowsMessage<ConfigError>(HasSubstr("got a tensor of 1 dimensions")));
    EXPECT_THAT(
        [&] { state.load_state_dict(ObjectState()); },
        ThrowsMessage<ConfigError>(HasSubstr("is not one of a SequenceState")));
  });
}

}  // namespace
}  // namespace lockstep
