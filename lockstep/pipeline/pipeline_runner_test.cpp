// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline/pipeline_runner.h"

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <ATen/Functions.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/pipeline_schedule/simulation.h"

namespace lockstep::pipeline {
namespace {

using pipeline_schedule::ScheduleKind;
using pipeline_schedule::ScheduleShape;
using testing::HasSubstr;
using torch::nn::Sequential;

constexpr int64_t kWords = 11;
constexpr int64_t kWidth = 6;

/// Returns the same model on every rank. Its 10 layers take tokens and give logits.
Sequential make_model() {
  static std::mutex drawing;  // torch's default generator is the process's.
  const std::lock_guard lock(drawing);
  torch::manual_seed(4);
  Sequential model;
  model->push_back(torch::nn::Embedding(kWords, kWidth));
  model->push_back(torch::nn::Linear(kWidth, kWidth));
  model->push_back(torch::nn::Tanh());
  model->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  model->push_back(torch::nn::Linear(kWidth, 2 * kWidth));
  model->push_back(torch::nn::GELU());
  model->push_back(torch::nn::Linear(2 * kWidth, kWidth));
  model->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  model->push_back(torch::nn::Tanh());
  model->push_back(torch::nn::Linear(kWidth, kWords));
  model->to(at::kDouble);
  return model;
}

at::Tensor draw(int64_t high, at::IntArrayRef sizes, int seed) {
  return at::randint(
      high, sizes, at::detail::createCPUGenerator(static_cast<uint64_t>(seed)), at::kLong);
}

/// `varies`: the micro-batches have different numbers of samples and positions.
MicroBatches make_batch(int micro_batches, int step, bool varies = false) {
  MicroBatches batch;
  for (int i = 0; i < micro_batches; ++i) {
    const int64_t samples = varies ? 1 + i % 3 : 3;
    const int64_t positions = varies ? 2 + i % 2 : 4;
    batch.inputs.push_back(draw(kWords, {samples, positions}, 100 * step + i));
    batch.targets.push_back(draw(kWords, {samples, positions}, 1000 + 100 * step + i));
  }
  return batch;
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return at::cross_entropy_loss(output.flatten(0, 1), target.flatten());
}

using Weights = std::map<std::string, at::Tensor>;

struct Trained {
  std::vector<double> losses;
  double evaluated = 0;
  Weights gradients;  ///< Of the first step.
  Weights weights;    ///< After the last step.
};

struct Job {
  ScheduleShape shape;
  int steps = 1;
  bool varies = false;
  std::vector<int> frozen = {};  ///< Layers.
};

std::string text_of(const ScheduleShape& shape) {
  return fmt::format(
      "{}, {} ranks, {} chunks, {} micro-batches",
      name_of(shape.kind),
      shape.ranks,
      shape.chunks_per_rank,
      shape.micro_batches);
}

Sequential model_of(const Job& job) {
  Sequential model = make_model();
  for (const int layer : job.frozen) {
    for (const at::Tensor& parameter : model->ptr(static_cast<size_t>(layer))->parameters()) {
      parameter.requires_grad_(false);
    }
  }
  return model;
}

/// Runs the steps, and adds the results for `parameters`, by name. `train` and `evaluate` return
/// the loss of a batch.
template <typename Train, typename Evaluate>
Trained run_steps(
    const Job& job,
    const std::map<std::string, at::Tensor>& parameters,
    const Train& train,
    const Evaluate& evaluate) {
  Trained result;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, parameter] : parameters) {
    tensors.push_back(parameter);
  }
  torch::optim::SGD optimizer(tensors, torch::optim::SGDOptions(0.3).momentum(0.9));
  for (int step = 0; step < job.steps; ++step) {
    optimizer.zero_grad();
    result.losses.push_back(train(make_batch(job.shape.micro_batches, step, job.varies)));
    for (const auto& [name, parameter] : parameters) {
      if (step == 0) {
        result.gradients[name] =
            parameter.grad().defined() ? parameter.grad().clone() : at::Tensor();
      }
    }
    optimizer.step();
  }
  result.evaluated = evaluate(make_batch(job.shape.micro_batches, 9, job.varies));
  for (const auto& [name, parameter] : parameters) {
    result.weights[name] = parameter.detach().clone();
  }
  return result;
}

