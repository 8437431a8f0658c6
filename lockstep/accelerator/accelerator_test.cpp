// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/accelerator.h"

#include <atomic>
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/test_loops.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/watch/flight_recorder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using torch::nn::Linear;

TEST(Accelerators, CanBeMovedAndStayInTheJob) {
  watch::FlightRecorder& recorder = watch::FlightRecorder::process();
  Accelerator accelerator({}, WorldSpec{}, Group());
  recorder.join(0, 1);
  accelerator = Accelerator({.gradient_accumulation_steps = 3}, WorldSpec{}, Group());
  EXPECT_EQ(accelerator.gradient_accumulation_steps(), 3);
  EXPECT_FALSE(recorder.read().left);
  {
    Accelerator other = std::move(accelerator);
    torch::nn::Linear net = two_by_two();
    auto [model, optimizer] = other.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    other.backward(model->forward(at::ones({1, 2})).sum());
    EXPECT_EQ(other.num_processes(), 1);
  }
  EXPECT_TRUE(recorder.read().left);
}

TEST(Prepare, AcceptsObjectsInAnyOrderAndReturnsTheirTypes) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear net(3, 1);
    auto loader = numbers(8, {.batch_size = 2});
    torch::optim::SGD kept(net->parameters(), 0.1);
    auto [second, prepared_loader, model, optimizer] = accelerator.prepare(
        std::make_shared<torch::optim::Adam>(net->parameters()), loader, net, kept);
    static_assert(std::is_same_v<decltype(model), Linear>);
    static_assert(std::is_same_v<decltype(optimizer), Optimizer>);
    static_assert(std::is_same_v<decltype(prepared_loader), data::Loader<data::TensorDataset>>);
    EXPECT_EQ(model.get(), net.get());
    EXPECT_EQ(&optimizer.inner(), &kept);
    EXPECT_EQ(prepared_loader.size(), 2);

    auto again = accelerator.prepare(net);
    static_assert(std::is_same_v<decltype(again), Linear>);
    EXPECT_EQ(accelerator.prepare(kept).steps(), 0);
  });
}

TEST(Prepare, GivesEveryRankRank0sWeights) {
  accelerated_ranks(3, {}, [](Accelerator& accelerator) {
    Linear net(2, 2);
    torch::NoGradGuard no_grad;
    net->weight.fill_(accelerator.process_index() + 1);
    accelerator.prepare(net);
    EXPECT_EQ(net->weight.mean().item<float>(), 1);
  });
}

/// Steps of SGD on a small regression; returns the weights.
at::Tensor train_regression(Accelerator& accelerator, int64_t batch_size) {
  torch::manual_seed(7);
  torch::nn::Sequential net(Linear(1, 8), torch::nn::BatchNorm1d(8), Linear(8, 1));
  net->eval();  // BatchNorm by its buffers: the batch's own statistics would differ between worlds.
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      parameter.copy_(
          at::sin(at::arange(parameter.numel(), at::kFloat) + 1).reshape(parameter.sizes()));
    }
  }
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)),
      numbers(12, {.batch_size = batch_size, .shuffle = true, .seed = 3}));
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : loader) {
      const auto loss = (model->forward(batch.data / 12) - batch.target.unsqueeze(1).to(at::kFloat))
                            .pow(2)
                            .mean();
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  EXPECT_EQ(optimizer.steps(), 9);
  return at::cat({model->parameters()[0].flatten(), model->parameters()[4].flatten()}).detach();
}

TEST(Training, AnyNumberOfRanksEqualsOneProcessOnTheGlobalBatch) {
  Accelerator alone({}, WorldSpec{}, Group());
  const at::Tensor expected = train_regression(alone, 4);
  for (int size : {2, 4}) {
    accelerated_ranks(size, {}, [&](Accelerator& accelerator) {
      const at::Tensor weights = train_regression(accelerator, 4 / size);
      EXPECT_TRUE(at::allclose(weights, expected, 1e-5, 1e-6)) << weights << expected;
    });
  }
}

