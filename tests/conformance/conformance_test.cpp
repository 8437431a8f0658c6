// SPDX-License-Identifier: Apache-2.0
// Conformance suite: with every strategy, training equals that of one process on the full batch. A
// strategy is a line of `strategies()`; the reference is a plain loop without Lockstep.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include "lockstep/accelerator/local_sgd/local_sgd.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/muon.h"
#include "tests/conformance/awkward_net.h"

namespace conformance {
namespace {

using lockstep::Accelerator;
using lockstep::AcceleratorOptions;
using lockstep::Precision;
using Weights = std::map<std::string, at::Tensor>;

constexpr int64_t kSamples = 192;
constexpr int64_t kGlobalBatch = 48;  // Divides by 1 to 4 ranks, and by 4 micro-steps there.
constexpr int kEpochs = 3;
constexpr double kLr = 0.01;
/// Large, so that an update does not magnify the rounding error of a zero gradient.
constexpr double kEps = 1e-3;
constexpr double kMaxNorm = 0.05;

at::Tensor inputs() {
  return at::sin(at::arange(kSamples * 5, at::kFloat) * 1.7).reshape({kSamples, 5});
}
at::Tensor targets() {
  return inputs().sum(1, true) / 3;
}

struct Strategy {
  std::string name;
  std::function<AcceleratorOptions()> options = [] { return AcceleratorOptions(); };
  int64_t micro_steps = 1;
  int64_t local_sgd_steps = 0;  ///< 0: none.
  bool clip = false;
  /// Largest difference of a weight (weights are about 0.5). The strategies give its reason.
  double tolerance = 2e-6;            ///< Sums over ranks are in another order than over a batch.
  at::ScalarType dtype = at::kFloat;  ///< Of the parameters.
  bool muon = false;                  ///< Of the matrices, AdamW of the rest; else AdamW alone.
};

std::ostream& operator<<(std::ostream& out, const Strategy& strategy) {
  return out << strategy.name;
}

std::vector<Strategy> strategies() {
  const auto buckets = [](int64_t bytes) {
    return [bytes] {
      AcceleratorOptions options;
      options.data_parallel.cap_bytes = options.data_parallel.first_cap_bytes = bytes;
      return options;
    };
  };
  const auto hook = [](lockstep::CommHookType type) {
    return [type] {
      AcceleratorOptions options;
      options.data_parallel.comm_hook.type = type;
      if (type == lockstep::CommHookType::kPowerSgd) {
        options.data_parallel.comm_hook.power_sgd.start_iter = 2;
        options.data_parallel.comm_hook.power_sgd.matrix_approximation_rank = 7;
        // By default nothing would be compressed, since rank 7 costs more than these matrices.
        options.data_parallel.comm_hook.power_sgd.min_compression_rate = 0.01;
      }
      return options;
    };
  };
  const auto mixed = [](Precision precision) {
    // With the default scale these gradients overflow, and the first updates would be skipped.
    return [precision] {
      return AcceleratorOptions{.mixed_precision = precision, .grad_scaler = {.init_scale = 256}};
    };
  };
  const auto accumulate = [](int64_t steps) {
    return [steps] { return AcceleratorOptions{.gradient_accumulation_steps = steps}; };
  };
  const auto shared = [] { return AcceleratorOptions{.shared_parameters = true}; };
  const auto zero = [](int stage,
                       int64_t micro_steps,
                       int64_t cap_bytes = int64_t{25} << 20,
                       Precision precision = Precision::kNo) {
    return [=] {
      return AcceleratorOptions{
          .mixed_precision = precision,
          .grad_scaler = {.init_scale = 256},
          .gradient_accumulation_steps = micro_steps,
          .zero = lockstep::ZeroPlugin{.stage = stage, .bucket_cap_bytes = cap_bytes}};
    };
  };
  // The files have no names, so any folder will do.
  const auto in_files = [](int stage, int64_t micro_steps) {
    return [=] {
      lockstep::ZeroPlugin plugin{.stage = stage, .bucket_cap_bytes = 1000};
      const std::filesystem::path folder = std::filesystem::temp_directory_path();
      plugin.offload_optimizer = {
          .device = lockstep::OffloadDevice::kNvme, .nvme_path = folder, .buffer_count = 4};
      if (stage == 3) {
        plugin.offload_param = {
            .device = lockstep::OffloadDevice::kNvme, .nvme_path = folder, .max_in_cpu = 0};
      }
      return AcceleratorOptions{.gradient_accumulation_steps = micro_steps, .zero = plugin};
    };
  };
  std::vector<Strategy> all = {
      {.name = "data_parallel"},
      {.name = "tiny_buckets", .options = buckets(1)},
      {.name = "huge_buckets", .options = buckets(int64_t{1} << 30)},
      {.name = "clipping", .clip = true},
      {.name = "accumulation", .options = accumulate(2), .micro_steps = 2},
      {.name = "accumulation_and_clipping",
       .options = accumulate(2),
       .micro_steps = 2,
       .clip = true},
      {.name = "shared_parameters", .options = shared},
      {.name = "shared_parameters_accumulation_and_clipping",
       .options =
           [] {
             return AcceleratorOptions{.gradient_accumulation_steps = 2, .shared_parameters = true};
           },
       .micro_steps = 2,
       .clip = true},
      {.name = "shared_parameters_fp16",
       .options =
           [] {
             return AcceleratorOptions{
                 .mixed_precision = Precision::kFP16,
                 .grad_scaler = {.init_scale = 256},
                 .shared_parameters = true};
           },
       .tolerance = 4e-2},
      {.name = "zero_2_tiny_buckets", .options = zero(2, 1, 1)},
      {.name = "zero_3_tiny_buckets", .options = zero(3, 1, 1)},
      {.name = "zero_1_fp16",
       .options = zero(1, 1, int64_t{25} << 20, Precision::kFP16),
       .tolerance = 4e-2},
      {.name = "zero_2_in_files", .options = in_files(2, 1), .clip = true},
      {.name = "zero_3_in_files_accumulation_and_clipping",
       .options = in_files(3, 4),
       .micro_steps = 4,
       .clip = true},
      {.name = "local_sgd_every_step", .local_sgd_steps = 1},
      // Eight bits of mantissa in the products: 12 steps of AdamW at 0.01 end a few steps' length
      // apart where a gradient is near zero.
      {.name = "bf16", .options = mixed(Precision::kBF16), .tolerance = 4e-2},
      {.name = "fp16", .options = mixed(Precision::kFP16), .tolerance = 4e-2},
      {.name = "fp16_hook", .options = hook(lockstep::CommHookType::kFp16), .tolerance = 4e-2},
      {.name = "bf16_hook", .options = hook(lockstep::CommHookType::kBf16), .tolerance = 4e-2},
      // These matrices have rank 7.
      {.name = "power_sgd", .options = hook(lockstep::CommHookType::kPowerSgd), .tolerance = 4e-2},
  };
  for (const int stage : {1, 2, 3}) {
    for (const bool bf16 : {false, true}) {
      for (const int64_t micro_steps : {1, 4}) {
        all.push_back(
            {.name = fmt::format(
                 "zero_{}{}{}",
                 stage,
                 micro_steps > 1 ? "_accumulation_and_clipping" : "",
                 bf16 ? "_bf16" : ""),
             .options = zero(stage, micro_steps, 1000, bf16 ? Precision::kBF16 : Precision::kNo),
             .micro_steps = micro_steps,
             .clip = micro_steps > 1,
             .tolerance = bf16 ? 4e-2 : 2e-6});
      }
    }
    for (const int64_t micro_steps : {1, 4}) {
      // Five iterations magnify the rounding error of a gradient.
      all.push_back(
          {.name = fmt::format(
               "zero_{}_muon{}", stage, micro_steps > 1 ? "_accumulation_and_clipping" : ""),
           .options = zero(stage, micro_steps, 200),
           .micro_steps = micro_steps,
           .clip = micro_steps > 1,
           .tolerance = 2e-5,
           .muon = true});
    }
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
      for (const int64_t micro_steps : {1, 4}) {
        const bool half = dtype == at::kHalf;
        all.push_back(
            {.name = fmt::format(
                 "zero_{}_{}_parameters{}",
                 stage,
                 half ? "fp16" : "bf16",
                 micro_steps > 1 ? "_accumulation_and_clipping" : ""),
             .options = zero(stage, micro_steps, 1000, half ? Precision::kFP16 : Precision::kNo),
             .micro_steps = micro_steps,
             .clip = micro_steps > 1,
             .tolerance = 4e-2,
             .dtype = dtype});
      }
    }
  }
  return all;
}

Weights weights_of(AwkwardNet& net) {
  Weights weights;
  for (const auto& item : net->named_parameters()) {
    weights[item.key()] =
        item.value().detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }
  return weights;
}

at::Tensor loss_of(AwkwardNet& net, const at::Tensor& x, const at::Tensor& y) {
  const at::Tensor input = x.to(net->first->weight.scalar_type());
  return (net->forward(input).to(at::kFloat) - y).pow(2).mean();
}

/// Uses the Gram matrix in fp32, since 16-bit products would hide differences.
lockstep::optim::Muon muon_of(AwkwardNet& net) {
  return lockstep::optim::Muon(lockstep::optim::muon_groups(
      lockstep::parameters_of(*net),
      {.lr = kLr, .weight_decay = 0.01, .gram = true},
      {.lr = kLr, .weight_decay = 0.01, .adam_eps = kEps}));
}

/// Trains one process on full batches with torch alone, except for Lockstep's Muon.
Weights weights_by_torch(
    bool clip,
    const std::vector<at::Tensor>& batches,
    const std::vector<double>& parts,
    bool muon = false) {
  AwkwardNet net;
  // torch's optimizer would update a parameter with two names twice.
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : net->parameters()) {
    if (!std::any_of(parameters.begin(), parameters.end(), [&](const at::Tensor& other) {
          return other.is_same(parameter);
        })) {
      parameters.push_back(parameter);
    }
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (muon) {
    optimizer = std::make_unique<lockstep::optim::Muon>(muon_of(net));
  } else {
    optimizer = std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(kLr).eps(kEps).weight_decay(0.01));
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    const at::Tensor& rows = batches[i];
    (loss_of(net, inputs().index_select(0, rows), targets().index_select(0, rows)) * parts[i])
        .backward();
    if (clip) {
      torch::nn::utils::clip_grad_norm_(parameters, kMaxNorm);
    }
    optimizer->step();
    optimizer->zero_grad();
  }
  return weights_of(net);
}

