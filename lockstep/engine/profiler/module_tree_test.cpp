// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/profiler/module_tree.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules.h>
#include <torch/nn/pimpl.h>

#include "lockstep/accelerator/prepare/prepare.h"
#include "lockstep/engine/profiler/flops_counter.h"
#include "lockstep/engine/profiler/module_report.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", torch::nn::Linear(8, 32));
    act = register_module("act", torch::nn::ReLU());
    down = register_module("down", torch::nn::Linear(32, 8));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(act(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::nn::ReLU act{nullptr};
};
TORCH_MODULE(Block);

struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(const at::Tensor& tied) { weight = register_parameter("weight", tied); }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(TiedHead);

/// A lookup, two blocks, and a head that has the lookup's weight.
struct TreeNetImpl : torch::nn::Module {
  TreeNetImpl() {
    words = register_module("words", torch::nn::Embedding(10, 8));
    blocks = register_module("blocks", torch::nn::Sequential(Block(), Block()));
    head = register_module("head", TiedHead(words->weight));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return at::log_softmax(head(blocks->forward(words(tokens))), -1);
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::Sequential blocks{nullptr};
  TiedHead head{nullptr};
};
TORCH_MODULE(TreeNet);

ModuleTree tree_of(TreeNet& net) {
  return {classes_of(*net), parameters_of(*net)};
}

size_t index_of(const ModuleTree& tree, const std::vector<std::string>& path) {
  size_t at = 0;
  for (const std::string& name : path) {
    for (size_t i = at + 1; i < tree.modules().size(); ++i) {
      if (tree.modules()[i].parent == at && tree.modules()[i].name == name) {
        at = i;
        break;
      }
    }
  }
  return at;
}

TEST(ModuleTree, ListsModulesInOrderAndCountsTiedParametersOnce) {
  TreeNet net;
  const ModuleTree tree = tree_of(net);
  ASSERT_EQ(tree.modules().size(), 12U);
  const int64_t block = 8 * 32 + 32 + 32 * 8 + 8;
  EXPECT_EQ(tree.modules()[0].type, "TreeNet");
  EXPECT_EQ(tree.modules()[0].parameters, 80 + 2 * block);
  const ModuleTree::Module& second = tree.modules()[index_of(tree, {"blocks", "1"})];
  EXPECT_EQ(second.type, "Block");
  EXPECT_EQ(second.depth, 2);
  EXPECT_EQ(second.parameters, block);
  EXPECT_EQ(tree.modules()[index_of(tree, {"head"})].parameters, 80);
  EXPECT_EQ(tree.modules()[index_of(tree, {"blocks", "1", "act"})].parameters, 0);
}

TEST(ModuleTree, AnOperationOnAParameterOrItsViewBelongsToTheParametersModule) {
  TreeNet net;
  const ModuleTree tree = tree_of(net);
  const at::Tensor weight = net->blocks[1]->named_parameters()["down.weight"];
  const size_t down = index_of(tree, {"blocks", "1", "down"});
  const auto owner_among = [&](const std::vector<c10::IValue>& inputs) {
    return tree.owner_of(c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
  };
  const auto owner = [&](const at::Tensor& tensor) { return owner_among({at::ones({2}), tensor}); };
  EXPECT_EQ(owner(weight), down);
  EXPECT_EQ(owner(weight.t().slice(0, 3, 5)), down);
  EXPECT_EQ(owner(weight.detach().clone()), std::nullopt);
  EXPECT_EQ(owner(net->head->weight), index_of(tree, {"words"})) << "who was registered first";
  const std::vector<at::Tensor> list{at::ones({1}), weight};
  EXPECT_EQ(owner_among({list}), down);
}

TEST(ModuleTree, AnOperationWithoutParametersBelongsToTheInnermostRunningModule) {
  TreeNet net;
  const ModuleTree tree = tree_of(net);
  const size_t up = index_of(tree, {"blocks", "0", "up"});
  const size_t down = index_of(tree, {"blocks", "0", "down"});
  const size_t next_up = index_of(tree, {"blocks", "1", "up"});
  // Each with a millisecond before it.
  const std::vector<ModuleEvent> events = {
      {std::nullopt, 1, 2, 0, 1},     // The model's: nothing was touched yet.
      {up, 3, 4, 10, 20},             //
      {std::nullopt, 5, 6, 0, 2},     // The block's.
      {down, 7, 8, 100, 200},         //
      {std::nullopt, 9, 10, 0, 4},    // Between two blocks: counts for their parent.
      {next_up, 11, 12, 1000, 2000},  //
      {std::nullopt, 13, 14, 0, 8}};
  const auto costs = tree.costs(events, 20);
  const auto of = [&](const std::vector<std::string>& path) { return costs[index_of(tree, path)]; };
  EXPECT_EQ(of({"blocks", "0", "up"}).flops, 20);
  EXPECT_EQ(of({"blocks", "0", "up"}).ms, 1);
  EXPECT_EQ(of({"blocks", "0"}).flops, 222);
  EXPECT_EQ(of({"blocks", "0"}).macs, 110);
  EXPECT_EQ(of({"blocks", "0"}).ms, 5) << "from the first touch to the last";
  EXPECT_EQ(of({"blocks"}).flops, 2226);
  EXPECT_EQ(of({}).flops, 2235);
  EXPECT_EQ(of({}).ms, 20) << "all of the forward";
  EXPECT_EQ(of({"head"}).ms, 0);
}

TEST(ModuleTree, TheTimeOfAForwardIsAttributedToTheModulesThatComputedIt) {
  TreeNet net;
  const ModuleTree tree = tree_of(net);
  FlopsCounter counter;
  for (int pass = 1; pass <= 2; ++pass) {
    counter.start(nullptr, &tree);
    net(at::arange(6));
    counter.stop();
    const auto& costs = counter.modules();
    const auto of = [&](const std::vector<std::string>& path) {
      return costs[index_of(tree, path)];
    };
    const double linear = 6 * 8 * 32;
    EXPECT_EQ(of({"blocks", "0", "up"}).macs, pass * linear);
    EXPECT_EQ(of({"blocks", "0", "down"}).flops, pass * 2 * linear);
    EXPECT_EQ(of({"blocks", "0"}).flops, pass * (4 * linear + 6 * 32)) << "with relu";
    EXPECT_EQ(of({"blocks", "0", "act"}).flops, 0);
    EXPECT_EQ(of({"words"}).macs, pass * 6 * 8 * 10) << "the tied head's product";
    double flops = 0;
    for (const auto& [unused, operation] : counter.operations()) {
      flops += operation.flops;
    }
    EXPECT_EQ(of({}).flops, flops) << "nothing is lost";
    EXPECT_GE(of({}).ms, of({"blocks"}).ms);
    EXPECT_GT(of({"blocks"}).ms, 0);
  }
  counter.clear();
  EXPECT_TRUE(counter.modules().empty());
}

TEST(ModuleReport, ShowsTheLargestClassesDownToADepth) {
  TreeNet net;
  const ModuleTree tree = tree_of(net);
  std::vector<ModuleTree::Cost> costs(tree.modules().size());
  costs[0] = {.macs = 5000, .flops = 10000, .ms = 2};
  costs[index_of(tree, {"blocks"})] = {.macs = 4000, .flops = 8000, .ms = 1.5};
  costs[index_of(tree, {"head"})] = {.macs = 900, .flops = 1800, .ms = 0.25};
  const std::string all = render_classes(tree, costs, -1, 2);
  EXPECT_THAT(
      all,
      HasSubstr("  depth 1:\n"
                "    params        Sequential 1.10 K, Embedding 80\n"
                "    MACs          Sequential 4.00 K, TiedHead 900\n"
                "    fwd latency   Sequential 1.500 ms, TiedHead 0.250 ms\n"));
  EXPECT_THAT(all, HasSubstr("depth 3:\n    params        Linear 1.10 K, ReLU 0\n"));
  const std::string top = render_classes(tree, costs, 0, 1);
  EXPECT_THAT(top, HasSubstr("  depth 0:\n    params        TreeNet 1.18 K\n"));
  EXPECT_THAT(top, Not(HasSubstr("depth 1")));
}

TEST(ModuleReport, ShowsEveryModuleBelowTheOneThatHoldsIt) {
  TreeNet net;
  const ModuleTree tree = tree_of(net);
  std::vector<ModuleTree::Cost> costs(tree.modules().size());
  costs[0] = {.macs = 5000, .flops = 10000, .ms = 2};
  costs[index_of(tree, {"blocks"})] = {.macs = 4000, .flops = 8000, .ms = 1.5};
  const std::string text = render_modules(tree, costs);
  EXPECT_THAT(
      text,
      HasSubstr("\n  TreeNet                               1.18 K  100.0%      5.00 K  100.0%      "
                "   2.000  100.0%     5.00 MFLOPS\n"));
  EXPECT_THAT(
      text,
      HasSubstr("\n    (blocks) Sequential                 1.10 K   93.2%      4.00 K   80.0%      "
                "   1.500   75.0%     5.33 MFLOPS\n"));
  EXPECT_THAT(
      text, HasSubstr("\n        (act) ReLU                           0       -           -\n"));
  EXPECT_LT(text.find("(words)"), text.find("(blocks)"));
  EXPECT_LT(text.find("(blocks)"), text.find("(0) Block"));
  EXPECT_THAT(text, HasSubstr("-: no parameters"));
}

}  // namespace
}  // namespace lockstep