TEST(Training, SeveralModelsAndOptimizersEachKeepTheirOwnGradients) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear generator(2, 2), critic(2, 1);
    auto [g, c, g_optimizer, c_optimizer] = accelerator.prepare(
        generator,
        critic,
        torch::optim::SGD(generator->parameters(), 0.1),
        torch::optim::SGD(critic->parameters(), 0.1));
    const at::Tensor x = at::full({3, 2}, accelerator.process_index() + 1.0);
    accelerator.backward(c->forward(x).sum());  // Reaches the critic alone.
    EXPECT_FALSE(g->weight.grad().defined());
    const at::Tensor critic_gradient = c->weight.grad().clone();
    EXPECT_EQ(critic_gradient[0][0].item<float>(), 4.5);
    accelerator.backward(g->forward(x).sum());
    EXPECT_EQ(g->weight.grad()[0][0].item<float>(), 4.5);
    g_optimizer.zero_grad();
    EXPECT_FALSE(g->weight.grad().defined());
    EXPECT_TRUE(at::equal(c->weight.grad(), critic_gradient));
    c_optimizer.step();
    EXPECT_EQ(c_optimizer.steps(), 1);
    EXPECT_EQ(g_optimizer.steps(), 0);
  });
}

TEST(Prepare, RefusesAParameterOfTwoModels) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    torch::nn::Sequential net(Linear(2, 2), Linear(2, 1));
    accelerator.prepare(net);
    auto part = std::dynamic_pointer_cast<torch::nn::LinearImpl>(net->ptr(0));
    EXPECT_THROW(accelerator.prepare(part), ConfigError);
    accelerator.wait_for_everyone();
  });
}

TEST(Prepare, AnOptimizerMayPrecedeItsModel) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear net(2, 1);
    auto optimizer = accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1));
    auto model = accelerator.prepare(net);
    accelerator.backward(model->forward(at::ones({1, 2})).sum());
    const void* bucket = net->weight.grad().const_data_ptr();
    optimizer.zero_grad();
    EXPECT_FALSE(net->weight.grad().defined());
    accelerator.backward(model->forward(at::ones({1, 2})).sum());
    EXPECT_EQ(net->weight.grad().const_data_ptr(), bucket);
  });
}

TEST(Training, ALossWithoutAGraphOnOneRankCountsAsZero) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear net(2, 1);
    accelerator.prepare(net);
    accelerator.backward(
        accelerator.is_main_process() ? net->forward(at::ones({1, 2})).sum() : at::zeros({}));
    EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 0.5);
  });
}

TEST(Training, ZeroGradAloneFreesGradientsAsTorchDoes) {
  Accelerator alone({}, WorldSpec{}, Group());
  Linear net(2, 1);
  auto [model, optimizer] = alone.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  alone.backward(model->forward(at::ones({1, 2})).sum());
  EXPECT_TRUE(net->weight.grad().defined());
  optimizer.zero_grad();
  EXPECT_FALSE(net->weight.grad().defined());
}

TEST(Backward, RefusesALossThatIsNotOneNumber) {
  Accelerator alone({}, WorldSpec{}, Group());
  EXPECT_THROW(alone.backward(at::ones({3})), ConfigError);
  EXPECT_THROW(alone.backward(at::Tensor()), ConfigError);
}

TEST(GatherForMetrics, ReturnsEverySampleOnceAndInOrder) {
  for (const bool even : {true, false}) {
    for (const bool split : {false, true}) {
      for (int64_t count : {12, 13, 14, 15, 16, 17, 23}) {
        accelerated_ranks(
            2, {.split_batches = split, .even_batches = even}, [&](Accelerator& accelerator) {
              auto loader = accelerator.prepare(numbers(count, {.batch_size = 4}));
              std::vector<at::Tensor> seen;
              const int64_t common =
                  accelerator.reduce(at::full({1}, loader.size(), at::kLong), ReduceOp::kMin)
                      .item<int64_t>();
              int64_t batches = 0;
              for (auto& batch : loader) {
                if (batches++ == common) {
                  break;  // Uneven: this rank has one more, which nobody else can gather.
                }
                const auto [data, target] =
                    accelerator.gather_for_metrics(batch.data, batch.target);
                EXPECT_EQ(data.size(0), target.size(0));
                seen.push_back(target);
              }
              const at::Tensor all = at::cat(seen);
              if (even) {
                EXPECT_TRUE(at::equal(all, at::arange(count))) << all;
              } else {
                EXPECT_TRUE(at::equal(all, at::arange(all.numel()))) << all;
              }
            });
      }
    }
  }
}