std::map<std::string, at::Tensor> parameters_of(const std::vector<Sequential>& models) {
  std::map<std::string, at::Tensor> result;
  for (const Sequential& model : models) {
    for (const auto& item : model->named_parameters()) {
      result[item.key()] = item.value();
    }
  }
  return result;
}

/// Trains in one process, with gradient accumulation.
Trained train_in_one_process(const Job& job) {
  Sequential model = model_of(job);
  const auto mean = [&](const MicroBatches& batch, bool trains) {
    double sum = 0;
    for (size_t i = 0; i < batch.inputs.size(); ++i) {
      const at::Tensor loss = loss_of(model->forward(batch.inputs[i]), batch.targets[i]);
      sum += loss.item<double>();
      if (trains) {
        (loss / job.shape.micro_batches).backward();
      }
    }
    return sum / job.shape.micro_batches;
  };
  return run_steps(
      job,
      parameters_of({model}),
      [&](const MicroBatches& batch) { return mean(batch, true); },
      [&](const MicroBatches& batch) { return mean(batch, false); });
}

/// Returns the micro-batches, of which a rank has only those that it reads.
MicroBatches part_of(const MicroBatches& batch, const Group& line) {
  return {
      .inputs = line.rank() == 0 ? batch.inputs : std::vector<at::Tensor>(),
      .targets = line.rank() == line.size() - 1 ? batch.targets : std::vector<at::Tensor>()};
}

std::vector<Chunk> chunks_from(const std::vector<Sequential>& models) {
  return {models.begin(), models.end()};
}

std::vector<Sequential> own_models(const Job& job, int rank) {
  const Layers layers = layers_of(model_of(job));
  const auto chunks = static_cast<size_t>(job.shape.ranks * job.shape.chunks_per_rank);
  return chunks_of_rank(
      layers, cut_by_cost(parameter_counts(layers), chunks), rank, job.shape.ranks);
}

/// Trains as a pipeline, and joins the parameters of all ranks. The losses are those of each rank.
Trained train_as_pipeline(const Job& job) {
  std::mutex mutex;
  Trained joined;
  ranks(job.shape.ranks, [&](const Group& line) {
    const std::vector<Sequential> models = own_models(job, line.rank());
    PipelineRunner runner(chunks_from(models), line, job.shape);
    Trained own = run_steps(
        job,
        parameters_of(models),
        [&](const MicroBatches& batch) {
          return runner.train_batch(part_of(batch, line), loss_of);
        },
        [&](const MicroBatches& batch) {
          return runner.eval_batch(part_of(batch, line), loss_of);
        });
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(joined.losses.empty() || joined.losses == own.losses) << "of another rank";
    joined.losses = own.losses;
    joined.evaluated = own.evaluated;
    joined.gradients.merge(own.gradients);
    joined.weights.merge(own.weights);
  });
  return joined;
}

void expect_equal(const Weights& got, const Weights& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_EQ(got.at(name).defined(), tensor.defined()) << name;
    // Bit-exact: the micro-batches are added in the same order.
    EXPECT_TRUE(!tensor.defined() || got.at(name).equal(tensor))
        << name << " differs by " << (got.at(name) - tensor).abs().max().item<double>();
  }
}

void expect_one_process(const Job& job) {
  SCOPED_TRACE(text_of(job.shape));
  const Trained expected = train_in_one_process(job);
  const Trained got = train_as_pipeline(job);
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.evaluated, expected.evaluated);
  expect_equal(got.gradients, expected.gradients);
  expect_equal(got.weights, expected.weights);
}

std::vector<ScheduleShape> shapes(int ranks) {
  std::vector<ScheduleShape> result;
  for (const ScheduleKind kind : pipeline_schedule::kScheduleKinds) {
    for (const int chunks : {1, 2}) {
      for (const int micro_batches : {1, 2, 3, 4, 8}) {
        const ScheduleShape shape{kind, ranks, chunks, micro_batches};
        try {
          compute_actions(shape);
          result.push_back(shape);
        } catch (const ConfigError&) {
          continue;  // The schedule has no such shape.
        }
      }
    }
  }
  return result;
}

TEST(PipelineRunner, GivesTheNumbersOfOneProcessOnOneRank) {
  for (const ScheduleShape& shape : shapes(1)) {
    expect_one_process({.shape = shape, .steps = 2});
  }
}