Weights whole_batches(bool clip, bool muon = false) {
  std::vector<at::Tensor> batches;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (int64_t begin = 0; begin < kSamples; begin += kGlobalBatch) {
      batches.push_back(at::arange(begin, begin + kGlobalBatch));
    }
  }
  return weights_by_torch(clip, batches, std::vector<double>(batches.size(), 1), muon);
}

struct Job {
  AwkwardNet model{nullptr};
  lockstep::Optimizer optimizer;
  std::shared_ptr<lockstep::data::Loader<lockstep::data::TensorDataset>> loader;
};

Job prepare(Accelerator& accelerator, const Strategy& strategy) {
  AwkwardNet net;
  net->to(strategy.dtype);
  const int64_t rows = kGlobalBatch / accelerator.num_processes() / strategy.micro_steps;
  std::shared_ptr<torch::optim::Optimizer> plain;
  if (strategy.muon) {
    plain = std::make_shared<lockstep::optim::Muon>(muon_of(net));
  } else {
    plain = std::make_shared<lockstep::optim::AdamW>(
        net->parameters(),
        lockstep::optim::AdamWOptions{.lr = kLr, .eps = kEps, .weight_decay = 0.01});
  }
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      plain,
      lockstep::data::Loader(
          lockstep::data::TensorDataset(inputs(), targets()), {.batch_size = rows}));
  return {model, optimizer, std::make_shared<decltype(loader)>(loader)};
}