TEST(GatherForMetrics, OfANestedLoopFollowsTheInnerLoader) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    auto [outer, inner] =
        accelerator.prepare(numbers(8, {.batch_size = 2}), numbers(5, {.batch_size = 2}));
    for (auto& train : outer) {
      int64_t count = 0;
      for (auto& batch : inner) {
        count += accelerator.gather_for_metrics(batch.target).numel();
      }
      EXPECT_EQ(count, 5);
      EXPECT_EQ(accelerator.gather_for_metrics(train.target).numel(), 4);
    }
    EXPECT_EQ(accelerator.gather_for_metrics(at::ones({3})).numel(), 6)
        << "outside any loop: all of it";
  });
}

TEST(GatherForMetrics, OfALoopThatWasLeftFollowsItsLastBatch) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    auto loader = accelerator.prepare(numbers(3, {.batch_size = 4}));
    at::Tensor kept;
    for (auto& batch : loader) {
      kept = batch.target;
      break;
    }
    EXPECT_EQ(accelerator.gather_for_metrics(kept).numel(), 3);
  });
}

TEST(OneProcess, BlocksRunWhereTheySay) {
  std::atomic<int> main{0}, last{0}, second{0}, local{0};
  accelerated_ranks(3, {}, [&](Accelerator& accelerator) {
    EXPECT_EQ(accelerator.num_processes(), 3);
    EXPECT_TRUE(accelerator.use_distributed());
    EXPECT_EQ(accelerator.distributed_type(), "MULTI_CPU");
    accelerator.on_main_process([&] { main += 1 + 10 * accelerator.process_index(); });
    accelerator.on_last_process([&] { last += accelerator.process_index(); });
    accelerator.on_process(1, [&] { second += accelerator.process_index(); });
    accelerator.on_local_main_process([&] { ++local; });
    EXPECT_THROW(accelerator.on_process(3, [] {}), ConfigError);
    EXPECT_THROW(accelerator.on_local_process(-1, [] {}), ConfigError);
    accelerator.wait_for_everyone();
  });
  EXPECT_EQ(main, 1);
  EXPECT_EQ(last, 2);
  EXPECT_EQ(second, 1);
  EXPECT_EQ(local, 1);
}

TEST(MainProcessFirst, RunsTheMainProcessBeforeTheOthers) {
  std::atomic<int> done{0};
  accelerated_ranks(3, {}, [&](Accelerator& accelerator) {
    accelerator.main_process_first([&] {
      const int before = done++;
      EXPECT_EQ(before == 0, accelerator.is_main_process());
    });
  });
  EXPECT_EQ(done, 3);
}

TEST(MainProcessFirst, TellsTheOthersThatTheMainProcessFailed) {
  std::atomic<int> told{0};
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    try {
      accelerator.main_process_first([] { throw ConfigError("download", "no disk"); });
    } catch (const Error& error) {
      ++told;
      EXPECT_THAT(
          error.what(),
          HasSubstr(accelerator.is_main_process() ? "no disk" : "the main process failed"));
    }
  });
  EXPECT_EQ(told, 2);
}

TEST(Print, WritesOnce) {
  ::testing::internal::CaptureStdout();
  accelerated_ranks(3, {}, [](Accelerator& accelerator) { accelerator.print("hello"); });
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "hello\n");
}

TEST(Epochs, OfEachCallAreCounted) {
  Accelerator alone({}, WorldSpec{}, Group());
  auto loader = alone.prepare(numbers(4, {.batch_size = 2}));
  std::set<int64_t> epochs;
  for (int64_t epoch : alone.epochs(3)) {
    for (auto& batch : loader) {
      (void)batch;
    }
    epochs.insert(epoch);
  }
  EXPECT_EQ(epochs, (std::set<int64_t>{0, 1, 2}));
  EXPECT_EQ(alone.epochs(3).size(), 3);
}

TEST(Progress, CoversTheFullLoader) {
  Accelerator alone({}, WorldSpec{}, Group());
  auto loader = alone.prepare(numbers(7, {.batch_size = 2}));
  int64_t rows = 0;
  auto progress = alone.progress(loader, "epoch 1");
  for (auto& batch : progress) {
    rows += batch.data.size(0);
    progress.set_note("rows " + std::to_string(rows));
  }
  EXPECT_EQ(rows, 7);
}

TEST(Construction, RefusesAWorldThatIsNotTheGroups) {
  WorldSpec world;
  world.size = 2;
  EXPECT_THROW(Accelerator({}, world, Group()), ConfigError);
}

}  // namespace
}  // namespace lockstep