TEST(PipelineRunner, GivesTheNumbersOfOneProcessOnTwoRanks) {
  for (const ScheduleShape& shape : shapes(2)) {
    expect_one_process({.shape = shape, .steps = 3});
  }
}

TEST(PipelineRunner, GivesTheNumbersOfOneProcessOnFourRanks) {
  for (const ScheduleShape& shape : shapes(4)) {
    expect_one_process({.shape = shape, .steps = 3});
  }
}

TEST(PipelineRunner, TrainsForFiftySteps) {
  expect_one_process(
      {.shape = {ScheduleKind::kZeroBubble, 2, 2, 4}, .steps = 50, .varies = true, .frozen = {3}});
}

TEST(PipelineRunner, FollowsShapesThatChangeBetweenMicroBatches) {
  for (const int ranks : {2, 4}) {
    for (const ScheduleShape& shape : shapes(ranks)) {
      expect_one_process({.shape = shape, .varies = true});
    }
  }
}

TEST(PipelineRunner, SkipsGradientsBeforeFrozenLayers) {
  for (const int ranks : {2, 4}) {
    for (const ScheduleShape& shape : shapes(ranks)) {
      expect_one_process({.shape = shape, .frozen = {0, 1}});
      expect_one_process({.shape = shape, .frozen = {0, 1, 3, 4, 6}});
      expect_one_process({.shape = shape, .frozen = {6, 9}});
    }
  }
}

TEST(PipelineRunner, HoldsAsManyActivationsAsTheSimulation) {
  for (const ScheduleShape& shape : shapes(4)) {
    const Job job{.shape = shape};
    const std::vector<int> expected =
        simulate(pipeline_schedule::compute_actions(shape)).peak_activations;
    ranks(4, [&](const Group& line) {
      PipelineRunner runner(chunks_from(own_models(job, line.rank())), line, shape);
      runner.train_batch(part_of(make_batch(shape.micro_batches, 0), line), loss_of);
      EXPECT_EQ(runner.peak_activations(), expected[static_cast<size_t>(line.rank())])
          << text_of(shape) << ", rank " << line.rank();
    });
  }
}

/// Counts the messages that all ranks send, and their bytes.
class Counter final : public comm::GroupObserver {
 public:
  std::shared_ptr<comm::OperationObserver> observe(
      const comm::Collective& collective, int /*ranks*/) override {
    if (collective.op == comm::Op::kSend) {
      ++sends;
      bytes += static_cast<int64_t>(collective.input.nbytes());
    } else if (collective.op != comm::Op::kRecv) {
      ++others;
    }
    return nullptr;
  }

  std::atomic<int> sends = 0;
  std::atomic<int64_t> bytes = 0;
  std::atomic<int> others = 0;
};

TEST(PipelineRunner, SendsEachActivationAndGradientOnce) {
  for (const ScheduleShape& shape : shapes(4)) {
    SCOPED_TRACE(text_of(shape));
    const int chunks = 4 * shape.chunks_per_rank;
    const auto counter = std::make_shared<Counter>();
    ranks(4, [&](const Group& line) {
      // Chunks of one width, so that all tensors have the same size.
      std::vector<Sequential> models;
      for (int chunk = 0; chunk < shape.chunks_per_rank; ++chunk) {
        models.emplace_back(torch::nn::Linear(5, 5));
      }
      MicroBatches batch;
      batch.inputs.assign(static_cast<size_t>(shape.micro_batches), at::ones({3, 5}));
      batch.targets = batch.inputs;
      PipelineRunner runner(chunks_from(models), line.with_observer(counter), shape);
      runner.train_batch(part_of(batch, line), [](const at::Tensor& output, const at::Tensor&) {
        return output.sum();
      });
    });
    const int tensors = 2 * shape.micro_batches * (chunks - 1);
    EXPECT_EQ(counter->sends, 2 * tensors);
    EXPECT_EQ(counter->bytes, tensors * (128 + 3 * 5 * 4));
    EXPECT_EQ(counter->others, 4);  // One broadcast on each rank.
  }
}

