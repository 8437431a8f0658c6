// SPDX-License-Identifier: Apache-2.0
// An LSTM that keeps its state from batch to batch (truncated backpropagation through time).
#include <lockstep/lockstep.h>
#include <optional>
#include <tuple>

#include <nlohmann/json.hpp>  // for the state in checkpoints

#include <torch/torch.h>

namespace data = lockstep::data;
namespace optim = lockstep::optim;

namespace {

constexpr int64_t kSymbols = 5;
using Hidden = std::tuple<at::Tensor, at::Tensor>;

struct NetImpl : torch::nn::Module {
  torch::nn::Embedding embedding{register_module("embedding", torch::nn::Embedding(kSymbols, 16))};
  torch::nn::LSTM lstm{
      register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(16, 32).batch_first(true)))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(32, kSymbols))};

  /// tokens: int64 [rows, steps]. Returns scores [rows, steps, symbols] and the next state.
  std::pair<at::Tensor, Hidden> forward(
      const at::Tensor& tokens, const std::optional<Hidden>& hidden) {
    auto [output, next] = lstm->forward(embedding(tokens), hidden);
    return {head(output), next};
  }
};
TORCH_MODULE(Net);

int train(int64_t epochs) {
  lockstep::Accelerator accelerator({.project_dir = "runs/lstm"});
  data::set_seed(1);
  // Symbols with a period of 35, which is longer than a batch's 20 time steps.
  const auto corpus = torch::arange(16000).square().div(7, "floor").remainder(kSymbols);
  Net net;
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      optim::AdamW(net->parameters(), {.lr = 1e-2}),
      data::sequence_loader(corpus, {.rows = 8, .length = 20}));
  lockstep::SequenceState state(accelerator);
  accelerator.register_for_checkpointing(state);
  accelerator.resume_latest();

  for (const int64_t epoch : accelerator.epochs(epochs)) {
    double sum = 0;
    for (auto& batch : loader) {
      if (batch.position == 0) {
        state.reset();  // A new pass over the corpus.
      }
      std::optional<Hidden> hidden;
      if (!state.empty()) {
        hidden = Hidden(state.tensors()[0], state.tensors()[1]);
      }
      auto [scores, next] = model->forward(batch.data, hidden);
      const auto loss = torch::cross_entropy_loss(scores.flatten(0, 1), batch.target.flatten());
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      state.set({std::get<0>(next), std::get<1>(next)});  // Without its history.
      sum += accelerator.reduce(loss.detach(), lockstep::ReduceOp::kAvg).item<double>();
    }
    accelerator.print(
        "epoch " + std::to_string(epoch + 1) + ": loss " +
        std::to_string(sum / static_cast<double>(loader.size())));
    accelerator.save_state();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return train(argc > 1 ? std::stoll(argv[1]) : 3); });
}