void train(Accelerator& accelerator, const Strategy& strategy, Job& run, int epochs) {
  lockstep::LocalSgd local_sgd(
      accelerator,
      run.model,
      {.local_sgd_steps = std::max<int64_t>(strategy.local_sgd_steps, 1),
       .enabled = strategy.local_sgd_steps > 0});
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (auto& batch : *run.loader) {
      auto micro_step = accelerator.accumulate(run.model);
      const at::Tensor loss = [&] {
        auto cast = accelerator.autocast();
        return loss_of(run.model, batch.data, batch.target);
      }();
      accelerator.backward(loss);
      if (strategy.clip) {
        accelerator.clip_grad_norm_(run.model->parameters(), kMaxNorm);
      }
      run.optimizer.step();
      run.optimizer.zero_grad();
      local_sgd.step();
    }
  }
  local_sgd.finish();
}

void expect_close(const Weights& weights, const Weights& expected, double tolerance) {
  ASSERT_EQ(weights.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    const double difference = (weights.at(name) - tensor).abs().max().item<double>();
    EXPECT_LE(difference, tolerance) << name;
  }
}

void on_ranks(
    int world, const AcceleratorOptions& options, const std::function<void(Accelerator&)>& body) {
  if (world == 1) {
    Accelerator accelerator(options, lockstep::WorldSpec{}, lockstep::Group());
    body(accelerator);
  } else {
    lockstep::accelerated_ranks(world, options, body);
  }
}

class Conformance : public ::testing::TestWithParam<std::tuple<Strategy, int>> {};

/// The ranks' batches of one round are contiguous, so together they are a full batch.
TEST_P(Conformance, TrainsAsOneProcessOnTheFullBatch) {
  const auto& [strategy, world] = GetParam();
  const Weights expected = whole_batches(strategy.clip, strategy.muon);
  on_ranks(world, strategy.options(), [&, &strategy = strategy](Accelerator& accelerator) {
    Job run = prepare(accelerator, strategy);
    train(accelerator, strategy, run, kEpochs);
    EXPECT_EQ(run.optimizer.steps(), kEpochs * kSamples / kGlobalBatch);
    expect_close(weights_of(run.model), expected, strategy.tolerance);
    EXPECT_FALSE(run.model->unused->weight.grad().defined()) << "as in one process";
  });
}