TEST(PipelineRunner, EvaluatesWithoutGradientsAndInTheModulesMode) {
  const ScheduleShape shape{ScheduleKind::k1F1B, 2, 1, 3};
  ranks(2, [&](const Group& line) {
    Sequential model(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5));
    const auto loss = [](const at::Tensor& output, const at::Tensor&) {
      EXPECT_FALSE(output.requires_grad());
      return output.sum();
    };
    MicroBatches batch;
    batch.inputs.assign(3, at::ones({2, 4}));
    batch.targets = batch.inputs;
    PipelineRunner runner({Chunk(model)}, line, shape);
    model->eval();
    const double first = runner.eval_batch(part_of(batch, line), loss);
    EXPECT_EQ(runner.eval_batch(part_of(batch, line), loss), first);
    EXPECT_FALSE(model->parameters()[0].grad().defined());
    model->train();
    EXPECT_NE(runner.eval_batch(part_of(batch, line), loss), first);
    runner.train_batch(part_of(batch, line), [](const at::Tensor& output, const at::Tensor&) {
      return output.sum();
    });
    EXPECT_TRUE(model->parameters()[0].grad().defined());
  });
}

TEST(PipelineRunner, TakesFunctionsAndDtypesThatChangeBetweenChunks) {
  const ScheduleShape shape{ScheduleKind::k1F1B, 2, 1, 2};
  ranks(2, [&](const Group& line) {
    const at::Tensor weight = at::full({3}, 2.0, at::kDouble).requires_grad_();
    std::vector<Chunk> chunks;
    if (line.rank() == 0) {
      chunks.emplace_back(
          [=](const at::Tensor& input) { return (input * weight).to(at::kFloat); },
          std::vector<at::Tensor>{weight});
    } else {
      chunks.emplace_back(
          [=](const at::Tensor& input) { return input.to(at::kDouble) * weight; },
          std::vector<at::Tensor>{weight});
    }
    const MicroBatches batch{
        .inputs = {at::ones({3}, at::kDouble), at::full({3}, 3.0, at::kDouble)},
        .targets = {at::Tensor(at::ones({1})), at::ones({1})}};
    PipelineRunner runner(std::move(chunks), line, shape);
    const double loss = runner.train_batch(
        part_of(batch, line),
        [](const at::Tensor& output, const at::Tensor&) { return output.sum(); });
    EXPECT_EQ(loss, 3 * (4 + 12) / 2.0);
    EXPECT_TRUE(weight.grad().equal(at::full({3}, (1 + 3) * 2 / 2.0, at::kDouble)));
  });
}

TEST(PipelineRunner, PassesSeveralTensorsWhichTheNextChunkMayChange) {
  const ScheduleShape shape{ScheduleKind::kZeroBubble, 2, 1, 2};
  ranks(2, [&](const Group& line) {
    const at::Tensor weight = at::full({3}, 2.0, at::kDouble).requires_grad_();
    std::vector<Chunk> chunks;
    if (line.rank() == 0) {
      chunks.emplace_back(
          [=](const Values& input) -> Values {
            const at::Tensor& x = input;
            Values several(std::vector<at::Tensor>{x * weight, at::arange(3), x + weight});
            if (x[0].item<double>() > 1) {
              several.tensors.pop_back();  // Their number may change.
            }
            return several;
          },
          std::vector<at::Tensor>{weight});
    } else {
      chunks.emplace_back(
          [=](const Values& input) -> Values {
            // The third one does not reach the loss.
            return input.tensors[0].mul_(input.tensors[1]) * weight;
          },
          std::vector<at::Tensor>{weight});
    }
    const MicroBatches batch{
        .inputs = {at::ones({3}, at::kDouble), at::full({3}, 3.0, at::kDouble)},
        .targets = {at::ones({1}), at::ones({1})}};
    PipelineRunner runner(std::move(chunks), line, shape);
    const double loss = runner.train_batch(
        part_of(batch, line),
        [](const at::Tensor& output, const at::Tensor&) { return output.sum(); });
    EXPECT_EQ(loss, (0 + 1 + 2) * 4 * (1 + 3) / 2.0);
    EXPECT_TRUE(weight.grad().equal(at::arange(3, at::kDouble) * 2 * (1 + 3) / 2.0));
  });
}

TEST(PipelineRunner, RefusesSeveralTensorsWhereOneIsExpected) {
  ranks(1, [](const Group& line) {
    std::vector<Chunk> chunks;
    chunks.emplace_back(
        [](const Values& input) -> Values {
          return std::vector<at::Tensor>{input.tensors[0], input.tensors[0]};
        },
        std::vector<at::Tensor>{});
    PipelineRunner runner(std::move(chunks), line, {ScheduleKind::k1F1B, 1, 1, 1});
    try {
      runner.eval_batch(
          {.inputs = {at::ones({1})}, .targets = {at::ones({1})}},
          [](const at::Tensor& output, const at::Tensor&) { return output.sum(); });
      ADD_FAILURE() << "two tensors were taken for one";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("got 2 tensors; expected one"));
    }
  });
}

