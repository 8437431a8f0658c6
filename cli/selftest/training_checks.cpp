// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include <torch/nn/modules/linear.h>

#include "cli/selftest/check.h"
#include "lockstep/accelerator/accelerator.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/sample/random.h"
#include "lockstep/optim/rules/adam.h"

namespace lockstep::selftest {
namespace {

constexpr int64_t kInputWidth = 5;
constexpr int kSteps = 6;
constexpr double kTolerance = 1e-5;  // Sums over ranks and over a batch have different orders.

data::TensorDataset numbered(int64_t samples) {
  const at::Tensor numbers = at::arange(samples, at::kLong);
  return {numbers.to(at::kFloat).reshape({samples, 1}), numbers};
}

/// Gathers the numbers of the samples of all ranks, in rank order.
at::Tensor samples_of_all(Rank& rank, data::Loader<data::TensorDataset>& loader) {
  std::vector<at::Tensor> own = {at::empty({0}, at::kLong)};
  for (auto& batch : loader) {
    own.push_back(batch.target);
  }
  // Padded with -1 to the largest possible number on every rank.
  at::Tensor row = at::full({loader.dataset_size() + rank.group.size()}, -1, at::kLong);
  const at::Tensor numbers = at::cat(own);
  row.narrow(0, 0, numbers.numel()).copy_(numbers);
  const at::Tensor all = rank.group.all_gather(row).wait();
  return all.masked_select(all.ge(0));
}

void sharding(Rank& rank, Expect& expect) {
  const int64_t samples = int64_t{7} * rank.group.size() + 3;
  for (const bool split : {false, true}) {
    for (const bool dispatched : {false, true}) {
      data::Loader loader(
          numbered(samples),
          {.batch_size = split ? int64_t{2} * rank.group.size() : 2, .shuffle = true, .seed = 3});
      loader.shard(
          {.rank = rank.group.rank(),
           .world = rank.group.size(),
           .even_batches = false,
           .split_batches = split,
           .dispatch_batches = dispatched},
          rank.group);
      for (int epoch = 0; epoch < 2; ++epoch) {
        const at::Tensor all = samples_of_all(rank, loader);
        expect.equal(
            fmt::format(
                "samples of epoch {}{}{}, sorted",
                epoch,
                split ? ", batches split" : "",
                dispatched ? ", dispatched" : ""),
            std::get<0>(all.sort()),
            at::arange(samples, at::kLong));
      }
    }
  }
}

/// Checks that even_batches gives every rank equally many batches, without a missing sample.
void even_sharding(Rank& rank, Expect& expect) {
  const int64_t samples = int64_t{5} * rank.group.size() + 1;
  data::Loader loader(numbered(samples), {.batch_size = 2});
  loader.shard({.rank = rank.group.rank(), .world = rank.group.size()});
  const int64_t batches = loader.size();
  const at::Tensor all = samples_of_all(rank, loader);
  const at::Tensor counts = rank.group.all_gather(at::full({1}, batches, at::kLong)).wait();
  expect.equal("batches of each rank", counts, at::full({rank.group.size()}, batches, at::kLong));
  expect.equal(
      "samples without repeats",
      std::get<0>(at::unique_consecutive(std::get<0>(all.sort()))),
      at::arange(samples, at::kLong));
}

void random_numbers(Rank& rank, Expect& expect) {
  Group& group = rank.group;
  const auto rows_of_all = [&] { return group.all_gather(at::rand({1, 4}, at::kFloat)).wait(); };
  data::set_seed(7);
  const at::Tensor same = rows_of_all();
  expect.equal("random numbers with one seed", same, same[0].expand_as(same).contiguous());
  data::set_seed(7, /*device_specific=*/true, group.rank());
  const at::Tensor own = rows_of_all();
  for (int other = 0; other < group.size(); ++other) {
    expect.is_true(
        fmt::format("random numbers with device_specific seeds differ from rank {}'s", other),
        other == group.rank() || !at::equal(own[group.rank()], own[other]));
  }
  data::synchronize_rng_states(group, {data::RngType::kTorch});
  const at::Tensor again = rows_of_all();
  expect.equal("random numbers after synchronizing", again, again[0].expand_as(again).contiguous());
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(kInputWidth, 7));
    last = register_module("last", torch::nn::Linear(7, 1));
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) {
      const at::Tensor numbers = at::arange(parameter.numel(), at::kFloat);
      parameter.copy_((at::sin(numbers + 1) / 2).reshape(parameter.sizes()));
    }
  }
  at::Tensor forward(const at::Tensor& x) { return last(at::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(Net);

at::Tensor inputs(int64_t rows) {
  return at::sin(at::arange(rows * kInputWidth, at::kFloat) * 1.7).reshape({rows, kInputWidth});
}

at::Tensor loss_of(Net& net, const at::Tensor& x) {
  return (net->forward(x) - x.sum(1, true) / 3).pow(2).mean();
}

at::Tensor weights_of(const Net& net) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : net->parameters()) {
    parts.push_back(parameter.detach().reshape({-1}).cpu());
  }
  return at::cat(parts);
}

