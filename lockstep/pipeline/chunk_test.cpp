// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline/chunk.h"

#include <gmock/gmock.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"

namespace lockstep::pipeline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

torch::nn::Sequential make_layers() {
  return torch::nn::Sequential(
      torch::nn::Linear(3, 4),
      torch::nn::ReLU(),
      torch::nn::Linear(4, 5),
      torch::nn::Tanh(),
      torch::nn::Linear(5, 2));
}

TEST(PipelineChunk, DescribesTheLayersOfASequential) {
  const Layers layers = layers_of(make_layers());
  EXPECT_THAT(parameter_counts(layers), ElementsAre(16, 0, 25, 0, 12));
  EXPECT_THAT(
      class_names(layers),
      ElementsAre(
          "torch::nn::LinearImpl",
          "torch::nn::ReLUImpl",
          "torch::nn::LinearImpl",
          "torch::nn::TanhImpl",
          "torch::nn::LinearImpl"));
}

TEST(PipelineChunk, GivesARankItsLayersUnderTheirNumbers) {
  torch::nn::Sequential model = make_layers();
  const Layers layers = layers_of(model);
  const std::vector<torch::nn::Sequential> own =
      chunks_of_rank(layers, cut_at({1, 2, 4}, 5, 4), 1, 2);
  ASSERT_EQ(own.size(), 2U);
  EXPECT_TRUE(own[0]->parameters().empty());
  EXPECT_THAT(own[1]->named_parameters().keys(), ElementsAre("4.weight", "4.bias"));
  EXPECT_TRUE(own[1]->parameters()[0].is_same(model->named_parameters()["4.weight"]));
}

TEST(PipelineChunk, ComputesTheModelChunkByChunk) {
  torch::nn::Sequential model = make_layers();
  const at::Tensor input = at::ones({2, 3});
  at::Tensor output = input;
  size_t parameters = 0;
  for (const torch::nn::Sequential& part :
       chunks_of_rank(layers_of(model), cut_uniformly(5, 3), 0, 1)) {
    const Chunk chunk(part);
    output = chunk.forward(output);
    parameters += chunk.parameters.size();
  }
  EXPECT_TRUE(output.equal(model->forward(input)));
  EXPECT_EQ(parameters, model->parameters().size());
}

TEST(PipelineChunk, RefusesChunksThatDoNotFit) {
  const Layers layers = layers_of(make_layers());
  EXPECT_THROW(chunks_of_rank(layers, {0, 2, 4, 5}, 0, 2), ConfigError);
  EXPECT_THROW(chunks_of_rank(layers, {0, 2, 4}, 2, 2), ConfigError);
  EXPECT_THROW(chunks_of_rank(layers, {}, 0, 1), ConfigError);
  EXPECT_THROW(chunks_of_rank(layers, {0, 2, 4}, 0, 2), ConfigError);  // Without the last layer.
  EXPECT_THROW(chunks_of_rank(layers, {0, 2, 6}, 0, 2), ConfigError);
  EXPECT_THROW(Chunk({}, {}), ConfigError);
}

}  // namespace
}  // namespace lockstep::pipeline