TEST_P(Conformance, ResumesBitExactFromItsOwnCheckpoint) {
  const auto& [strategy, world] = GetParam();
  const lockstep::TestFolder folder;
  on_ranks(world, strategy.options(), [&, &strategy = strategy](Accelerator& accelerator) {
    Job unbroken = prepare(accelerator, strategy);
    train(accelerator, strategy, unbroken, 1);
    accelerator.save_state(folder.path() / "saved");
    train(accelerator, strategy, unbroken, 2);
    const Weights expected = weights_of(unbroken.model);
    accelerator.free_memory();

    Job resumed = prepare(accelerator, strategy);
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : resumed.model->parameters()) {
        parameter.fill_(7);
      }
    }
    accelerator.load_state(folder.path() / "saved");
    train(accelerator, strategy, resumed, 2);
    expect_close(weights_of(resumed.model), expected, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Strategies,
    Conformance,
    ::testing::Combine(::testing::ValuesIn(strategies()), ::testing::Range(1, 5)),
    [](const auto& of) {
      return std::get<0>(of.param).name + "_world_" + std::to_string(std::get<1>(of.param));
    });

TEST(ConformanceUneven, ARankWithoutABatchCountsAsZero) {
  for (const int world : {2, 3, 4}) {
    // The last round has a batch only for rank 0.
    const int64_t rows = 4, full = 2, samples = (full * world + 1) * rows;
    std::vector<at::Tensor> batches;
    std::vector<double> parts;
    for (int64_t round = 0; round < full; ++round) {
      batches.push_back(at::arange(round * world * rows, (round + 1) * world * rows));
      parts.push_back(1);
    }
    batches.push_back(at::arange(samples - rows, samples));
    parts.push_back(1.0 / world);
    const Weights expected = weights_by_torch(false, batches, parts);
    on_ranks(world, {}, [&](Accelerator& accelerator) {
      AwkwardNet net;
      auto [model, optimizer, loader] = accelerator.prepare(
          net,
          lockstep::optim::AdamW(net->parameters(), {.lr = kLr, .eps = kEps, .weight_decay = 0.01}),
          lockstep::data::Loader(
              lockstep::data::TensorDataset(
                  inputs().slice(0, 0, samples), targets().slice(0, 0, samples)),
              {.batch_size = rows}));
      accelerator.join_uneven_inputs(
          {.even_batches = false},
          [&, model = model, optimizer = optimizer, loader = loader]() mutable {
            for (auto& batch : loader) {
              accelerator.backward(loss_of(model, batch.data, batch.target));
              optimizer.step();
              optimizer.zero_grad();
            }
          });
      expect_close(weights_of(net), expected, 2e-6);
    });
  }
}

/// A sum of two numbers does not depend on the order.
TEST(ConformanceZero, EveryStageHasTheBitsOfDataParallelOnTwoRanks) {
  Weights expected;
  for (const int stage : {0, 1, 2, 3}) {
    for (const int64_t micro_steps : {1, 4}) {
      AcceleratorOptions options{.gradient_accumulation_steps = micro_steps};
      if (stage > 0) {
        options.zero = lockstep::ZeroPlugin{.stage = stage, .bucket_cap_bytes = 1000};
      }
      Weights weights;
      on_ranks(2, options, [&](Accelerator& accelerator) {
        const Strategy strategy{.name = "stage", .micro_steps = micro_steps};
        Job run = prepare(accelerator, strategy);
        train(accelerator, strategy, run, kEpochs);
        const Weights here = weights_of(run.model);  // On all ranks: a collective in stage 3.
        if (accelerator.is_main_process()) {
          weights = here;
        }
      });
      if (stage == 0 && micro_steps == 1) {
        expected = weights;
      }
      expect_close(weights, expected, micro_steps == 1 ? 0 : 2e-6);
    }
  }
}

TEST(ConformanceSockets, DataParallelOverGlooEqualsOneProcess) {
  const Weights expected = whole_batches(true);
  lockstep::gloo_ranks(2, [&](lockstep::Group group) {
    lockstep::WorldSpec world;
    world.rank = world.local_rank = group.rank();
    world.size = world.local_size = group.size();
    Accelerator accelerator({}, world, std::move(group));
    const Strategy strategy{.name = "gloo", .clip = true};
    Job run = prepare(accelerator, strategy);
    train(accelerator, strategy, run, kEpochs);
    expect_close(weights_of(run.model), expected, 2e-6);
  });
}

}  // namespace
}  // namespace conformance