std::string error_of(
    int size,
    const std::function<void(Group)>& body,
    comm::Milliseconds timeout = std::chrono::seconds(30)) {
  try {
    ranks(size, body, timeout);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(PipelineRunner, EndsAllRanksWithTheErrorOfOne) {
  for (const ScheduleShape& shape : shapes(4)) {
    const Job job{.shape = shape};
    EXPECT_THAT(
        error_of(
            4,
            [&](const Group& line) {
              std::vector<Chunk> chunks = chunks_from(own_models(job, line.rank()));
              if (line.rank() == 2) {
                chunks.back().forward = [](const at::Tensor&) -> at::Tensor {
                  throw ConfigError("test", "the chunk is broken");
                };
              }
              PipelineRunner runner(std::move(chunks), line, shape);
              runner.train_batch(part_of(make_batch(shape.micro_batches, 0), line), loss_of);
            }),
        HasSubstr("the chunk is broken"))
        << text_of(shape);
  }
}

TEST(PipelineRunner, ReportsRanksWithDifferentSchedules) {
  // Rank 0 sends all activations before it takes a gradient. Rank 1 expects one micro-batch fewer,
  // so a gradient is missing.
  const auto run = [](ScheduleShape shape, const Group& line) {
    if (line.rank() == 1) {
      --shape.micro_batches;
    }
    PipelineRunner runner(chunks_from(own_models({.shape = shape}, line.rank())), line, shape);
    runner.train_batch(part_of(make_batch(shape.micro_batches, 0), line), loss_of);
  };
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::k1F1B}) {
    EXPECT_THROW(
        ranks(
            2,
            [&](const Group& line) {
              run({kind, 2, 1, 4}, line);
            },
            std::chrono::milliseconds(500)),
        CommError);
  }
}

TEST(PipelineRunner, RefusesWhatItCannotCompute) {
  const ScheduleShape shape{ScheduleKind::k1F1B, 2, 1, 3};
  const auto error = [&](const ScheduleShape& with,
                         const std::function<void(MicroBatches&)>& change,
                         const LossFunction& loss = loss_of,
                         std::vector<int> frozen = {}) {
    return error_of(2, [&](const Group& line) {
      const Job job{.shape = shape, .frozen = frozen};
      PipelineRunner runner(chunks_from(own_models(job, line.rank())), line, with);
      MicroBatches batch = part_of(make_batch(3, 0), line);
      change(batch);
      runner.train_batch(batch, loss);
    });
  };
  const auto same = [](MicroBatches&) {};
  EXPECT_EQ(error(shape, same), "");
  EXPECT_THAT(
      error({ScheduleKind::k1F1B, 4, 1, 3}, same), HasSubstr("has 4 ranks, but the group 2"));
  EXPECT_THAT(
      error({ScheduleKind::kInterleaved, 2, 2, 2}, same), HasSubstr("got 1 chunks; expected"));
  EXPECT_THAT(
      error(shape, [](MicroBatches& batch) { batch.inputs.clear(); }),
      HasSubstr("got 0 inputs; expected one for each of 3 micro-batches"));
  EXPECT_THAT(
      error(shape, [](MicroBatches& batch) { batch.targets.resize(2); }), HasSubstr("targets"));
  EXPECT_THAT(
      error(
          shape,
          [](MicroBatches& batch) {
            if (!batch.inputs.empty()) {
              batch.inputs[1] = at::Tensor();
            }
          }),
      HasSubstr("entry 1 of the inputs is an undefined tensor"));
  EXPECT_THAT(error(shape, same, nullptr), HasSubstr("got no loss function"));
  EXPECT_THAT(
      error(shape, same, [](const at::Tensor& output, const at::Tensor&) { return output; }),
      HasSubstr("elements; expected a tensor with one element"));
  EXPECT_THAT(
      error(shape, same, loss_of, {0, 1, 3, 4, 6, 7, 9}),
      HasSubstr("the loss requires no gradient"));
}

}  // namespace
}  // namespace lockstep::pipeline