/// Trains one process on the full batches, with a plain loop.
at::Tensor trained_alone(const at::Tensor& batch) {
  Net net;
  optim::AdamW optimizer(net->parameters(), {.lr = 0.01});
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(net, batch).backward();
    optimizer.step();
  }
  return weights_of(net);
}

/// The model and optimizer of one rank.
struct Training {
  Net net;
  std::optional<Optimizer> optimizer;
  explicit Training(Accelerator& accelerator) {
    optimizer =
        std::get<1>(accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01})));
  }
  void train(Accelerator& accelerator, const at::Tensor& batch, int steps) {
    for (int step = 0; step < steps; ++step) {
      accelerator.backward(loss_of(net, batch.to(accelerator.device())));
      optimizer->step();
      optimizer->zero_grad();
    }
  }
};

AcceleratorOptions own_batches() {
  return {.expect_prepared_loader = false, .save_when_preempted = false};
}

void data_parallel(Rank& rank, Expect& expect) {
  const at::Tensor batch = inputs(int64_t{3} * rank.group.size());
  Accelerator accelerator(own_batches(), rank.world, rank.group);
  Training training(accelerator);
  training.train(accelerator, batch.narrow(0, int64_t{3} * rank.group.rank(), 3), kSteps);
  const at::Tensor weights = weights_of(training.net);
  expect.near("weights after training", weights, trained_alone(batch), kTolerance);
  const at::Tensor all = rank.group.all_gather(weights.reshape({1, -1})).wait();
  expect.equal("weights of all ranks", all, all[0].expand_as(all).contiguous());
}

void checkpoint(Rank& rank, Expect& expect) {
  const at::Tensor own =
      inputs(int64_t{3} * rank.group.size()).narrow(0, int64_t{3} * rank.group.rank(), 3);
  const std::filesystem::path folder = rank.folder / "checkpoint";
  Accelerator accelerator(own_batches(), rank.world, rank.group);
  Training training(accelerator);
  training.train(accelerator, own, 2);
  accelerator.save_state(folder);
  const at::Tensor saved = weights_of(training.net).clone();
  training.train(accelerator, own, kSteps);
  const at::Tensor unbroken = weights_of(training.net).clone();

  Accelerator fresh(own_batches(), rank.world, rank.group);
  Training resumed(fresh);
  fresh.load_state(folder);
  expect.equal("weights as loaded", weights_of(resumed.net), saved);
  resumed.train(fresh, own, kSteps);
  expect.equal("weights of the resumed run", weights_of(resumed.net), unbroken);
}

}  // namespace

std::vector<Check> training_checks() {
  return {
      {"sharding", "every sample once, with full or split batches, read or dispatched", sharding},
      {"even_batches", "equally many batches on every rank, no sample missing", even_sharding},
      {"random", "one seed, one seed for each rank, synchronized states", random_numbers},
      {"data_parallel", "six steps of AdamW equal those of one process", data_parallel},
      {"checkpoint", "saved, loaded and continued, bit-exact", checkpoint},
  };
}

}  // namespace lockstep::selftest
